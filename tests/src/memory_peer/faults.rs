//! How a peer misbehaves.

use std::time::Duration;

/// Something that a peer can be late with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Answering a hello.
    Hello,
    /// Bringing its queue pair up, after it said that it is.
    Ready,
    /// Answering where an object is.
    Open,
}

/// What is wrong in the answers about memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// Nothing.
    #[default]
    Truth,
    /// The key, by these bits.
    Key(u32),
    /// The address, so many bytes too high.
    Address(u64),
    /// The length, so many bytes too long.
    Length(u64),
    /// The generation, by so many.
    Generation(u64),
}

/// Which of a peer's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The one made first, of those that live or are kept.
    Oldest,
    /// The one made last.
    Newest,
}

/// A write into a reader's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where, in the reader's address space.
    pub address: u64,
    /// The key of that memory.
    pub rkey: u32,
    /// How much.
    pub bytes: u32,
    /// What each byte becomes.
    pub fill: u8,
}

/// What a peer was told to do wrong.
#[derive(Debug, Default)]
pub(super) struct Faults {
    hello: Duration,
    ready: Duration,
    open: Duration,
    pub(super) lie: Lie,
    pub(super) keeps_queue_pairs: bool,
}

impl Faults {
    pub(super) fn delay(&mut self, stage: Stage, by: Duration) {
        match stage {
            Stage::Hello => self.hello = by,
            Stage::Ready => self.ready = by,
            Stage::Open => self.open = by,
        }
    }

    pub(super) fn delay_of(&self, stage: Stage) -> Duration {
        match stage {
            Stage::Hello => self.hello,
            Stage::Ready => self.ready,
            Stage::Open => self.open,
        }
    }
}
