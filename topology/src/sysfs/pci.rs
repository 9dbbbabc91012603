//! Reads PCI functions: where they hang, their links, relations, IOMMU groups and interrupts.

use super::Reader;
use super::near::Near;
use crate::cpuset::CpuSet;
use crate::id::{CpuId, PciAddress};
use crate::machine::{Iommu, Link, LinkRate, Locality, PciFunction};
use std::collections::BTreeMap;
use std::str::FromStr;

const DEVICES: &str = "sys/bus/pci/devices";

/// The innermost PCI function in a resolved device path, if it has one.
pub(super) fn function_above(path: &str) -> Option<PciAddress> {
    path.rsplit('/').find_map(|part| part.parse().ok())
}

/// The function of that address in a list sorted by address.
pub(super) fn find(pci: &[PciFunction], address: PciAddress) -> Option<&PciFunction> {
    pci.binary_search_by_key(&address, |function| function.address).ok().map(|at| &pci[at])
}

/// Where the function is near, or nothing when there is none.
pub(super) fn locality_of(pci: &[PciFunction], address: Option<PciAddress>) -> Locality {
    let function = address.and_then(|address| find(pci, address));
    function.map_or_else(Locality::default, |function| function.locality.clone())
}

pub(super) fn read(reader: &Reader<'_>, near: &Near<'_>) -> Vec<PciFunction> {
    let mut functions: Vec<PciFunction> = Vec::new();
    for name in reader.tree.list(DEVICES) {
        let entry = format!("{DEVICES}/{name}");
        let Ok(address) = name.parse::<PciAddress>() else {
            reader.tree.note(&entry, "not named like a PCI function");
            continue;
        };
        match reader.tree.resolve(&entry) {
            Ok(folder) => functions.push(read_function(reader, near, address, &folder)),
            Err(why) => reader.tree.note(&entry, why.text()),
        }
    }
    functions.sort_by_key(|function| function.address);
    functions
}

fn hex<T: TryFrom<u32>>(reader: &Reader<'_>, path: &str) -> Option<T> {
    let text = reader.tree.expected(path)?;
    let digits = text.strip_prefix("0x").unwrap_or(&text);
    let value = u32::from_str_radix(digits, 16).ok().and_then(|value| T::try_from(value).ok());
    if value.is_none() {
        reader.tree.note(path, format!("says '{text}', which is not understood"));
    }
    value
}

fn read_function(
    reader: &Reader<'_>,
    near: &Near<'_>,
    address: PciAddress,
    folder: &str,
) -> PciFunction {
    let at = |file: &str| format!("{folder}/{file}");
    let above = bridges_of(folder);
    let class: Option<u32> = hex(reader, &at("class"));
    // Memory controllers and the like come by the hundred and carry no rail.
    let matters = class.is_none_or(|class| matches!(class >> 16, 0x01..=0x03 | 0x06 | 0x0c | 0x12));
    PciFunction {
        address,
        class,
        vendor: hex(reader, &at("vendor")),
        device: hex(reader, &at("device")),
        driver: matters.then(|| reader.tree.link_name(&at("driver"))).flatten(),
        host_bridge: folder.split('/').find(|part| is_host_bridge(part)).map(str::to_owned),
        link: if matters { read_link(reader, folder) } else { Link::default() },
        locality: near.of_device(reader, folder, &address.to_string(), &above),
        bridges: above.into_iter().map(|(bridge, _)| bridge).collect(),
        physical_function: linked_function(reader, &at("physfn")),
        virtual_functions: virtual_functions(reader, folder),
        iommu: matters.then(|| read_iommu(reader, folder)).flatten(),
        interrupts: match class.map(|class| class >> 16) {
            Some(0x02) => read_interrupts(reader, folder),
            _ => BTreeMap::new(),
        },
    }
}

fn is_host_bridge(part: &str) -> bool {
    part.strip_prefix("pci").is_some_and(|rest| rest.contains(':'))
}

/// The functions between the host bridge and the device, with their folders, outermost first.
fn bridges_of(folder: &str) -> Vec<(PciAddress, String)> {
    let mut above = Vec::new();
    let Some((parents, _)) = folder.rsplit_once('/') else { return above };
    let mut end = 0;
    for part in parents.split('/') {
        end += part.len();
        if let Ok(address) = part.parse() {
            above.push((address, parents[..end].to_owned()));
        }
        end += 1;
    }
    above
}

fn linked_function(reader: &Reader<'_>, path: &str) -> Option<PciAddress> {
    reader.tree.link_name(path)?.parse().ok()
}

fn virtual_functions(reader: &Reader<'_>, folder: &str) -> Vec<PciAddress> {
    let count: Option<u32> = reader.tree.value(&format!("{folder}/sriov_numvfs"));
    let mut functions: Vec<PciAddress> = (0..count.unwrap_or(0).min(4096))
        .map_while(|n| linked_function(reader, &format!("{folder}/virtfn{n}")))
        .collect();
    functions.sort();
    functions
}

fn read_link(reader: &Reader<'_>, folder: &str) -> Link {
    let rate = |speed: &str, width: &str| {
        let speed = reader.tree.optional(&format!("{folder}/{speed}"))?;
        let width = reader.tree.optional(&format!("{folder}/{width}"))?;
        Some(LinkRate { megatransfers: megatransfers(&speed)?, lanes: width.parse().ok()? })
            .filter(|rate| rate.lanes > 0 && rate.megatransfers > 0)
    };
    Link {
        now: rate("current_link_speed", "current_link_width"),
        most: rate("max_link_speed", "max_link_width"),
        bits_per_second: None,
    }
}

/// Reads `8.0 GT/s PCIe`, `16 GT/s` or `Unknown speed`.
fn megatransfers(text: &str) -> Option<u32> {
    let number = text.split("GT/s").next().filter(|number| number.len() < text.len())?;
    let (whole, part) = number.trim().split_once('.').unwrap_or((number.trim(), "0"));
    let (whole, tenths) = (u32::from_str(whole).ok()?, u32::from_str(part.get(..1)?).ok()?);
    whole.checked_mul(1000)?.checked_add(tenths * 100)
}

fn read_iommu(reader: &Reader<'_>, folder: &str) -> Option<Iommu> {
    let group = reader.tree.link_name(&format!("{folder}/iommu_group"))?;
    let kind = reader.tree.optional(&format!("sys/kernel/iommu_groups/{group}/type"));
    Some(Iommu { group, kind })
}

fn read_interrupts(reader: &Reader<'_>, folder: &str) -> BTreeMap<CpuId, u32> {
    let mut served = BTreeMap::new();
    for irq in reader.tree.list(&format!("{folder}/msi_irqs")) {
        let set = |file: &str| {
            let list = reader.tree.optional(&format!("proc/irq/{irq}/{file}"))?;
            list.parse::<CpuSet>().ok().filter(|set| !set.is_empty())
        };
        let cpus = set("effective_affinity_list").or_else(|| set("smp_affinity_list"));
        for cpu in cpus.iter().flat_map(CpuSet::iter) {
            *served.entry(cpu).or_insert(0) += 1;
        }
    }
    served
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speeds_as_kernels_print_them_are_read() {
        let cases = [
            ("2.5 GT/s PCIe", Some(2_500)),
            ("8 GT/s", Some(8_000)),
            ("16.0 GT/s PCIe", Some(16_000)),
            ("64.0 GT/s PCIe", Some(64_000)),
            ("Unknown", None),
            ("Unknown speed", None),
            ("", None),
            ("99999999999.0 GT/s", None),
        ];
        for (text, expected) in cases {
            assert_eq!(megatransfers(text), expected, "{text:?}");
        }
    }

    #[test]
    fn bridges_are_those_between_the_host_bridge_and_the_device() {
        let folder = "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.1";
        let above = bridges_of(folder);
        let names: Vec<String> = above.iter().map(|(address, _)| address.to_string()).collect();
        assert_eq!(names, ["0000:80:01.0", "0000:81:00.0"]);
        assert_eq!(above[0].1, "sys/devices/pci0000:80/0000:80:01.0");
        assert_eq!(function_above(&format!("{folder}/net/eth0")).map(|a| a.function), Some(1));
        assert_eq!(function_above("sys/devices/virtual/net/lo"), None);
    }
}
