//! The injected late write reaches memory that was given back, and nothing beyond it.
#![cfg(feature = "fault")]

use railring_dma::{LateWriter, Lease, RegionConfig, Regions};

#[test]
fn a_late_write_shows_in_the_next_owners_bytes() {
    let regions = Regions::new(1);
    let region = regions.allocate(RegionConfig::new(64)).expect("a page");
    let (mut loan, part) = Lease::whole(&region).expect("free").lend();
    let (head, rest) = part.split_at(16);
    let (middle, tail) = rest.split_at(16);
    assert!(LateWriter::capture(&middle, &Regions::new(1)).is_none(), "another engine's registry");
    let late = LateWriter::capture(&middle, &regions).expect("its region exists");
    for part in [head, middle, tail] {
        loan.repay(part).expect("its own part");
    }
    let mut lease = loan.settle().expect("everything is back");
    lease.as_mut_slice().fill(0xEE);
    assert_eq!(late.write(4, &[1; 100]), 12);
    assert_eq!(late.write(16, &[2]), 0);
    assert_eq!(late.write(usize::MAX, &[2]), 0);
    let bytes = lease.as_slice();
    assert!(bytes[..20].iter().chain(&bytes[32..]).all(|byte| *byte == 0xEE));
    assert_eq!(&bytes[20..32], &[1; 12]);
}
