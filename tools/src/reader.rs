//! Reading objects through the engine in bounded memory: many reads in flight, bytes in order.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use railring::catalog::checksum::Hex;
use railring::{
    Completion, Engine, Lease, Object, Pool, PoolConfig, Proof, RailStats, Read, Ring, RingConfig,
    Status, TraceConfig,
};

use crate::args::PlaceArgs;
use crate::placed;
use crate::signals::Stop;
use crate::traced::Traced;

/// A ring that nothing comes out of for so long still gets looked after: the stop is checked.
const WAIT: Duration = Duration::from_millis(100);
/// Stripes of one read: bounds the CQ slots that a read of tiny stripes takes.
const STRIPES_MAX: u64 = 256;
/// Sub-stripe reads begin at multiples of this, a multiple of every block size.
const CUT_BYTES: u64 = 1 << 20;

/// Records of one trace: as many as a read of 4 MiB in pieces of 64 KiB has.
const RECORDS_MAX: u32 = 1024;

/// How much is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) reads: usize,
    /// Bytes of each; a multiple of 1 MiB.
    pub(crate) read_bytes: usize,
}

impl Flight {
    /// 8 reads of 4 MiB: keeps a disk or two busy in 32 MiB.
    pub(crate) const STREAMING: Flight = Flight { reads: 8, read_bytes: 4 << 20 };
}

/// An engine with one rail per directory, a ring, and memory for what is in flight.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) engine: Engine,
    pub(crate) ring: Ring,
    pub(crate) pool: Pool,
    pub(crate) flight: Flight,
    names: Vec<String>,
    /// What traces of its reads add up to, if they are traced.
    pub(crate) traced: Option<Traced>,
}

/// Whether reads are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracing {
    Off,
    On,
}

/// What came of the stripes of a stream of reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) bytes: u64,
    /// CQEs, by proof.
    pub(crate) by_stripe: u64,
    pub(crate) by_blocks: u64,
    pub(crate) unverified: u64,
    /// Attempts beyond each stripe's first, by the rail that ended it.
    pub(crate) retries: Vec<u64>,
    /// Bytes verified, by rail.
    pub(crate) verified_bytes: Vec<u64>,
}

impl Tally {
    pub(crate) fn new(rails: usize) -> Self {
        Tally { retries: vec![0; rails], verified_bytes: vec![0; rails], ..Tally::default() }
    }

    pub(crate) fn count(&mut self, completion: &Completion) {
        match completion.proof() {
            Proof::Stripe => self.by_stripe += 1,
            Proof::Blocks | Proof::Transport => self.by_blocks += 1,
            Proof::None => self.unverified += 1,
        }
        self.bytes += completion.bytes();
        let Some(rail) = completion.rail().map(usize::from) else { return };
        if let Some(retries) = self.retries.get_mut(rail) {
            *retries += u64::from(completion.attempts().saturating_sub(1));
        }
        if let Some(bytes) = self.verified_bytes.get_mut(rail)
            && completion.proof() != Proof::None
        {
            *bytes += completion.bytes();
        }
    }

    pub(crate) fn retries_total(&self) -> u64 {
        self.retries.iter().sum()
    }
}

/// One read of a stream: pushed, or done and waiting for those before it.
#[derive(Debug)]
enum Slot {
    Pending,
    Done(Lease),
}

impl Reader {
    pub(crate) fn open(
        directories: &[PathBuf],
        flight: Flight,
        place: &PlaceArgs,
        tracing: Tracing,
    ) -> Result<Self> {
        let engine = placed::engine(directories, place)?;
        let slots = u32::try_from(flight.reads).context("too many reads in flight")?;
        // Room for every read of the flight, each of as many stripes as it may have.
        let cq_entries = slots.saturating_mul(STRIPES_MAX as u32).next_power_of_two();
        let sq_entries = slots.next_power_of_two();
        let traced = (tracing == Tracing::On).then(Traced::default);
        let trace =
            TraceConfig { reads: if traced.is_some() { slots } else { 0 }, records: RECORDS_MAX };
        let sizes = RingConfig { sq_entries, cq_entries, trace, ..RingConfig::default() };
        let ring = engine.ring(sizes)?;
        let pool = engine.buffer_pool(PoolConfig {
            slots: flight.reads,
            slot_bytes: flight.read_bytes,
            ..PoolConfig::default()
        })?;
        let names = engine.rail_stats().into_iter().map(|rail| rail.info.name).collect();
        Ok(Reader { engine, ring, pool, flight, names, traced })
    }

    pub(crate) fn rails(&self) -> Vec<RailStats> {
        // The links' own counters are asked for by one call and there at the next.
        let _ = self.engine.rail_stats();
        std::thread::sleep(Duration::from_millis(5));
        self.engine.rail_stats()
    }

    /// Reads `range` of `object`; `sink` gets the bytes in order, each verified before.
    pub(crate) fn stream(
        &mut self,
        object: &Object,
        range: Range<u64>,
        stop: &Stop,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Tally> {
        let mut stream = Stream {
            reads: Cuts::new(object, range, self.flight.read_bytes as u64),
            first: 0,
            slots: VecDeque::with_capacity(self.flight.reads),
            tally: Tally::new(self.names.len()),
        };
        loop {
            stop.check()?;
            stream.fill(self, object)?;
            if stream.slots.is_empty() {
                return Ok(stream.tally);
            }
            self.ring.wait(1, WAIT)?;
            stream.drain(self, object)?;
            while let Some(Slot::Done(_)) = stream.slots.front() {
                stop.check()?;
                let Some(Slot::Done(lease)) = stream.slots.pop_front() else { break };
                let bytes = stream.reads.len_of(stream.first);
                stream.first += 1;
                sink(&lease.as_slice()[..bytes])?;
                drop(lease);
                // Keep the rails busy while the sink works.
                stream.fill(self, object)?;
            }
        }
    }

    /// The directory behind a rail's number.
    pub(crate) fn rail_name(&self, rail: Option<u8>) -> &str {
        rail.and_then(|rail| self.names.get(usize::from(rail))).map_or("no rail", |name| name)
    }
}

/// A range cut into reads.
#[derive(Clone, Debug)]
pub(crate) struct Cuts {
    start: u64,
    end: u64,
    /// All reads but the first begin at a multiple of this.
    step: u64,
    next: u64,
}

impl Cuts {
    /// Whole stripes where they are short enough, else parts of one. `bytes_max` is at least 1 MiB.
    pub(crate) fn new(object: &Object, range: Range<u64>, bytes_max: u64) -> Self {
        let stripe = object.placement().stripe_bytes();
        let step = if stripe <= bytes_max {
            stripe * (bytes_max / stripe).clamp(1, STRIPES_MAX)
        } else {
            bytes_max / CUT_BYTES * CUT_BYTES
        };
        Cuts { start: range.start, end: range.end, step, next: range.start }
    }

    fn begin_of(&self, index: u64) -> u64 {
        if index == 0 { self.start } else { (self.start / self.step + index) * self.step }
    }

    fn len_of(&self, index: u64) -> usize {
        let bytes = self.begin_of(index + 1).min(self.end) - self.begin_of(index);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

impl Iterator for Cuts {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        if self.next >= self.end {
            return None;
        }
        let end = ((self.next / self.step + 1).saturating_mul(self.step)).min(self.end);
        let cut = self.next..end;
        self.next = end;
        Some(cut)
    }
}

struct Stream {
    reads: Cuts,
    /// Number of the read at the front of `slots`.
    first: u64,
    slots: VecDeque<Slot>,
    tally: Tally,
}

impl Stream {
    /// Pushes reads while there is memory, and shows them to the engine as one batch.
    fn fill(&mut self, reader: &mut Reader, object: &Object) -> Result<()> {
        let mut pushed = false;
        while self.reads.clone().next().is_some() {
            let Some(lease) = reader.pool.take() else { break };
            let Some(range) = self.reads.next() else { break };
            let number = self.first + self.slots.len() as u64;
            let read = Read::new(object, range, lease).user_data(number);
            let read = if reader.traced.is_some() { read.traced() } else { read };
            // As many slots as leases, so it is never full.
            reader.ring.push(read).map_err(|refused| anyhow!(refused.why))?;
            self.slots.push_back(Slot::Pending);
            pushed = true;
        }
        if pushed {
            reader.ring.submit();
        }
        Ok(())
    }

    fn drain(&mut self, reader: &mut Reader, object: &Object) -> Result<()> {
        while let Some(completion) = reader.ring.pop() {
            if !completion.status().is_ok() && completion.status() != Status::STOPPED {
                bail!(failure(reader, object, &completion));
            }
            self.tally.count(&completion);
            let number = completion.user_data();
            if completion.ended().is_some() {
                let trace = reader.ring.trace(&completion);
                if let (Some(traced), Some(trace)) = (&mut reader.traced, trace) {
                    traced.add(trace, self.reads.begin_of(number));
                }
                let lease = completion.into_lease().context("a read ended without its memory")?;
                let at = usize::try_from(number - self.first).context("an unknown read ended")?;
                let slot = self.slots.get_mut(at).context("an unknown read ended")?;
                *slot = Slot::Done(lease);
            }
        }
        Ok(())
    }
}

/// A stripe that could not be read, in words.
fn failure(reader: &Reader, object: &Object, completion: &Completion) -> String {
    let stripe = u32::from(completion.stripe());
    if completion.status() == Status::NO_RAIL {
        return format!("stripe {stripe} could not be read: no rail reaches a place that has it");
    }
    let mut text = format!(
        "stripe {stripe} could not be read: {}, from {}, attempt {}",
        completion.status(),
        reader.rail_name(completion.rail()),
        completion.attempts(),
    );
    if completion.status() == Status::CHECKSUM_MISMATCH {
        let expected = object.placement().checksum(stripe).unwrap_or(0);
        if let Some(block) = completion.bad_block() {
            text += &format!(", first bad block {block}");
        }
        if completion.checksum() != 0 {
            let found = Hex(completion.checksum());
            text += &format!(", checksum {} expected, {found} found", Hex(expected));
        }
    }
    text
}
