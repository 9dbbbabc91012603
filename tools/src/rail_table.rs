//! What the rails of an engine did, for people and JSON.

use railring::{RailErrors, RailStats};
use serde::Serialize;

use crate::output::{Align, Table};
use crate::units::{Bytes, Count, Rate, Time};

/// One line per rail, and one about all of them.
pub(crate) fn lines(engine: &railring::Engine, rails: &[RailStats]) -> Vec<String> {
    let mut table = Table::new(&[
        ("rail", Align::Left),
        ("health", Align::Left),
        ("bytes", Align::Right),
        ("pieces", Align::Right),
        ("rate", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("peak", Align::Right),
        ("retries", Align::Right),
        ("stolen", Align::Right),
        ("registered", Align::Right),
        ("connections", Align::Right),
        ("node", Align::Right),
        ("device", Align::Left),
        ("errors", Align::Left),
    ]);
    rails.iter().for_each(|rail| table.row(row(rail)));
    let mut lines = table.lines();
    lines.push(engine.stats().to_string());
    lines
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

fn row(rail: &RailStats) -> Vec<String> {
    let quantile = |q| or_dash(rail.latency.quantile_ns(q).map(|ns| Time::from_ns(ns).to_string()));
    let device = match (&rail.device, &rail.pci) {
        (Some(device), Some(pci)) => format!("{device} {pci}"),
        (device, pci) => or_dash(device.clone().or_else(|| pci.clone())),
    };
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = Rate(rail.rate_bytes_per_s as f64);
    vec![
        rail.info.name.clone(),
        rail.health.to_string(),
        Bytes(rail.bytes).to_string(),
        Count(rail.pieces).to_string(),
        rate.to_string(),
        quantile(0.5),
        quantile(0.99),
        Count(rail.in_flight_peak).to_string(),
        Count(rail.retries).to_string(),
        Count(rail.steals).to_string(),
        Bytes(rail.registered_bytes).to_string(),
        format!("{}/{}", rail.connections(), rail.connections_made),
        or_dash(rail.node.map(|node| node.to_string())),
        device,
        rail.errors.to_string(),
    ]
}

/// One rail's counters as data.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RailReport {
    rail: String,
    kind: String,
    backend: String,
    health: String,
    cooldown_left_ns: u64,
    weight: u32,
    rate_bytes_per_s: u64,
    bytes: u64,
    pieces: u64,
    failed: u64,
    errors: Errors,
    timeouts: u64,
    cancelled: u64,
    flushed: u64,
    stuck: u64,
    mismatches: u64,
    retries: u64,
    steals: u64,
    in_flight: u64,
    in_flight_peak: u64,
    registered_bytes: u64,
    connections_made: u64,
    connections_retired: u64,
    latency_p50_ns: Option<u64>,
    latency_p99_ns: Option<u64>,
    device: Option<String>,
    listeners: Vec<String>,
    pci: Option<String>,
    node: Option<u32>,
    pinned: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Errors {
    path: u64,
    timed_out: u64,
    peer: u64,
    stale: u64,
    data: u64,
    full: u64,
    caller: u64,
    other: u64,
}

impl From<RailErrors> for Errors {
    fn from(errors: RailErrors) -> Self {
        let RailErrors { path, timed_out, peer, stale, data, full, caller, other } = errors;
        Errors { path, timed_out, peer, stale, data, full, caller, other }
    }
}

impl RailReport {
    pub(crate) fn new(rail: &RailStats) -> Self {
        RailReport {
            rail: rail.info.name.clone(),
            kind: rail.info.kind.to_string(),
            backend: rail.link.backend.clone(),
            health: rail.health.to_string(),
            cooldown_left_ns: u64::try_from(rail.cooldown_left.as_nanos()).unwrap_or(u64::MAX),
            weight: rail.info.weight,
            rate_bytes_per_s: rail.rate_bytes_per_s,
            bytes: rail.bytes,
            pieces: rail.pieces,
            failed: rail.failed,
            errors: rail.errors.into(),
            timeouts: rail.timeouts,
            cancelled: rail.cancelled,
            flushed: rail.flushed,
            stuck: rail.stuck,
            mismatches: rail.mismatches,
            retries: rail.retries,
            steals: rail.steals,
            in_flight: rail.in_flight,
            in_flight_peak: rail.in_flight_peak,
            registered_bytes: rail.registered_bytes,
            connections_made: rail.connections_made,
            connections_retired: rail.connections_retired,
            latency_p50_ns: rail.latency.quantile_ns(0.5),
            latency_p99_ns: rail.latency.quantile_ns(0.99),
            device: rail.device.clone(),
            listeners: rail.info.listeners.clone(),
            pci: rail.pci.clone(),
            node: rail.node,
            pinned: rail.is_pinned(),
        }
    }
}
