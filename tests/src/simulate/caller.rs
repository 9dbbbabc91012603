//! What callers do: push, submit, pop, cancel; drop their rings, close objects, switch rails off
//! and on.

use railring_core::{Object, OpenError, PushError, Read, Scatter};
use railring_dma::Lease;
use railring_transport::Nanos;

use super::memory::Taken;
use super::run::{Caller, Run, Wrong};
use super::trace::{About, What};
use super::tracked::{Cut, Memory, Terms, Tracked, cuts_of_range, cuts_of_set};

/// What is to be read.
enum Wish {
    Nop,
    Range { object: usize, offset: u64, end: u64 },
    Set { object: usize, first: u32, mask: u64 },
}

impl Run {
    /// One step of a caller.
    pub(crate) fn call(&mut self, caller: usize) -> Result<(), Wrong> {
        if !self.may_act(caller)? {
            return Ok(());
        }
        if self.callers[caller].ring.is_none() {
            return self.make_ring(caller);
        }
        let restless = self.scenario.restless && self.left > 0;
        match self.dice.below(100) {
            0..40 if self.left > 0 => self.push(caller)?,
            0..60 => self.submit(caller),
            60..90 => self.pop_some(caller)?,
            90..93 => self.cancel_one(caller),
            93 => self.cancel_token(),
            94 => self.memories.wake_one(&mut self.dice).map_err(Wrong::run)?,
            95 if restless && self.dice.one_in(3) => self.drop_ring(caller),
            95 if self.left > 0 && self.scenario.extras.forgets && self.sleep.one_in(2) => {
                self.forget_ring(caller);
            }
            96 if restless => self.close_object(),
            97 if restless => self.toggle_rail(),
            98 if self.scenario.extras.overwrites && self.left > 0 => self.overwrite()?,
            99 if self.scenario.extras.pools => self.change_pools()?,
            _ => {}
        }
        self.may_wait(caller);
        Ok(())
    }

    fn make_ring(&mut self, caller: usize) -> Result<(), Wrong> {
        if self.left == 0 {
            return Ok(());
        }
        let made = self.engine.ring(self.scenario.rings[caller]);
        // A dropped ring holds its place until its reads are quiet.
        match made {
            Ok(ring) => self.callers[caller].ring = Some(ring),
            Err(railring_core::RingMakeError::TooManyRings { .. }) if self.ring_dropped => {}
            Err(railring_core::RingMakeError::EngineGone) if self.panicked() => {
                self.give_up_pushing();
            }
            Err(error) => return Err(Wrong::run(error.to_string())),
        }
        self.stir();
        Ok(())
    }

    fn push(&mut self, caller: usize) -> Result<(), Wrong> {
        let Some(wish) = self.wish()? else { return Ok(()) };
        let (object, cuts, need) = self.cut(&wish);
        let terms = self.terms();
        let scatter = matches!(wish, Wish::Range { .. }) && self.dice.one_in(6);
        let leases = if scatter { self.dice.between(1, 3).min(self.scenario.slots) } else { 1 };
        let Some(taken) = self.memory_for(&wish, need, leases)? else { return Ok(()) };
        let Taken { memory, bodies } = taken;
        let handle = object.and_then(|object| self.objects[object].clone());
        let mut read = read_of(&wish, handle.as_ref(), scatter, bodies);
        let name = self.next_name;
        read = self.with_trace(caller, with_terms(read.user_data(name), terms));
        let stamp = self.callers[caller].batch_at.unwrap_or(self.turned_at);
        let deadline;
        (read, deadline) = self.with_deadline(read, stamp);
        let token = self.dice.one_in(8).then(|| self.dice.below(self.tokens.len()));
        if let Some(token) = token {
            read = read.cancelled_by(&self.tokens[token]);
        }
        let (seen, shown) = (vec![None; cuts.len()], vec![None; cuts.len()]);
        let ring = self.callers[caller].ring.as_mut().expect("asked before");
        let id = match ring.push(read) {
            Ok(id) => id,
            Err(refused) => {
                let why = refused.why.clone();
                drop(refused);
                return self.refused(caller, name, &why);
            }
        };
        let how = (terms.bits() << 1 | u64::from(scatter)) << 8 | caller as u64;
        self.note(About::Read(name), What::Pushed, need as u64, how);
        self.mark_read(&wish, terms, scatter, deadline);
        self.log_runs(name, &memory.runs);
        let told = token.is_some_and(|token| self.tokens[token].is_cancelled());
        let cancelled_at = if told { self.now } else { Nanos::NEVER };
        self.callers[caller].batch_at.get_or_insert(stamp);
        self.callers[caller].reads.push(Tracked {
            name,
            id,
            object,
            cuts,
            terms,
            memory,
            scattered: scatter,
            stamp,
            deadline,
            submitted_at: Nanos::NEVER,
            cancelled_at,
            token,
            seen,
            shown,
            cqes: 0,
            quiet_failures_told: false,
        });
        self.next_name += 1;
        self.pushed += 1;
        self.left -= 1;
        Ok(())
    }

    /// Memory for what is to be read; `None` if there is none now.
    fn memory_for(
        &mut self,
        wish: &Wish,
        need: usize,
        leases: usize,
    ) -> Result<Option<Taken>, Wrong> {
        if matches!(wish, Wish::Nop) {
            return Ok(Some(Taken { memory: Memory::none(), bodies: Vec::new() }));
        }
        let taken = self.memories.take(need, leases, &mut self.dice).map_err(Wrong::run)?;
        if taken.is_none() {
            self.remember_ring();
        }
        Ok(taken)
    }

    /// Where the read lands, for whoever looks for late writes.
    fn log_runs(&self, name: u64, runs: &[(usize, usize)]) {
        for (start, len) in runs {
            self.log.lock().reads.push((*start, start + len, name));
        }
    }

    fn refused(&mut self, caller: usize, name: u64, why: &PushError) -> Result<(), Wrong> {
        match why {
            PushError::Full => {
                self.marks.set("push full");
                self.note(About::Run, What::Refused, caller as u64, 0);
                self.submit(caller);
                Ok(())
            }
            // Drawn without regard to the ring's size, or to what can be verified.
            PushError::TooManyStripes { .. } | PushError::CannotVerify { .. } => Ok(()),
            PushError::EngineGone if self.panicked() => {
                self.give_up_pushing();
                Ok(())
            }
            why => Err(Wrong::of(name, format!("a sensible read was refused: {why}"))),
        }
    }

    /// What to read next; opens the object if it is not.
    fn wish(&mut self) -> Result<Option<Wish>, Wrong> {
        if self.dice.one_in(20) {
            return Ok(Some(Wish::Nop));
        }
        let Some(object) = self.any_object() else { return Ok(None) };
        if self.objects[object].is_none() {
            match self.engine.open(&self.known[object].placement) {
                Ok(open) => self.objects[object] = Some(open),
                Err(OpenError::NoRail { .. }) if self.is_out_of_reach(object) => {
                    self.left -= 1;
                    return Ok(None);
                }
                Err(OpenError::TooManyObjects { .. }) => {
                    self.left -= 1;
                    return Ok(None);
                }
                Err(OpenError::ShuttingDown) if self.panicked() => {
                    self.give_up_pushing();
                    return Ok(None);
                }
                Err(error) => return Err(Wrong::run(error.to_string())),
            }
        }
        let (size, stripes) = (self.known[object].plan.size_bytes, self.known[object].stripes());
        Ok(Some(match self.dice.below(10) {
            0..4 => Wish::Range { object, offset: 0, end: size },
            4 if stripes > 0 => {
                let first = self.dice.below_u32(stripes);
                let width = (stripes - first).min(64);
                let all = u64::MAX >> (64 - width);
                let bit = 1 << self.dice.below_u32(width);
                let mask = (self.dice.bits() & all) | bit;
                Wish::Set { object, first, mask }
            }
            5 => {
                let at = self.dice.up_to(size);
                Wish::Range { object, offset: at, end: at }
            }
            _ => {
                let (a, b) = (self.dice.up_to(size), self.dice.up_to(size));
                Wish::Range { object, offset: a.min(b), end: a.max(b) }
            }
        }))
    }

    /// The cuts of a wish, and the memory it needs.
    fn cut(&self, wish: &Wish) -> (Option<usize>, Vec<Cut>, usize) {
        let (object, cuts) = match *wish {
            Wish::Nop => (None, Vec::new()),
            Wish::Range { object, offset, end } => {
                (Some(object), cuts_of_range(&self.known[object], offset, end))
            }
            Wish::Set { object, first, mask } => {
                (Some(object), cuts_of_set(&self.known[object], first, mask))
            }
        };
        let need = cuts.last().map_or(0, |cut| cut.at + cut.len);
        (object, cuts, need)
    }

    fn terms(&mut self) -> Terms {
        Terms {
            quiet: self.dice.one_in(5).then(|| *self.dice.pick(&[0, 1, 3, 7])),
            partial: self.dice.one_in(3),
            fail_fast: self.dice.one_in(8),
            skip_verify: self.dice.one_in(6),
        }
    }

    fn with_deadline<'o>(&mut self, read: Read<'o>, stamp: Nanos) -> (Read<'o>, Nanos) {
        let soon = *self.dice.pick(&[1_000, 500_000, 5_000_000, 50_000_000]);
        match self.dice.below(10) {
            0 => {
                let deadline = Nanos(self.dice.up_to(self.now.0));
                (read.deadline(deadline), Nanos(deadline.0.max(1)))
            }
            1 | 2 => {
                let timeout = self.dice.up_to(soon);
                (read.timeout(std::time::Duration::from_nanos(timeout)), stamp.after(timeout))
            }
            3 => {
                let deadline = self.now.after(self.dice.up_to(soon));
                (read.deadline(deadline), deadline)
            }
            _ => self.hurry(read, stamp),
        }
    }

    fn mark_read(&mut self, wish: &Wish, terms: Terms, scatter: bool, deadline: Nanos) {
        let now = self.now;
        let marks = &mut self.marks;
        let mut mark = |yes: bool, name: &str| {
            if yes {
                marks.set(name);
            }
        };
        mark(scatter, "scatter");
        mark(matches!(wish, Wish::Set { .. }), "stripe set");
        mark(matches!(wish, Wish::Nop), "no-op");
        mark(matches!(wish, Wish::Range { offset, end, .. } if offset == end), "empty range");
        mark(terms.quiet.is_some(), "quiet");
        mark(terms.partial, "allow partial");
        mark(terms.fail_fast, "fail fast");
        mark(terms.skip_verify, "skip verify");
        mark(deadline <= now, "past deadline");
    }

    fn submit(&mut self, caller: usize) {
        let caller_name = caller as u64;
        let caller = &mut self.callers[caller];
        let Some(ring) = &mut caller.ring else { return };
        ring.submit();
        caller.submitted(self.now);
        self.note(About::Run, What::Submitted, caller_name, 0);
        self.stir();
    }

    fn pop_some(&mut self, caller: usize) -> Result<(), Wrong> {
        for _ in 0..self.dice.between(1, 20) {
            let Some(ring) = &mut self.callers[caller].ring else { return Ok(()) };
            let Some(completion) = ring.pop() else { break };
            self.completed(caller, completion)?;
        }
        Ok(())
    }

    fn cancel_one(&mut self, caller: usize) {
        let caller = &mut self.callers[caller];
        let (Some(ring), false) = (&mut caller.ring, caller.reads.is_empty()) else { return };
        let index = self.dice.below(caller.reads.len());
        let read = &mut caller.reads[index];
        let told = ring.cancel(read.id);
        let name = read.name;
        read.cancelled_at = read.cancelled_at.min(self.now);
        if told {
            caller.submitted(self.now);
        }
        self.marks.set("cancelled");
        self.note(About::Read(name), What::CancelSent, 0, 0);
        self.stir();
    }

    fn cancel_token(&mut self) {
        let index = self.dice.below(self.tokens.len());
        self.tokens[index].cancel();
        let now = self.now;
        let reads = self.callers.iter_mut().flat_map(|caller| &mut caller.reads);
        for read in reads.filter(|read| read.token == Some(index)) {
            read.cancelled_at = read.cancelled_at.min(now);
            read.token = None;
        }
        self.tokens[index] = self.engine.cancel_token();
        self.marks.set("token cancelled");
        self.note(About::Run, What::TokenCancelled, index as u64, 0);
        self.stir();
    }

    fn drop_ring(&mut self, caller: usize) {
        let state = std::mem::take(&mut self.callers[caller]);
        let mut log = self.log.lock();
        for read in &state.reads {
            log.reads.retain(|(_, _, name)| *name != read.name);
        }
        drop(log);
        drop(state);
        self.ring_dropped = true;
        self.marks.set("ring dropped");
        self.note(About::Run, What::RingDropped, caller as u64, 0);
        self.stir();
    }

    fn close_object(&mut self) {
        let index = self.dice.below(self.objects.len());
        if let Some(object) = self.objects[index].take() {
            self.marks.set("object closed");
            let mut reads = self.callers.iter().flat_map(|caller| &caller.reads);
            if reads.any(|read| read.object == Some(index)) {
                self.marks.set("object closed under its reads");
            }
            if self.scenario.extras.forgets && self.sleep.one_in(3) {
                self.marks.set("object forgotten");
                self.forgotten.objects.push(object);
            }
            self.note(About::Run, What::ObjectClosed, index as u64, 0);
            self.stir();
        }
    }

    fn toggle_rail(&mut self) {
        let rail = self.dice.below(self.scenario.rails.len());
        let on = !self.dice.one_in(3);
        let name = self.scenario.rails[rail].name.clone();
        let known = self.engine.set_enabled(&name, on);
        debug_assert!(known.is_ok(), "the rail exists");
        self.toggled = true;
        self.marks.set("rail toggled");
        if !on {
            self.marks.set("rail switched off");
        }
        self.note(About::Run, What::Enabled, rail as u64, u64::from(on));
        self.stir();
    }
}

impl Caller {
    /// All that was pushed is visible to the engine.
    pub(super) fn submitted(&mut self, now: Nanos) {
        self.batch_at = None;
        for read in &mut self.reads {
            read.submitted_at = read.submitted_at.min(now);
        }
    }
}

fn with_terms(mut read: Read<'_>, terms: Terms) -> Read<'_> {
    if let Some(failures_max) = terms.quiet {
        read = read.quiet(failures_max);
    }
    if terms.partial {
        read = read.allow_partial();
    }
    if terms.fail_fast {
        read = read.fail_fast();
    }
    if terms.skip_verify {
        read = read.skip_verify();
    }
    read
}

/// The read a caller wishes for, into the leases it took.
fn read_of<'o>(
    wish: &Wish,
    object: Option<&'o Object>,
    scatter: bool,
    leases: Vec<Lease>,
) -> Read<'o> {
    let mut leases = leases.into_iter();
    match (wish, object) {
        (Wish::Range { offset, end, .. }, Some(object)) if scatter => {
            Read::scattered(object, *offset..*end, Scatter::new(leases))
        }
        (Wish::Range { offset, end, .. }, Some(object)) => {
            Read::new(object, *offset..*end, leases.next().expect("one lease"))
        }
        (Wish::Set { first, mask, .. }, Some(object)) => {
            Read::stripes(object, *first, *mask, leases.next().expect("one lease"))
        }
        _ => Read::nop(),
    }
}
