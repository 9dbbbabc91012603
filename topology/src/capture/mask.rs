//! Replaces hardware addresses in a recording by numbers, the same one by the same number
//! everywhere.

use crate::tree::{Entries, Entry};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// What is masked in a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mask {
    /// Nothing.
    #[default]
    Nothing,
    /// MAC addresses, GUIDs, and the IPv6 addresses made from them. IP addresses that were given by
    /// a person stay.
    HardwareAddresses,
}

/// Gives out replacements in the order in which originals are first met.
#[derive(Debug, Default)]
struct Replacements {
    macs: BTreeMap<[u8; 6], [u8; 6]>,
    ids: BTreeMap<u64, u64>,
}

impl Replacements {
    fn mac(&mut self, original: [u8; 6]) -> [u8; 6] {
        if original.iter().all(|&b| b == 0) || original.iter().all(|&b| b == 0xff) {
            return original;
        }
        let number = (self.macs.len() as u32 + 1).to_be_bytes();
        let [a, b, c, d] = number;
        // 02 marks an address as locally administered.
        *self.macs.entry(original).or_insert([0x02, 0x00, a, b, c, d])
    }

    fn id(&mut self, original: u64) -> u64 {
        if original == 0 {
            return 0;
        }
        let number = self.ids.len() as u64 + 1;
        *self.ids.entry(original).or_insert(0x0200_0000_0000_0000 + number)
    }

    /// The lower half of an IPv6 address made from a hardware address (RFC 4291, appendix A).
    fn interface_id(&mut self, original: u64) -> u64 {
        let [a, b, c, d, e, f, g, h] = original.to_be_bytes();
        if (d, e) == (0xff, 0xfe) {
            let [a, b, c, f, g, h] = self.mac([a ^ 2, b, c, f, g, h]);
            return u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, f, g, h]);
        }
        self.id(original)
    }

    fn ipv6(&mut self, address: Ipv6Addr) -> Ipv6Addr {
        let bits = u128::from(address);
        let (upper, lower) = ((bits >> 64) as u64, bits as u64);
        let from_hardware = address.is_unicast_link_local() || lower >> 24 & 0xffff == 0xfffe;
        if !from_hardware {
            return address;
        }
        Ipv6Addr::from(u128::from(upper) << 64 | u128::from(self.interface_id(lower)))
    }

    /// A MAC address, or the 20 bytes of an IPoIB one that end in a GUID.
    fn hardware_address(&mut self, text: &str) -> Option<String> {
        let bytes: Vec<u8> = text
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16))
            .collect::<Result<_, _>>()
            .ok()?;
        let masked: Vec<u8> = match bytes.len() {
            6 => self.mac(bytes.try_into().ok()?).to_vec(),
            20 => {
                let guid = u64::from_be_bytes(bytes[12..].try_into().ok()?);
                [&[0; 12], self.id(guid).to_be_bytes().as_slice()].concat()
            }
            _ => return None,
        };
        let text: Vec<String> = masked.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(text.join(":"))
    }

    /// `0123:4567:89ab:cdef`, or the same without colons.
    fn guid(&mut self, text: &str) -> Option<String> {
        let original = u64::from_str_radix(&text.replace(':', ""), 16).ok()?;
        let digits = format!("{:016x}", self.id(original));
        let groups = [&digits[..4], &digits[4..8], &digits[8..12], &digits[12..]];
        Some(groups.join(if text.contains(':') { ":" } else { "" }))
    }

    /// The lines of `railring/addresses`: a device and an address with prefix length.
    fn addresses(&mut self, text: &str) -> String {
        let line = |line: &str| -> String {
            let parts = line.split_once(' ').and_then(|(name, address)| {
                let (address, prefix) = address.split_once('/')?;
                Some((name, address.parse::<IpAddr>().ok()?, prefix.to_owned()))
            });
            match parts {
                Some((name, IpAddr::V6(address), prefix)) => {
                    format!("{name} {}/{prefix}\n", self.ipv6(address))
                }
                _ => format!("{line}\n"),
            }
        };
        text.lines().map(line).collect()
    }

    /// The lines of `/proc/net/if_inet6`, which begin with the address in 32 digits.
    fn if_inet6(&mut self, text: &str) -> String {
        let line = |line: &str| -> String {
            let digits = line.get(..32).and_then(|digits| u128::from_str_radix(digits, 16).ok());
            match digits {
                Some(bits) => {
                    let masked = u128::from(self.ipv6(Ipv6Addr::from(bits)));
                    format!("{masked:032x}{}\n", &line[32..])
                }
                None => format!("{line}\n"),
            }
        };
        text.lines().map(line).collect()
    }
}

/// Masks in place; returns how many different addresses were replaced.
pub(super) fn apply(entries: &mut Entries, mask: Mask) -> usize {
    if mask == Mask::Nothing {
        return 0;
    }
    let mut replace = Replacements::default();
    for (path, entry) in entries.iter_mut() {
        let Entry::File(bytes) = entry else { continue };
        let text = String::from_utf8_lossy(bytes).into_owned();
        let trimmed = crate::cpuset::clean(&text);
        let file = path.rsplit('/').next().unwrap_or_default();
        let masked = match file {
            _ if path == "railring/addresses" => Some(replace.addresses(&text)),
            _ if path == "proc/net/if_inet6" || path.ends_with("/net/if_inet6") => {
                Some(replace.if_inet6(&text))
            }
            "address" => replace.hardware_address(trimmed),
            "node_guid" | "sys_image_guid" => replace.guid(trimmed),
            "phys_switch_id" => replace.guid(trimmed),
            _ if path.contains("/gids/") => {
                trimmed.parse().ok().map(|gid: Ipv6Addr| full_gid(replace.ipv6(gid)))
            }
            _ => None,
        };
        if let Some(masked) = masked {
            *bytes = masked.into_bytes();
        }
    }
    replace.macs.len() + replace.ids.len()
}

/// A GID as sysfs prints it, with all digits.
fn full_gid(gid: Ipv6Addr) -> String {
    gid.segments().map(|segment| format!("{segment:04x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        let entry = |(path, text): &(&str, &str)| {
            ((*path).to_owned(), Entry::File(text.as_bytes().to_vec()))
        };
        let mut entries: Entries = files.iter().map(entry).collect();
        apply(&mut entries, Mask::HardwareAddresses);
        let text = |entry| match entry {
            Entry::File(bytes) => String::from_utf8(bytes).expect("text"),
            _ => String::new(),
        };
        entries.into_iter().map(|(path, entry)| (path, text(entry))).collect()
    }

    #[test]
    fn an_address_and_what_is_made_of_it_get_the_same_number() {
        let files = masked(&[
            ("sys/devices/a/net/eth0/address", "b8:59:9f:1e:ff:9a\n"),
            (
                "sys/devices/a/infiniband/x/ports/1/gids/0",
                "fe80:0000:0000:0000:ba59:9fff:fe1e:ff9a",
            ),
            (
                "sys/devices/a/infiniband/x/ports/1/gids/1",
                "0000:0000:0000:0000:0000:ffff:0a00:0001",
            ),
            ("sys/devices/a/infiniband/x/sys_image_guid", "b859:9f03:001e:ff9a"),
            ("sys/devices/a/infiniband/y/sys_image_guid", "b859:9f03:001e:ff9a"),
            ("railring/addresses", "eth0 fe80::ba59:9fff:fe1e:ff9a/64\neth0 10.0.0.1/24\n"),
        ]);
        let all = files.values().cloned().collect::<String>();
        for secret in ["1e:ff:9a", "fe1e:ff9a", "001e:ff9a", "fe1e"] {
            assert!(!all.contains(secret), "{secret} is still in {all}");
        }
        assert!(all.contains("10.0.0.1/24"), "an IP address was masked");
        assert_eq!(
            files["sys/devices/a/infiniband/x/ports/1/gids/1"],
            "0000:0000:0000:0000:0000:ffff:0a00:0001"
        );
        assert_eq!(
            files["sys/devices/a/infiniband/x/sys_image_guid"],
            files["sys/devices/a/infiniband/y/sys_image_guid"]
        );
        let mac = &files["sys/devices/a/net/eth0/address"];
        assert_eq!(mac, "02:00:00:00:00:01");
        assert!(
            files["sys/devices/a/infiniband/x/ports/1/gids/0"].ends_with("0000:00ff:fe00:0001")
        );
    }
}
