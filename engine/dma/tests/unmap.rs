//! A dropped region is unmapped; one with a part still out never is.
//!
//! Alone in its process, so that nothing else maps the addresses.

use railring_dma::{HugePages, Lease, Region, RegionConfig, Regions};

fn is_mapped(address: usize) -> bool {
    let mut page = 0_u8;
    // SAFETY: mincore only looks at its own tables, and writes one byte for one page.
    let known = unsafe { libc::mincore(address as *mut libc::c_void, 4096, &raw mut page) };
    known == 0
}

#[test]
fn a_dropped_region_is_unmapped_and_a_leaked_one_is_not() {
    let regions = Regions::new(2);
    let config = RegionConfig { huge_pages: HugePages::Never, ..RegionConfig::new(8 << 20) };
    let allocate = || regions.allocate(config).expect("8 MiB");
    let address = |region: &Region| region.base().as_ptr() as usize;

    let region = allocate();
    let lease = Lease::whole(&region).expect("free");
    let place = address(&region);
    drop(region);
    assert!(is_mapped(place), "the lease holds it");
    drop(lease);
    assert!(!is_mapped(place));

    let region = allocate();
    let place = address(&region);
    let (loan, mut part) = Lease::whole(&region).expect("free").lend();
    drop((region, loan));
    assert!(is_mapped(place), "its part may still be written");
    part.as_mut_slice().fill(1);
    part.forget();
    let stats = regions.stats();
    assert_eq!(
        (stats.allocated_bytes, stats.leaked_bytes, stats.leased_bytes),
        (8 << 20, 8 << 20, 0)
    );
}
