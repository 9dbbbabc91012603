//! Memory of a put: it must not depend on the object's size, nor on the stripe's.

use crate::common::{directories, key};
use crate::memory::Memory;
use railring_store::{PutOptions, Store};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

const STRIPE_BYTES: u64 = 96 << 20;
const LIMIT_BYTES: u64 = 24 << 20;

/// Peak resident memory of this process.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("Linux has it");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u64>().expect("a number") * 1024
}

/// Not a test by itself: what the next one runs in a process of its own, so that the peak is its.
#[test]
fn child_that_puts_one_big_stripe() {
    if std::env::var_os("RAILRING_STORE_TEST_FOOTPRINT").is_none() {
        return;
    }
    let memory = Memory::new(&directories(2));
    let store = Store::create_on(Arc::new(memory.clone()), &directories(2)).expect("new");
    memory.become_sink();
    let options = PutOptions {
        stripe_bytes: STRIPE_BYTES,
        block_bytes: 64 << 10,
        copies: 2,
        expected_size: None,
    };
    let before = peak_bytes();
    let mut source = io::repeat(7).take(STRIPE_BYTES);
    let report = store.put(&key("n/k"), &mut source, &options, &mut |_| ControlFlow::Continue(()));
    assert_eq!(report.expect("a sink is never full").placement.stripes.len(), 1);
    println!("footprint {}", peak_bytes() - before);
}

#[test]
fn a_stripe_is_put_in_a_fraction_of_its_size() {
    let child = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", "footprint::child_that_puts_one_big_stripe", "--nocapture"])
        .env("RAILRING_STORE_TEST_FOOTPRINT", "1")
        .output()
        .expect("itself");
    let text = String::from_utf8_lossy(&child.stdout);
    let grown = text.split("footprint ").nth(1).and_then(|t| t.split_whitespace().next());
    let grown: u64 = grown.expect(&text).parse().expect("a number");
    println!("{grown} bytes for a stripe of {STRIPE_BYTES}");
    assert!(grown < LIMIT_BYTES, "{grown} bytes");
}
