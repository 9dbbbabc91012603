//! Regions: pages asked for and got, odd lengths, nodes, ids at addresses that come again.

mod common;

use std::ptr::NonNull;

use common::HeapRegion;
use railring_dma::{
    HugePages, Lease, PageKind, Placement, Populate, Region, RegionConfig, RegionError, Regions,
};

fn base_pages(bytes: usize) -> RegionConfig {
    RegionConfig { huge_pages: HugePages::Never, ..RegionConfig::new(bytes) }
}

fn use_all(region: &Region) {
    let mut lease = Lease::whole(region).expect("nobody holds the region");
    assert!(lease.as_slice().iter().all(|byte| *byte == 0), "fresh memory is zero");
    lease.as_mut_slice().fill(0xA5);
    assert_eq!(lease.as_slice().last(), Some(&0xA5));
}

#[test]
fn odd_lengths_are_rounded_to_pages_and_stay_as_asked_for() {
    let regions = Regions::new(1);
    for bytes in [1, 4095, 4096, 4097, 3_779_571] {
        let region = regions.allocate(base_pages(bytes)).expect("a few MiB");
        assert_eq!(region.bytes(), bytes);
        assert_eq!(region.mapped_bytes(), bytes.next_multiple_of(4096));
        assert_eq!(region.base().as_ptr() as usize % 4096, 0);
        assert_eq!((region.pages(), region.is_foreign()), (PageKind::Base, false));
        assert_eq!(regions.stats().allocated_bytes, region.mapped_bytes() as u64);
        use_all(&region);
    }
    assert_eq!(regions.stats().allocated_bytes, 0);
}

#[test]
fn huge_pages_are_tried_and_the_fallback_is_told() {
    let regions = Regions::new(1);
    let bytes = (5 << 20) + 713;
    let region = regions.allocate(RegionConfig::new(bytes)).expect("a few MiB");
    let report = region.page_report();
    println!("asked {:?}: {report:?}", report.requested);
    assert_eq!(report.requested, Some(HugePages::Try));
    match region.pages() {
        PageKind::Huge => assert_eq!(region.mapped_bytes() % (2 << 20), 0),
        PageKind::TransparentHuge => assert!(report.huge_refused.is_some()),
        PageKind::Base => {
            assert!(report.huge_refused.is_some() && report.transparent_refused.is_some());
        }
        other => panic!("{other:?}"),
    }
    use_all(&region);
    drop(region);
    // Less than one huge page is not worth one.
    let region = regions.allocate(RegionConfig::new(4096)).expect("a page");
    assert_eq!((region.pages(), region.page_report().huge_refused), (PageKind::Base, None));
}

#[test]
fn required_huge_pages_are_odd_lengths_too_or_a_clear_error() {
    let regions = Regions::new(1);
    let bytes = 3_779_571;
    let config = RegionConfig { huge_pages: HugePages::Require, ..RegionConfig::new(bytes) };
    match regions.allocate(config) {
        Ok(region) => {
            assert_eq!((region.pages(), region.bytes()), (PageKind::Huge, bytes));
            assert_eq!(region.mapped_bytes(), bytes.next_multiple_of(2 << 20));
            use_all(&region);
        }
        Err(RegionError::HugePages { bytes, page_bytes, source }) => {
            assert_eq!(bytes % page_bytes, 0);
            println!("SKIP required_huge_pages on huge pages: none are reserved here ({source})");
        }
        Err(other) => panic!("{other}"),
    }
    assert!(regions.is_empty() || regions.stats().allocated_bytes > 0);
}

#[test]
fn bad_requests_are_refused_before_anything_is_mapped() {
    let regions = Regions::new(1);
    let allocate = |config| regions.allocate(config).expect_err("must be refused");
    assert!(matches!(allocate(RegionConfig::new(0)), RegionError::Empty));
    for huge_pages in [HugePages::Try, HugePages::Never] {
        let config = RegionConfig { huge_pages, ..RegionConfig::new(usize::MAX) };
        assert!(matches!(allocate(config), RegionError::TooLarge { bytes: usize::MAX }));
    }
    let huge = allocate(base_pages(1 << 60));
    assert!(matches!(huge, RegionError::Map { bytes, .. } if bytes == 1 << 60), "{huge}");
    let config = RegionConfig { node: Some(1024), ..base_pages(1) };
    assert!(matches!(allocate(config), RegionError::NodeOutOfRange { node: 1024, node_max: 1023 }));
    let region = regions.allocate(base_pages(1)).expect("a page");
    assert!(matches!(allocate(base_pages(1)), RegionError::TooManyRegions { regions_max: 1 }));
    assert_eq!(regions.stats().allocated_bytes, region.mapped_bytes() as u64);
}

#[test]
fn foreign_memory_is_one_region_at_a_time() {
    let regions = Regions::new(4);
    let heap = HeapRegion::new(&regions, 5, 1000);
    let base = heap.region.base();
    assert!(heap.region.is_foreign());
    assert_eq!(
        (heap.region.pages(), heap.region.placement()),
        (PageKind::Foreign, Placement::Foreign)
    );
    assert_eq!((heap.region.bytes(), heap.region.mapped_bytes()), (1000, 1000));
    assert_eq!((regions.stats().foreign_bytes, regions.stats().allocated_bytes), (1000, 0));
    // SAFETY: the offset is within the memory.
    let inside = unsafe { base.add(999) };
    // SAFETY: it is refused, so no region comes of it.
    let refused = unsafe { regions.foreign(inside, 1) }.expect_err("overlaps");
    assert!(matches!(refused, RegionError::Overlaps { region } if region == heap.region.id()));
    // SAFETY: as above.
    let refused = unsafe { regions.foreign(base, usize::MAX) }.expect_err("past the end");
    assert!(matches!(refused, RegionError::TooLarge { .. }));
    // SAFETY: as above.
    let refused = unsafe { regions.foreign(base, 0) }.expect_err("empty");
    assert!(matches!(refused, RegionError::Empty));
    let lease = Lease::whole(&heap.region).expect("nobody holds the region");
    assert_eq!(lease.address(), base);
    let id = heap.region.id();
    let other = regions.get(id).expect("it exists");
    let other = other.unregister().expect_err("others hold it");
    drop((other, lease));
    assert!(heap.free());
    assert!(regions.get(id).is_none());
    assert_eq!(regions.stats(), Default::default());
}

#[test]
fn memory_that_comes_again_at_an_address_is_another_region() {
    let regions = Regions::new(2);
    let place = map_page(std::ptr::null_mut(), libc::PROT_NONE);
    let mut ids = std::collections::HashSet::new();
    let mut old_receipt = None;
    let mut again = 0;
    for _ in 0..1000 {
        // A new page every time, at the old address.
        let mapped = map_page(place.as_ptr(), libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(mapped, place);
        // SAFETY: the page is mapped, zeroed, used by nobody else, and replaced only after
        // `unregister`.
        let region = unsafe { regions.foreign(place, 4096) }.expect("the registry has room");
        let id = region.id();
        assert!(ids.insert(id), "an id came back");
        let (mut loan, part) = Lease::whole(&region).expect("free").lend();
        if let Some(old) = old_receipt {
            assert!(loan.bytes(&old).is_none(), "a receipt of unmapped memory opened a loan");
            again += 1;
        }
        old_receipt = Some(loan.repay(part).expect("its own part"));
        drop(loan);
        region.unregister().expect("nothing holds it");
        assert_eq!(map_page(place.as_ptr(), libc::PROT_NONE), place);
        assert!(regions.get(id).is_none(), "a stale id found something");
    }
    assert_eq!(again, 999);
    assert!(ids.iter().all(|id| id.slot < 2));
}

/// Maps a fresh page: anywhere, or in place of the one at `at`, which must be a test's own.
fn map_page(at: *mut u8, access: i32) -> NonNull<u8> {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: what is replaced is a page that this test mapped and that no region uses.
    let page = unsafe { libc::mmap(at.cast(), 4096, access, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    NonNull::new(page.cast()).expect("page 0 is never mapped")
}

#[test]
fn a_node_is_preferred_where_the_kernel_lets_us() {
    let regions = Regions::new(1);
    let on_node = |node| {
        let config = RegionConfig { node, populate: Populate::Now, ..base_pages(9000) };
        let region = regions.allocate(config).expect("three pages");
        use_all(&region);
        region.placement()
    };
    assert_eq!(on_node(None), Placement::FirstTouch);
    match on_node(Some(0)) {
        Placement::Node(0) => {}
        Placement::Refused { node: 0, errno } => {
            println!("SKIP placement on node 0: errno {errno}")
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(on_node(Some(1023)), Placement::Refused { node: 1023, .. }));
}

#[test]
fn a_refused_placement_is_survived_and_told() {
    // The filter holds for the thread that installs it, and ends with it.
    let placed = std::thread::spawn(|| {
        refuse_mbind();
        let regions = Regions::new(1);
        let config = RegionConfig { node: Some(0), ..base_pages(4096) };
        let region = regions.allocate(config).expect("a page");
        use_all(&region);
        region.placement()
    });
    let placement = placed.join().expect("the thread ends");
    assert_eq!(placement, Placement::Refused { node: 0, errno: libc::EPERM });
}

/// Has the kernel answer mbind with EPERM, as container runtimes do.
fn refuse_mbind() {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_mbind as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes numbers only.
    let prepared = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(prepared, 0);
    // SAFETY: the kernel copies the filter, which lives until the call returns.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(set, 0);
}

#[test]
fn populated_pages_are_resident_and_others_are_not() {
    let regions = Regions::new(2);
    for (populate, resident) in [(Populate::OnUse, 0), (Populate::Now, 1)] {
        let region =
            regions.allocate(RegionConfig { populate, ..base_pages(64 << 10) }).expect("64 KiB");
        let mut pages = [0_u8; 16];
        // SAFETY: the region is as long, and `pages` has a byte for each of its pages.
        let known = unsafe {
            libc::mincore(region.base().as_ptr().cast(), region.mapped_bytes(), pages.as_mut_ptr())
        };
        assert_eq!(known, 0);
        assert!(pages.iter().all(|page| page & 1 == resident), "{populate:?}: {pages:?}");
    }
}
