//! The ring against real files, FIFOs and faults: every read comes back once, with its memory.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use railring_uring::{
    FileRef, Finished, Injector, ReadAt, ReadRefused, RingError, RingOptions, StableBytes, TaskRun,
    Uring,
};

type Ring = Uring<Vec<u8>, u64>;

const PATIENCE: Duration = Duration::from_secs(20);

fn options(entries: u32) -> RingOptions {
    RingOptions { entries, file_slots: 16, buffer_slots: 16, ..RingOptions::default() }
}

/// A ring, or the reason to skip: a host without io_uring is not a broken one.
fn ring_or_skip(test: &str, options: &RingOptions) -> Option<Ring> {
    match Uring::new(options) {
        Ok(ring) => Some(ring),
        Err(error) => {
            println!("SKIP {test}: {error}");
            None
        }
    }
}

fn random_file(bytes: usize, random: &mut fastrand::Rng) -> (tempfile::NamedTempFile, Vec<u8>) {
    let content: Vec<u8> = (0..bytes).map(|_| random.u8(..)).collect();
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), &content).expect("it is writable");
    (file, content)
}

fn fifo(directory: &Path) -> File {
    let path = directory.join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a FIFO can be made");
    // Open for writing too, so that a read neither ends nor fails.
    File::options().read(true).write(true).open(&path).expect("it opens")
}

fn read(file: &File, offset: u64, bytes: u32) -> ReadAt {
    ReadAt {
        file: FileRef::Descriptor(file.as_raw_fd()),
        offset,
        start: 0,
        bytes,
        registered: None,
    }
}

fn wait<B: StableBytes>(ring: &mut Uring<B, u64>) -> Finished<B, u64> {
    let start = Instant::now();
    loop {
        if let Some(finished) = ring.pop() {
            return finished;
        }
        ring.commit();
        assert!(start.elapsed() < PATIENCE, "no completion came");
        std::thread::yield_now();
    }
}

/// Faults by number: how often each was asked for is counted.
#[derive(Debug, Default)]
struct Faults {
    create: Option<fn(u32, u32) -> Option<i32>>,
    enter: Option<fn(u32) -> Option<i32>>,
    created: AtomicU32,
    entered: AtomicU32,
    holding: AtomicBool,
}

impl Injector for Faults {
    fn create(&self, entries: u32) -> Option<i32> {
        let attempt = self.created.fetch_add(1, Ordering::Relaxed);
        self.create.and_then(|fault| fault(attempt, entries))
    }

    fn enter(&self) -> Option<i32> {
        let call = self.entered.fetch_add(1, Ordering::Relaxed);
        self.enter.and_then(|fault| fault(call))
    }

    fn holds(&self, _key: u64) -> bool {
        self.holding.load(Ordering::Relaxed)
    }
}

fn with_faults(entries: u32, faults: Faults) -> RingOptions {
    RingOptions { injector: Some(Arc::new(faults)), ..options(entries) }
}

#[test]
fn without_memory_a_ring_is_smaller_and_says_so() {
    let faults =
        Faults { create: Some(|_, entries| (entries > 64).then_some(12)), ..Faults::default() };
    let Some(ring) = ring_or_skip("smaller", &with_faults(1000, faults)) else { return };
    assert_eq!(ring.entries(), 64);
    assert!(ring.notes()[0].contains("64 entries instead of 1024"), "{:?}", ring.notes());
}

#[test]
fn each_refusal_is_reported_with_its_cause() {
    for (errno, cause) in [
        (1, "EPERM"),
        (12, "ENOMEM"),
        (13, "EACCES"),
        (22, "EINVAL"),
        (38, "ENOSYS"),
        (95, "EOPNOTSUPP"),
        (4095, "errno 4095"),
    ] {
        let refuse: fn(u32, u32) -> Option<i32> = match errno {
            1 => |_, _| Some(1),
            12 => |_, _| Some(12),
            13 => |_, _| Some(13),
            22 => |_, _| Some(22),
            38 => |_, _| Some(38),
            95 => |_, _| Some(95),
            _ => |_, _| Some(4095),
        };
        let faults = Faults { create: Some(refuse), ..Faults::default() };
        let error = Ring::new(&with_faults(128, faults)).expect_err("it is refused");
        assert_eq!(error.cause(), cause);
        let RingError::Refused { errno: told, entries, .. } = &error else { panic!("{error}") };
        assert_eq!(*told, errno);
        // Only a lack of memory is answered by asking for less.
        assert_eq!(*entries, if errno == 12 { 8 } else { 128 });
        assert!(error.to_string().contains("refused"));
    }
}

#[test]
fn flags_that_a_kernel_does_not_know_are_dropped() {
    let faults =
        Faults { create: Some(|attempt, _| (attempt == 0).then_some(22)), ..Faults::default() };
    let Some(ring) = ring_or_skip("flags", &with_faults(16, faults)) else { return };
    assert_eq!(ring.entries(), 16);
}

#[test]
fn thousands_of_reads_at_depth_equal_pread() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for task_run in [TaskRun::Interrupt, TaskRun::Cooperative] {
        differential(&mut fastrand::Rng::with_seed(seed), task_run);
    }
}

fn differential(random: &mut fastrand::Rng, task_run: TaskRun) {
    let depth = 1 << random.u32(0..6);
    let options = RingOptions { task_run, ..options(depth) };
    let Some(mut ring) = ring_or_skip("differential", &options) else { return };
    let (file, content) = random_file(100_000, random);
    let slot = ring.tables().register_file(file.as_file().as_fd()).expect("there is room");
    let mut idle: Vec<(u64, Vec<u8>)> =
        (0..u64::from(depth)).map(|row| (row, vec![0; 5000])).collect();
    let tables = ring.tables();
    let buffers: Vec<_> = idle
        .iter_mut()
        .map(|(_, buffer)| {
            let base = NonNull::new(buffer.as_mut_ptr()).expect("not null");
            tables.register_buffer(base, buffer.len()).ok()
        })
        .collect();
    let mut left = 4000;
    while left > 0 || ring.in_flight() > 0 {
        while let Some((key, buffer)) = if left > 0 { idle.pop() } else { None } {
            left -= 1;
            let offset = random.u64(..110_000);
            let start = random.usize(..5000);
            let bytes = random.u32(0..=(5000 - start) as u32);
            let file = match random.bool() {
                true => FileRef::Registered(slot),
                false => FileRef::Descriptor(file.as_file().as_raw_fd()),
            };
            let registered = buffers[(key & 0xffff) as usize].filter(|_| random.bool());
            let read = ReadAt { file, offset, start, bytes, registered };
            let extra = offset << 32 | (start as u64) << 16 | u64::from(bytes);
            ring.push_read(key, read, buffer, extra).expect("each row is used once");
        }
        ring.commit();
        while let Some(Finished { key, buffer, extra, result, .. }) = ring.pop() {
            let (offset, start) = ((extra >> 32) as usize, (extra >> 16 & 0xffff) as usize);
            let wanted = (extra & 0xffff) as usize;
            let there = content.len().saturating_sub(offset).min(wanted);
            assert_eq!(result, there as i32, "of {wanted} bytes at {offset}");
            assert_eq!(
                &buffer[start..start + there],
                &content[offset.min(content.len())..][..there]
            );
            idle.push((key + (1 << 32), buffer));
        }
    }
    let stats = ring.stats();
    assert_eq!(stats.stale, 0);
    assert!(stats.doorbells <= 4000 && stats.doorbells_refused == 0, "{stats:?}");
}

#[test]
fn a_read_that_does_not_fit_is_refused_with_its_buffer() {
    let Some(mut ring) = ring_or_skip("refused", &options(2)) else { return };
    let mut random = fastrand::Rng::with_seed(1);
    let (file, _) = random_file(8192, &mut random);
    for (start, bytes) in [(0, 4097), (4000, 97), (usize::MAX, 2), (4097, 0)] {
        let bad = ReadAt { start, ..read(file.as_file(), 0, bytes) };
        let unread = ring.push_read(0, bad, vec![1; 4096], 9).expect_err("it is refused");
        assert_eq!((unread.buffer.len(), unread.extra), (4096, 9));
        assert!(matches!(unread.why, ReadRefused::OutOfBounds { .. }), "{:?}", unread.why);
    }
    let fit = read(file.as_file(), 0, 4096);
    let unread = ring.push_read(2, fit, vec![1; 4096], 9).expect_err("there are two rows");
    assert_eq!(unread.why, ReadRefused::NoSuchRow { row: 2, entries: 2 });
    ring.push_read(0, fit, vec![1; 4096], 9).expect("it fits");
    let unread = ring.push_read(1 << 32, fit, vec![1; 4096], 9).expect_err("row 0 is taken");
    assert_eq!(unread.why, ReadRefused::Full);
    assert_eq!(wait(&mut ring).result, 4096);
    assert_eq!(ring.stats().syscalls, 1);
}

#[test]
fn refused_doorbells_lose_nothing() {
    let fault = |call| [Some(4), None, Some(11), Some(16)][call as usize % 4];
    let faults = Faults { enter: Some(fault), ..Faults::default() };
    let Some(mut ring) = ring_or_skip("doorbells", &with_faults(2, faults)) else { return };
    let mut random = fastrand::Rng::with_seed(2);
    let (file, content) = random_file(8192, &mut random);
    for round in 0..200 {
        for row in 0..2 {
            let key = round << 32 | row;
            ring.push_read(key, read(file.as_file(), row, 64), vec![0; 64], row).expect("free");
        }
        for _ in 0..2 {
            let finished = wait(&mut ring);
            let from = finished.extra as usize;
            assert_eq!(finished.buffer, content[from..from + 64]);
            assert_eq!(finished.key >> 32, round);
        }
    }
    assert!(ring.stats().doorbells_refused >= 200, "{:?}", ring.stats());
    assert_eq!(ring.stats().doorbells, 200);
}

#[test]
fn a_ring_that_fails_for_good_gives_back_what_the_kernel_never_saw() {
    let fault = |call| (call >= 1).then_some(1);
    let faults = Faults { enter: Some(fault), ..Faults::default() };
    let Some(mut ring) = ring_or_skip("broken", &with_faults(8, faults)) else { return };
    let temp = tempfile::tempdir().expect("a temporary directory");
    let fifo = fifo(temp.path());
    ring.push_read(0, read(&fifo, 0, 8), vec![0; 8], 0).expect("there is room");
    ring.commit();
    ring.push_read(1, read(&fifo, 0, 8), vec![0; 8], 1).expect("there is room");
    ring.push_read(2, read(&fifo, 0, 8), vec![0; 8], 2).expect("there is room");
    assert!(ring.pop().is_none());
    ring.commit();
    let mut back =
        [wait(&mut ring), wait(&mut ring)].map(|finished| (finished.key, finished.result));
    back.sort_unstable();
    assert_eq!(back, [(1, -1), (2, -1)]);
    let unread = ring.push_read(3, read(&fifo, 0, 8), vec![0; 8], 3).expect_err("it is broken");
    assert_eq!(unread.why, ReadRefused::Broken { errno: 1 });
    // What the kernel has seen still ends by itself.
    rustix::io::write(&fifo, b"12345678").expect("it takes a few bytes");
    assert_eq!(wait(&mut ring).buffer, b"12345678");
}

#[test]
fn a_hanging_read_comes_back_after_its_cancel_and_no_other_does() {
    let Some(mut ring) = ring_or_skip("cancel", &options(4)) else { return };
    let temp = tempfile::tempdir().expect("a temporary directory");
    let fifo = fifo(temp.path());
    for row in 0..4 {
        ring.push_read(row, read(&fifo, 0, 8), vec![0; 8], row).expect("there is room");
    }
    ring.commit();
    assert!(ring.pop().is_none());
    ring.cancel(2);
    ring.cancel(2);
    ring.cancel(1 << 32 | 1); // an earlier or later use of row 1
    assert!(ring.has_uncommitted());
    let finished = wait(&mut ring);
    assert_eq!((finished.key, finished.result, finished.cancelled), (2, -libc::ECANCELED, true));
    ring.commit();
    assert!(ring.pop().is_none());
    assert_eq!(ring.in_flight(), 3);
    for _ in 0..3 {
        rustix::io::write(&fifo, b"12345678").expect("it takes a few bytes");
        let finished = wait(&mut ring);
        assert_eq!((finished.result, finished.cancelled), (8, false));
    }
}

/// Memory that tells when it is freed.
struct Watched(Vec<u8>, Arc<AtomicU32>);

// SAFETY: the bytes are the vector's, which has this property itself.
unsafe impl StableBytes for Watched {
    fn address(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_dropped_ring_cancels_what_it_can() {
    let freed = Arc::new(AtomicU32::new(0));
    let mut ring = match Uring::new(&options(4)) {
        Ok(ring) => ring,
        Err(error) => return println!("SKIP dropped: {error}"),
    };
    let temp = tempfile::tempdir().expect("a temporary directory");
    let fifo = fifo(temp.path());
    for row in 0..4 {
        let buffer = Watched(vec![0; 8], Arc::clone(&freed));
        ring.push_read(row, read(&fifo, 0, 8), buffer, 0)
            .map_err(|unread| unread.why)
            .expect("room");
        if row == 1 {
            ring.commit();
        }
    }
    drop(ring);
    assert_eq!(freed.load(Ordering::Relaxed), 4);
    rustix::io::write(&fifo, b"12345678").expect("it takes a few bytes");
    let mut left = [0; 8];
    assert_eq!(rustix::io::read(&fifo, &mut left), Ok(8), "a cancelled read took the bytes");
}

#[test]
fn a_dropped_ring_leaks_what_it_cannot_cancel() {
    // The kernel is never entered again, so it keeps the read.
    let faults = Faults { enter: Some(|call| (call >= 1).then_some(1)), ..Faults::default() };
    let freed = Arc::new(AtomicU32::new(0));
    let mut ring = match Uring::new(&with_faults(4, faults)) {
        Ok(ring) => ring,
        Err(error) => return println!("SKIP leaked: {error}"),
    };
    let temp = tempfile::tempdir().expect("a temporary directory");
    let fifo = fifo(temp.path());
    let buffer = Watched(vec![0; 8], Arc::clone(&freed));
    ring.push_read(0, read(&fifo, 0, 8), buffer, 0).map_err(|unread| unread.why).expect("room");
    ring.commit();
    drop(ring);
    assert_eq!(freed.load(Ordering::Relaxed), 0, "freed while the kernel may write it");
    // It does write it, which address checking would report.
    rustix::io::write(&fifo, b"12345678").expect("it takes a few bytes");
}

#[test]
fn what_the_injector_holds_comes_late_and_once() {
    let faults = Arc::new(Faults { holding: AtomicBool::new(true), ..Faults::default() });
    let options = RingOptions { injector: Some(faults.clone()), ..options(4) };
    let Some(mut ring) = ring_or_skip("holds", &options) else { return };
    let (file, _) = random_file(64, &mut fastrand::Rng::with_seed(3));
    ring.push_read(0, read(file.as_file(), 0, 64), vec![0; 64], 0).expect("there is room");
    ring.commit();
    for _ in 0..1000 {
        assert!(ring.pop().is_none());
    }
    faults.holding.store(false, Ordering::Relaxed);
    assert_eq!(wait(&mut ring).result, 64);
    assert!(ring.pop().is_none());
}

#[test]
fn tables_change_while_the_ring_reads() {
    let Some(mut ring) = ring_or_skip("tables", &options(8)) else { return };
    let (file, content) = random_file(1 << 16, &mut fastrand::Rng::with_seed(4));
    let tables = ring.tables();
    let stop = Arc::new(AtomicBool::new(false));
    let control = std::thread::spawn({
        let (stop, other) = (Arc::clone(&stop), file.reopen().expect("it is there"));
        move || {
            let mut rounds = 0;
            let mut memory = vec![0u8; 1 << 16];
            let base = NonNull::new(memory.as_mut_ptr()).expect("not null");
            while !stop.load(Ordering::Relaxed) {
                let files: Vec<_> =
                    (0..16).map(|_| tables.register_file(other.as_fd()).expect("room")).collect();
                assert!(tables.register_file(other.as_fd()).is_err());
                let buffers: Vec<_> =
                    (0..16).map(|_| tables.register_buffer(base, memory.len()).ok()).collect();
                files.into_iter().for_each(|slot| tables.unregister_file(slot));
                buffers.into_iter().flatten().for_each(|slot| tables.unregister_buffer(slot));
                rounds += 1;
            }
            rounds
        }
    });
    let start = Instant::now();
    let mut key = 0;
    while start.elapsed() < Duration::from_millis(300) {
        let offset = key % 60_000;
        ring.push_read(key << 32, read(file.as_file(), offset, 100), vec![0; 100], offset)
            .expect("room");
        let finished = wait(&mut ring);
        assert_eq!(finished.buffer, content[finished.extra as usize..][..100]);
        key += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let rounds = control.join().expect("the control thread ends well");
    assert!(rounds > 0 && key > 0, "{rounds} rounds beside {key} reads");
}

#[test]
fn memory_that_is_not_mapped_is_not_registered() {
    let Some(ring) = ring_or_skip("unmapped", &options(2)) else { return };
    let tables = ring.tables();
    let nowhere = NonNull::new(4096 as *mut u8).expect("not null");
    assert!(tables.register_buffer(nowhere, 4096).is_err());
    assert!(tables.register_buffer(nowhere, 2 << 30).is_err());
    // The entries are free again.
    let mut memory = vec![0u8; 4096];
    let base = NonNull::new(memory.as_mut_ptr()).expect("not null");
    for _ in 0..16 {
        tables.register_buffer(base, memory.len()).expect("16 entries are free");
    }
}

#[test]
fn the_descriptor_is_readable_when_there_is_a_completion() {
    let Some(mut ring) = ring_or_skip("descriptor", &options(2)) else { return };
    let temp = tempfile::tempdir().expect("a temporary directory");
    let fifo = fifo(temp.path());
    ring.push_read(0, read(&fifo, 0, 8), vec![0; 8], 0).expect("there is room");
    ring.commit();
    let ready = |ring: &Ring, wait: i64| {
        let descriptor = ring.fd();
        let mut polled = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
        let wait = rustix::event::Timespec { tv_sec: wait, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&wait)).expect("it polls") == 1
    };
    assert!(!ready(&ring, 0) && !ring.has_completions());
    rustix::io::write(&fifo, b"12345678").expect("it takes a few bytes");
    assert!(ready(&ring, 10) && ring.has_completions());
    assert_eq!(wait(&mut ring).result, 8);
    assert!(!ready(&ring, 0) && !ring.has_completions());
}

#[test]
fn threads_that_are_spawned_have_all_signals_blocked_and_the_spawner_has_not() {
    let blocked = |thread: &str| {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask");
        u64::from_str_radix(line.trim(), 16).expect("it is hexadecimal")
    };
    let before = blocked("thread-self");
    let spawned =
        railring_uring::with_signals_blocked(|| std::thread::spawn(move || blocked("thread-self")));
    let mask = spawned.expect("masks can be changed").join().expect("it ends well");
    for signal in [libc::SIGUSR1, libc::SIGINT, libc::SIGTERM, libc::SIGALRM] {
        assert_ne!(mask >> (signal - 1) & 1, 0, "signal {signal} reaches the thread");
    }
    assert_eq!(blocked("thread-self"), before);
}

#[test]
fn positions_beyond_the_first_wrap_of_the_queue_are_told_apart() {
    // 1,000 reads through a queue of 2, then a failure: exactly the last is given back.
    let fault = |call| (call >= 500).then_some(1);
    let faults = Faults { enter: Some(fault), ..Faults::default() };
    let Some(mut ring) = ring_or_skip("wrap", &with_faults(2, faults)) else { return };
    let (file, content) = random_file(1024, &mut fastrand::Rng::with_seed(5));
    let mut direct = [0; 16];
    file.as_file().read_exact_at(&mut direct, 100).expect("it is that long");
    assert_eq!(direct, content[100..116]);
    for round in 0..500 {
        ring.push_read(round << 32, read(file.as_file(), 100, 16), vec![0; 16], 0).expect("room");
        assert_eq!(wait(&mut ring).buffer, direct);
    }
    ring.push_read(500 << 32 | 1, read(file.as_file(), 100, 16), vec![0; 16], 0).expect("room");
    let finished = wait(&mut ring);
    assert_eq!((finished.key, finished.result), (500 << 32 | 1, -1));
    assert_eq!(ring.in_flight(), 0);
}

extern "C" fn on_signal(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

/// Installs a handler without SA_RESTART, which no safe library offers.
fn handle_usr1_without_restart() {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a zeroed sigaction is a valid one: no flags, an empty mask, the default handler.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = on_signal as *const () as usize;
    // SAFETY: the handler only adds to an atomic, which is safe in a signal handler.
    let result = unsafe { libc::sigaction(libc::SIGUSR1, action, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

#[test]
fn a_storm_of_signals_that_interrupt_system_calls_loses_nothing() {
    handle_usr1_without_restart();
    let Some(mut ring) = ring_or_skip("storm", &options(2)) else { return };
    let (file, content) = random_file(1 << 16, &mut fastrand::Rng::with_seed(6));
    // SAFETY: it only gives the calling thread's name for pthread_kill.
    let poller = unsafe { libc::pthread_self() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the poller outlives this scope's threads.
                unsafe { libc::pthread_kill(poller, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let before = SIGNALS.load(Ordering::Relaxed);
        let mut generation = 0;
        // A thousand reads, and until there was a storm.
        while generation < 500 || SIGNALS.load(Ordering::Relaxed) < before + 20 {
            for row in 0..2 {
                let offset = (generation * 2 + row) * 97 % 60_000;
                let wanted = read(file.as_file(), offset, 4096);
                ring.push_read(generation << 32 | row, wanted, vec![0; 4096], offset)
                    .expect("free");
            }
            for _ in 0..2 {
                let finished = wait(&mut ring);
                assert_eq!(finished.buffer, content[finished.extra as usize..][..4096]);
            }
            generation += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!((ring.in_flight(), ring.stats().stale), (0, 0));
}

#[test]
fn a_kernel_that_never_takes_the_doorbell_gets_it_a_bounded_number_of_times() {
    let faults = Faults { enter: Some(|_| Some(11)), ..Faults::default() };
    let Some(mut ring) = ring_or_skip("bounded", &with_faults(2, faults)) else { return };
    let (file, _) = random_file(64, &mut fastrand::Rng::with_seed(7));
    ring.push_read(0, read(file.as_file(), 0, 64), vec![0; 64], 0).expect("there is room");
    let mut commits = 0u64;
    let finished = loop {
        ring.commit();
        commits += 1;
        if let Some(finished) = ring.pop() {
            break finished;
        }
        assert!(commits < 2_000_000, "still trying");
    };
    assert_eq!((finished.result, finished.buffer.len()), (-11, 64));
    assert_eq!(ring.stats().doorbells_refused, commits);
}
