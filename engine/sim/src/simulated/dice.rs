//! Decides which faults of a plan strike, each rule by a stream of its own.

use fastrand::Rng;
use railring_transport::Nanos;

use crate::simulated::fault::{Fault, FaultPlan, FaultRule, MILLION, Site, When};
use crate::simulated::seed;

/// A rule of a plan with its stream and what it has seen.
#[derive(Debug)]
struct Rule {
    rule: FaultRule,
    rng: Rng,
    opportunities: u64,
    spent: bool,
}

/// One opportunity for faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opportunity<'a> {
    pub(crate) site: Site,
    pub(crate) now: Nanos,
    /// Whose request it is, where it is one request's.
    pub(crate) endpoint: Option<&'a str>,
}

/// The dice of one rail.
#[derive(Debug)]
pub(crate) struct Dice {
    rules: Vec<Rule>,
}

impl Dice {
    /// The dice for `plan` on `rail` in the world of `seed`, and the faults of the rail that strike
    /// at a given time, which need no dice, in order of time.
    pub(crate) fn new(plan: FaultPlan, seed: u64, rail: &str) -> (Dice, Vec<(Nanos, Fault)>) {
        let mut rules: Vec<Rule> = Vec::with_capacity(plan.rules.len());
        let mut timed = Vec::new();
        for rule in plan.rules {
            let kind = rule.fault.kind();
            if let (Site::Rail, When::At(at)) = (kind.site(), rule.when) {
                timed.push((at, rule.fault));
                continue;
            }
            let same_kind =
                rules.iter().filter(|earlier| earlier.rule.fault.kind() == kind).count();
            let rng = seed::stream(seed, rail, kind.name(), same_kind as u64);
            rules.push(Rule { rule, rng, opportunities: 0, spent: false });
        }
        // Stable: what is planned for one time happens in the order of the plan.
        timed.sort_by_key(|(at, _)| *at);
        (Dice { rules }, timed)
    }

    /// Calls `strike` with each fault that strikes, in the order of the plan, and with random bits
    /// for its details.
    pub(crate) fn roll(
        &mut self,
        opportunity: Opportunity<'_>,
        mut strike: impl FnMut(Fault, u64),
    ) {
        for rule in &mut self.rules {
            if rule.meets(opportunity) && rule.strikes(opportunity.now) {
                strike(rule.rule.fault, rule.rng.u64(..));
            }
        }
    }
}

impl Rule {
    fn meets(&self, opportunity: Opportunity<'_>) -> bool {
        let mine = self.rule.endpoint.as_deref();
        self.rule.fault.kind().site() == opportunity.site
            && (mine.is_none() || mine == opportunity.endpoint)
    }

    fn strikes(&mut self, now: Nanos) -> bool {
        let number = self.opportunities;
        self.opportunities += 1;
        let once = |spent: &mut bool, due: bool| due && !std::mem::replace(spent, true);
        match self.rule.when {
            When::Chance { per_million } => self.rng.u32(0..MILLION) < per_million,
            When::Nth(nth) => number == nth,
            When::Every(period) => number.is_multiple_of(period),
            When::At(at) => once(&mut self.spent, now >= at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::fault::FaultKind;

    fn strikes(dice: &mut Dice, endpoint: &str, now: u64) -> Vec<FaultKind> {
        let mut struck = Vec::new();
        let opportunity =
            Opportunity { site: Site::Request, now: Nanos(now), endpoint: Some(endpoint) };
        dice.roll(opportunity, |fault, _| struck.push(fault.kind()));
        struck
    }

    #[test]
    fn a_chance_strikes_in_its_share_whatever_other_rules_there_are() {
        let chance = When::Chance { per_million: 100_000 };
        let alone = FaultPlan::none().with(Fault::Lost, chance);
        let among = FaultPlan::none()
            .with(Fault::FlippedByte, When::Chance { per_million: 500_000 })
            .with(Fault::Lost, chance);
        let run = |plan: FaultPlan| {
            let (mut dice, _) = Dice::new(plan, 42, "rail0");
            let lost = |_| strikes(&mut dice, "e", 0).contains(&FaultKind::Lost);
            (0..10_000).map(lost).collect::<Vec<bool>>()
        };
        let struck = run(alone);
        assert_eq!(struck, run(among));
        let count = struck.iter().filter(|lost| **lost).count();
        assert!(count.abs_diff(1_000) < 150, "{count}");
    }

    #[test]
    fn scripted_faults_strike_when_and_whom_they_say() {
        let plan = FaultPlan::none()
            .with(Fault::Lost, When::Nth(1))
            .with_at("b", Fault::StaleAnswer, When::Every(2))
            .with(Fault::FlippedByte, When::At(Nanos(50)))
            .with(Fault::Stall { stall_ns: 1 }, When::At(Nanos(9)))
            .with(Fault::Disconnect { down_ns: 1 }, When::At(Nanos(5)));
        let (mut dice, timed) = Dice::new(plan, 1, "rail0");
        let at: Vec<u64> = timed.iter().map(|(at, _)| at.0).collect();
        assert_eq!(at, [5, 9]);
        assert_eq!(strikes(&mut dice, "a", 0), []);
        assert_eq!(strikes(&mut dice, "b", 10), [FaultKind::Lost, FaultKind::StaleAnswer]);
        assert_eq!(strikes(&mut dice, "b", 60), [FaultKind::FlippedByte]);
        assert_eq!(strikes(&mut dice, "a", 70), []);
        assert_eq!(strikes(&mut dice, "b", 80), [FaultKind::StaleAnswer]);
    }
}
