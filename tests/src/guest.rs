//! Whether this is the guest that `cargo xtask guest` boots, with its software RDMA devices.

/// How many rails the guest has: devices `rxe0`, `rxe1`, ... Nothing outside of it, where a test
/// that needs a device says so as skipped; inside, a device that is missing is a failure.
#[must_use]
pub fn rails(test: &str) -> Option<u32> {
    let devices = devices();
    if devices.is_none() {
        println!("SKIP {test}: not on a machine with software RDMA set up for it");
    }
    devices
}

/// The same, for whoever says for itself that there are none.
#[must_use]
pub fn devices() -> Option<u32> {
    std::env::var_os("RAILRING_GUEST")?;
    let nics = std::env::var("RAILRING_GUEST_NICS").ok();
    Some(nics.and_then(|nics| nics.parse().ok()).expect("the job says how many rails there are"))
}
