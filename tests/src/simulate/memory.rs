//! Memory of a run: leases marked before a read, watched while it runs, and looked at again long
//! after.

use railring_catalog::checksum::stripe_checksum;
use railring_dma::{Lease, Pool};

use super::dice::Dice;
use super::tracked::{MARGIN, Memory};

/// A lease whose read has ended, kept to see whether something still writes into it.
#[derive(Debug)]
struct Resting {
    lease: Lease,
    bytes: usize,
    checksum: u64,
    read: u64,
}

/// The pool of a run and what is kept out of it.
#[derive(Debug)]
pub(crate) struct Memories {
    /// There until the run is over.
    pool: Option<Pool>,
    resting: Vec<Resting>,
    /// Leases that did not come back with the end of their read.
    pub(crate) stuck: u32,
}

/// Memory for one read, marked.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) memory: Memory,
    pub(crate) bodies: Vec<Lease>,
}

impl Memories {
    pub(crate) fn new(pool: Pool) -> Self {
        Memories { pool: Some(pool), resting: Vec::new(), stuck: 0 }
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("the run is not over")
    }

    /// The run is over: nothing is taken any more.
    pub(crate) fn close(&mut self) {
        self.pool = None;
    }

    /// Leases for `need` bytes, one or several, at odd places in their slots. `Ok(None)`: none are
    /// free.
    pub(crate) fn take(
        &mut self,
        need: usize,
        leases: usize,
        dice: &mut Dice,
    ) -> Result<Option<Taken>, String> {
        while self.pool().free() < leases && !self.resting.is_empty() {
            self.wake(0)?;
        }
        if self.pool().free() < leases {
            return Ok(None);
        }
        let sentinel = u8::try_from(dice.below(255)).expect("below 255") + 1;
        let mut taken = Taken {
            memory: Memory { guards: Vec::new(), runs: Vec::new(), sentinel, need },
            bodies: Vec::new(),
        };
        let mut left = need;
        for index in 0..leases {
            let lease = self.pool().take().ok_or("a free slot cannot be taken")?;
            let front = *dice.pick(&[0, 0, 0, 1, MARGIN, 512, 4096]);
            let (mut guard, mut body) = lease.split_at(front).map_err(|e| e.to_string())?;
            guard.as_mut_slice().fill(sentinel);
            if index + 1 < leases {
                let bytes = dice.below(left + 1);
                let (short, rest) = body.split_at(bytes).map_err(|e| e.to_string())?;
                taken.memory.guards.push(rest);
                body = short;
            }
            let used = body.len().min(left);
            let marked = body.len().min(left + MARGIN);
            body.as_mut_slice()[..marked].fill(sentinel);
            left -= used;
            taken.memory.runs.push((body.address().as_ptr() as usize, body.len()));
            taken.memory.guards.push(guard);
            taken.bodies.push(body);
        }
        Ok(Some(taken))
    }

    /// A read has ended: its memory goes back, now or after a rest.
    pub(crate) fn end(&mut self, memory: Memory, bodies: Vec<Lease>, read: u64, dice: &mut Dice) {
        self.stuck += u32::try_from(memory.runs.len() - bodies.len()).unwrap_or(0);
        for body in bodies {
            if dice.one_in(2) {
                drop(body);
                continue;
            }
            let mut body = body;
            let bytes = body.len().min(memory.need + MARGIN);
            if dice.one_in(2) {
                body.as_mut_slice()[..bytes].fill(0xee);
            }
            let checksum = stripe_checksum(&body.as_slice()[..bytes]);
            self.resting.push(Resting { lease: body, bytes, checksum, read });
        }
    }

    fn wake(&mut self, index: usize) -> Result<(), String> {
        let Resting { lease, bytes, checksum, read } = self.resting.remove(index);
        if stripe_checksum(&lease.as_slice()[..bytes]) == checksum {
            return Ok(());
        }
        Err(format!("the memory of read {read} was written after the read had ended"))
    }

    /// Looks at one lease at rest, or at all of them, and puts it back.
    pub(crate) fn wake_one(&mut self, dice: &mut Dice) -> Result<(), String> {
        if self.resting.is_empty() { Ok(()) } else { self.wake(dice.below(self.resting.len())) }
    }

    pub(crate) fn wake_all(&mut self) -> Result<(), String> {
        while !self.resting.is_empty() {
            self.wake(0)?;
        }
        Ok(())
    }
}

/// What of the memory a read may not touch was touched, if something was.
pub(crate) fn check_margins(memory: &Memory, bodies: &[Lease], gaps: &[(usize, usize)]) -> bool {
    let sentinel = memory.sentinel;
    let clean = |bytes: &[u8]| bytes.iter().all(|byte| *byte == sentinel);
    let mut left = memory.need;
    for body in bodies {
        let used = body.len().min(left);
        let end = body.len().min(left + MARGIN);
        if !clean(&body.as_slice()[used..end]) {
            return false;
        }
        left -= used;
    }
    let gaps_clean =
        bodies.len() != 1 || gaps.iter().all(|(from, to)| clean(&bodies[0].as_slice()[*from..*to]));
    // Of several leases the guards hold what was split off behind, too, which is not marked.
    let guards_clean =
        memory.runs.len() > 1 || memory.guards.iter().all(|guard| clean(guard.as_slice()));
    gaps_clean && guards_clean
}
