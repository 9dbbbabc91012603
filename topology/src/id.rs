//! The identities of CPUs, memory nodes and PCI functions: what the kernel calls them, never an
//! index.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A logical CPU by the kernel's own number (`cpu17`). Never an index: numbers may be sparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuId(pub u16);

/// A memory node by the kernel's own number (`node2`). Never an index: numbers may be sparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u16);

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a PCI function sits: `domain:bus:device.function`, all hexadecimal. Virtual machines use
/// domains past 16 bits, so the domain is 32 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain ("segment").
    pub domain: u32,
    /// Bus number within the domain.
    pub bus: u8,
    /// Device number on the bus, at most 31.
    pub device: u8,
    /// Function number of the device, at most 7.
    pub function: u8,
}

impl PciAddress {
    /// The same slot with function 0: what all functions of one card share.
    #[must_use]
    pub fn slot(self) -> Self {
        Self { function: 0, ..self }
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Text that is not a PCI address of the form `dddd:bb:dd.f`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a PCI address; write domain:bus:device.function in hexadecimal, as in \
         0000:81:00.0"
)]
pub struct PciAddressError {
    /// What was given.
    pub text: String,
}

fn hex_field(text: &str, digits: std::ops::RangeInclusive<usize>, max: u32) -> Option<u32> {
    let all_hex = text.bytes().all(|b| b.is_ascii_hexdigit());
    if !digits.contains(&text.len()) || !all_hex {
        return None;
    }
    u32::from_str_radix(text, 16).ok().filter(|&value| value <= max)
}

fn parse_pci(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    Some(PciAddress {
        domain: hex_field(domain, 4..=8, u32::MAX)?,
        bus: u8::try_from(hex_field(bus, 2..=2, 0xff)?).ok()?,
        device: u8::try_from(hex_field(device, 2..=2, 0x1f)?).ok()?,
        function: u8::try_from(hex_field(function, 1..=1, 7)?).ok()?,
    })
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_pci(text).ok_or_else(|| PciAddressError { text: text.chars().take(64).collect() })
    }
}

impl Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_bare_metal_and_of_virtual_machines_parse() {
        for text in ["0000:81:00.0", "c7ca:00:02.0", "10000:e1:00.7", "ffff:ff:01.0"] {
            let address: PciAddress = text.parse().expect("a real address");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_not_shaped_like_an_address_is_refused() {
        let bad = [
            "",
            "rxe0",
            "81:00.0",
            "0000:81:20.0",
            "0000:81:00.8",
            "0000:81:00.0 ",
            "-000:81:00.0",
        ];
        for text in bad {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?} was accepted");
        }
    }
}
