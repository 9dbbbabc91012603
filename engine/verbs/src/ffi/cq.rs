//! Completion queues: polled, or waited for through a channel.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys as sys;

use super::device::Device;
use super::last_error;

/// Completions fetched by one call.
const BATCH: usize = 16;
/// Events that are acknowledged together: each acknowledgement takes a lock in the library.
const ACK_BATCH: u32 = 64;

/// Whether a completion queue can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Only polled.
    Never,
    /// Through a descriptor, when armed.
    Descriptor,
}

/// Why there is no completion queue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// No entries, or more than can be counted.
    #[error("a completion queue of {asked} entries was refused; it must be from 1 to {limit}")]
    Size {
        /// Entries asked for.
        asked: u32,
        /// The device's limit.
        limit: u32,
    },
    /// The device did not make it.
    #[error(
        "a completion queue of {asked} entries was refused by the device: {source}; it grants \
         {queues} queues of {limit} entries"
    )]
    Refused {
        /// Entries asked for.
        asked: u32,
        /// The device's limit of entries.
        limit: u32,
        /// The device's limit of queues.
        queues: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// No channel to wait on.
    #[error("no completion channel: {source}; poll instead")]
    Channel {
        /// What the kernel said.
        source: io::Error,
    },
}

/// One finished work request, taken from a completion queue. Proof that the request, and all
/// posted before it on its queue pair, are over; so it cannot be copied.
#[derive(Debug)]
pub struct Wc {
    wr_id: u64,
    qpn: u32,
    result: Result<(), Failed>,
}

/// How a request failed. Nothing else of the completion is defined then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) code: u32,
    pub(super) vendor: u32,
}

impl Wc {
    /// The request's identity.
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The number of its queue pair.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// `enum ibv_wc_status`: 0 is success.
    #[must_use]
    pub fn code(&self) -> u32 {
        self.result.map_or_else(|failed| failed.code, |()| 0)
    }

    /// The device's own code of a failure.
    #[must_use]
    pub fn vendor(&self) -> u32 {
        self.result.map_or_else(|failed| failed.vendor, |()| 0)
    }

    pub(super) fn failed(&self) -> Option<Failed> {
        self.result.err()
    }
}

/// Room for the completions of one poll; made once.
pub struct WcBatch {
    raw: Box<[MaybeUninit<sys::ibv_wc>; BATCH]>,
    filled: usize,
    next: usize,
}

impl fmt::Debug for WcBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WcBatch").field("left", &(self.filled - self.next)).finish_non_exhaustive()
    }
}

impl Default for WcBatch {
    fn default() -> Self {
        WcBatch { raw: Box::new([const { MaybeUninit::zeroed() }; BATCH]), filled: 0, next: 0 }
    }
}

impl WcBatch {
    /// Whether nothing is left to take.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next == self.filled
    }

    /// The next completion.
    pub fn take(&mut self) -> Option<Wc> {
        if self.is_empty() {
            return None;
        }
        let raw = self.raw[self.next].as_ptr();
        self.next += 1;
        // SAFETY: the entry was filled by the last poll; it is plain numbers, and was all
        // zeros before, so that it is a value whatever the library left out.
        let entry = unsafe { &*raw };
        let result = if entry.status == sys::ibv_wc_status::IBV_WC_SUCCESS {
            Ok(())
        } else {
            Err(Failed { code: entry.status, vendor: entry.vendor_err })
        };
        // These are defined whatever the status is; the length and the operation are not, and
        // nobody needs them: what was asked for is kept with the request.
        Some(Wc { wr_id: entry.wr_id, qpn: entry.qp_num, result })
    }
}

/// A completion queue. A cheap handle; any thread may use it, though one poller should.
#[derive(Clone)]
pub struct Cq {
    inner: Arc<CqInner>,
}

struct CqInner {
    cq: NonNull<sys::ibv_cq>,
    channel: Option<Channel>,
    /// Events taken from the channel and not acknowledged yet.
    unacknowledged: AtomicU32,
    entries: u32,
    device: Device,
}

// SAFETY: the library lets any thread use a completion queue; it locks inside.
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}

impl Drop for CqInner {
    fn drop(&mut self) {
        let events = *self.unacknowledged.get_mut();
        if events > 0 {
            // SAFETY: the queue is there, and so many of its events were taken. Destroying it
            // would wait for them for ever.
            unsafe { sys::ibv_ack_cq_events(self.cq.as_ptr(), events) };
        }
        // SAFETY: it was made once, and every queue pair on it held this value.
        let status = unsafe { sys::ibv_destroy_cq(self.cq.as_ptr()) };
        debug_assert_eq!(status, 0, "a completion queue was still in use");
        // The channel goes with its field, after the queue.
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("entries", &self.inner.entries).finish_non_exhaustive()
    }
}

struct Channel {
    channel: NonNull<sys::ibv_comp_channel>,
    /// Keeps the device open for as long as the channel.
    _device: Device,
}

impl Channel {
    fn new(device: &Device) -> Result<Channel, CqError> {
        // SAFETY: the context is open.
        let channel = unsafe { sys::ibv_create_comp_channel(device.context()) };
        let channel =
            NonNull::new(channel).ok_or_else(|| CqError::Channel { source: last_error() })?;
        let channel = Channel { channel, _device: device.clone() };
        let flags = rustix::fs::fcntl_getfl(channel.fd());
        let set =
            flags.and_then(|flags| rustix::fs::fcntl_setfl(channel.fd(), flags | nonblocking()));
        set.map_err(|errno| CqError::Channel { source: errno.into() })?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there and its field does not change.
        let fd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel, which the borrow keeps.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes one event, if there is one.
    fn take_event(&self) -> bool {
        let mut cq = ptr::null_mut();
        let mut context = ptr::null_mut();
        // SAFETY: the channel is there and does not block; the pointers are to locals.
        let status =
            unsafe { sys::ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut context) };
        status == 0
    }
}

fn nonblocking() -> rustix::fs::OFlags {
    rustix::fs::OFlags::NONBLOCK
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: it was made once, and the one queue on it is gone.
        let status = unsafe { sys::ibv_destroy_comp_channel(self.channel.as_ptr()) };
        debug_assert_eq!(status, 0, "a completion channel was still in use");
    }
}

impl Cq {
    /// Makes a completion queue of at least `entries` entries.
    ///
    /// # Errors
    /// More than the device has, or none.
    pub fn new(device: &Device, entries: u32, wake: Wake) -> Result<Cq, CqError> {
        let limit = device.limits().cqes;
        let asked = i32::try_from(entries).ok().filter(|asked| *asked > 0 && entries <= limit);
        let Some(asked) = asked else { return Err(CqError::Size { asked: entries, limit }) };
        let channel = match wake {
            Wake::Never => None,
            Wake::Descriptor => Some(Channel::new(device)?),
        };
        let raw_channel =
            channel.as_ref().map_or(ptr::null_mut(), |channel| channel.channel.as_ptr());
        // SAFETY: the context is open, and the channel is of it or null.
        let cq =
            unsafe { sys::ibv_create_cq(device.context(), asked, ptr::null_mut(), raw_channel, 0) };
        let Some(cq) = NonNull::new(cq) else {
            let (queues, source) = (device.limits().cqs, last_error());
            return Err(CqError::Refused { asked: entries, limit, queues, source });
        };
        // SAFETY: it was just made.
        let granted = unsafe { (*cq.as_ptr()).cqe };
        let inner = CqInner {
            cq,
            channel,
            unacknowledged: AtomicU32::new(0),
            entries: u32::try_from(granted).unwrap_or(0),
            device: device.clone(),
        };
        Ok(Cq { inner: Arc::new(inner) })
    }

    /// Entries that the device really gave.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.inner.entries
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.inner.cq.as_ptr()
    }

    pub(super) fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Fetches completions into `batch`, which is empty before; says how many.
    ///
    /// # Errors
    /// The device failed; no completion will come any more.
    pub fn poll(&self, batch: &mut WcBatch) -> io::Result<usize> {
        if !batch.is_empty() {
            return Ok(batch.filled - batch.next);
        }
        (batch.filled, batch.next) = (0, 0);
        let room = i32::try_from(BATCH).expect("a few");
        let first = batch.raw.as_mut_ptr().cast();
        // SAFETY: the queue is there; the array has `room` entries.
        let found = unsafe { sys::ibv_poll_cq(self.as_ptr(), room, first) };
        batch.filled =
            usize::try_from(found).map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        Ok(batch.filled)
    }

    /// What becomes readable when the queue was armed and something completes.
    #[must_use]
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.channel.as_ref().map(Channel::fd)
    }

    /// Asks for an event at the next completion. One that came before is not reported: poll
    /// again after this.
    ///
    /// # Errors
    /// The device failed.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is there.
        let status = unsafe { sys::ibv_req_notify_cq(self.as_ptr(), 0) };
        if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
    }

    /// Takes an event that came since the queue was armed; says how many there were, 0 or 1. One
    /// system call.
    pub fn take_event(&self) -> u32 {
        let taken = u32::from(self.inner.channel.as_ref().is_some_and(Channel::take_event));
        let before = self.inner.unacknowledged.fetch_add(taken, Ordering::Relaxed);
        if before + taken >= ACK_BATCH {
            let events = self.inner.unacknowledged.swap(0, Ordering::Relaxed);
            // SAFETY: the queue is there, and so many of its events were taken.
            unsafe { sys::ibv_ack_cq_events(self.as_ptr(), events) };
        }
        taken
    }
}
