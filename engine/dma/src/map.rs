//! Mapping memory: which pages were asked for, which were got, and why they differ.

use std::fs;
use std::io;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::placement::{self, Placement};
use crate::region::{RegionConfig, RegionError};

/// Whether a region uses huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePages {
    /// Reserved huge pages if there are any, else transparent ones, else base pages; a region
    /// below one huge page gets base pages.
    Try,
    /// Reserved huge pages (hugetlb), else an error.
    Require,
    /// Base pages, and the kernel is asked to keep it so.
    Never,
}

/// When the pages of a region are provided. Reserved huge pages always are at once, because
/// touching one that cannot be had is a signal, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Populate {
    /// When they are first used (or registered, which pins them).
    OnUse,
    /// Before `allocate` returns.
    Now,
}

/// The kind of pages behind a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageKind {
    /// Reserved huge pages (hugetlb).
    Huge,
    /// Base pages which the kernel was asked, and is set up, to join into huge ones. Whether it
    /// does depends on free memory; `AnonHugePages` in `/proc/self/smaps` tells.
    TransparentHuge,
    /// Base pages.
    Base,
    /// The caller's memory; not looked into.
    Foreign,
}

/// The pages asked for and got.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pages {
    /// What was asked for; nothing for foreign memory.
    pub requested: Option<HugePages>,
    /// What was got.
    pub got: PageKind,
    /// Size in bytes of one page of the mapping; 0 for foreign memory.
    pub page_bytes: usize,
    /// Why there are no reserved huge pages (an errno), if they were tried.
    pub huge_refused: Option<i32>,
    /// Why there are no transparent huge pages, if they were tried.
    pub transparent_refused: Option<TransparentRefusal>,
}

/// Why transparent huge pages are not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransparentRefusal {
    /// Switched off, or not built in: `/sys/kernel/mm/transparent_hugepage/enabled`.
    Off,
    /// The kernel refused the advice with this errno.
    Errno(i32),
}

impl Pages {
    pub(crate) fn foreign() -> Pages {
        Pages {
            requested: None,
            got: PageKind::Foreign,
            page_bytes: 0,
            huge_refused: None,
            transparent_refused: None,
        }
    }
}

/// A mapping with what there is to tell about it.
pub(crate) struct Mapping {
    pub(crate) memory: MmapRaw,
    pub(crate) pages: Pages,
    pub(crate) placement: Placement,
}

/// Maps `config.bytes` of zeroed memory, whole pages.
pub(crate) fn map(config: &RegionConfig) -> Result<Mapping, RegionError> {
    let huge_bytes = huge_page_bytes();
    let mut huge_refused = None;
    let tried = match config.huge_pages {
        HugePages::Require => true,
        HugePages::Try => config.bytes >= huge_bytes,
        HugePages::Never => false,
    };
    if tried {
        let bytes = round_up(config.bytes, huge_bytes)?;
        match map_huge(bytes, config) {
            Ok(mapping) => return Ok(mapping),
            Err(source) if config.huge_pages == HugePages::Require => {
                return Err(RegionError::HugePages { bytes, page_bytes: huge_bytes, source });
            }
            Err(refused) => huge_refused = Some(refused.raw_os_error().unwrap_or(0)),
        }
    }
    map_base(config, huge_refused, tried)
}

/// Reserved huge pages of the default size, provided at once.
fn map_huge(bytes: usize, config: &RegionConfig) -> io::Result<Mapping> {
    let memory = MmapRaw::from(MmapOptions::new().len(bytes).huge(None).map_anon()?);
    let placement = placement::place(&memory, config.node);
    // Where a cgroup limits huge pages, the mapping succeeds and touching a page raises SIGBUS;
    // asking for the pages gives an error instead. Kernels before 5.14 do not know the question
    // (EINVAL).
    match memory.advise(Advice::PopulateWrite) {
        Err(refused) if refused.raw_os_error() != Some(libc::EINVAL) => Err(refused),
        _ => {
            let pages = Pages {
                requested: Some(config.huge_pages),
                got: PageKind::Huge,
                page_bytes: huge_page_bytes(),
                huge_refused: None,
                transparent_refused: None,
            };
            Ok(Mapping { memory, pages, placement })
        }
    }
}

/// Base pages, joined into huge ones by the kernel if that was asked for and can be.
fn map_base(
    config: &RegionConfig,
    huge_refused: Option<i32>,
    transparent: bool,
) -> Result<Mapping, RegionError> {
    let page_bytes = base_page_bytes();
    let bytes = round_up(config.bytes, page_bytes)?;
    let mapped = MmapOptions::new().len(bytes).map_anon();
    let memory = MmapRaw::from(mapped.map_err(|source| RegionError::Map { bytes, source })?);
    let refused = if transparent { advise_transparent(&memory) } else { None };
    let got =
        if transparent && refused.is_none() { PageKind::TransparentHuge } else { PageKind::Base };
    if config.huge_pages == HugePages::Never {
        // Refused only where there are no transparent huge pages, which is what is wanted.
        let _ = memory.advise(Advice::NoHugePage);
    }
    let placement = placement::place(&memory, config.node);
    if config.populate == Populate::Now {
        populate(&memory).map_err(|source| RegionError::Populate { bytes, source })?;
    }
    let pages = Pages {
        requested: Some(config.huge_pages),
        got,
        page_bytes,
        huge_refused,
        transparent_refused: refused,
    };
    Ok(Mapping { memory, pages, placement })
}

/// Asks for transparent huge pages; gives the reason if there will be none.
fn advise_transparent(memory: &MmapRaw) -> Option<TransparentRefusal> {
    // The kernel takes the advice even where the administrator has switched the pages off.
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if !enabled.is_ok_and(|choice| !choice.contains("[never]")) {
        return Some(TransparentRefusal::Off);
    }
    let refused = memory.advise(Advice::HugePage).err()?;
    Some(TransparentRefusal::Errno(refused.raw_os_error().unwrap_or(0)))
}

/// Provides every page now.
fn populate(memory: &MmapRaw) -> io::Result<()> {
    match memory.advise(Advice::PopulateWrite) {
        Err(refused) if refused.raw_os_error() == Some(libc::EINVAL) => {
            touch(memory);
            Ok(())
        }
        populated => populated,
    }
}

/// Writes one byte of each page; for kernels before 5.14.
fn touch(memory: &MmapRaw) {
    for offset in (0..memory.len()).step_by(base_page_bytes()) {
        // SAFETY: `offset` is below the mapping's length.
        let byte = unsafe { memory.as_mut_ptr().add(offset) };
        // SAFETY: the mapping is writable and nobody else knows it yet; fresh pages are zero, so
        // this changes nothing.
        unsafe { byte.write_volatile(0) };
    }
}

/// The size of a base page in bytes. Not by `rustix::param`, which reads the auxiliary vector in
/// a way that valgrind, and so the instruction-count gates, cannot follow.
fn base_page_bytes() -> usize {
    // SAFETY: takes a number and gives one.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

/// The default huge page size in bytes, 2 MiB if the kernel does not say.
fn huge_page_bytes() -> usize {
    fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| parse_huge_page_bytes(&text))
        .unwrap_or(2 << 20)
}

fn parse_huge_page_bytes(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10).filter(|bytes| bytes.is_power_of_two())
}

fn round_up(bytes: usize, page_bytes: usize) -> Result<usize, RegionError> {
    bytes
        .checked_next_multiple_of(page_bytes)
        .filter(|rounded| *rounded <= isize::MAX as usize)
        .ok_or(RegionError::TooLarge { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_huge_page_size_is_what_the_kernel_says() {
        assert_eq!(
            parse_huge_page_bytes("MemFree: 1 kB\nHugepagesize:     2048 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(parse_huge_page_bytes("Hugepagesize:    1048576 kB\n"), Some(1 << 30));
        for bad in ["", "Hugepagesize: x kB", "Hugepagesize: 0 kB", "Hugepagesize: 3 kB"] {
            assert_eq!(parse_huge_page_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn touching_every_page_by_hand_leaves_them_zero() {
        let memory = MmapRaw::from(MmapOptions::new().len(3 * 4096).map_anon().expect("12 KiB"));
        touch(&memory);
        // SAFETY: the mapping is as long, readable, and nobody writes it.
        let bytes = unsafe { std::slice::from_raw_parts(memory.as_mut_ptr(), memory.len()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
