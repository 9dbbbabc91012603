//! Devices: which there are, opening one, what it can do, and its ports.

use std::ffi::CStr;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as sys;

use super::last_error;
use crate::mtu::PathMtu;

/// Why there is no device to open, or not this one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The kernel's half is not loaded.
    #[error(
        "no RDMA devices can be listed: the kernel module ib_uverbs is not loaded ({source}); load \
         it, and rdma_rxe for software RDMA"
    )]
    NoModule {
        /// What the library said.
        source: io::Error,
    },
    /// The kernel has devices, the library has no driver for any.
    #[error(
        "the kernel has RDMA devices ({known}) but the verbs library has no driver for them; \
         install the providers (Debian: ibverbs-providers)"
    )]
    NoProvider {
        /// The kernel's devices.
        known: String,
    },
    /// No devices at all.
    #[error("this machine has no RDMA devices; for software RDMA: rdma link add rxe0 type rxe ...")]
    NoDevices,
    /// There are devices, but none of this name.
    #[error("there is no RDMA device {device}; there are: {known}")]
    NoSuchDevice {
        /// The name asked for.
        device: String,
        /// The names there are.
        known: String,
    },
    /// The device file cannot be opened.
    #[error(
        "no permission to open RDMA device {device}: {source}; the process needs read and write \
         access to the device files below /dev/infiniband"
    )]
    NoPermission {
        /// The device.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Anything else.
    #[error("RDMA device {device} cannot be opened: {source}")]
    Open {
        /// The device.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Why a port or its GID table cannot be asked.
#[derive(Debug, thiserror::Error)]
#[error("port {port} of RDMA device {device} cannot be asked ({what}): {source}")]
pub struct PortQueryError {
    /// The device.
    pub device: String,
    /// The port.
    pub port: u8,
    /// What was asked.
    pub what: &'static str,
    /// What the library said.
    pub source: io::Error,
}

/// What a device grants at most; ibv_query_device(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub qps: u32,
    /// Work requests of one queue.
    pub qp_wrs: u32,
    /// Scatter entries of one work request.
    pub sges: u32,
    /// Scatter entries of one RDMA READ.
    pub read_sges: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Entries of one completion queue.
    pub cqes: u32,
    /// Memory registrations.
    pub mrs: u32,
    /// Bytes of one registration.
    pub mr_bytes: u64,
    /// Protection domains.
    pub pds: u32,
    /// RDMA READs that one queue pair serves at once.
    pub reads_in: u8,
    /// RDMA READs that one queue pair may have under way at once.
    pub reads_out: u8,
    /// Ports.
    pub ports: u8,
}

/// What a port says of itself; ibv_query_port(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// Whether it is active. Only then can it carry anything.
    pub active: bool,
    /// `enum ibv_port_state`: 1 down, 2 init, 3 armed, 4 active.
    pub state: u32,
    /// The path MTU it has now, if it is one of the five.
    pub mtu: Option<PathMtu>,
    /// Whether the link layer is Ethernet (RoCE).
    pub ethernet: bool,
    /// Entries of its GID table.
    pub gids: u32,
    /// Longest message, in bytes.
    pub message_bytes_max: u32,
}

/// An open device. A cheap handle; the device is closed when the last handle, and the last object
/// made on it, is gone. Any thread may use it.
#[derive(Clone)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

struct DeviceInner {
    context: NonNull<sys::ibv_context>,
    name: String,
    limits: DeviceLimits,
    software: bool,
}

// SAFETY: the library lets any thread use a context; nothing here is bound to a thread.
unsafe impl Send for DeviceInner {}
// SAFETY: as above; the fields do not change.
unsafe impl Sync for DeviceInner {}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // SAFETY: the context was opened once, and every object made on it held this value.
        let status = unsafe { sys::ibv_close_device(self.context.as_ptr()) };
        debug_assert_eq!(status, 0, "closing a device failed");
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

/// The library's list of devices while it is held.
struct List {
    first: NonNull<*mut sys::ibv_device>,
    count: usize,
}

impl List {
    fn read() -> Result<List, DeviceError> {
        let mut count = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let first = unsafe { sys::ibv_get_device_list(&raw mut count) };
        let first = NonNull::new(first).ok_or_else(|| no_list(last_error()))?;
        Ok(List { first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn get(&self, index: usize) -> *mut sys::ibv_device {
        assert!(index < self.count, "the list is shorter");
        // SAFETY: the list has `count` entries.
        let entry = unsafe { self.first.add(index) };
        // SAFETY: the entry is initialised and lives as long as the list.
        unsafe { entry.read() }
    }

    fn name(&self, index: usize) -> String {
        // SAFETY: an entry of a list that is still held.
        let name = unsafe { sys::ibv_get_device_name(self.get(index)) };
        // SAFETY: the library returns a string that ends with 0 and lives as long as the entry.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl List {
    /// The device file of an entry, below /dev/infiniband.
    fn file(&self, index: usize) -> PathBuf {
        // SAFETY: an entry of a list that is still held.
        let name = unsafe { &(*self.get(index)).dev_name };
        // SAFETY: the library ends the name with 0, and the borrow is of the entry.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Path::new("/dev/infiniband").join(&*name.to_string_lossy())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is freed once.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

fn no_list(source: io::Error) -> DeviceError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            DeviceError::NoPermission { device: "(any)".into(), source }
        }
        _ => DeviceError::NoModule { source },
    }
}

/// Device names that the kernel knows, whatever the library can do with them.
fn kernel_devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/infiniband");
    let names = entries.into_iter().flatten().flatten();
    let mut names: Vec<_> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Why an empty list is empty.
fn why_empty() -> DeviceError {
    let known = kernel_devices().join(", ");
    if !known.is_empty() {
        DeviceError::NoProvider { known }
    } else if !Path::new("/sys/class/infiniband_verbs").exists() {
        DeviceError::NoModule { source: io::Error::from_raw_os_error(libc::ENOSYS) }
    } else {
        DeviceError::NoDevices
    }
}

/// The names of the devices that can be opened, in the library's order.
///
/// # Errors
/// There are none, and why.
pub fn devices() -> Result<Vec<String>, DeviceError> {
    let list = List::read()?;
    if list.count == 0 {
        return Err(why_empty());
    }
    Ok((0..list.count).map(|index| list.name(index)).collect())
}

impl Device {
    /// Opens a device by name, such as `mlx5_0` or `rxe0`.
    ///
    /// # Errors
    /// One variant per cause.
    pub fn open(name: &str) -> Result<Device, DeviceError> {
        let list = List::read()?;
        if list.count == 0 {
            return Err(why_empty());
        }
        let names: Vec<String> = (0..list.count).map(|index| list.name(index)).collect();
        let Some(index) = names.iter().position(|known| known == name) else {
            let known = names.join(", ");
            return Err(DeviceError::NoSuchDevice { device: name.to_owned(), known });
        };
        // SAFETY: an entry of a list that is still held.
        let context = unsafe { sys::ibv_open_device(list.get(index)) };
        let Some(context) = NonNull::new(context) else {
            let source = last_error();
            return Err(cannot_open(name, why_not_opened(&list.file(index), source)));
        };
        let limits = match query_limits(context) {
            Ok(limits) => limits,
            Err(source) => {
                // SAFETY: it was just opened and nothing uses it.
                unsafe { sys::ibv_close_device(context.as_ptr()) };
                return Err(cannot_open(name, source));
            }
        };
        // A device that hangs below no other is made of software: its doorbell is a system call.
        let software = !Path::new("/sys/class/infiniband").join(name).join("device").exists();
        let inner = DeviceInner { context, name: name.to_owned(), limits, software };
        Ok(Device { inner: Arc::new(inner) })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What it grants at most.
    #[must_use]
    pub fn limits(&self) -> &DeviceLimits {
        &self.inner.limits
    }

    /// Whether the kernel plays the device (rxe, siw): each doorbell is then a system call.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.inner.software
    }

    /// What a port says of itself now.
    ///
    /// # Errors
    /// The device has no such port, or is gone.
    pub fn port(&self, port: u8) -> Result<PortFacts, PortQueryError> {
        let mut facts = MaybeUninit::<sys::ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the pointer is to a local of the type that is asked for.
        let status = unsafe { sys::___ibv_query_port(self.context(), port, facts.as_mut_ptr()) };
        if status != 0 {
            return Err(self.port_error(port, "state", io::Error::from_raw_os_error(status)));
        }
        // SAFETY: all zeros is a value of the type, and the library wrote the rest.
        let facts = unsafe { facts.assume_init() };
        Ok(PortFacts {
            active: facts.state == sys::ibv_port_state::IBV_PORT_ACTIVE,
            state: facts.state,
            mtu: PathMtu::from_code(facts.active_mtu),
            // IBV_LINK_LAYER_ETHERNET of infiniband/verbs.h.
            ethernet: facts.link_layer == 2,
            gids: u32::try_from(facts.gid_tbl_len).unwrap_or(0),
            message_bytes_max: facts.max_msg_sz,
        })
    }

    /// An entry of a port's GID table, in network order.
    ///
    /// # Errors
    /// The table has no such entry, or the device is gone.
    pub fn gid(&self, port: u8, index: u16) -> Result<[u8; 16], PortQueryError> {
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and the pointer is to a local that outlives the call.
        let status =
            unsafe { sys::ibv_query_gid(self.context(), port, index.into(), &raw mut gid) };
        if status != 0 {
            return Err(self.port_error(port, "gid", last_error()));
        }
        // SAFETY: every bit pattern is sixteen bytes.
        Ok(unsafe { gid.raw })
    }

    fn port_error(&self, port: u8, what: &'static str, source: io::Error) -> PortQueryError {
        PortQueryError { device: self.inner.name.clone(), port, what, source }
    }

    pub(super) fn context(&self) -> *mut sys::ibv_context {
        self.inner.context.as_ptr()
    }

    /// Where the device's own events come from; readable when there is one.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open and its field is set for as long as it is.
        let fd = unsafe { (*self.inner.context.as_ptr()).async_fd };
        // SAFETY: the descriptor is open for as long as the context, which the borrow keeps open.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// The library tries two ways and reports the second's failure; the device file knows better.
fn why_not_opened(file: &Path, said: io::Error) -> io::Error {
    match OpenOptions::new().read(true).write(true).open(file) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
        _ => said,
    }
}

fn cannot_open(name: &str, source: io::Error) -> DeviceError {
    let device = name.to_owned();
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => DeviceError::NoPermission { device, source },
        _ => DeviceError::Open { device, source },
    }
}

fn query_limits(context: NonNull<sys::ibv_context>) -> Result<DeviceLimits, io::Error> {
    let mut limits = MaybeUninit::<sys::ibv_device_attr>::zeroed();
    // SAFETY: the context is open, and the pointer is to a local of the type that is asked for.
    let status = unsafe { sys::ibv_query_device(context.as_ptr(), limits.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::from_raw_os_error(status));
    }
    // SAFETY: all zeros is a value of the type, and the library wrote the rest.
    let limits = unsafe { limits.assume_init() };
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    let byte = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
    Ok(DeviceLimits {
        qps: count(limits.max_qp),
        qp_wrs: count(limits.max_qp_wr),
        sges: count(limits.max_sge),
        read_sges: count(limits.max_sge_rd),
        cqs: count(limits.max_cq),
        cqes: count(limits.max_cqe),
        mrs: count(limits.max_mr),
        mr_bytes: limits.max_mr_size,
        pds: count(limits.max_pd),
        reads_in: byte(limits.max_qp_rd_atom),
        reads_out: byte(limits.max_qp_init_rd_atom),
        ports: limits.phys_port_cnt,
    })
}
