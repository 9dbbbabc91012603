//! One request in a simulated device: what it asks for, where it is, what fate it was dealt, and
//! how its bytes land.

use std::ops::Range;
use std::sync::Arc;

use railring_dma::Part;
use railring_transport::{Outcome, WorkRequest};
use sq_cq::Status;

use crate::simulated::fault::{Fault, FaultKind};
use crate::simulated::stats::SimCounters;
use crate::simulated::store::{Source, SourceContent};

/// A source that a rail is connected to, and the generation it was connected for.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) source: Arc<Source>,
    pub(crate) generation: u64,
}

impl Target {
    /// What the owner answers: the content, or why not.
    pub(crate) fn ask(&self) -> Result<SourceContent, Status> {
        let content = self.source.content().ok_or(Status::NOT_FOUND)?;
        if content.generation == self.generation { Ok(content) } else { Err(Status::STALE) }
    }
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Queued; the device does not know of it.
    Queued,
    /// Waiting for its bytes to go through the pipe.
    Piped,
    /// Through the pipe, or without bytes; its end is planned.
    Travelling,
    /// Nothing more will happen to it.
    Lost,
    /// The device does not let go of it.
    Hung,
    /// Its end was asked for and is planned.
    Ending,
    /// In the completion queue.
    Completed,
}

/// How much less than what is there is delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Truncation {
    #[default]
    None,
    Honest,
    Silent,
}

/// Which completion comes that nothing waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ghost {
    /// The request's own, again.
    Duplicate {
        /// How much later.
        after_ns: u64,
    },
    /// One for an earlier use of its slot.
    Old,
    /// One for a slot there is not.
    Unknown,
}

/// What will happen to a request, decided when the device takes it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    pub(crate) latency_ns: u64,
    pub(crate) lost: bool,
    pub(crate) hang: Option<Option<u64>>,
    pub(crate) failure: Option<(FaultKind, Status, u32)>,
    pub(crate) delay_ns: Option<u64>,
    pub(crate) hold_ns: Option<u64>,
    pub(crate) tail_gap_ns: Option<u64>,
    pub(crate) ghost: Option<Ghost>,
    pub(crate) late_write_ns: Option<u64>,
    truncation: Truncation,
    flipped_byte: bool,
    corrupt_table: bool,
    salt: u64,
}

impl Fate {
    /// Adds `fault`, with random bits for its details.
    pub(crate) fn add(&mut self, fault: Fault, salt: u64) {
        let kind = fault.kind();
        match fault {
            Fault::Lost => self.lost = true,
            Fault::Delay { delay_ns } => self.delay_ns = Some(delay_ns),
            Fault::Reorder { hold_ns } => self.hold_ns = Some(hold_ns),
            Fault::ShortDelivery => self.truncation = Truncation::Honest,
            Fault::SilentTruncation => self.truncation = Truncation::Silent,
            Fault::FlippedByte => self.flipped_byte = true,
            Fault::CorruptTable => self.corrupt_table = true,
            Fault::TailFirst { gap_ns } => self.tail_gap_ns = Some(gap_ns),
            Fault::Hang { returns_after_ns } => self.hang = Some(returns_after_ns),
            Fault::DuplicateCompletion { after_ns } => {
                self.ghost = Some(Ghost::Duplicate { after_ns });
            }
            Fault::UnknownCompletion => self.ghost = Some(Ghost::Unknown),
            Fault::OldCompletion => self.ghost = Some(Ghost::Old),
            Fault::LateWrite { after_ns } => self.late_write_ns = Some(after_ns),
            Fault::StaleAnswer => self.failure = Some((kind, Status::STALE, 0)),
            Fault::NotFoundAnswer => self.failure = Some((kind, Status::NOT_FOUND, 0)),
            Fault::RefusedAnswer => self.failure = Some((kind, Status::REFUSED, 0)),
            Fault::TransferError { status, vendor } => self.failure = Some((kind, status, vendor)),
            // Not a request's: `FaultKind::site` keeps them away.
            Fault::Panic
            | Fault::PartialPost
            | Fault::PostError { .. }
            | Fault::PostRefused { .. }
            | Fault::SpuriousFull
            | Fault::Disconnect { .. }
            | Fault::Flap { .. }
            | Fault::Stall { .. }
            | Fault::Rate { .. } => {}
        }
        self.salt ^= salt;
    }
}

/// A request in the device's hands; its part is beside it in the table.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) target: Target,
    pub(crate) offset: u64,
    pub(crate) bytes_min: u64,
    pub(crate) stage: Stage,
    pub(crate) fate: Fate,
    /// Position among all that were posted.
    pub(crate) posted: u64,
    /// Whether its part was asked back.
    pub(crate) unwanted: bool,
}

impl Flight {
    /// A request that was just queued.
    pub(crate) fn new(target: Target, request: &WorkRequest) -> Self {
        Flight {
            target,
            offset: request.offset,
            bytes_min: request.bytes_min,
            stage: Stage::Queued,
            fate: Fate::default(),
            posted: 0,
            unwanted: false,
        }
    }

    /// Lands the bytes, as its fate has it, and says how the request ends.
    pub(crate) fn land(&self, part: &mut Part, counters: &SimCounters) -> Outcome {
        let content = match self.target.ask() {
            Ok(content) => content,
            Err(status) => return Outcome::Failed { status, vendor: 0 },
        };
        let there = available(&content, self.offset, part.len());
        let (delivered, claimed) = self.truncate(there.len(), counters);
        let landed = &mut part.as_mut_slice()[..delivered];
        landed.copy_from_slice(&content.bytes[there.start..there.start + delivered]);
        self.corrupt(landed, &content, counters);
        let bytes = claimed as u64;
        if bytes < self.bytes_min {
            return Outcome::Failed { status: Status::SHORT_READ, vendor: 0 };
        }
        Outcome::Done { bytes }
    }

    /// Lands the second half of the bytes, or the first: what a transfer may have written by the
    /// time it was given up.
    pub(crate) fn land_half(&self, part: &mut Part, half: Half) {
        let Ok(content) = self.target.ask() else { return };
        let there = available(&content, self.offset, part.len());
        let middle = there.len() / 2;
        let range = match half {
            Half::First => 0..middle,
            Half::Second => middle..there.len(),
        };
        let from = there.start + range.start..there.start + range.end;
        part.as_mut_slice()[range].copy_from_slice(&content.bytes[from]);
    }

    /// Of `available` bytes, how many land and how many the completion says.
    fn truncate(&self, available: usize, counters: &SimCounters) -> (usize, usize) {
        if available == 0 || self.fate.truncation == Truncation::None {
            return (available, available);
        }
        let delivered = below(self.fate.salt, available);
        match self.fate.truncation {
            Truncation::Silent => {
                counters.fire(FaultKind::SilentTruncation);
                (delivered, available)
            }
            Truncation::Honest | Truncation::None => {
                counters.fire(FaultKind::ShortDelivery);
                (delivered, delivered)
            }
        }
    }

    fn corrupt(&self, landed: &mut [u8], content: &SourceContent, counters: &SimCounters) {
        if self.fate.flipped_byte && !landed.is_empty() {
            flip(landed, self.fate.salt);
            counters.fire(FaultKind::FlippedByte);
        }
        if self.fate.corrupt_table {
            let table = overlap(self.offset, landed.len(), &content.tables);
            if !table.is_empty() {
                flip(&mut landed[table], self.fate.salt);
                counters.fire(FaultKind::CorruptTable);
            }
        }
    }
}

/// Half of a request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    First,
    Second,
}

/// What of `len` bytes at `offset` there is, as a range of the content.
pub(crate) fn available(content: &SourceContent, offset: u64, len: usize) -> Range<usize> {
    let end = content.bytes.len();
    let start = usize::try_from(offset).map_or(end, |offset| offset.min(end));
    start..start.saturating_add(len).min(end)
}

/// What of `len` bytes at `offset` lies in `range`, counted from `offset`.
fn overlap(offset: u64, len: usize, range: &Range<u64>) -> Range<usize> {
    let inside = |at: u64| usize::try_from(at.saturating_sub(offset)).map_or(len, |at| at.min(len));
    inside(range.start)..inside(range.end)
}

/// Some number below `count`, which is not 0.
#[expect(clippy::cast_possible_truncation, reason = "the remainder is below a usize")]
fn below(salt: u64, count: usize) -> usize {
    (salt % count as u64) as usize
}

/// Inverts one bit.
fn flip(bytes: &mut [u8], salt: u64) {
    let index = below(salt >> 3, bytes.len());
    bytes[index] ^= 1 << (salt & 7);
}
