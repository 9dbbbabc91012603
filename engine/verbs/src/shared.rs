//! What the threads of one rail share: the link, any control thread, and the rail's own two.
//!
//! A connection's life is told by its *epoch*, a number that is never used twice for one slot; zero
//! while nothing is connected. The control side connects and hands a [`ReadQueue`] over; the link
//! takes it when it sees the epoch change, and hands it back when nothing is in flight any more.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use railring_dma::Part;
use railring_transport::{ConnectionCounts, Notes, TargetId, WrId};
use rustix::event::EventfdFlags;
use sq_cq::Status;

use crate::ffi::{Breaker, Cq, Device, Pd, ReadQueue, Route};
use crate::hello::Talk;
use crate::memory::Memory;
use crate::mtu::MtuWish;
use crate::options::ENDPOINTS_MAX;
use crate::targets::Targets;
use crate::timers::Timers;
use crate::wc;

/// How connections are made.
#[derive(Debug)]
pub(crate) struct Dial {
    /// The address that connections are made from, for people.
    pub(crate) from: String,
    pub(crate) route: Route,
    pub(crate) gid: [u8; 16],
    pub(crate) mtu: MtuWish,
    pub(crate) timers: Timers,
    pub(crate) reads_out: u8,
    /// Work requests of each send queue.
    pub(crate) send_wrs: u32,
    /// Scatter entries of each work request.
    pub(crate) sges: u32,
    pub(crate) patience: Duration,
    /// Whether peers may write this end's memory, for tests.
    pub(crate) open_memory: bool,
}

/// What all halves and threads of one rail know.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) dial: Dial,
    pub(crate) targets: Targets,
    pub(crate) memory: Memory,
    pub(crate) notes: Notes,
    pub(crate) connections: Box<[Connection]>,
    /// A bit per connection that the link found broken, or wants to be.
    broken: [AtomicU64; ENDPOINTS_MAX / 64],
    /// Rings the watch thread.
    bell: OwnedFd,
    pub(crate) stop: AtomicBool,
    /// Queues that nothing is in flight on, to be destroyed. Bounded by two per connection.
    retired: Mutex<Vec<ReadQueue>>,
    /// Queues that do not give their memory back, to be destroyed for that.
    hopeless: Mutex<Vec<ReadQueue>>,
    /// What came out of those.
    returned: Mutex<Vec<(WrId, Part)>>,
    has_returned: AtomicBool,
    /// Connections that came up and that were cut.
    pub(crate) counts: ConnectionCounts,
    /// How connections are set up, once one is.
    pub(crate) agreed: Mutex<String>,
    // Freed last: queues above are on them.
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) device: Device,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a rail is made of before it has threads.
pub(crate) struct Ground {
    pub(crate) name: String,
    pub(crate) dial: Dial,
    pub(crate) memory: Memory,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) device: Device,
}

/// One endpoint's connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    /// The one that lives, or 0.
    pub(crate) epoch: AtomicU32,
    /// The last one that the link gave up.
    broken_epoch: AtomicU32,
    /// Why: status code high, vendor code low; 0 if it is not known, or was wanted.
    cause: AtomicU64,
    /// Whether anything was read over it.
    pub(crate) proved: AtomicBool,
    /// While nothing is connected: the status that reads are refused with, or 0 if they may wait
    /// for the first attempt to reconnect.
    pub(crate) refusal: AtomicI32,
    pub(crate) hand_over: Mutex<Option<(u32, ReadQueue)>>,
    pub(crate) cutter: Mutex<Option<Cutter>>,
    pub(crate) desk: Mutex<Desk>,
}

/// How the living connection is cut, and how the end of its peer is seen.
#[derive(Debug)]
pub(crate) struct Cutter {
    pub(crate) epoch: u32,
    pub(crate) breaker: Breaker,
    pub(crate) stream: Arc<std::net::TcpStream>,
}

/// The control side of a connection; whoever holds it may be waiting for the peer.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) endpoint: String,
    /// Where it is dialled.
    pub(crate) address: String,
    pub(crate) talk: Option<Talk>,
    pub(crate) open: Vec<Open>,
    /// Attempts to connect that failed, or came to nothing, one after the other.
    pub(crate) failures: u32,
    pub(crate) last_epoch: u32,
}

/// A target that is open, to be opened again after a reconnect.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: TargetId,
    pub(crate) handle: String,
    pub(crate) generation: u64,
}

/// A lock whose data is whole whatever its last holder did.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(ground: Ground) -> std::io::Result<Shared> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let Ground { name, dial, memory, pd, cq, device } = ground;
        Ok(Shared {
            name,
            dial,
            targets: Targets::new(),
            memory,
            notes: Notes::default(),
            connections: (0..ENDPOINTS_MAX).map(|_| Connection::default()).collect(),
            broken: [const { AtomicU64::new(0) }; ENDPOINTS_MAX / 64],
            bell,
            stop: AtomicBool::new(false),
            retired: Mutex::new(Vec::with_capacity(2 * ENDPOINTS_MAX)),
            hopeless: Mutex::new(Vec::with_capacity(2 * ENDPOINTS_MAX)),
            returned: Mutex::default(),
            has_returned: AtomicBool::new(false),
            counts: ConnectionCounts::default(),
            agreed: Mutex::default(),
            pd,
            cq,
            device,
        })
    }

    pub(crate) fn say(&self, line: String) {
        self.notes.say(&self.name, line);
    }

    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Wakes the watch thread. One system call; never blocks.
    pub(crate) fn ring(&self) {
        // A full counter has woken it already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// The link gives up the connection of this epoch, because of `cause` (a status code and the
    /// device's own) or, with 0, because it wants its memory back.
    pub(crate) fn give_up(&self, connection: usize, epoch: u32, (code, vendor): (u32, u32)) {
        let slot = &self.connections[connection];
        slot.cause.store(u64::from(code) << 32 | u64::from(vendor), Ordering::Relaxed);
        slot.broken_epoch.store(epoch, Ordering::Relaxed);
        // Release: pairs with the Acquire in `take_broken`, which then sees epoch and cause.
        self.broken[connection / 64].fetch_or(1 << (connection % 64), Ordering::Release);
        self.ring();
    }

    /// The connections that the link gave up since the last call: index, epoch, cause.
    pub(crate) fn take_broken(&self) -> Vec<(usize, u32, (u32, u32))> {
        let mut found = Vec::new();
        for (index, word) in self.broken.iter().enumerate() {
            // Acquire: pairs with the Release in `give_up`.
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                let at = index * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let slot = &self.connections[at];
                let cause = slot.cause.load(Ordering::Relaxed);
                let (code, vendor) = ((cause >> 32) as u32, (cause & 0xffff_ffff) as u32);
                found.push((at, slot.broken_epoch.load(Ordering::Relaxed), (code, vendor)));
            }
        }
        found
    }

    /// Makes the connection of this epoch fail, if it is the living one; says whether it was.
    /// `cause` is the code of the work completion that it failed with, 0 without one.
    pub(crate) fn cut(&self, connection: usize, epoch: u32, cause: u32) -> bool {
        let slot = &self.connections[connection];
        let cutter = lock(&slot.cutter).take_if(|cutter| cutter.epoch == epoch);
        let Some(cutter) = cutter else { return false };
        self.counts.retired();
        // One that worked is likely to come back at once, and those that it takes along did nothing
        // wrong. One that never did may have a peer that lies: that is not the rail's fault.
        let refusal = match cause {
            _ if slot.proved.load(Ordering::Relaxed) => Status::OK,
            0 | wc::FLUSHED => Status::from_errno(libc::ENOTCONN),
            code => wc::status_of(code),
        };
        slot.refusal.store(refusal.raw(), Ordering::Relaxed);
        if let Err(error) = cutter.breaker.fail() {
            self.say(format!("a queue pair cannot be stopped: {error}"));
        }
        // Both directions, so that a thread that waits for the peer's answer does not.
        let _ = cutter.stream.shutdown(std::net::Shutdown::Both);
        // Release: nothing is handed over with a zero; the order keeps the failure before it.
        let _ = slot.epoch.compare_exchange(epoch, 0, Ordering::Release, Ordering::Relaxed);
        true
    }

    /// Takes a queue on which nothing is in flight, to be destroyed elsewhere; gives it back if the
    /// list is being emptied just now. Never blocks.
    pub(crate) fn retire(&self, queue: ReadQueue) -> Result<(), ReadQueue> {
        give(&self.retired, queue)?;
        self.ring();
        Ok(())
    }

    /// The same for a queue that does not give its memory back.
    pub(crate) fn despair_of(&self, queue: ReadQueue) -> Result<(), ReadQueue> {
        give(&self.hopeless, queue)?;
        self.ring();
        Ok(())
    }

    /// Destroys what was retired. Blocks for system calls of some milliseconds.
    pub(crate) fn bury(&self) {
        // Emptied in place, so that the lists keep their room; dropped after the lock.
        let retired: Vec<ReadQueue> = lock(&self.retired).drain(..).collect();
        drop(retired);
        let hopeless: Vec<ReadQueue> = lock(&self.hopeless).drain(..).collect();
        for queue in hopeless {
            self.say(format!("queue pair {} did not flush; it was destroyed", queue.qpn()));
            let mut parts = Vec::new();
            queue.end_without_queue_pair(&mut |wr, part, _| parts.push((wr, part)));
            lock(&self.returned).append(&mut parts);
            // Release: pairs with the Acquire in `take_returned`.
            self.has_returned.store(true, Ordering::Release);
        }
    }

    /// Whether queues wait to be destroyed.
    pub(crate) fn has_dead(&self) -> bool {
        !lock(&self.retired).is_empty() || !lock(&self.hopeless).is_empty()
    }

    /// Memory that came out of a destroyed queue pair. One load when there is none.
    pub(crate) fn take_returned(&self, sink: &mut dyn FnMut(WrId, Part)) {
        // Acquire: pairs with the Release in `bury`.
        if !self.has_returned.load(Ordering::Acquire) {
            return;
        }
        let Ok(mut returned) = self.returned.try_lock() else { return };
        self.has_returned.store(false, Ordering::Relaxed);
        returned.drain(..).for_each(|(wr, part)| sink(wr, part));
    }
}

fn give(list: &Mutex<Vec<ReadQueue>>, queue: ReadQueue) -> Result<(), ReadQueue> {
    match list.try_lock() {
        Ok(mut list) if list.len() < list.capacity() => {
            list.push(queue);
            Ok(())
        }
        _ => Err(queue),
    }
}
