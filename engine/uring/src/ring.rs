//! The poller's half of a ring: push, commit, pop, cancel.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{cqueue, opcode, squeue, types};

use crate::bytes::StableBytes;
use crate::create::{self, RingError, RingOptions};
use crate::in_flight::InFlight;
use crate::inject::Injector;
use crate::reads::{FileRef, Finished, ReadAt, ReadRefused, Unread};
use crate::tables::{Shared, Tables};

/// The user data of cancels: its row is beyond any table.
const CANCEL_KEY: u64 = u64::MAX;

/// The user data of the watch on the poller's bell.
const BELL_KEY: u64 = u64::MAX - 1;

/// Doorbells in a row that the kernel may answer with EAGAIN, EBUSY or EINTR before the ring is
/// given up: at one a microsecond, a second of a kernel that has no memory at all. A read has a
/// deadline of its own long before.
const REFUSED_IN_A_ROW_MAX: u32 = 1_000_000;

/// How long a dropped ring waits for the reads it cancelled before it leaks them.
const DROP_WAIT: Duration = Duration::from_millis(100);

/// Counters of one ring; all monotone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStats {
    /// `io_uring_enter` calls.
    pub syscalls: u64,
    /// Of those, calls that handed at least one entry to the kernel.
    pub doorbells: u64,
    /// Doorbells that the kernel asked to repeat later (EAGAIN, EBUSY, EINTR).
    pub doorbells_refused: u64,
    /// Completions of reads that are not in flight.
    pub stale: u64,
}

/// Whether the kernel tells this ring of the poller's bell, for [`Uring::sleep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    /// It was not asked yet, or does not tell any more.
    Off,
    On,
    /// It cannot: no timeouts of waits (Linux 5.11), or no lasting watches (5.13).
    Unknown,
}

/// What is kept for a read in flight.
#[derive(Debug)]
struct Held<B, E> {
    buffer: B,
    extra: E,
    fixed: bool,
}

/// A ring and the memory of the reads it has in flight. It belongs to one poller; nothing but
/// creating and dropping it blocks or allocates.
///
/// Buffers move in with [`Uring::push_read`] and come back with [`Uring::pop`] or, if the read was
/// not taken, at once. `E` travels with the buffer.
#[derive(Debug)]
pub struct Uring<B: StableBytes, E> {
    in_flight: InFlight<Held<B, E>>,
    tables: Tables,
    injector: Option<Arc<dyn Injector>>,
    entries: u32,
    /// Entries ever pushed, wrapping: the submission queue's tail.
    pushed: u32,
    cancels_in_flight: u32,
    /// Rows of reads to cancel once the submission queue has room, each once at most.
    to_cancel: Vec<usize>,
    /// Finished reads that the injector keeps back, or that a broken ring never submitted.
    kept_back: Vec<(u64, i32)>,
    refused_in_a_row: u32,
    broken: Option<i32>,
    watch: Watch,
    stats: RingStats,
    notes: Vec<String>,
}

impl<B: StableBytes, E> Uring<B, E> {
    /// Creates a ring, smaller or simpler than asked if the kernel wants that.
    ///
    /// # Errors
    /// There is no usable `io_uring`; the cause is named.
    pub fn new(options: &RingOptions) -> Result<Self, RingError> {
        let create::Created { ring, entries, mut notes } = create::create(options)?;
        let watch = if ring.params().is_feature_ext_arg() { Watch::Off } else { Watch::Unknown };
        let shared = Shared::new(ring, options.file_slots, options.buffer_slots, &mut notes);
        Ok(Uring {
            in_flight: InFlight::new(entries),
            tables: Tables { shared: Arc::new(shared) },
            injector: options.injector.clone(),
            entries,
            pushed: 0,
            cancels_in_flight: 0,
            to_cancel: Vec::with_capacity(entries as usize),
            kept_back: Vec::with_capacity(entries as usize),
            refused_in_a_row: 0,
            broken: None,
            watch,
            stats: RingStats::default(),
            notes,
        })
    }

    /// The half that other threads register files and buffers with.
    #[must_use]
    pub fn tables(&self) -> Tables {
        self.tables.clone()
    }

    /// Reads that may be in flight at once; rows of keys are below it. A power of two.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Reads in flight, pushed ones that were not committed included.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.held()
    }

    /// What is less than was asked for, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Counters so far.
    #[must_use]
    pub fn stats(&self) -> RingStats {
        self.stats
    }

    /// A descriptor that poll(2) finds readable when [`Uring::pop`] has something.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring, whose descriptor this is, lives at least as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.tables.shared.ring.0.as_raw_fd()) }
    }

    /// Takes a read for the next [`Uring::commit`]. The low half of `key` is its row, below
    /// [`Uring::entries`] and free; the high half tells uses of the row apart.
    ///
    /// # Errors
    /// The read was not taken; buffer and extra come back with the reason.
    pub fn push_read(
        &mut self,
        key: u64,
        read: ReadAt,
        buffer: B,
        extra: E,
    ) -> Result<(), Unread<B, E>> {
        if let Err(why) = self.check(key, &read, buffer.bytes()) {
            return Err(Unread { buffer, extra, why });
        }
        // SAFETY: as in `submission`; this one is dropped at the end of this function.
        let mut submission = unsafe { self.tables.shared.ring.0.submission_shared() };
        if submission.is_full() {
            return Err(Unread { buffer, extra, why: ReadRefused::Full });
        }
        let held = Held { buffer, extra, fixed: read.registered.is_some() };
        let held = self.in_flight.insert(key, self.pushed, held);
        // SAFETY: `check` found `start + bytes` within the buffer.
        let address = unsafe { held.buffer.address().add(read.start) };
        let entry = read_entry(&read, address).user_data(key);
        // SAFETY: the entry's bytes belong to `held`, which stays in the table until the kernel's
        // completion of this key was seen, or for ever.
        let pushed = unsafe { submission.push(&entry) };
        debug_assert!(pushed.is_ok(), "there was room");
        self.pushed = self.pushed.wrapping_add(1);
        Ok(())
    }

    fn check(&self, key: u64, read: &ReadAt, buffer_bytes: usize) -> Result<(), ReadRefused> {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the row")]
        let row = key as u32;
        if let Some(errno) = self.broken {
            return Err(ReadRefused::Broken { errno });
        }
        if row >= self.entries {
            return Err(ReadRefused::NoSuchRow { row, entries: self.entries });
        }
        if read.start.checked_add(read.bytes as usize).is_none_or(|end| end > buffer_bytes) {
            let ReadAt { start, bytes, .. } = *read;
            return Err(ReadRefused::OutOfBounds { start, bytes, buffer_bytes });
        }
        if self.in_flight.has_room_for(key) { Ok(()) } else { Err(ReadRefused::Full) }
    }

    fn submission(&mut self) -> squeue::SubmissionQueue<'_> {
        // SAFETY: the queue of this ring is only made here and dropped before `self` is used
        // again; `Tables` never makes one.
        unsafe { self.tables.shared.ring.0.submission_shared() }
    }

    /// Asks the kernel to give up the read `key`. Its completion still comes; it is the proof that
    /// the buffer is quiet. Unknown keys are ignored. Nothing happens before the next commit.
    pub fn cancel(&mut self, key: u64) {
        if let Some(row) = self.in_flight.mark_cancelled(key) {
            self.to_cancel.push(row);
        }
    }

    /// Moves wanted cancels into the submission queue as far as it, and the completion queue,
    /// have room. A read to be cancelled occupies a row, so that pushed reads leave at least one
    /// entry of the submission queue to cancels.
    fn push_cancels(&mut self) {
        while self.cancels_in_flight < self.entries {
            let Some(row) = self.to_cancel.pop() else { return };
            let Some(key) = self.in_flight.unlist(row) else { continue };
            let entry = opcode::AsyncCancel::new(key).build().user_data(CANCEL_KEY);
            // SAFETY: a cancel writes no memory.
            if unsafe { self.submission().push(&entry) }.is_err() {
                self.in_flight.relist(row);
                self.to_cancel.push(row);
                return;
            }
            self.pushed = self.pushed.wrapping_add(1);
            self.cancels_in_flight += 1;
        }
    }

    /// Hands everything pushed to the kernel: at most one `io_uring_enter`, none if there is
    /// nothing to hand over. What the kernel does not take now stays for the next commit.
    pub fn commit(&mut self) {
        if !self.to_cancel.is_empty() {
            self.push_cancels();
        }
        if self.broken.is_none() && !self.submission().is_empty() {
            self.enter();
        }
    }

    /// Whether entries wait for another [`Uring::commit`].
    #[must_use]
    pub fn has_uncommitted(&mut self) -> bool {
        self.broken.is_none() && (!self.to_cancel.is_empty() || !self.submission().is_empty())
    }

    fn enter(&mut self) {
        self.stats.syscalls += 1;
        let refusal = self.injector.as_ref().and_then(|faults| faults.enter());
        let result = match refusal {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => self.tables.shared.ring.0.submitter().submit(),
        };
        match result {
            Ok(taken) => {
                self.refused_in_a_row = 0;
                self.stats.doorbells += u64::from(taken > 0);
            }
            Err(error) => self.refused(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// The kernel took nothing: later again if that can help, else the entries are given back.
    fn refused(&mut self, errno: i32) {
        self.stats.doorbells_refused += 1;
        self.refused_in_a_row += 1;
        let transient = matches!(errno, libc::EAGAIN | libc::EBUSY | libc::EINTR);
        if transient && self.refused_in_a_row < REFUSED_IN_A_ROW_MAX {
            return;
        }
        self.broken = Some(errno);
        let waiting = u32::try_from(self.submission().len()).unwrap_or(u32::MAX);
        // Only an enter lets the kernel read entries and there will be none, so nothing writes
        // the buffers of those it has not read.
        for key in self.in_flight.keys_of_last(waiting, self.pushed) {
            self.kept_back.push((key, -errno));
        }
    }

    /// The next finished read, if there is one. No system call, unless completions are cooperative
    /// and wait for one.
    pub fn pop(&mut self) -> Option<Finished<B, E>> {
        if !self.kept_back.is_empty()
            && let Some(finished) = self.pop_kept_back()
        {
            return Some(finished);
        }
        loop {
            let (key, result) = self.pop_completion()?;
            if key == CANCEL_KEY {
                self.cancels_in_flight -= 1;
                continue;
            }
            let Some(fixed) = self.in_flight.get(key).map(|held| held.fixed) else {
                self.stats.stale += 1;
                continue;
            };
            let result = match &self.injector {
                None => result,
                Some(faults) if faults.holds(key) => {
                    self.kept_back.push((key, result));
                    continue;
                }
                Some(faults) => faults.result(key, result, fixed),
            };
            return self.finish(key, result);
        }
    }

    fn finish(&mut self, key: u64, result: i32) -> Option<Finished<B, E>> {
        let (Held { buffer, extra, .. }, cancelled) = self.in_flight.take(key)?;
        Some(Finished { key, buffer, extra, result, cancelled })
    }

    /// The first completion kept back that the injector lets go now.
    fn pop_kept_back(&mut self) -> Option<Finished<B, E>> {
        let faults = self.injector.as_ref();
        let free = |&(key, _): &(u64, i32)| !faults.is_some_and(|faults| faults.holds(key));
        let index = self.kept_back.iter().position(free)?;
        let (key, result) = self.kept_back.swap_remove(index);
        self.finish(key, result)
    }

    /// The next completion of the mapped queue.
    fn pop_completion(&mut self) -> Option<(u64, i32)> {
        if let Some(entry) = self.next_completion() {
            return Some(entry);
        }
        if self.broken.is_none() && self.submission().taskrun() {
            self.enter();
            return self.next_completion();
        }
        None
    }

    fn next_completion(&mut self) -> Option<(u64, i32)> {
        loop {
            // SAFETY: the queue of this ring is only made in methods of this type, which hold
            // `self` exclusively, and is dropped at the end of this statement.
            let entry = unsafe { self.tables.shared.ring.0.completion_shared() }.next()?;
            if entry.user_data() != BELL_KEY {
                return Some((entry.user_data(), entry.result()));
            }
            if entry.result() < 0 {
                self.watch = Watch::Unknown;
            } else if !cqueue::more(entry.flags()) {
                self.watch = Watch::Off;
            }
        }
    }

    /// Whether [`Uring::sleep`] would sleep, as far as is known.
    #[must_use]
    pub fn can_sleep(&self) -> bool {
        self.watch != Watch::Unknown && self.broken.is_none() && self.injector.is_none()
    }

    /// Hands over what was pushed, and in the same call waits until there is a completion, `bell`
    /// is raised, or `at_most` has passed (without it, for ever). Signals end it early. `false`: it
    /// did not sleep; wait for the descriptor instead. `bell` is an eventfd, the same each time. A
    /// raise that came before the call is seen only if it left `bell` unwatched: look for it after
    /// saying that you sleep, and before this.
    pub fn sleep(&mut self, bell: BorrowedFd<'_>, at_most: Option<Duration>) -> bool {
        let waiting = self.submission().len();
        if !self.can_sleep() || (self.watch == Watch::Off && !self.watch(bell)) {
            return false;
        }
        let timeout = at_most.map(types::Timespec::from);
        let args = match &timeout {
            Some(timeout) => types::SubmitArgs::new().timespec(timeout),
            None => types::SubmitArgs::new(),
        };
        // A mere sleep is no doorbell.
        self.stats.syscalls += u64::from(waiting > 0);
        match self.tables.shared.ring.0.submitter().submit_with_args(1, &args) {
            Ok(taken) => {
                self.refused_in_a_row = 0;
                self.stats.doorbells += u64::from(waiting > 0 && taken > 0);
            }
            Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
                // What was taken before the sleep is told as success.
                libc::ETIME | libc::EINTR => {}
                errno if waiting > 0 => self.refused(errno),
                _ => self.watch = Watch::Unknown,
            },
        }
        true
    }

    /// Asks the kernel to complete something here whenever `bell` is raised. `false`: not now.
    fn watch(&mut self, bell: BorrowedFd<'_>) -> bool {
        const READABLE: u32 = libc::POLLIN as u32;
        let entry = opcode::PollAdd::new(types::Fd(bell.as_raw_fd()), READABLE).multi(true);
        let entry = entry.build().user_data(BELL_KEY);
        // SAFETY: a watch writes no memory, and holds its file itself.
        if unsafe { self.submission().push(&entry) }.is_err() {
            return false;
        }
        self.pushed = self.pushed.wrapping_add(1);
        self.watch = Watch::On;
        true
    }

    /// Whether [`Uring::pop`] may have something. No system call.
    #[must_use]
    pub fn has_completions(&mut self) -> bool {
        if !self.kept_back.is_empty() && self.injector.is_none() {
            return true;
        }
        // SAFETY: as in `next_completion`.
        let completions = unsafe { self.tables.shared.ring.0.completion_shared() };
        let waiting = !completions.is_empty();
        drop(completions);
        waiting || self.submission().taskrun()
    }

    /// Waits until there is a completion, at most `duration`; for shutting down, not for turns.
    fn wait(&self, duration: Duration) {
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(duration.subsec_nanos()),
        };
        let ring = self.fd();
        let mut descriptors = [rustix::event::PollFd::new(&ring, rustix::event::PollFlags::IN)];
        // An error (EINTR) ends the wait early; the caller looks at the clock.
        let _ = rustix::event::poll(&mut descriptors, Some(&timeout));
    }
}

fn read_entry(read: &ReadAt, address: *mut u8) -> squeue::Entry {
    let ReadAt { file, offset, bytes, registered, .. } = *read;
    match (registered, file) {
        (Some(buffer), FileRef::Registered(slot)) => {
            opcode::ReadFixed::new(types::Fixed(slot.index()), address, bytes, buffer.index())
                .offset(offset)
                .build()
        }
        (Some(buffer), FileRef::Descriptor(descriptor)) => {
            opcode::ReadFixed::new(types::Fd(descriptor), address, bytes, buffer.index())
                .offset(offset)
                .build()
        }
        (None, FileRef::Registered(slot)) => {
            opcode::Read::new(types::Fixed(slot.index()), address, bytes).offset(offset).build()
        }
        (None, FileRef::Descriptor(descriptor)) => {
            opcode::Read::new(types::Fd(descriptor), address, bytes).offset(offset).build()
        }
    }
}

impl<B: StableBytes, E> Drop for Uring<B, E> {
    fn drop(&mut self) {
        let deadline = std::time::Instant::now() + DROP_WAIT;
        let keys: Vec<u64> = self.in_flight.keys().collect();
        for key in keys {
            self.cancel(key);
        }
        for (key, _) in mem::take(&mut self.kept_back) {
            drop(self.in_flight.take(key));
        }
        while self.in_flight.held() > 0 {
            self.commit();
            while let Some((key, _)) = self.pop_completion() {
                match key {
                    CANCEL_KEY => self.cancels_in_flight -= 1,
                    key => drop(self.in_flight.take(key)),
                }
            }
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                break;
            }
            if self.in_flight.held() > 0 {
                self.wait(left.min(Duration::from_millis(5)));
            }
        }
        if self.in_flight.held() > 0 {
            // The kernel may still write these buffers: neither they nor the ring end now.
            mem::forget(mem::replace(&mut self.in_flight, InFlight::new(0)));
            mem::forget(Arc::clone(&self.tables.shared));
        }
    }
}
