//! Prints the rate of 256 KiB reads, 16 in flight, to be held against `ib_read_bw`; asserts nothing
//! about it.

use std::time::{Duration, Instant};

use railring_dma::Part;
use railring_transport::{Completion, Link, Outcome};
use railring_verbs::{VerbsRailOptions, Waiting};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::device_or_skip;
use crate::peer::{ANY_MTU, Peer};
use crate::reader::{Reader, now};

const BYTES: usize = 256 << 10;
const DEPTH: u32 = 16;

/// Sleeps until something completes, if the link may sleep.
fn wait(reader: &mut Reader) {
    if reader.link.event_fd().is_none() || !reader.link.arm() {
        return;
    }
    let fd = reader.link.event_fd().expect("it was there");
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let bound = Timespec { tv_sec: 20, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&bound)).expect("a descriptor");
}

fn rate(waiting: Waiting, reads: u32) -> Option<f64> {
    let (device, port, _) = crate::device().ok()?;
    let peer = Peer::new(&device, &port, DEPTH as usize * BYTES, ANY_MTU);
    let options = VerbsRailOptions { waiting, ..VerbsRailOptions::new(&port.device) };
    let mut reader = Reader::new(&port, DEPTH as usize * BYTES, options);
    let target = reader.open(&peer.endpoint);
    let mut idle: Vec<(u32, Part)> = (0..DEPTH).map(|slot| (slot, reader.cut(BYTES))).collect();
    let (mut queued, mut done) = (0, 0);
    let start = Instant::now();
    let mut came: Vec<Completion> = Vec::new();
    while done < reads {
        assert!(start.elapsed() < Duration::from_secs(120), "{done} of {reads}");
        while queued < reads {
            let Some((slot, part)) = idle.pop() else { break };
            reader.queue(slot, target, u64::from(slot) * BYTES as u64, part);
            queued += 1;
        }
        reader.link.commit(now());
        if reader.link.reap(now(), 64, &mut |completion| came.push(completion)) == 0 {
            wait(&mut reader);
        }
        for completion in came.drain(..) {
            assert_eq!(completion.outcome, Outcome::Done { bytes: BYTES as u64 });
            idle.push((completion.wr.slot, completion.part));
            done += 1;
        }
    }
    let rate = f64::from(reads) * BYTES as f64 / start.elapsed().as_secs_f64() / 1e6;
    let stats = reader.link.stats();
    let (doorbells, syscalls) = (stats.doorbells, stats.syscalls);
    println!("{waiting:?}: {rate:.1} MB/s, {doorbells} doorbells, {syscalls} system calls");
    Some(rate)
}

#[test]
fn the_rate_of_large_reads_is_shown() {
    let _ = device_or_skip!("the_rate_of_large_reads_is_shown");
    for waiting in [Waiting::Polling, Waiting::Adaptive] {
        assert!(rate(waiting, 200).is_some());
    }
}
