//! The rail's own two threads. The *watch* is prompt: it makes queue pairs fail that the link gives
//! up, sees peers and ports go away, and never waits for anything else. The *mender* may wait: it
//! destroys what is over and reconnects, backing off.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use sq_cq::Status;

use crate::dial::establish;
use crate::ffi::{EventKind, with_signals_blocked};
use crate::options::ENDPOINTS_MAX;
use crate::shared::{Shared, lock};
use crate::wc;

/// The first pause before a reconnect; each failure doubles it.
const BACK_OFF_MIN: Duration = Duration::from_millis(10);
/// The longest pause.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// The watch looks around so often even when nothing calls it.
const ROUND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// What reads are refused with after an attempt to reconnect failed.
const NOT_CONNECTED: Status = Status::from_errno(libc::ENOTCONN);
const IDLE: Duration = Duration::from_secs(3600);

/// What the watch tells the mender.
#[derive(Debug)]
enum Job {
    /// This connection is down.
    Mend(usize),
    /// Something is to be destroyed.
    Bury,
}

/// Both threads; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Keeper> {
        shared.device.events_nonblocking()?;
        let (jobs, to_do) = channel();
        let (watched, mended) = (Arc::clone(shared), Arc::clone(shared));
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let mut keeper = Keeper { shared: Arc::clone(shared), threads: Vec::new() };
        let started = with_signals_blocked(|| {
            let watch = named("railring-watch").spawn(move || watch(&watched, &jobs))?;
            keeper.threads.push(watch);
            let mend = named("railring-mend").spawn(move || mend(&mended, &to_do))?;
            keeper.threads.push(mend);
            Ok::<(), io::Error>(())
        });
        started??;
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `watch`, whose end closes the mender's jobs.
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
        for thread in self.threads.drain(..) {
            // A panic was printed; there is nothing to do about it here.
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, jobs: &Sender<Job>) {
    let mut round = Round::new();
    // Acquire: pairs with the Release in `drop`.
    while !shared.stop.load(Ordering::Acquire) {
        for (connection, epoch, cause) in shared.take_broken() {
            cut(shared, jobs, (connection, epoch), cause.0, &why(cause));
        }
        while let Some(event) = shared.device.next_event() {
            note_event(shared, jobs, event);
        }
        if shared.has_dead() {
            let _ = jobs.send(Job::Bury);
        }
        round.wait(shared);
        for (connection, epoch) in round.gone.drain(..) {
            cut(shared, jobs, (connection, epoch), 0, "the peer closed the connection");
        }
    }
}

fn why((code, vendor): (u32, u32)) -> String {
    match code {
        0 => "a read was given up, so its queue pair was".to_owned(),
        code => wc::explain(code, vendor),
    }
}

fn cut(
    shared: &Shared,
    jobs: &Sender<Job>,
    (connection, epoch): (usize, u32),
    cause: u32,
    why: &str,
) {
    if !shared.cut(connection, epoch, cause) {
        return;
    }
    shared.say(format!("a connection was lost: {why}"));
    let _ = jobs.send(Job::Mend(connection));
}

fn note_event(shared: &Shared, jobs: &Sender<Job>, event: crate::ffi::AsyncEvent) {
    let ours = event.port.is_none_or(|port| port == shared.dial.route.port);
    let text = match event.kind {
        EventKind::CqFailed => "the completion queue failed (IBV_EVENT_CQ_ERR): restart the engine",
        EventKind::DeviceFatal => {
            "the device failed (IBV_EVENT_DEVICE_FATAL): see the kernel's log"
        }
        EventKind::PortDown if ours => "the port went down",
        EventKind::PortUp if ours => "the port came up",
        EventKind::GidsChanged if ours => "the port's addresses changed",
        EventKind::QpFailed => "the device reported a queue pair as failed",
        _ => return,
    };
    shared.say(format!("{text} (event {})", event.code));
    let dead = matches!(event.kind, EventKind::CqFailed | EventKind::DeviceFatal);
    for (connection, slot) in shared.connections.iter().enumerate() {
        let cutter = lock(&slot.cutter);
        let Some(found) = cutter.as_ref() else { continue };
        let (epoch, qpn) = (found.epoch, found.breaker.qpn());
        drop(cutter);
        // A port that is down may come back before the retries are used up.
        if dead || event.qpn == Some(qpn) {
            cut(shared, jobs, (connection, epoch), 0, text);
        }
    }
}

/// A connection whose peer is watched.
type Watched = (usize, u32, Arc<TcpStream>);

/// What a round of watching needs, kept from round to round: an engine that reads steadily does not
/// allocate here either.
struct Round {
    streams: Vec<Watched>,
    gone: Vec<(usize, u32)>,
}

impl Round {
    fn new() -> Self {
        Round {
            streams: Vec::with_capacity(ENDPOINTS_MAX),
            gone: Vec::with_capacity(ENDPOINTS_MAX),
        }
    }

    /// Waits until something happens; then `gone` has the connections whose peer is gone.
    fn wait(&mut self, shared: &Shared) {
        let streams = shared.connections.iter().enumerate().filter_map(|(connection, slot)| {
            let cutter = lock(&slot.cutter);
            let found = cutter.as_ref()?;
            Some((connection, found.epoch, Arc::clone(&found.stream)))
        });
        self.streams.clear();
        self.streams.extend(streams.take(ENDPOINTS_MAX));
        self.gone.clear();
        let mut fds: [PollFd<'_>; ENDPOINTS_MAX + 2] =
            std::array::from_fn(|_| PollFd::new(shared.bell(), PollFlags::IN));
        fds[1] = PollFd::from_borrowed_fd(shared.device.event_fd(), PollFlags::IN);
        for (fd, (_, _, stream)) in fds[2..].iter_mut().zip(&self.streams) {
            *fd = PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::RDHUP);
        }
        // EINTR and everything else: look around.
        let _ = rustix::event::poll(&mut fds[..2 + self.streams.len()], Some(&ROUND));
        if !fds[0].revents().is_empty() {
            let mut count = [0; 8];
            let _ = rustix::io::read(shared.bell(), &mut count);
        }
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        for (fd, (connection, epoch, _)) in fds[2..].iter().zip(&self.streams) {
            if fd.revents().intersects(gone) {
                self.gone.push((*connection, *epoch));
            }
        }
        // Their descriptors close when the connection goes, not a round later.
        self.streams.clear();
    }
}

fn mend(shared: &Shared, jobs: &Receiver<Job>) {
    let mut due: Vec<(Instant, usize)> = Vec::new();
    loop {
        let now = Instant::now();
        let next = due.iter().map(|(at, _)| *at).min();
        let pause = next.map_or(IDLE, |at| at.saturating_duration_since(now));
        match jobs.recv_timeout(pause) {
            Ok(Job::Mend(connection)) => {
                if let Some(pause) = begin(shared, connection) {
                    due.push((Instant::now() + pause, connection));
                }
            }
            Ok(Job::Bury) => shared.bury(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        let (ready, later): (Vec<_>, Vec<_>) = due.into_iter().partition(|(at, _)| *at <= now);
        due = later;
        for (_, connection) in ready {
            if let Some(pause) = reconnect(shared, connection) {
                due.push((Instant::now() + pause, connection));
            }
        }
    }
}

/// How long to wait before a connection that was lost is tried again. Nothing if nobody needs it.
fn begin(shared: &Shared, connection: usize) -> Option<Duration> {
    let slot = &shared.connections[connection];
    let mut desk = lock(&slot.desk);
    if slot.epoch.load(Ordering::Acquire) != 0 {
        return None;
    }
    desk.talk = None;
    if slot.proved.swap(false, Ordering::Relaxed) {
        desk.failures = 0;
    }
    (!desk.open.is_empty()).then(|| pause_after(&mut desk.failures))
}

fn pause_after(failures: &mut u32) -> Duration {
    let pause = BACK_OFF_MIN.saturating_mul(1 << (*failures).min(20));
    *failures = failures.saturating_add(1);
    pause.min(BACK_OFF_MAX)
}

/// Tries once; gives the pause until the next attempt if one is needed.
fn reconnect(shared: &Shared, connection: usize) -> Option<Duration> {
    let slot = &shared.connections[connection];
    let mut desk = lock(&slot.desk);
    let living = slot.epoch.load(Ordering::Acquire) != 0;
    if living || desk.open.is_empty() || shared.stop.load(Ordering::Acquire) {
        return None;
    }
    match establish(shared, connection, &mut desk) {
        Ok(()) => None,
        Err(error) => {
            slot.refusal.store(NOT_CONNECTED.raw(), Ordering::Relaxed);
            let endpoint = &desk.endpoint;
            shared.say(format!("{endpoint} cannot be reached again yet: {error}"));
            Some(pause_after(&mut desk.failures))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let mut failures = 0;
        let pauses: Vec<_> = (0..40).map(|_| pause_after(&mut failures).as_millis()).collect();
        assert_eq!(pauses[..4], [10, 20, 40, 80]);
        assert!(pauses.is_sorted() && pauses[39] == 5000);
    }
}
