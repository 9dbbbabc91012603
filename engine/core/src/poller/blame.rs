//! What a rail's failures mean for the rail: faults cool it down, a piece that lands brings it
//! back.

use railring_dma::Part;
use railring_transport::{Nanos, Outcome};
use sq_cq::{Blame, Status};

use super::port::{Flight, Port};
use crate::health::Standing;
use crate::mail::{Hash, News};

/// Consecutive faults of the rail before it cools down: one bad sector is not a bad disk.
const FAULTS_TO_COOL: u32 = 3;
/// The cooldown doubles at most so often.
const COOLDOWN_DOUBLINGS_MAX: u32 = 6;

impl<L> Port<L> {
    #[inline]
    pub(super) fn judge(
        &mut self,
        flight: &Flight,
        part: &Part,
        outcome: Outcome,
        now: Nanos,
    ) -> News {
        let outcome = match outcome {
            Outcome::Done { bytes } if bytes < flight.bytes_min => {
                // A link must not do this; what was not written must not pass for read.
                Outcome::Failed { status: Status::SHORT_READ, vendor: 0 }
            }
            outcome => outcome,
        };
        match outcome {
            Outcome::Done { bytes } => {
                self.faults = 0;
                if self.doublings > 0 || self.shared.state.get() != Standing::Up {
                    self.come_back();
                }
                self.rate.landed(bytes, flight.posted_at, now, &self.shared.counters.rate);
                let counters = &self.shared.counters;
                counters.pieces.add(1);
                counters.bytes.add(bytes);
                counters.latency.record(now.since(flight.posted_at));
                match flight.hash {
                    Hash::None => News::Landed { hash: 0 },
                    Hash::Bytes(bytes) => {
                        counters.hashed_bytes.add(bytes);
                        let whole = part.as_slice();
                        let end =
                            usize::try_from(bytes).map_or(whole.len(), |b| b.min(whole.len()));
                        let hash = railring_catalog::checksum::stripe_checksum(&whole[..end]);
                        self.hashed_bytes += bytes;
                        News::Landed { hash }
                    }
                }
            }
            Outcome::Flushed => {
                self.shared.counters.flushed.add(1);
                News::Flushed
            }
            Outcome::Failed { status, vendor: _ } => {
                // What was given up ends with the reason it was given up for, not with the
                // cancellation's own status.
                let status = if flight.cause.is_ok() { status } else { flight.cause };
                if status == Status::CANCELLED {
                    self.shared.counters.cancelled.add(1);
                } else {
                    self.shared.counters.fail(status);
                }
                if flight.cause.is_ok() {
                    self.note_answer(status, now);
                }
                News::Failed { status }
            }
        }
    }

    /// An answer of the peer, even a refusal, shows that the rail works.
    fn note_answer(&mut self, status: Status, now: Nanos) {
        if matches!(status.blame(), Blame::Peer | Blame::Data) {
            self.faults = 0;
            if self.shared.state.get() != Standing::Up {
                self.come_back();
            }
        } else {
            self.note_fault(status, now);
        }
    }

    /// Only the rail's own faults cool it down, and only when nothing succeeds between them.
    pub(super) fn note_fault(&mut self, status: Status, now: Nanos) {
        let own = status.blame() == Blame::Rail || status == Status::TIMED_OUT;
        if !own {
            return;
        }
        self.shared.counters.rail_faults.add(1);
        self.faults += 1;
        let standing = self.shared.state.get();
        let probing = standing != Standing::Up && self.cooling_until == Nanos(0);
        if self.faults < FAULTS_TO_COOL && !probing {
            return;
        }
        if standing.is_out() || self.cooling_until != Nanos(0) {
            return;
        }
        self.faults = 0;
        let length = self.bounds.cooldown_ns << self.doublings;
        self.doublings = (self.doublings + 1).min(COOLDOWN_DOUBLINGS_MAX);
        self.shared.counters.cooldowns.add(1);
        self.stand(Standing::Cooling, now.after(length.max(1)));
    }

    /// A piece succeeded: that is the probe.
    fn come_back(&mut self) {
        let standing = self.shared.state.get();
        if standing.is_out() {
            return;
        }
        self.doublings = 0;
        if standing != Standing::Up {
            self.stand(Standing::Up, Nanos(0));
        }
    }

    pub(super) fn time_probes(&mut self, now: Nanos) {
        let over = self.cooling_until != Nanos(0) && now >= self.cooling_until;
        if over || (self.probe_is_lost() && now >= self.probe_again_at) {
            self.offer_probe(now);
        }
    }

    /// Lets one piece try the rail again.
    fn offer_probe(&mut self, now: Nanos) {
        self.probe_again_at = now.after(self.bounds.cooldown_ns.max(1));
        self.stand(Standing::Offered, Nanos(0));
    }

    /// The probe was taken and nothing of it is here: its read was stopped.
    pub(super) fn probe_is_lost(&self) -> bool {
        self.cooling_until == Nanos(0)
            && self.flights.len() == self.stuck
            && self.backlog.is_empty()
            && self.shared.state.get() == Standing::Probed
    }

    /// Switches the rail on or off. On clears its cooldown.
    pub(super) fn enable(&mut self, on: bool) {
        (self.faults, self.doublings) = (0, 0);
        self.stand(if on { Standing::Up } else { Standing::Disabled }, Nanos(0));
    }

    /// Says to everybody how the rail stands from now on. What waits for it in its backlog goes
    /// back to its homes, unless the rail takes it.
    pub(super) fn stand(&mut self, standing: Standing, cooling_until: Nanos) {
        if self.shared.state.get() == Standing::Failed {
            // For good, whatever timers and answers say that the panic left behind.
            return;
        }
        self.cooling_until = cooling_until;
        self.shared.state.cool_until(cooling_until);
        self.shared.state.set(standing);
        self.changed = true;
        if !standing.takes_pieces() {
            self.return_backlog();
        }
    }
}
