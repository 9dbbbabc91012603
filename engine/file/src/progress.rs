//! What the result of a read means: done, again, or failed. Pure; both backends use it.

use railring_transport::Outcome;
use rustix::io::Errno;
use sq_cq::Status;

/// EINTR and EAGAIN in a row that a read survives. Each is a signal or a moment without memory and
/// passes by itself; sixteen without a byte between them is a state, and another rail may do
/// better.
const TRANSIENT_MAX: u8 = 16;

/// How far one read has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Bytes wanted: the length of the part.
    want: u64,
    bytes_min: u64,
    done: u64,
    /// What an attempt must begin at a multiple of.
    align: u64,
    transient: u8,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The read is over.
    Over(Outcome),
    /// Read on, at [`Progress::from`].
    Again,
}

impl Progress {
    pub(crate) fn new(want: u64, bytes_min: u64, align: u32) -> Self {
        Progress { want, bytes_min, done: 0, align: u64::from(align), transient: 0 }
    }

    /// Where in the part the next attempt begins. With O_DIRECT a read that ended within a block
    /// (at the end of the file) is continued from the start of that block.
    pub(crate) fn from(&self) -> u64 {
        self.done & !(self.align - 1)
    }

    /// How many bytes the next attempt asks for.
    pub(crate) fn left(&self) -> u64 {
        self.want - self.from()
    }

    /// Takes the result of an attempt: bytes, or a negative errno.
    pub(crate) fn after(&mut self, result: i32) -> Next {
        match u64::try_from(result) {
            Ok(bytes) => self.after_bytes(bytes),
            Err(_) => self.after_errno(result),
        }
    }

    fn after_bytes(&mut self, bytes: u64) -> Next {
        let reached = self.from() + bytes;
        if reached >= self.want {
            return Next::Over(Outcome::Done { bytes: self.want });
        }
        if reached > self.done {
            // Short, which says nothing about the end of the file.
            self.done = reached;
            self.transient = 0;
            return Next::Again;
        }
        Next::Over(if self.done >= self.bytes_min {
            Outcome::Done { bytes: self.done }
        } else {
            let vendor = u32::try_from(self.done).unwrap_or(u32::MAX);
            Outcome::Failed { status: Status::SHORT_READ, vendor }
        })
    }

    fn after_errno(&mut self, result: i32) -> Next {
        let errno = Errno::from_raw_os_error(-result);
        if matches!(errno, Errno::INTR | Errno::AGAIN) && self.transient < TRANSIENT_MAX {
            self.transient += 1;
            return Next::Again;
        }
        let status = match errno {
            Errno::CANCELED => Status::CANCELLED,
            _ => Status::from_errno(result),
        };
        Next::Over(Outcome::Failed { status, vendor: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(bytes: u64) -> Next {
        Next::Over(Outcome::Done { bytes })
    }

    fn failed(status: Status, vendor: u32) -> Next {
        Next::Over(Outcome::Failed { status, vendor })
    }

    #[test]
    fn a_short_read_is_not_the_end_and_zero_bytes_are() {
        let mut read = Progress::new(4096, 4096, 1);
        assert_eq!(read.after(700), Next::Again);
        assert_eq!((read.from(), read.left()), (700, 3396));
        assert_eq!(read.after(68), Next::Again);
        assert_eq!(read.after(0), failed(Status::SHORT_READ, 768));
        let mut read = Progress::new(4096, 768, 1);
        assert_eq!(read.after(768), Next::Again);
        assert_eq!(read.after(0), done(768));
    }

    #[test]
    fn an_aligned_read_goes_on_at_a_block_border_and_ends_without_progress() {
        let mut read = Progress::new(8192, 4864, 4096);
        assert_eq!(read.after(4864), Next::Again);
        assert_eq!((read.from(), read.left()), (4096, 4096));
        assert_eq!(read.after(768), done(4864));
        let mut read = Progress::new(8192, 4865, 4096);
        assert_eq!(read.after(4864), Next::Again);
        assert_eq!(read.after(768), failed(Status::SHORT_READ, 4864));
    }

    #[test]
    fn transient_errors_are_retried_a_bounded_number_of_times() {
        let mut read = Progress::new(10, 10, 1);
        for _ in 0..TRANSIENT_MAX {
            assert_eq!(read.after(-4), Next::Again);
        }
        assert_eq!(read.after(-11), failed(Status::from_errno(11), 0));
        // A byte between them shows that it passes.
        let mut read = Progress::new(10, 10, 1);
        for _ in 0..9 {
            for _ in 0..TRANSIENT_MAX {
                assert_eq!(read.after(-11), Next::Again);
            }
            assert_eq!(read.after(1), Next::Again);
        }
        assert_eq!(read.after(1), done(10));
    }

    #[test]
    fn other_errors_end_the_read() {
        assert_eq!(Progress::new(1, 1, 1).after(-5), failed(Status::from_errno(5), 0));
        assert_eq!(Progress::new(1, 1, 1).after(-125), failed(Status::CANCELLED, 0));
    }
}
