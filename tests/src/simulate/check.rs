//! What every CQE and every end must be like, and what must be left when all is done.

use railring_catalog::checksum::stripe_checksum;
use railring_core::{Completion, RailHealth};
use railring_dma::Lease;
use railring_sim::SimRailConfig;
use railring_transport::Nanos;
use sq_cq::{Blame, Proof, Status};

use super::memory::check_margins;
use super::run::{Run, Wrong};
use super::source::Known;
use super::trace::{About, What};
use super::tracked::{Cut, Tracked};

/// What a run allows.
#[derive(Clone, Copy, Debug)]
struct Rules {
    now: Nanos,
    calm: bool,
    toggled: bool,
    may_lie: bool,
    attempts_max: u8,
    /// No rail serves any owner of some stripe of the object.
    cut_off: bool,
    /// Some poller has panicked; the read's own has.
    panicked: bool,
    own_panicked: bool,
    rails: usize,
    /// Between the moment a read must stop and its end.
    bound_ns: u64,
}

/// A tick of the deadline wheel, a late turn in each phase of giving up, and a little.
const SLACK_NS: u64 = 3_000_000;

fn raw(status: Status) -> u64 {
    u64::from(u32::from_ne_bytes(status.raw().to_ne_bytes()))
}

impl Run {
    fn rules(&self) -> Rules {
        let engine = &self.scenario.engine;
        let bound = engine.cancel_grace + engine.quiet_bound;
        Rules {
            now: self.now,
            calm: self.is_calm(),
            toggled: self.toggled,
            may_lie: self.bytes_may_lie(),
            attempts_max: engine.attempts_max,
            cut_off: false,
            panicked: self.panicked(),
            own_panicked: false,
            rails: self.scenario.rails.len(),
            bound_ns: u64::try_from(bound.as_nanos()).expect("short") + SLACK_NS,
        }
    }

    /// One CQE.
    pub(crate) fn completed(&mut self, caller: usize, cqe: Completion) -> Result<(), Wrong> {
        let (name, mut rules) = (cqe.user_data(), self.rules());
        rules.own_panicked = self.is_ghosts(caller);
        let status = raw(cqe.status());
        self.note(About::Read(name), What::Completed, cqe.stripe().into(), status);
        let state = &mut self.callers[caller];
        let Some(index) = state.reads.iter().position(|read| read.name == name) else {
            return Err(Wrong::of(name, "a CQE of a read that is not in progress"));
        };
        let read = &mut state.reads[index];
        let known = read.object.map(|object| &self.known[object]);
        read.cqes += 1;
        if cqe.read_id() != read.id {
            return Err(Wrong::of(name, "a CQE with another read's id"));
        }
        rules.cut_off = known.is_some_and(|known| is_cut_off(known, &self.scenario.rails));
        if cqe.status() == Status::NO_RAIL {
            self.marks.set("stripe out of reach");
        }
        if let (Some(known), false) = (known, read.cuts.is_empty()) {
            let bytes = state.ring.as_ref().and_then(|ring| ring.bytes(&cqe));
            check_stripe(read, &cqe, bytes, known, rules).map_err(|what| Wrong::of(name, what))?;
            self.stripes += 1;
            let cut = read.cuts[read.cut_of(cqe.stripe()).expect("checked")];
            let kept = [Status::STUCK, Status::ENGINE_FAILED].contains(&cqe.status());
            if let ([(start, _)], false) = (&read.memory.runs[..], kept)
                && self.log.lock().is_out(start + cut.at, start + cut.at + cut.len)
            {
                return Err(Wrong::of(name, "a stripe ended while a device has its memory"));
            }
        }
        self.mark_cqe(&cqe);
        if cqe.ended().is_some() {
            self.check_trace(caller, &cqe)?;
            let read = self.callers[caller].reads.remove(index);
            self.ended(read, cqe, rules)?;
        }
        Ok(())
    }

    fn mark_cqe(&mut self, cqe: &Completion) {
        if cqe.status() == Status::TIMED_OUT {
            self.marks.set("deadline hit");
        }
        if cqe.status() == Status::STUCK {
            self.marks.set("stuck");
        }
        if cqe.attempts() > 1 {
            self.marks.set("several attempts");
        }
        if cqe.status() == Status::ENGINE_FAILED {
            self.marks.set("read failed by a panic");
        }
        if self.panicked() && cqe.ended() == Some(Status::OK) {
            self.marks.set("others end well after a panic");
        }
        if cqe.proof() == Proof::Blocks {
            self.marks.set("proof by blocks");
        }
    }

    fn ended(&mut self, read: Tracked, cqe: Completion, rules: Rules) -> Result<(), Wrong> {
        let name = read.name;
        let status = cqe.ended().unwrap_or_default();
        self.note(About::Read(name), What::Ended, raw(status), 0);
        let wrong = |what: String| Wrong::of(name, what);
        check_totals(&read, &cqe, status, rules).map_err(wrong)?;
        check_time(&read, &cqe, rules).map_err(wrong)?;
        let failed = read.seen.iter().flatten().filter(|status| !status.is_ok()).count();
        let mut read = read;
        read.quiet_failures_told = usize::from(cqe.failed_stripes()) == failed;
        let bodies: Vec<Lease> = if read.scattered {
            cqe.into_scatter().map(|scatter| scatter.into_leases()).unwrap_or_default()
        } else {
            cqe.into_lease().into_iter().collect()
        };
        let mut log = self.log.lock();
        log.reads.retain(|(_, _, read)| *read != name);
        let out = bodies.iter().any(|body| {
            let start = body.address().as_ptr() as usize;
            log.is_out(start, start + body.len())
        });
        drop(log);
        if out {
            return Err(Wrong::of(name, "a lease came back while a device has its memory"));
        }
        let kept = status == Status::STUCK || rules.own_panicked;
        if bodies.len() < read.memory.runs.len() && !kept {
            return Err(Wrong::of(name, format!("no lease came back with {status}")));
        }
        if bodies.len() == read.memory.runs.len() {
            let known = read.object.map(|object| &self.known[object]);
            check_bytes(&read, &bodies, known, rules).map_err(wrong)?;
        }
        self.memories.end(read.memory, bodies, name, &mut self.dice);
        Ok(())
    }

    /// All reads have ended: everything must come back.
    pub(crate) fn wind_down(&mut self) -> Result<(), Wrong> {
        for caller in &mut self.callers {
            caller.ring = None;
        }
        self.forgotten.rings.clear();
        self.settle()?;
        self.memories.wake_all().map_err(Wrong::run)?;
        let stats = self.engine.stats();
        if stats.reads_in_progress != 0 {
            let count = stats.reads_in_progress;
            return Err(Wrong::run(format!("{count} reads are in progress when all have ended")));
        }
        let kept = self.scenario.may_keep_for_ever() || self.panicked();
        let regions = self.engine.regions().stats();
        // What was being passed to a link that panicked was lost in its unwinding.
        if regions.leaked_bytes != 0 && !self.panicked() {
            return Err(Wrong::run(format!("{} bytes have leaked", regions.leaked_bytes)));
        }
        let pool = self.memories.pool();
        let away = pool.slots() - pool.free();
        if !kept && (away != 0 || regions.impounded_bytes != 0) {
            let impounded = regions.impounded_bytes;
            let what =
                format!("{away} leases are away, {impounded} bytes impounded, none is stuck");
            return Err(Wrong::run(what));
        }
        if away != 0 && regions.impounded_bytes == 0 {
            return Err(Wrong::run(format!("{away} leases are neither back nor impounded")));
        }
        self.check_rails(kept)?;
        self.check_handles()?;
        self.let_go()?;
        self.mark_rails();
        Ok(())
    }

    fn check_rails(&mut self, kept: bool) -> Result<(), Wrong> {
        let stats = self.engine.rail_stats();
        let log = self.log.lock();
        for (rail, stats) in stats.iter().enumerate() {
            if self.failed >> self.scenario.pollers[rail] & 1 == 1 {
                continue;
            }
            let held = u64::from(log.rails[rail].wrs);
            let facts = [
                ("parts under no name", stats.strays, 0),
                ("requests at the device", held, if kept { held } else { 0 }),
                ("requests in flight", stats.in_flight, held),
                ("bytes of staging in use", if kept { 0 } else { stats.staging_used_bytes }, 0),
            ];
            for (what, is, should) in facts {
                if is != should {
                    let what = format!("rail {rail} has {is} {what}, not {should}, at the end");
                    return Err(Wrong::run(what));
                }
            }
            if self.scenario.mood == super::scenario::Mood::Calm
                && stats.health != RailHealth::Up
                && !self.toggled
                && !self.panicked()
            {
                return Err(Wrong::run(format!("rail {rail} is {} without a fault", stats.health)));
            }
        }
        Ok(())
    }

    /// What a device kept for ever comes back when it is made to let go: nothing else may have kept
    /// it, and no run leaves memory behind.
    fn let_go(&mut self) -> Result<(), Wrong> {
        self.controls.iter().for_each(|control| control.let_go());
        // Their descriptors become readable.
        (0..self.scenario.poller_count()).for_each(|poller| self.rouse(poller));
        self.settle()?;
        let regions = self.engine.regions().stats();
        let pool = self.memories.pool();
        let away = pool.slots() - pool.free();
        if self.panicked() {
            // What its poller knew of is kept for ever.
        } else if away != 0 || regions.impounded_bytes != 0 || regions.leaked_bytes != 0 {
            let impounded = regions.impounded_bytes;
            let what = format!("{away} leases and {impounded} bytes impounded did not come back");
            return Err(Wrong::run(format!("{what} when the devices let go")));
        }
        self.check_rails(self.panicked())?;
        self.pools.clear();
        self.rest()?;
        if !self.panicked() {
            self.take_back_own()?;
        }
        self.check_registered()
    }

    /// What happened on the rails at least once.
    fn mark_rails(&mut self) {
        for (control, config) in self.controls.iter().zip(&self.scenario.rails) {
            if config.limits().outstanding_wrs_max < config.window_wrs {
                self.marks.set("completion queue cut short");
            }
            if control.stats().landed_unwanted > 0 {
                self.marks.set("landed after it was given up");
            }
        }
        for blame in std::mem::take(&mut self.log.lock().post_failures) {
            self.marks.set(match blame {
                Blame::Nobody => "post failed for pressure",
                Blame::Rail => "post failed by the path",
                Blame::Caller => "post failed by the caller",
                Blame::Peer => "post failed by the peer",
                _ => "post failed for its data",
            });
        }
    }

    /// Handles of objects and places of rings are free again.
    fn check_handles(&mut self) -> Result<(), Wrong> {
        self.mark_settings();
        self.objects.clear();
        self.rest()?;
        if self.panicked() {
            return Ok(());
        }
        let config = self.scenario.rings[0];
        let rings: Result<Vec<_>, _> =
            (0..self.scenario.engine.rings_max).map(|_| self.engine.ring(config)).collect();
        let rings = rings.map_err(|error| Wrong::run(format!("at the end: {error}")))?;
        drop(rings);
        self.rest()?;
        if self.panicked() {
            return Ok(());
        }
        let mut open = Vec::new();
        let forgotten = u32::try_from(self.forgotten.objects.len()).expect("few");
        for _ in 0..self.scenario.engine.objects_max - forgotten {
            let latest = self.known.iter().find(|known| !known.overwritten);
            let latest = latest.expect("what overwrote an object is there");
            match self.engine.open(&latest.placement) {
                Ok(object) => open.push(object),
                Err(railring_core::OpenError::NoRail { .. }) => break,
                Err(error) => return Err(Wrong::run(format!("at the end: {error}"))),
            }
        }
        drop(open);
        self.rest()
    }
}

fn expected_proof(read: &Tracked, cut: Cut, known: &Known) -> Proof {
    if read.terms.skip_verify || !known.plan.checksums {
        Proof::None
    } else if cut.whole {
        Proof::Stripe
    } else {
        Proof::Blocks
    }
}

fn check_stripe(
    read: &mut Tracked,
    cqe: &Completion,
    bytes: Option<&[u8]>,
    known: &Known,
    rules: Rules,
) -> Result<(), String> {
    let (stripe, status) = (cqe.stripe(), cqe.status());
    let at = read.cut_of(stripe).ok_or(format!("stripe {stripe} was not asked for"))?;
    let cut = read.cuts[at];
    if read.seen[at].replace(status).is_some() {
        return Err(format!("stripe {stripe} ended twice"));
    }
    if cqe.attempts() > rules.attempts_max || (read.terms.fail_fast && cqe.attempts() > 1) {
        return Err(format!("stripe {stripe} had {} attempts", cqe.attempts()));
    }
    if let Some(failures_max) = read.terms.quiet {
        let last = cqe.ended().is_some();
        if status.is_ok() && !last {
            return Err(format!("a quiet read told of stripe {stripe}, which is ok"));
        }
        if read.cqes > u32::from(failures_max) + 1 {
            return Err(format!("a quiet read gave {} CQEs", read.cqes));
        }
    }
    if !status.is_ok() {
        if bytes.is_some() || cqe.bytes() != 0 {
            return Err(format!("stripe {stripe} failed and shows bytes"));
        }
        return check_failure(read, status, known.overwritten, rules);
    }
    let proof = expected_proof(read, cut, known);
    if cqe.proof() != proof {
        return Err(format!("stripe {stripe} has proof {:?}, not {proof:?}", cqe.proof()));
    }
    if cqe.bytes() != cut.len as u64 {
        return Err(format!("stripe {stripe} has {} bytes, not {}", cqe.bytes(), cut.len));
    }
    if cqe.attempts() == 0 || cqe.rail().is_none_or(|rail| usize::from(rail) >= rules.rails) {
        return Err(format!("stripe {stripe} came by no rail"));
    }
    let whole = known.placement.stripes[usize::from(stripe)].checksum.filter(|_| cut.whole);
    if cqe.checksum() != whole.unwrap_or(0) {
        return Err(format!("stripe {stripe} has checksum {:x}", cqe.checksum()));
    }
    read.shown[at] = bytes.map(stripe_checksum);
    let source = &known.bytes[cut.start..cut.start + cut.len];
    let single = !read.scattered;
    match bytes {
        Some(bytes) if bytes == source || (proof == Proof::None && rules.may_lie) => Ok(()),
        Some(bytes) => {
            let differs = (0..bytes.len()).filter(|at| bytes[*at] != source[*at]);
            let (first, count) = (differs.clone().next(), differs.count());
            let what = format!("{count} bytes differ, the first is {first:?} of {}", cut.len);
            Err(format!("stripe {stripe} is ok and its bytes are not: {what}"))
        }
        // The last CQE of a read whose memory is impounded has nothing to show.
        None if read.seen.contains(&Some(Status::STUCK)) && cqe.ended().is_some() => Ok(()),
        None if single && read.terms.quiet.is_none() => {
            Err(format!("stripe {stripe} is ok and shows no bytes"))
        }
        None => Ok(()),
    }
}

/// Whether no rail serves any owner of some stripe.
fn is_cut_off(known: &Known, rails: &[SimRailConfig]) -> bool {
    (0..known.placement.stripes.len()).any(|stripe| !is_reached(known, stripe, rails))
}

/// Whether some rail serves an owner of a stripe.
fn is_reached(known: &Known, stripe: usize, rails: &[SimRailConfig]) -> bool {
    let serves = |endpoint: &String| {
        let mut lists = rails.iter().map(|rail| &rail.endpoints);
        lists.any(|list| list.as_ref().is_none_or(|list| list.contains(endpoint)))
    };
    let endpoint = |source: u16| &known.placement.sources[usize::from(source)].endpoint;
    let owners = &known.placement.stripes[stripe].owners;
    owners.iter().any(|owner| serves(endpoint(owner.source)))
}

/// Whether a stripe may have failed with `status`.
fn check_failure(
    read: &Tracked,
    status: Status,
    overwritten: bool,
    rules: Rules,
) -> Result<(), String> {
    let cancelled = read.cancelled_at <= rules.now;
    let late = read.deadline <= rules.now;
    let possible = match status {
        // Others had pieces on its rails, too.
        Status::ENGINE_FAILED => rules.panicked,
        Status::STUCK | Status::RAIL_DOWN if rules.panicked => true,
        Status::CANCELLED => cancelled,
        Status::TIMED_OUT => late || !rules.calm,
        Status::STALE if overwritten => true,
        Status::NO_RAIL => rules.cut_off,
        Status::RAIL_DOWN => rules.toggled || !rules.calm,
        Status::INVALID_ARGUMENT => false,
        _ => !rules.calm,
    };
    if possible { Ok(()) } else { Err(format!("failed with {status} for no reason")) }
}

impl Run {
    /// Whether no rail serves any owner of any stripe of an object.
    pub(crate) fn is_out_of_reach(&self, object: usize) -> bool {
        let known = &self.known[object];
        let stripes = 0..known.placement.stripes.len();
        let mut reached = stripes.map(|stripe| is_reached(known, stripe, &self.scenario.rails));
        !reached.any(|reached| reached)
    }
}

fn check_totals(
    read: &Tracked,
    cqe: &Completion,
    status: Status,
    rules: Rules,
) -> Result<(), String> {
    if read.cuts.is_empty() {
        let failed = rules.own_panicked && status == Status::ENGINE_FAILED;
        return if (status.is_ok() || failed) && read.cqes == 1 {
            Ok(())
        } else {
            Err(format!("a read of nothing ended with {status} after {} CQEs", read.cqes))
        };
    }
    let failed = read.seen.iter().flatten().filter(|status| !status.is_ok()).count();
    let counted = usize::from(cqe.failed_stripes());
    if status.is_ok() != (counted == 0) {
        return Err(format!("a read with {counted} failed stripes ended with {status}"));
    }
    let all: u64 = read.cuts.iter().map(|cut| cut.len as u64).sum();
    if read.terms.quiet.is_some() {
        if counted < failed || (counted == 0 && cqe.total_bytes() != all) {
            let total = cqe.total_bytes();
            return Err(format!("{failed} failures were told, {counted} counted, {total} bytes"));
        }
        return Ok(());
    }
    if let Some(missing) = read.seen.iter().position(Option::is_none) {
        return Err(format!("ended without stripe {}", read.cuts[missing].stripe));
    }
    if counted != failed || cqe.total_bytes() != read.bytes_ok() {
        let (total, ok) = (cqe.total_bytes(), read.bytes_ok());
        return Err(format!("{failed} failed, {counted} counted; {ok} bytes, {total} counted"));
    }
    if !status.is_ok() && !read.seen.contains(&Some(status)) {
        return Err(format!("ended with {status}, which no stripe has"));
    }
    Ok(())
}

/// No read outlives its deadline, or its cancel, by more than the stated bound.
fn check_time(read: &Tracked, cqe: &Completion, rules: Rules) -> Result<(), String> {
    let bound_ns = rules.bound_ns;
    let (stop_at, latency_ns) = (read.stop_at(), cqe.latency_ns());
    if stop_at == Nanos::NEVER || latency_ns == u32::MAX {
        return Ok(());
    }
    let over_ns = read.stamp.after(latency_ns.into()).since(stop_at);
    if over_ns > bound_ns {
        let (pushed, stop) = (read.stamp.since(super::START), stop_at.since(super::START));
        return Err(format!(
            "it outlived its deadline or cancel by {over_ns} ns of {bound_ns}: pushed at {pushed}, \
             to stop at {stop}, over after {latency_ns}"
        ));
    }
    Ok(())
}

fn check_bytes(
    read: &Tracked,
    bodies: &[Lease],
    known: Option<&Known>,
    rules: Rules,
) -> Result<(), String> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for cut in &read.cuts {
        if cut.at > at {
            gaps.push((at, cut.at));
        }
        at = cut.at + cut.len;
    }
    if !check_margins(&read.memory, bodies, &gaps) {
        return Err("it wrote bytes it was not asked for".to_owned());
    }
    let Some(known) = known else { return Ok(()) };
    let mut bytes = Vec::with_capacity(read.memory.need);
    for body in bodies {
        let left = read.memory.need - bytes.len();
        bytes.extend_from_slice(&body.as_slice()[..body.len().min(left)]);
    }
    // What a quiet read did not tell of may have failed.
    let quiet_ok = |index: usize| {
        let all_told = read.terms.quiet.is_none() || read.quiet_failures_told;
        read.seen[index].map_or(all_told, |status| status.is_ok())
    };
    for (index, cut) in read.cuts.iter().enumerate() {
        let there = &bytes[cut.at..cut.at + cut.len];
        if read.shown[index].is_some_and(|shown| shown != stripe_checksum(there)) {
            return Err(format!("stripe {} changed after its CQE", cut.stripe));
        }
        if !quiet_ok(index) || (expected_proof(read, *cut, known) == Proof::None && rules.may_lie) {
            continue;
        }
        if there != &known.bytes[cut.start..cut.start + cut.len] {
            return Err(format!("stripe {} was ok and its bytes are not at the end", cut.stripe));
        }
    }
    Ok(())
}
