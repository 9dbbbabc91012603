//! Traces of many reads, for people and JSON: what they add up to, and the slowest of them.

use std::fmt;
use std::time::Duration;

use railring::{ReadTrace, TraceRail, TraceRecord, TraceStages};
use serde::Serialize;

use crate::output::{Align, Table};
use crate::units::{Bytes, Count, Time, plural, rate, ratio};

/// What the traces of an object's reads add up to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traced {
    reads: u64,
    stages: TraceStages,
    delivery_ns: u64,
    rails: Vec<RailSum>,
    /// The read that took longest, and where in the object it begins.
    slowest: Option<(u64, ReadTrace)>,
}

/// What a rail did for all of them.
#[derive(Clone, Debug, Default, Serialize)]
struct RailSum {
    rail: String,
    kind: String,
    bytes: u64,
    moved_bytes: u64,
    pieces: u64,
    attempts: u64,
    failures: u64,
    steals: u64,
    /// Of each read by itself: reads that ran at the same time count each.
    busy_ns: u64,
}

impl RailSum {
    fn new(rail: &TraceRail) -> Self {
        let mut sum = RailSum {
            rail: rail.name.to_string(),
            kind: rail.kind.to_string(),
            ..RailSum::default()
        };
        sum.add(rail);
        sum
    }

    fn add(&mut self, rail: &TraceRail) {
        self.bytes += rail.bytes;
        self.moved_bytes += rail.moved_bytes;
        self.pieces += u64::from(rail.pieces);
        self.attempts += u64::from(rail.attempts);
        self.failures += u64::from(rail.failures);
        self.steals += u64::from(rail.steals);
        self.busy_ns += rail.busy_ns;
    }
}

impl Traced {
    /// Adds the trace of the read that begins at `offset` of the object.
    pub(crate) fn add(&mut self, trace: &ReadTrace, offset: u64) {
        self.reads += 1;
        self.stages += trace.stages;
        self.delivery_ns += trace.delivery_ns;
        if self.rails.is_empty() {
            self.rails.extend(trace.rails.iter().map(RailSum::new));
        } else {
            self.rails.iter_mut().zip(&trace.rails).for_each(|(sum, rail)| sum.add(rail));
        }
        match &mut self.slowest {
            Some((_, slowest)) if slowest.latency_ns() >= trace.latency_ns() => {}
            Some((at, slowest)) => {
                *at = offset;
                slowest.clone_from(trace);
            }
            none => *none = Some((offset, trace.clone())),
        }
    }

    pub(crate) fn report(&self) -> TracedReport {
        TracedReport {
            reads: self.reads,
            bottleneck: self.stages.bottleneck().map(|verdict| verdict.to_string()),
            stages: Stages::new(&self.stages, self.delivery_ns),
            rails: self.rails.clone(),
            slowest: self.slowest.as_ref().map(|(offset, trace)| Slowest::new(*offset, trace)),
        }
    }

    /// Each stage with its share of the whole.
    fn shares(&self) -> String {
        let stages = &self.stages;
        let named = [
            ("plan", stages.plan_ns),
            ("queue", stages.queue_ns),
            ("wire", stages.wire_ns),
            ("disk", stages.disk_ns),
            ("verify", stages.verify_ns),
            ("publish", stages.publish_ns),
        ];
        let share = |(name, time): (&str, u64)| {
            let percent = 100.0 * ratio(time, stages.wall_ns());
            format!("{name} {} ({percent:.0} %)", Time::from_ns(time))
        };
        let shown = named.into_iter().filter(|(_, time)| *time > 0);
        shown.map(share).collect::<Vec<_>>().join(", ")
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("rail", Align::Left),
            ("bytes", Align::Right),
            ("moved", Align::Right),
            ("pieces", Align::Right),
            ("attempts", Align::Right),
            ("failed", Align::Right),
            ("stolen", Align::Right),
            ("busy", Align::Right),
            ("rate per read", Align::Right),
        ]);
        for rail in &self.rails {
            table.row(vec![
                rail.rail.clone(),
                Bytes(rail.bytes).to_string(),
                Bytes(rail.moved_bytes).to_string(),
                Count(rail.pieces).to_string(),
                Count(rail.attempts).to_string(),
                Count(rail.failures).to_string(),
                Count(rail.steals).to_string(),
                Time::from_ns(rail.busy_ns).to_string(),
                rate(rail.moved_bytes, Duration::from_nanos(rail.busy_ns)).to_string(),
            ]);
        }
        table
    }
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((offset, slowest)) = &self.slowest else { return f.write_str("nothing was read") };
        let reads = plural(self.reads, "read", "reads");
        let wall = Time::from_ns(self.stages.wall_ns());
        let verdict = self.stages.bottleneck();
        let verdict = verdict.map_or_else(|| "nothing".to_owned(), |verdict| verdict.to_string());
        writeln!(f, "{reads}, {wall} of reading, several at once; mostly waited for: {verdict}")?;
        writeln!(f, "  {}", self.shares())?;
        writeln!(f, "  from the ends to their being seen: {}", Time::from_ns(self.delivery_ns))?;
        self.table().lines().iter().try_for_each(|line| writeln!(f, "{line}"))?;
        write!(f, "the slowest begins at byte {offset}:\n{slowest}")
    }
}

/// The same, as JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TracedReport {
    reads: u64,
    /// What they mostly waited for.
    bottleneck: Option<String>,
    /// Sums over all reads, which overlap.
    stages: Stages,
    rails: Vec<RailSum>,
    slowest: Option<Slowest>,
}

#[derive(Clone, Debug, Serialize)]
struct Stages {
    wall_ns: u64,
    plan_ns: u64,
    queue_ns: u64,
    wire_ns: u64,
    disk_ns: u64,
    verify_ns: u64,
    publish_ns: u64,
    lone_ns: u64,
    /// After the end; not part of `wall_ns`.
    delivery_ns: u64,
}

impl Stages {
    fn new(stages: &TraceStages, delivery_ns: u64) -> Self {
        Stages {
            wall_ns: stages.wall_ns(),
            plan_ns: stages.plan_ns,
            queue_ns: stages.queue_ns,
            wire_ns: stages.wire_ns,
            disk_ns: stages.disk_ns,
            verify_ns: stages.verify_ns,
            publish_ns: stages.publish_ns,
            lone_ns: stages.lone_ns,
            delivery_ns,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct Slowest {
    offset: u64,
    bytes: u64,
    status: String,
    retries: u32,
    bottleneck: Option<String>,
    stages: Stages,
    rails: Vec<RailSum>,
    records: Vec<Record>,
    records_dropped: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Record {
    kind: String,
    of: String,
    stripe: u32,
    offset: u64,
    bytes: u64,
    rail: Option<String>,
    attempt: u8,
    status: String,
    from_ns: u64,
    to_ns: u64,
}

impl Record {
    fn new(record: &TraceRecord, rails: &[TraceRail]) -> Self {
        let rail = record.rail.and_then(|rail| rails.get(usize::from(rail)));
        Record {
            kind: record.kind.to_string(),
            of: record.of.to_string(),
            stripe: record.stripe,
            offset: record.offset,
            bytes: record.bytes,
            rail: rail.map(|rail| rail.name.to_string()),
            attempt: record.attempt,
            status: record.status.to_string(),
            from_ns: record.from_ns,
            to_ns: record.to_ns,
        }
    }
}

impl Slowest {
    fn new(offset: u64, trace: &ReadTrace) -> Self {
        let records = trace.records.iter().map(|record| Record::new(record, &trace.rails));
        Slowest {
            offset,
            bytes: trace.len_bytes,
            status: trace.status.to_string(),
            retries: trace.retries,
            bottleneck: trace.bottleneck().map(|verdict| verdict.to_string()),
            stages: Stages::new(&trace.stages, trace.delivery_ns),
            rails: trace.rails.iter().map(RailSum::new).collect(),
            records: records.collect(),
            records_dropped: trace.records_dropped,
        }
    }
}
