//! An inline engine over simulated rails, driven in virtual time.

use railring_core::{Completion, EngineBuilder, EngineConfig, InlineEngine, Progress, Rail, Ring};
use railring_sim::{SimLink, SimRailConfig, SimWorld, VirtualClock};
use railring_transport::{Nanos, RailControl};
use std::sync::Arc;

/// Where simulated time begins: not at zero, which means "never" in places.
pub const START: Nanos = Nanos(1_000_000_000);

/// The engine and its clock.
#[derive(Debug)]
pub struct VirtualEngine {
    /// The engine.
    pub engine: InlineEngine<SimLink>,
    /// Its time.
    pub clock: VirtualClock,
}

impl VirtualEngine {
    /// An engine over `rails`, each driven by poller number `pollers[i]` (all by poller 0 if that
    /// is empty).
    #[must_use]
    pub fn new(
        world: &mut SimWorld,
        rails: Vec<SimRailConfig>,
        pollers: &[u32],
        config: EngineConfig,
    ) -> Self {
        let rails = rails
            .into_iter()
            .enumerate()
            .map(|(index, rail)| {
                let (control, link) = world.add_rail(rail).expect("a sensible rail");
                let poller = pollers.get(index).copied().unwrap_or(0);
                Rail { control: control as Arc<dyn RailControl>, link, poller }
            })
            .collect();
        let engine = EngineBuilder::new(rails)
            .config(config)
            .build_virtual(START)
            .expect("a sensible engine");
        world.late_writes_into(engine.regions());
        let clock = world.clock().clone();
        clock.advance_to(START);
        VirtualEngine { engine, clock }
    }

    /// Makes turns, moving time on when there is nothing to do now, until `ring` has a completion
    /// or nothing will ever happen again.
    pub fn next(&mut self, ring: &mut Ring) -> Option<Completion> {
        ring.submit();
        loop {
            if let Some(completion) = ring.pop() {
                return Some(completion);
            }
            if !self.step() {
                return None;
            }
        }
    }

    /// One turn, and a step in time if it found nothing to do. `false`: nothing will happen again.
    pub fn step(&mut self) -> bool {
        let now = self.clock.now();
        if self.engine.turn_at(now) == Progress::Worked {
            return true;
        }
        let next = self.engine.next_event();
        if next == Nanos::NEVER {
            return false;
        }
        self.clock.advance_to(Nanos(next.0.max(now.0 + 1)));
        true
    }
}
