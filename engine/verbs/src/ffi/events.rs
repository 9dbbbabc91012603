//! A device's own events: ports that go down, queue pairs that fail, the device itself.

use std::io;
use std::mem::MaybeUninit;

use rdma_sys as sys;

use super::device::Device;

/// What happened, by what it means for a rail. ibv_get_async_event(3) has the whole list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A completion queue overran or failed: it is dead, with every queue pair on it.
    CqFailed,
    /// A queue pair failed.
    QpFailed,
    /// The device failed.
    DeviceFatal,
    /// The port is up.
    PortUp,
    /// The port is down.
    PortDown,
    /// The GID table changed: an address came or went.
    GidsChanged,
    /// Nothing that a rail acts on.
    Other,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What it means.
    pub kind: EventKind,
    /// `enum ibv_event_type`.
    pub code: u32,
    /// The port, of events of ports.
    pub port: Option<u8>,
    /// The number of the queue pair, of events of queue pairs.
    pub qpn: Option<u32>,
}

impl Device {
    /// Makes [`Device::next_event`] return at once when there is none.
    ///
    /// # Errors
    /// The descriptor's flags cannot be set.
    pub fn events_nonblocking(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(self.event_fd())?;
        rustix::fs::fcntl_setfl(self.event_fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(())
    }

    /// The next event. Waits for one unless [`Device::events_nonblocking`] was called.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        let mut raw = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the pointer is to a local of the type asked for.
        let status = unsafe { sys::ibv_get_async_event(self.context(), raw.as_mut_ptr()) };
        if status != 0 {
            return None;
        }
        let event = read(&raw);
        // At once: destroying what the event is about would wait for this.
        // SAFETY: the event was just taken and is acknowledged once.
        unsafe { sys::ibv_ack_async_event(raw.as_mut_ptr()) };
        Some(event)
    }
}

/// Reads the event without making a value of the library's enum, which may have grown.
fn read(raw: &MaybeUninit<sys::ibv_async_event>) -> AsyncEvent {
    let event = raw.as_ptr();
    // SAFETY: `event` points to a whole event; only the field's address is taken.
    let code = unsafe { &raw const (*event).event_type };
    // SAFETY: the library wrote the field, an enum of C, which is as wide as this.
    let code = unsafe { code.cast::<u32>().read() };
    let kind = kind_of(code);
    // SAFETY: as above; the field is a union of pointers and a number, whatever the event is.
    let element = unsafe { &(*event).element };
    let port = matches!(kind, EventKind::PortUp | EventKind::PortDown | EventKind::GidsChanged)
        // SAFETY: events of ports carry the port's number.
        .then(|| unsafe { element.port_num });
    let qpn = (kind == EventKind::QpFailed).then(|| {
        // SAFETY: events of queue pairs carry the queue pair, which is not destroyed before the
        // event is acknowledged.
        let qp = unsafe { element.qp };
        // SAFETY: as above; its number does not change.
        unsafe { (*qp).qp_num }
    });
    AsyncEvent { kind, code, port: port.and_then(|port| u8::try_from(port).ok()), qpn }
}

fn kind_of(code: u32) -> EventKind {
    match code {
        0 => EventKind::CqFailed,
        1..=3 => EventKind::QpFailed,
        8 => EventKind::DeviceFatal,
        9 => EventKind::PortUp,
        10 => EventKind::PortDown,
        11 | 18 => EventKind::GidsChanged,
        _ => EventKind::Other,
    }
}
