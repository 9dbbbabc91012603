//! The async reader without a runtime: several reads at once, polled by a dozen lines of executor.
//! Any runtime polls the same futures.
//!
//! `cargo run --release -p railring-examples --example async_reader [FILE]`

use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use railring::{ReadFuture, Reader, ReaderConfig};

/// Wakes by unparking the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

/// Polls all reads at once and sums up what they bring.
struct Sum {
    reads: Vec<Option<ReadFuture>>,
    bytes: u64,
}

impl Future for Sum {
    type Output = Result<u64, Box<dyn Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        for slot in &mut this.reads {
            let Some(read) = slot else { continue };
            if let Poll::Ready(result) = Pin::new(read).poll(context) {
                this.bytes += result?.len() as u64;
                *slot = None;
            }
        }
        let pending = this.reads.iter().any(Option::is_some);
        if pending { Poll::Pending } else { Poll::Ready(Ok(this.bytes)) }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let demo = railring_examples::demo()?;
    let config = ReaderConfig { read_bytes_max: 1 << 20, buffers: 4, ..ReaderConfig::default() };
    let reader = Reader::new(&demo.engine, config)?;

    let first = block_on(reader.read(&demo.object, 0..16))?;
    println!("the file begins with {:02x?}", &*first);
    drop(first);

    // More reads than buffers: the others wait for one.
    let size = demo.object.len();
    let reads = (0..size).step_by(1 << 20).map(|at| {
        let end = size.min(at + (1 << 20));
        Some(reader.read(&demo.object, at..end))
    });
    let bytes = block_on(Sum { reads: reads.collect(), bytes: 0 })?;
    println!("{bytes} B of {size}, verified");

    // A dropped future cancels its read; the buffer is there for the next.
    drop(reader.read(&demo.object, 0..size.min(1 << 20)));
    let last = block_on(reader.read(&demo.object, size.saturating_sub(4)..size))?;
    println!("and ends with {:02x?}", &*last);
    Ok(())
}
