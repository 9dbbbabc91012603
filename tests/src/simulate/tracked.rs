//! One read as the checker sees it: what was asked for, worked out independently of the engine, and
//! what has come of it.

use railring_dma::Lease;
use railring_transport::Nanos;
use sq_cq::{ReadId, Status};

use super::source::Known;

/// What one stripe of a read must bring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) stripe: u16,
    /// First byte in the object, and how many.
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// First byte in the memory.
    pub(crate) at: usize,
    /// Whether it is the whole stripe.
    pub(crate) whole: bool,
}

/// Conditions of a read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) quiet: Option<u16>,
    pub(crate) partial: bool,
    pub(crate) fail_fast: bool,
    pub(crate) skip_verify: bool,
}

impl Terms {
    /// As numbers in a trace: verify off, fail fast, partial, quiet.
    pub(crate) fn bits(self) -> u64 {
        let Terms { quiet, partial, fail_fast, skip_verify } = self;
        [skip_verify, fail_fast, partial, quiet.is_some()]
            .into_iter()
            .fold(0, |bits, on| bits << 1 | u64::from(on))
    }
}

/// The caller's memory that a read was given.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The bytes of the slot before the read's own.
    pub(crate) guards: Vec<Lease>,
    /// Length of each lease that was given, and where it lies.
    pub(crate) runs: Vec<(usize, usize)>,
    pub(crate) sentinel: u8,
    /// Bytes the read may touch, gaps included.
    pub(crate) need: usize,
}

/// Bytes before and behind what a read may touch that are looked at.
pub(crate) const MARGIN: usize = 64;

/// A read in progress.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) name: u64,
    pub(crate) id: ReadId,
    pub(crate) object: Option<usize>,
    pub(crate) cuts: Vec<Cut>,
    pub(crate) terms: Terms,
    pub(crate) memory: Memory,
    pub(crate) scattered: bool,
    pub(crate) stamp: Nanos,
    pub(crate) deadline: Nanos,
    /// When the engine could first see it; `NEVER` before.
    pub(crate) submitted_at: Nanos,
    /// When its cancel was sent.
    pub(crate) cancelled_at: Nanos,
    pub(crate) token: Option<usize>,
    /// Outcome of each cut that is known.
    pub(crate) seen: Vec<Option<Status>>,
    /// Checksum of what each cut showed with its CQE, which must not change after it.
    pub(crate) shown: Vec<Option<u64>>,
    pub(crate) cqes: u32,
    /// Whether each stripe of a quiet read that failed was told of.
    pub(crate) quiet_failures_told: bool,
}

impl Tracked {
    /// The cut of a stripe.
    pub(crate) fn cut_of(&self, stripe: u16) -> Option<usize> {
        self.cuts.iter().position(|cut| cut.stripe == stripe)
    }

    /// Bytes that stripes brought which are known to be well.
    pub(crate) fn bytes_ok(&self) -> u64 {
        let ok = self.seen.iter().zip(&self.cuts).filter(|(seen, _)| **seen == Some(Status::OK));
        ok.map(|(_, cut)| cut.len as u64).sum()
    }

    /// When it has to be on its way to its end, at the latest.
    pub(crate) fn stop_at(&self) -> Nanos {
        self.deadline.min(self.cancelled_at).max(self.submitted_at)
    }
}

/// The cuts of bytes `offset..end`.
pub(crate) fn cuts_of_range(known: &Known, offset: u64, end: u64) -> Vec<Cut> {
    cuts(known, offset, (0..known.stripes()).collect(), offset, end)
}

/// The cuts of whole stripes `first + i` for each bit of `mask`.
pub(crate) fn cuts_of_set(known: &Known, first: u32, mask: u64) -> Vec<Cut> {
    let wanted = (0..64).filter(|bit| mask >> bit & 1 == 1).map(|bit| first + bit).collect();
    cuts(known, u64::from(first) * known.plan.stripe_bytes, wanted, 0, u64::MAX)
}

fn cuts(known: &Known, origin: u64, stripes: Vec<u32>, offset: u64, end: u64) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for stripe in stripes {
        let begins = u64::from(stripe) * known.plan.stripe_bytes;
        let ends = begins + known.stripe_len(stripe);
        let (from, to) = (begins.max(offset), ends.min(end));
        if from < to {
            let size = |bytes: u64| usize::try_from(bytes).expect("small");
            cuts.push(Cut {
                stripe: u16::try_from(stripe).expect("few"),
                start: size(from),
                len: size(to - from),
                at: size(from - origin),
                whole: (from, to) == (begins, ends),
            });
        }
    }
    cuts
}

impl Memory {
    /// Of a read that has none.
    pub(crate) fn none() -> Self {
        Memory { guards: Vec::new(), runs: Vec::new(), sentinel: 0, need: 0 }
    }
}
