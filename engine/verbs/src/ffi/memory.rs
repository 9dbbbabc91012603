//! Protection domains, and memory registered in one.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use railring_dma::{MemlockLimit, Region};
use rdma_sys as sys;

use super::device::Device;
use super::last_error;

/// Why there is no protection domain.
#[derive(Debug, thiserror::Error)]
#[error("device {device} makes no protection domain: {source}; it grants {limit} at most")]
pub struct PdError {
    /// The device.
    pub device: String,
    /// What the kernel said.
    pub source: io::Error,
    /// The device's limit.
    pub limit: u32,
}

/// A protection domain: registrations and queue pairs of one see each other. A cheap handle, for
/// any thread.
#[derive(Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
}

struct PdInner {
    pd: NonNull<sys::ibv_pd>,
    device: Device,
}

// SAFETY: the library lets any thread use a protection domain.
unsafe impl Send for PdInner {}
// SAFETY: as above; the fields do not change.
unsafe impl Sync for PdInner {}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: it was made once, and everything made in it held this value.
        let status = unsafe { sys::ibv_dealloc_pd(self.pd.as_ptr()) };
        debug_assert_eq!(status, 0, "a protection domain was still in use");
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("device", &self.inner.device.name()).finish_non_exhaustive()
    }
}

impl Pd {
    /// Makes one on `device`.
    ///
    /// # Errors
    /// The device has no more, or is gone.
    pub fn new(device: &Device) -> Result<Pd, PdError> {
        // SAFETY: the context is open.
        let pd = unsafe { sys::ibv_alloc_pd(device.context()) };
        let pd = NonNull::new(pd).ok_or_else(|| PdError {
            device: device.name().to_owned(),
            source: last_error(),
            limit: device.limits().pds,
        })?;
        Ok(Pd { inner: Arc::new(PdInner { pd, device: device.clone() }) })
    }

    /// The device it is of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.inner.pd.as_ptr()
    }

    #[cfg(feature = "fault")]
    pub(super) fn is(&self, other: &Pd) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

/// What may be done to registered memory besides reading it from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This device writes it: where RDMA READs land.
    LocalWrite,
    /// Others may read it: what a peer serves.
    RemoteRead,
    /// Others may read and write it. Only for the test of a write that comes too late.
    #[cfg(feature = "fault")]
    RemoteWrite,
}

impl Access {
    pub(super) fn flags(self) -> u32 {
        match self {
            Access::LocalWrite => sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
            Access::RemoteRead => sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
            #[cfg(feature = "fault")]
            Access::RemoteWrite => {
                sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
                    | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
                    | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            }
        }
    }
}

/// Why memory is not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MrError {
    /// No bytes, or bytes that are not the region's.
    #[error("bytes {start}..{end} are no part of a region of {bytes} B")]
    Range {
        /// First byte.
        start: usize,
        /// Behind the last byte.
        end: usize,
        /// The region's length.
        bytes: usize,
    },
    /// More than one registration of this device holds.
    #[error("{bytes} B in one registration were refused; the device takes {limit_bytes} B")]
    TooLong {
        /// What was asked for.
        bytes: usize,
        /// The device's limit.
        limit_bytes: u64,
    },
    /// The kernel may not lock so much memory.
    #[error(
        "{bytes} B cannot be locked in memory: RLIMIT_MEMLOCK is {limit_bytes} B and registered \
         memory counts against it; raise it (ulimit -l, LimitMEMLOCK=) or grant CAP_IPC_LOCK"
    )]
    Memlock {
        /// What was asked for.
        bytes: usize,
        /// The soft limit in force.
        limit_bytes: u64,
    },
    /// Anything else; often the device's table of registrations is full.
    #[error("registering {bytes} B failed: {source}; the device grants {limit} registrations")]
    Refused {
        /// What was asked for.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
        /// The device's limit.
        limit: u32,
    },
}

/// Registered memory: pinned, and named to the device by keys. Deregistered when dropped.
///
/// It does not keep its region: the device works on the pages that were pinned, which stay until
/// deregistration whatever becomes of the mapping.
pub struct Mr {
    mr: NonNull<sys::ibv_mr>,
    pd: Pd,
    address: u64,
    bytes: usize,
}

// SAFETY: the library lets any thread use and free a registration.
unsafe impl Send for Mr {}
// SAFETY: as above; shared references only read fields that do not change.
unsafe impl Sync for Mr {}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: it was registered once, and its domain is still there.
        let status = unsafe { sys::ibv_dereg_mr(self.mr.as_ptr()) };
        debug_assert_eq!(status, 0, "deregistering failed");
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("bytes", &self.bytes)
            .field("lkey", &self.lkey())
            .finish_non_exhaustive()
    }
}

impl Mr {
    /// Registers bytes `range` of a region's mapping (`0..region.mapped_bytes()` at most).
    ///
    /// # Errors
    /// One variant per cause; nothing is registered.
    pub fn register(
        pd: &Pd,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Mr, MrError> {
        let Range { start, end } = range;
        let mapped = region.mapped_bytes();
        if start >= end || end > mapped {
            return Err(MrError::Range { start, end, bytes: mapped });
        }
        let bytes = end - start;
        let limits = pd.device().limits();
        if bytes as u64 > limits.mr_bytes {
            return Err(MrError::TooLong { bytes, limit_bytes: limits.mr_bytes });
        }
        // SAFETY: `start` is inside the region's mapping.
        let first = unsafe { region.base().add(start) };
        let flags = i32::try_from(access.flags()).expect("a few low bits");
        // SAFETY: the domain is there. The range is mapped while `region` is; the call pins its
        // pages and touches nothing else. Who may write them is decided by who holds their parts.
        let mr = unsafe { sys::ibv_reg_mr(pd.as_ptr(), first.as_ptr().cast(), bytes, flags) };
        let mr = NonNull::new(mr).ok_or_else(|| refused(pd, bytes, last_error()))?;
        Ok(Mr { mr, pd: pd.clone(), address: first.as_ptr().addr() as u64, bytes })
    }

    /// The key that local work requests name it by.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        // SAFETY: the registration is there and its fields do not change.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// The key that peers name it by.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: the registration is there and its fields do not change.
        unsafe { (*self.mr.as_ptr()).rkey }
    }

    /// Address of the first byte, as peers name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The domain it is registered in.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}

fn refused(pd: &Pd, bytes: usize, source: io::Error) -> MrError {
    let limit = MemlockLimit::read().ok().filter(|limit| !limit.ipc_lock);
    let limit_bytes = limit.and_then(|limit| limit.limit_bytes);
    match (source.raw_os_error(), limit_bytes) {
        // The kernel answers ENOMEM for the limit, and for nothing else that is likely.
        (Some(libc::ENOMEM), Some(limit_bytes)) => MrError::Memlock { bytes, limit_bytes },
        _ => MrError::Refused { bytes, source, limit: pd.device().limits().mrs },
    }
}
