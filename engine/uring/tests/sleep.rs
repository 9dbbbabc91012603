//! Sleeping in the ring: what ends a sleep, and that it hands over what was pushed.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use railring_uring::{FileRef, ReadAt, RingOptions, Uring};
use rustix::event::{EventfdFlags, eventfd};

type Ring = Uring<Vec<u8>, u64>;

/// Longer than any machine takes to wake somebody, and what a test that hangs takes.
const LONG: Duration = Duration::from_secs(20);

/// A ring that can be slept in, and a bell; or the reason to skip.
fn ring_and_bell(test: &str) -> Option<(Ring, OwnedFd)> {
    let ring = match Ring::new(&RingOptions { entries: 8, ..RingOptions::default() }) {
        Ok(ring) if ring.can_sleep() => ring,
        Ok(_) => {
            println!("SKIP {test}: waits of this kernel's io_uring have no timeouts");
            return None;
        }
        Err(error) => {
            println!("SKIP {test}: {error}");
            return None;
        }
    };
    Some((ring, eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor")))
}

fn raise(bell: &OwnedFd) {
    rustix::io::write(bell, &1_u64.to_ne_bytes()).expect("it counts");
}

fn lower(bell: &OwnedFd) {
    rustix::io::read(bell, &mut [0; 8]).expect("it was raised");
}

fn read(file: &File) -> ReadAt {
    let file = FileRef::Descriptor(file.as_raw_fd());
    ReadAt { file, offset: 0, start: 0, bytes: 16, registered: None }
}

#[test]
fn a_sleep_hands_over_what_was_pushed_and_ends_with_its_completion() {
    let Some((mut ring, bell)) = ring_and_bell("hands over") else { return };
    let file = tempfile::tempfile().expect("a temporary file");
    rustix::io::write(&file, &[7; 16]).expect("it is writable");
    for key in 0..100 {
        ring.push_read(key << 32, read(&file), vec![0; 16], key).expect("there is room");
        let begun = Instant::now();
        let finished = loop {
            assert!(ring.sleep(bell.as_fd(), Some(LONG)) && begun.elapsed() < LONG);
            if let Some(finished) = ring.pop() {
                break finished;
            }
        };
        assert_eq!(
            (finished.extra, finished.result, &finished.buffer[..]),
            (key, 16, &[7; 16][..])
        );
    }
    let stats = ring.stats();
    assert_eq!((stats.syscalls, stats.doorbells), (100, 100), "one call for each");
}

#[test]
fn the_time_ends_a_sleep() {
    let Some((mut ring, bell)) = ring_and_bell("time") else { return };
    for _ in 0..3 {
        let begun = Instant::now();
        assert!(ring.sleep(bell.as_fd(), Some(Duration::from_millis(20))));
        assert!(begun.elapsed() >= Duration::from_millis(20));
        assert!(ring.pop().is_none());
    }
    assert_eq!(ring.stats().syscalls, 0, "a mere sleep is no work");
}

/// Each raise ends one sleep, whether it comes before, in it, or without the last being lowered.
#[test]
fn no_raise_of_the_bell_is_missed() {
    let Some((mut ring, bell)) = ring_and_bell("bell") else { return };
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..200 {
        let delay = Duration::from_micros(random.u64(0..300));
        let lowers = random.bool();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(delay);
                raise(&bell);
            });
            let begun = Instant::now();
            // Popping between the raise and the sleep is what a turn does.
            assert!(ring.sleep(bell.as_fd(), Some(LONG)));
            assert!(begun.elapsed() < LONG, "round {round}: nobody was woken");
            assert!(ring.pop().is_none());
        });
        if lowers {
            lower(&bell);
        }
    }
}

#[test]
fn an_end_of_a_read_and_the_bell_are_told_apart() {
    let Some((mut ring, bell)) = ring_and_bell("apart") else { return };
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let reader = File::from(reader);
    ring.push_read(1, read(&reader), vec![0; 16], 9).expect("there is room");
    raise(&bell);
    let begun = Instant::now();
    assert!(ring.sleep(bell.as_fd(), Some(LONG)));
    assert!(ring.pop().is_none(), "the bell is no read");
    rustix::io::write(&writer, &[1; 16]).expect("there is room");
    let finished = loop {
        assert!(ring.sleep(bell.as_fd(), Some(LONG)) && begun.elapsed() < LONG);
        if let Some(finished) = ring.pop() {
            break finished;
        }
    };
    assert_eq!((finished.key, finished.result, finished.extra), (1, 16, 9));
}
