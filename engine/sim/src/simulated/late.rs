//! Writes into memory that was given back, which no rail may do: made only where tests ask for
//! them, to prove that the tests for quiet are tests.

#[cfg(feature = "fault")]
pub(crate) use imp::{KnownRegions, LateWrites};
#[cfg(not(feature = "fault"))]
pub(crate) use none::{KnownRegions, LateWrites};

#[cfg(feature = "fault")]
mod imp {
    use std::sync::{Arc, OnceLock};

    use railring_dma::{LateWriter, Part, Regions};
    use railring_transport::Nanos;

    use crate::simulated::flight::{Flight, available};

    /// Where the memory is that will be written late, once the world was told.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct KnownRegions(Arc<OnceLock<Regions>>);

    impl KnownRegions {
        /// Tells it; the first telling counts.
        pub(crate) fn set(&self, regions: Regions) {
            self.0.get_or_init(|| regions);
        }

        fn capture(&self, part: &Part) -> LateWriter {
            let regions =
                self.0.get().expect("SimWorld::late_writes_into comes before late writes");
            LateWriter::capture(part, regions).expect("the part is of the regions that were told")
        }
    }

    #[derive(Debug)]
    struct LateWrite {
        at: Nanos,
        writer: LateWriter,
        bytes: Arc<[u8]>,
        start: usize,
        len: usize,
    }

    /// Writes to come.
    #[derive(Debug, Default)]
    pub(crate) struct LateWrites {
        pending: Vec<LateWrite>,
    }

    impl LateWrites {
        /// Plans to write the bytes that `flight` asks for into what is `part` now.
        pub(crate) fn plan(
            &mut self,
            at: Nanos,
            flight: &Flight,
            part: &Part,
            regions: &KnownRegions,
        ) {
            let Ok(content) = flight.target.ask() else { return };
            let there = available(&content, flight.offset, part.len());
            self.pending.push(LateWrite {
                at,
                writer: regions.capture(part),
                bytes: content.bytes,
                start: there.start,
                len: there.len(),
            });
        }

        /// When the next one is due.
        pub(crate) fn next(&self) -> Option<Nanos> {
            self.pending.iter().map(|write| write.at).min()
        }

        /// Writes what is due at `at`, in the order in which it was planned; returns how many.
        pub(crate) fn run(&mut self, at: Nanos) -> u64 {
            let before = self.pending.len();
            self.pending.retain(|write| {
                if write.at > at {
                    return true;
                }
                write.writer.write(0, &write.bytes[write.start..write.start + write.len]);
                false
            });
            (before - self.pending.len()) as u64
        }
    }
}

#[cfg(not(feature = "fault"))]
mod none {
    use railring_dma::Part;
    use railring_transport::Nanos;

    use crate::simulated::flight::Flight;

    /// Nothing needs to be known.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct KnownRegions(());

    /// None, since a rail that needs one is refused.
    #[derive(Debug, Default)]
    pub(crate) struct LateWrites(());

    impl LateWrites {
        pub(crate) fn plan(&mut self, _: Nanos, _: &Flight, _: &Part, _: &KnownRegions) {
            unreachable!("SimRailConfig::check refuses late writes without the fault feature");
        }

        pub(crate) fn next(&self) -> Option<Nanos> {
            None
        }

        pub(crate) fn run(&mut self, _: Nanos) -> u64 {
            0
        }
    }
}
