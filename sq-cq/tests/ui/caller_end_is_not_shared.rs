//! Two threads cannot push into one ring.

use std::sync::Arc;

use sq_cq::{Bell, RingConfig, Sqe, pair};

fn main() {
    let bell = Arc::new(Bell::new(1).unwrap());
    let (mut caller, _poller) = pair::<u64, u64>(RingConfig::default(), bell, 0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| _ = caller.push(Sqe::nop(), 1, 1));
        scope.spawn(|| _ = caller.push(Sqe::nop(), 1, 2));
    });
}
