//! Tests on a real device: in a guest with software RDMA. Elsewhere each says that it was skipped.
#![cfg(feature = "verbs")]

mod faults;
mod peer;
mod rail;
mod rate;
mod reader;
mod wrappers;

use railring_topology::{Discovery, Machine};
use railring_verbs::LocalPort;
use railring_verbs::ffi::Device;

/// The first device, or why there is none.
fn device() -> Result<(Device, LocalPort, Machine), String> {
    let machine = Discovery::live().read().map_err(|error| error.to_string())?;
    let name = &machine.rdma.first().ok_or("no RDMA device")?.name;
    let port = LocalPort::find(&machine, name, None, None).map_err(|error| error.to_string())?;
    let device = Device::open(name).map_err(|error| error.to_string())?;
    Ok((device, port, machine))
}

/// The device for a test, or a line that says that it is skipped.
macro_rules! device_or_skip {
    ($name:literal) => {
        match crate::device() {
            Ok(found) => found,
            // Where a device was set up for these tests, that there is none is a failure.
            Err(why) if std::env::var_os("RAILRING_GUEST").is_some() => panic!("{why}"),
            Err(why) => return println!("SKIP {}: {why}", $name),
        }
    };
}
pub(crate) use device_or_skip;
