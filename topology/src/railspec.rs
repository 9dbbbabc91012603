//! The grammar of rails given by hand, one for the command line, the configuration and the
//! bindings.
//!
//! ```text
//! rail      = target *( "," key "=" value ) [ "@" endpoint *( ";" endpoint ) ]
//! target    = [ "rdma:" ] device [ ":" port [ ":" gid [ ":" weight [ ":" mtu ] ] ] ]
//!           / "tcp:" ( interface / address )
//!           / "file:" directory
//!           / "sim:" name / "null:" name
//! key       = "name" / "port" / "gid" / "weight" / "mtu" / "hops" / "class" / "cpu" / "node"
//!           / "memory-node" / "source" / "nodelay" / "enabled"
//! endpoint  = advertised [ "->" listener ]          each host or host:port
//! ```
//!
//! A field that is left out is `None`, which means "found out" and never a number; a field that
//! cannot be read is an error. In directories and names `%2C`, `%40` and `%25` stand for `,`, `@`,
//! `%`.

use crate::id::{CpuId, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What a rail given by hand goes through.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RailTarget {
    /// A port of an RDMA device.
    Rdma(String),
    /// A network interface, by name.
    TcpInterface(String),
    /// A network interface, by one of its addresses.
    TcpAddress(IpAddr),
    /// A local directory.
    File(String),
    /// A simulated path.
    Simulated(String),
    /// A path that completes at once and moves nothing.
    Null(String),
}

/// An endpoint a rail may serve, and where to dial it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailEndpoint {
    /// The endpoint as placements name it: `host:port`, or a bare host for all its ports.
    pub advertised: String,
    /// Where to connect instead.
    pub listener: Option<String>,
}

/// A rail given by hand. `None` means that the value is found out, not a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailSpec {
    /// What it goes through.
    pub target: RailTarget,
    /// Its name in statistics and options; the target's by default.
    pub name: Option<String>,
    /// RDMA: the port, from 1.
    pub port: Option<u32>,
    /// RDMA: index in the GID table.
    pub gid: Option<u16>,
    /// Weight for policies that divide by weight, from 1.
    pub weight: Option<u32>,
    /// RDMA: the path MTU in bytes, 256 to 4,096 in powers of two.
    pub mtu_bytes: Option<u32>,
    /// RDMA: the hop limit, from 1.
    pub hops: Option<u8>,
    /// RDMA: the traffic class.
    pub traffic_class: Option<u8>,
    /// The CPU of its poller.
    pub cpu: Option<CpuId>,
    /// The node its poller's core is chosen from.
    pub node: Option<NodeId>,
    /// The node of its buffers.
    pub memory_node: Option<NodeId>,
    /// TCP: the address to connect from.
    pub source: Option<IpAddr>,
    /// TCP: whether small segments are sent at once (`TCP_NODELAY`).
    pub no_delay: Option<bool>,
    /// Whether it is used from the start.
    pub enabled: Option<bool>,
    /// The endpoints it may serve; empty means any.
    pub endpoints: Vec<RailEndpoint>,
}

/// Why a rail specification is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RailSpecError {
    /// No device, interface or directory is named.
    #[error("rail '{spec}' names no device; write one, as in mlx5_0:1 or tcp:eth0 or file:/data")]
    NoTarget {
        /// What was given.
        spec: String,
    },
    /// A field cannot be read.
    #[error("rail '{spec}': {field} '{value}' is not {expected}")]
    BadField {
        /// What was given.
        spec: String,
        /// The field.
        field: &'static str,
        /// Its text.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A key that does not exist, or not for this sort of rail.
    #[error("rail '{spec}': '{key}' is no option of such a rail; known are: {known}")]
    UnknownKey {
        /// What was given.
        spec: String,
        /// The key.
        key: String,
        /// The keys there are.
        known: &'static str,
    },
    /// A field is given twice.
    #[error("rail '{spec}': {field} is given twice; leave one out")]
    Twice {
        /// What was given.
        spec: String,
        /// The field.
        field: String,
    },
    /// More fields than the grammar has.
    #[error("rail '{spec}': nothing may follow '{last}'; the form is device:port:gid:weight:mtu")]
    TooManyFields {
        /// What was given.
        spec: String,
        /// The last field that is allowed.
        last: String,
    },
    /// Two rails are the same, or have the same name.
    #[error("rails '{first}' and '{second}' have the same {what}; change one")]
    Duplicate {
        /// The first.
        first: String,
        /// The second.
        second: String,
        /// What they share.
        what: &'static str,
    },
}

const RDMA_KEYS: &str =
    "name, port, gid, weight, mtu, hops, class, cpu, node, memory-node, enabled";
const TCP_KEYS: &str = "name, weight, source, nodelay, cpu, node, memory-node, enabled";
const OTHER_KEYS: &str = "name, weight, cpu, node, memory-node, enabled";
const POSITIONS: [&str; 4] = ["port", "gid", "weight", "mtu"];

impl RailTarget {
    fn keys(&self) -> &'static str {
        match self {
            Self::Rdma(_) => RDMA_KEYS,
            Self::TcpInterface(_) | Self::TcpAddress(_) => TCP_KEYS,
            Self::File(_) | Self::Simulated(_) | Self::Null(_) => OTHER_KEYS,
        }
    }
}

impl fmt::Display for RailTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma(device) => write!(f, "rdma:{}", escape(device)),
            Self::TcpInterface(name) => write!(f, "tcp:{}", escape(name)),
            Self::TcpAddress(address) => write!(f, "tcp:{address}"),
            Self::File(directory) => write!(f, "file:{}", escape(directory)),
            Self::Simulated(name) => write!(f, "sim:{}", escape(name)),
            Self::Null(name) => write!(f, "null:{}", escape(name)),
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('%', "%25").replace(',', "%2C").replace('@', "%40")
}

/// Undoes [`escape`]; any other use of `%` is refused, so that the two are exact opposites.
fn unescape(text: &str) -> Option<String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        plain.push_str(before);
        plain.push(match after.get(..2)? {
            "25" => '%',
            "2C" | "2c" => ',',
            "40" => '@',
            _ => return None,
        });
        rest = &after[2..];
    }
    plain.push_str(rest);
    Some(plain)
}

struct Parser<'a> {
    spec: &'a str,
    seen: BTreeMap<String, ()>,
}

impl Parser<'_> {
    fn bad(&self, field: &'static str, value: &str, expected: &'static str) -> RailSpecError {
        let (spec, value) = (self.spec.to_owned(), value.to_owned());
        RailSpecError::BadField { spec, field, value, expected }
    }

    fn number<T: FromStr + PartialOrd + From<u8>>(
        &self,
        field: &'static str,
        value: &str,
        least: u8,
        expected: &'static str,
    ) -> Result<Option<T>, RailSpecError> {
        let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
        let number = digits.then(|| value.parse::<T>().ok()).flatten();
        match number.filter(|number| *number >= T::from(least)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.bad(field, value, expected)),
        }
    }

    fn flag(&self, field: &'static str, value: &str) -> Result<Option<bool>, RailSpecError> {
        match value {
            "on" | "yes" | "true" => Ok(Some(true)),
            "off" | "no" | "false" => Ok(Some(false)),
            _ => Err(self.bad(field, value, "on or off")),
        }
    }

    fn plain(&self, field: &'static str, value: &str) -> Result<String, RailSpecError> {
        let plain = unescape(value).filter(|plain| !plain.trim().is_empty());
        plain.ok_or_else(|| self.bad(field, value, "a name (% is written %25, comma %2C, @ %40)"))
    }

    fn target<'t>(&self, text: &'t str) -> Result<(RailTarget, Option<&'t str>), RailSpecError> {
        let no_target = || RailSpecError::NoTarget { spec: self.spec.to_owned() };
        let named = |name: &str| match name.trim().is_empty() {
            true => Err(no_target()),
            false => self.plain("target", name),
        };
        if let Some(name) = text.strip_prefix("tcp:") {
            let target = match name.trim_matches(['[', ']']).parse() {
                Ok(address) => RailTarget::TcpAddress(address),
                Err(_) => RailTarget::TcpInterface(named(name)?),
            };
            return Ok((target, None));
        }
        type Make = fn(String) -> RailTarget;
        let kinds: [(&str, Make); 3] = [
            ("file:", RailTarget::File),
            ("sim:", RailTarget::Simulated),
            ("null:", RailTarget::Null),
        ];
        for (prefix, make) in kinds {
            if let Some(name) = text.strip_prefix(prefix) {
                return Ok((make(named(name)?), None));
            }
        }
        let text = text.strip_prefix("rdma:").unwrap_or(text);
        let (device, rest) = text.split_once(':').map_or((text, None), |(d, r)| (d, Some(r)));
        Ok((RailTarget::Rdma(named(device)?), rest))
    }

    fn set(&mut self, rail: &mut RailSpec, key: &str, value: &str) -> Result<(), RailSpecError> {
        let known = rail.target.keys();
        if !known.split(", ").any(|name| name == key) {
            let (spec, key) = (self.spec.to_owned(), key.to_owned());
            return Err(RailSpecError::UnknownKey { spec, key, known });
        }
        if self.seen.insert(key.to_owned(), ()).is_some() {
            return Err(RailSpecError::Twice { spec: self.spec.to_owned(), field: key.to_owned() });
        }
        match key {
            "name" => rail.name = Some(self.plain("name", value)?),
            "port" => rail.port = self.number("port", value, 1, "a port number from 1")?,
            "gid" => rail.gid = self.number("gid", value, 0, "an index of the GID table")?,
            "weight" => rail.weight = self.number("weight", value, 1, "a number from 1")?,
            "mtu" => rail.mtu_bytes = self.mtu(value)?,
            "hops" => rail.hops = self.number("hops", value, 1, "a number from 1 to 255")?,
            "class" => rail.traffic_class = self.number("class", value, 0, "a number to 255")?,
            "cpu" => rail.cpu = self.number("cpu", value, 0, "a cpu number")?.map(CpuId),
            "node" => rail.node = self.number("node", value, 0, "a node number")?.map(NodeId),
            "memory-node" => {
                let node = self.number("memory-node", value, 0, "a node number")?;
                rail.memory_node = node.map(NodeId);
            }
            "source" => {
                let source = value.parse().map_err(|_| self.bad("source", value, "an IP address"));
                rail.source = Some(source?);
            }
            "nodelay" => rail.no_delay = self.flag("nodelay", value)?,
            // The list of known keys has no other.
            _ => rail.enabled = self.flag("enabled", value)?,
        }
        Ok(())
    }

    fn mtu(&self, value: &str) -> Result<Option<u32>, RailSpecError> {
        let expected = "256, 512, 1024, 2048 or 4096";
        let mtu: Option<u32> = self.number("mtu", value, 1, expected)?;
        match mtu.filter(|mtu| mtu.is_power_of_two() && (256..=4096).contains(mtu)) {
            Some(mtu) => Ok(Some(mtu)),
            None => Err(self.bad("mtu", value, expected)),
        }
    }

    fn endpoint(&self, text: &str) -> Result<RailEndpoint, RailSpecError> {
        let (advertised, listener) =
            text.split_once("->").map_or((text, None), |(a, l)| (a, Some(l)));
        for host in [Some(advertised), listener].into_iter().flatten() {
            if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c == '@') {
                return Err(self.bad("endpoint", text, "host:port, host, or advertised->listener"));
            }
        }
        let (advertised, listener) = (advertised.to_owned(), listener.map(str::to_owned));
        Ok(RailEndpoint { advertised, listener })
    }
}

impl RailSpec {
    /// A rail through `target`, of which everything else is found out.
    #[must_use]
    pub fn new(target: RailTarget) -> Self {
        Self {
            target,
            name: None,
            port: None,
            gid: None,
            weight: None,
            mtu_bytes: None,
            hops: None,
            traffic_class: None,
            cpu: None,
            node: None,
            memory_node: None,
            source: None,
            no_delay: None,
            enabled: None,
            endpoints: Vec::new(),
        }
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let text = |key, value: Option<String>| value.map(|value| (key, value));
        let flag = |value: Option<bool>| value.map(|on| if on { "on" } else { "off" }.to_owned());
        let options = [
            text("name", self.name.as_deref().map(escape)),
            text("port", self.port.map(|v| v.to_string())),
            text("gid", self.gid.map(|v| v.to_string())),
            text("weight", self.weight.map(|v| v.to_string())),
            text("mtu", self.mtu_bytes.map(|v| v.to_string())),
            text("hops", self.hops.map(|v| v.to_string())),
            text("class", self.traffic_class.map(|v| v.to_string())),
            text("cpu", self.cpu.map(|v| v.to_string())),
            text("node", self.node.map(|v| v.to_string())),
            text("memory-node", self.memory_node.map(|v| v.to_string())),
            text("source", self.source.map(|v| v.to_string())),
            text("nodelay", flag(self.no_delay)),
            text("enabled", flag(self.enabled)),
        ];
        options.into_iter().flatten().collect()
    }
}

impl FromStr for RailSpec {
    type Err = RailSpecError;

    fn from_str(spec: &str) -> Result<Self, Self::Err> {
        let mut parser = Parser { spec, seen: BTreeMap::new() };
        let (path, endpoints) = spec.split_once('@').map_or((spec, None), |(p, e)| (p, Some(e)));
        let mut parts = path.trim().split(',');
        let (target, positions) = parser.target(parts.next().unwrap_or_default())?;
        let mut rail = Self::new(target);
        for (place, value) in positions.iter().flat_map(|text| text.split(':')).enumerate() {
            let Some(key) = POSITIONS.get(place) else {
                let last = "mtu".to_owned();
                return Err(RailSpecError::TooManyFields { spec: spec.to_owned(), last });
            };
            parser.set(&mut rail, key, value)?;
        }
        for option in parts {
            let Some((key, value)) = option.split_once('=') else {
                return Err(parser.bad("option", option, "of the form key=value"));
            };
            parser.set(&mut rail, key.trim(), value.trim())?;
        }
        let endpoints = endpoints.iter().flat_map(|text| text.split(';'));
        rail.endpoints = endpoints.map(|text| parser.endpoint(text)).collect::<Result<_, _>>()?;
        Ok(rail)
    }
}

impl fmt::Display for RailSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.target)?;
        for (key, value) in self.options() {
            write!(f, ",{key}={value}")?;
        }
        for (place, endpoint) in self.endpoints.iter().enumerate() {
            let separator = if place == 0 { '@' } else { ';' };
            write!(f, "{separator}{}", endpoint.advertised)?;
            if let Some(listener) = &endpoint.listener {
                write!(f, "->{listener}")?;
            }
        }
        Ok(())
    }
}

/// Reads several rails and checks that no two are the same or have the same name.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse_rails<S: AsRef<str>>(specs: &[S]) -> Result<Vec<RailSpec>, RailSpecError> {
    let rails: Vec<RailSpec> =
        specs.iter().map(|spec| spec.as_ref().parse()).collect::<Result<_, _>>()?;
    for (place, rail) in rails.iter().enumerate() {
        for earlier in &rails[..place] {
            let same_path = earlier.target == rail.target
                && earlier.port == rail.port
                && (earlier.endpoints.is_empty() || earlier.endpoints == rail.endpoints);
            let what = match () {
                () if rail.name.is_some() && rail.name == earlier.name => "name",
                () if same_path => "device, port and endpoints",
                () => continue,
            };
            let (first, second) = (earlier.to_string(), rail.to_string());
            return Err(RailSpecError::Duplicate { first, second, what });
        }
    }
    Ok(rails)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rail(text: &str) -> RailSpec {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn the_positional_form_and_the_keys_say_the_same() {
        let short = rail("mlx5_0:2:3:4:2048@10.0.0.1:9000;storage->10.0.0.2:9001");
        let long =
            rail("rdma:mlx5_0,mtu=2048,gid=3,port=2,weight=4@10.0.0.1:9000;storage->10.0.0.2:9001");
        assert_eq!(short, long);
        assert_eq!(short.endpoints[1].listener.as_deref(), Some("10.0.0.2:9001"));
        assert_eq!((short.port, short.gid, short.weight), (Some(2), Some(3), Some(4)));
        let bare = rail("mlx5_0");
        assert_eq!((bare.port, bare.gid, bare.weight, bare.mtu_bytes), (None, None, None, None));
    }

    #[test]
    fn each_sort_of_rail_is_read() {
        assert_eq!(rail("tcp:eth0").target, RailTarget::TcpInterface("eth0".into()));
        let v6 = "fd00::1".parse().expect("an address");
        assert_eq!(rail("tcp:[fd00::1],nodelay=on").target, RailTarget::TcpAddress(v6));
        assert_eq!(rail("tcp:fd00::1").target, RailTarget::TcpAddress(v6));
        assert_eq!(rail("file:/a%2Cb%40c%25").target, RailTarget::File("/a,b@c%".into()));
        assert_eq!(rail("sim:a,cpu=3,memory-node=1").memory_node, Some(NodeId(1)));
        assert_eq!(rail("null:x,enabled=off").enabled, Some(false));
    }

    #[test]
    fn a_field_that_cannot_be_read_is_an_error_and_never_a_default() {
        let bad_fields = [
            ("mlx5_0:x", "port"),
            ("mlx5_0:0", "port"),
            ("mlx5_0:", "port"),
            ("mlx5_0:1:", "gid"),
            ("mlx5_0:1:65536", "gid"),
            ("mlx5_0:1:3:0", "weight"),
            ("mlx5_0:1:3:1:1000", "mtu"),
            ("mlx5_0:1:3:1:8192", "mtu"),
            ("mlx5_0,hops=256", "hops"),
            ("mlx5_0,cpu=-1", "cpu"),
            ("mlx5_0,enabled=maybe", "enabled"),
            ("mlx5_0,port", "option"),
            ("mlx5_0@", "endpoint"),
            ("mlx5_0@a;;b", "endpoint"),
            ("mlx5_0@a->", "endpoint"),
            ("file:/a%20b", "target"),
            ("tcp:eth0,source=here", "source"),
        ];
        for (text, expected) in bad_fields {
            match text.parse::<RailSpec>() {
                Err(RailSpecError::BadField { field, .. }) => assert_eq!(field, expected, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        for text in ["", ":1", "tcp:", "file:", "rdma:", ",port=1", " "] {
            assert!(
                matches!(text.parse::<RailSpec>(), Err(RailSpecError::NoTarget { .. })),
                "{text}"
            );
        }
        let unknown = "file:/a,gid=3".parse::<RailSpec>();
        assert!(matches!(unknown, Err(RailSpecError::UnknownKey { .. })), "{unknown:?}");
        let twice = "mlx5_0:1,port=2".parse::<RailSpec>();
        assert!(matches!(twice, Err(RailSpecError::Twice { .. })), "{twice:?}");
        let many = "mlx5_0:1:3:1:1024:5".parse::<RailSpec>();
        assert!(matches!(many, Err(RailSpecError::TooManyFields { .. })), "{many:?}");
    }

    #[test]
    fn rails_that_are_the_same_are_refused() {
        let same = parse_rails(&["mlx5_0:1", "mlx5_1:1", "mlx5_0:1:3"]);
        assert!(matches!(same, Err(RailSpecError::Duplicate { .. })), "{same:?}");
        let names = parse_rails(&["mlx5_0,name=a", "mlx5_1,name=a"]);
        assert!(matches!(names, Err(RailSpecError::Duplicate { what: "name", .. })), "{names:?}");
        let apart = parse_rails(&["mlx5_0:1@a:1", "mlx5_0:1@b:1", "mlx5_0:2"]);
        assert_eq!(apart.map(|rails| rails.len()), Ok(3));
    }

    proptest! {
        #[test]
        fn printing_and_reading_gives_the_same_rail(
            name in "[a-z0-9_/.,@%-]{1,12}",
            port in proptest::option::of(1_u32..20),
            gid in proptest::option::of(any::<u16>()),
            node in proptest::option::of(any::<u16>()),
            enabled in proptest::option::of(any::<bool>()),
            endpoints in proptest::collection::vec("[a-z0-9.:]{1,9}", 0..3),
        ) {
            let rail = RailSpec {
                port,
                gid,
                node: node.map(NodeId),
                enabled,
                endpoints: endpoints
                    .into_iter()
                    .map(|advertised| RailEndpoint { advertised, listener: None })
                    .collect(),
                ..RailSpec::new(RailTarget::Rdma(name))
            };
            prop_assert_eq!(rail.to_string().parse(), Ok(rail));
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = text.parse::<RailSpec>();
        }
    }
}
