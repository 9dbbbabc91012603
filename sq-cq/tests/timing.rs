//! Owns a look at the cost of the rings, for people: `cargo test --release -p sq-cq --test timing
//! -- --ignored --nocapture`. It asserts nothing about time.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sq_cq::{Bell, CallerEnd, Cqe, CqeFields, Handle, PollerEnd, RingConfig, Sqe, pair};

/// As large as a lease.
type Attachment = [u64; 4];

const BATCH: u64 = 32;

type Ends = (CallerEnd<Attachment, Option<Attachment>>, PollerEnd<Attachment, Option<Attachment>>);

fn rings(bell: &Arc<Bell>) -> Ends {
    pair(RingConfig::default(), Arc::clone(bell), 0).expect("a valid config")
}

fn push_batch(caller: &mut CallerEnd<Attachment, Option<Attachment>>, count: u64) {
    for user_data in 0..count {
        let sqe = Sqe::read(Handle::NONE, Handle::NONE, 0, 4096).user_data(user_data);
        caller.push(sqe, 1, [user_data; 4]).expect("there is room for what was popped");
    }
    caller.submit();
}

fn serve(poller: &mut PollerEnd<Attachment, Option<Attachment>>) {
    while let Some((sqe, permit, attachment)) = poller.pop() {
        let fields = CqeFields {
            user_data: sqe.get_user_data(),
            bytes: sqe.len(),
            total_bytes: sqe.len(),
            attempts: 1,
            rail: Some(0),
            ..CqeFields::default()
        };
        poller.finish(permit, Cqe::new(&fields), Some(attachment));
    }
    poller.publish();
}

fn drain(caller: &mut CallerEnd<Attachment, Option<Attachment>>) -> u64 {
    let mut count = 0;
    while let Some(popped) = caller.pop() {
        black_box(popped);
        count += 1;
    }
    count
}

#[test]
#[ignore = "prints times, checks nothing"]
fn inline() {
    let bell = Arc::new(Bell::new(1).expect("a descriptor"));
    let (mut caller, mut poller) = rings(&bell);
    let rounds = 200_000;
    for round in 0..3 {
        let start = Instant::now();
        for _ in 0..rounds {
            push_batch(&mut caller, BATCH);
            bell.take_ready(|_| serve(&mut poller));
            assert_eq!(drain(&mut caller), BATCH);
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / (rounds * BATCH) as f64;
        println!("inline, round {round}: {each:.1} ns for a read, both sides, batches of {BATCH}");
    }
}

#[test]
#[ignore = "prints times, checks nothing"]
fn threaded() {
    let bell = Arc::new(Bell::new(1).expect("a descriptor"));
    let (mut caller, mut poller) = rings(&bell);
    let server = std::thread::spawn(move || {
        while !poller.is_closed() {
            bell.take_ready(|_| serve(&mut poller));
            std::hint::spin_loop();
        }
    });
    let total = 6_400_000;
    for round in 0..3 {
        let start = Instant::now();
        let (mut pushed, mut popped) = (0, 0);
        while popped < total {
            if pushed < total && pushed - popped <= 224 {
                push_batch(&mut caller, BATCH);
                pushed += BATCH;
            }
            popped += drain(&mut caller);
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / total as f64;
        println!("threaded, round {round}: {each:.1} ns for a read, 256 in flight");
    }
    let start = Instant::now();
    let trips = 200_000;
    for _ in 0..trips {
        push_batch(&mut caller, 1);
        caller.wait(1, None, Duration::from_secs(1));
        drain(&mut caller);
    }
    let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(trips);
    println!("threaded: {each:.1} ns for a round trip, spinning");
    drop(caller);
    server.join().expect("the poller does not panic");
}
