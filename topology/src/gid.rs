//! Chooses the GID of an RDMA port: RoCE v2 and routable, on a network device that is up.

use crate::machine::{Gid, GidKind, LinkLayer, Machine, RdmaPort};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A chosen entry of a GID table, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidChoice {
    /// Its index in the port's table.
    pub index: u16,
    /// The address.
    pub address: Ipv6Addr,
    /// Why this one.
    pub why: String,
}

/// Why no GID could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GidError {
    /// The index that was asked for is empty or beyond the table.
    #[error("gid index {index} is not in use; name one of: {table}")]
    NotInUse {
        /// The index that was asked for.
        index: u16,
        /// The entries in use.
        table: String,
    },
    /// No entry fits.
    #[error(
        "no gid is RoCE v2 with a routable address on a network device that is up; give the \
         network device an address, or name an index; the table is: {table}"
    )]
    NoneFits {
        /// The entries in use.
        table: String,
    },
    /// The table says nothing about protocols.
    #[error("the protocols of the gids are unknown, so name an index; the table is: {table}")]
    KindsUnknown {
        /// The entries in use.
        table: String,
    },
}

/// The IPv4 address that a GID stands for, if it does.
#[must_use]
pub fn ipv4_of(address: Ipv6Addr) -> Option<Ipv4Addr> {
    address.to_ipv4_mapped()
}

fn is_link_local(address: Ipv6Addr) -> bool {
    ipv4_of(address).map_or(address.is_unicast_link_local(), |v4| v4.is_link_local())
}

/// The entries of a table on one line, as errors show them.
fn table(port: &RdmaPort) -> String {
    if port.gids.is_empty() {
        return "empty".to_owned();
    }
    let mut text = String::new();
    for gid in &port.gids {
        let separator = if text.is_empty() { "" } else { ", " };
        let address = ipv4_of(gid.address).map_or(gid.address.to_string(), |v4| v4.to_string());
        write!(text, "{separator}{}: {} {address}", gid.index, kind_name(gid.kind))
            .expect("writing to a string cannot fail");
    }
    text
}

pub(crate) fn kind_name(kind: GidKind) -> &'static str {
    match kind {
        GidKind::InfiniBandOrRoceV1 => "IB/RoCE v1",
        GidKind::RoceV2 => "RoCE v2",
        GidKind::Unknown => "unknown kind",
    }
}

/// Chooses a GID of `port`. An explicit `wanted` index wins as long as the entry is in use. Else,
/// on Ethernet: RoCE v2 on a network device that is not down, IPv4 before global and unique-local
/// IPv6, then the lowest index; link-local addresses never (connections time out across routers and
/// on many adapters). On InfiniBand and others: the first entry in use. Private IPv4 addresses are
/// as good as any.
///
/// # Errors
/// When the wanted entry is not in use, when none fits, or when the table does not say which
/// entries are RoCE v2; each error prints the table.
pub fn choose_gid(
    machine: &Machine,
    port: &RdmaPort,
    wanted: Option<u16>,
) -> Result<GidChoice, GidError> {
    if let Some(index) = wanted {
        let entry = port.gids.iter().find(|gid| gid.index == index);
        let entry = entry.ok_or_else(|| GidError::NotInUse { index, table: table(port) })?;
        return Ok(chosen(entry, "named explicitly"));
    }
    if port.link_layer != Some(LinkLayer::Ethernet) {
        let first = port.gids.first().ok_or_else(|| GidError::NoneFits { table: table(port) })?;
        return Ok(chosen(first, "first entry in use"));
    }
    if !port.gids.is_empty() && port.gids.iter().all(|gid| gid.kind == GidKind::Unknown) {
        return Err(GidError::KindsUnknown { table: table(port) });
    }
    let is_down = |gid: &Gid| {
        let net = gid.net.as_ref().and_then(|name| machine.net_device(name));
        net.is_some_and(|net| !net.is_up())
    };
    let fits =
        |gid: &&Gid| gid.kind == GidKind::RoceV2 && !is_link_local(gid.address) && !is_down(gid);
    // A VLAN's GIDs stand in the same table; the port's own network device is meant first.
    let rank = |gid: &&Gid| (ipv4_of(gid.address).is_none(), gid.net != port.net, gid.index);
    let best = port.gids.iter().filter(fits).min_by_key(rank);
    let best = best.ok_or_else(|| GidError::NoneFits { table: table(port) })?;
    let why =
        if ipv4_of(best.address).is_some() { "RoCE v2, IPv4" } else { "RoCE v2, routable IPv6" };
    Ok(chosen(best, why))
}

fn chosen(gid: &Gid, why: &str) -> GidChoice {
    GidChoice { index: gid.index, address: gid.address, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::PortState;

    fn port(layer: LinkLayer, rows: &[(u16, GidKind, &str)]) -> RdmaPort {
        let gid = |&(index, kind, address): &(u16, GidKind, &str)| Gid {
            index,
            kind,
            address: address.parse().expect("an address"),
            net: None,
        };
        RdmaPort {
            number: 1,
            state: Some(PortState::Active),
            physical_state: None,
            link_layer: Some(layer),
            bits_per_second: None,
            mtu_bytes: None,
            net: None,
            gids: rows.iter().map(gid).collect(),
        }
    }

    fn choice(port: &RdmaPort, wanted: Option<u16>) -> Result<u16, GidError> {
        choose_gid(&Machine::default(), port, wanted).map(|choice| choice.index)
    }

    use GidKind::{InfiniBandOrRoceV1 as V1, RoceV2 as V2};

    #[test]
    fn the_routable_roce_v2_entry_is_chosen() {
        type Rows = [(u16, GidKind, &'static str)];
        let tables: [(&Rows, u16); 5] = [
            // A bond: link-local and the right address, each in both protocols.
            (
                &[
                    (0, V1, "fe80::ac0:11"),
                    (1, V2, "fe80::ac0:11"),
                    (2, V1, "::ffff:198.51.100.6"),
                    (3, V2, "::ffff:198.51.100.6"),
                ],
                3,
            ),
            // A private address is no reason to pass over it.
            (&[(0, V2, "fe80::1"), (1, V2, "::ffff:10.1.2.3")], 1),
            // IPv4 before IPv6.
            (&[(0, V2, "2001:db8::1"), (1, V2, "::ffff:192.0.2.1")], 1),
            // No IPv4 at all: a unique-local address will do.
            (&[(0, V2, "fe80::1"), (3, V2, "fd93::7")], 3),
            // IPv4 link-local is link-local.
            (&[(0, V2, "::ffff:169.254.1.1"), (5, V2, "2001:db8::2")], 5),
        ];
        for (rows, expected) in tables {
            assert_eq!(choice(&port(LinkLayer::Ethernet, rows), None), Ok(expected), "{rows:?}");
        }
    }

    #[test]
    fn an_explicit_index_wins_while_it_is_in_use() {
        let port = port(LinkLayer::Ethernet, &[(0, V2, "fe80::1"), (2, V2, "::ffff:192.0.2.1")]);
        assert_eq!(choice(&port, Some(0)), Ok(0));
        let refused = choice(&port, Some(1)).expect_err("index 1 is empty");
        assert!(matches!(refused, GidError::NotInUse { index: 1, .. }));
        assert!(refused.to_string().contains("2: RoCE v2 192.0.2.1"), "{refused}");
    }

    #[test]
    fn errors_print_the_table() {
        let only_local = port(LinkLayer::Ethernet, &[(0, V1, "fe80::1"), (1, V2, "fe80::1")]);
        let refused = choice(&only_local, None).expect_err("nothing fits");
        assert!(
            refused.to_string().ends_with("0: IB/RoCE v1 fe80::1, 1: RoCE v2 fe80::1"),
            "{refused}"
        );
        let unknown = port(LinkLayer::Ethernet, &[(2, GidKind::Unknown, "::ffff:192.0.2.1")]);
        assert!(matches!(choice(&unknown, None), Err(GidError::KindsUnknown { .. })));
        let empty = port(LinkLayer::Ethernet, &[]);
        assert!(choice(&empty, None).expect_err("empty").to_string().ends_with("empty"));
    }

    #[test]
    fn infiniband_takes_its_first_entry() {
        let port = port(LinkLayer::InfiniBand, &[(0, V1, "fe80::98")]);
        assert_eq!(choice(&port, None), Ok(0));
    }
}
