//! Draws from one seeded stream, by the words of the drawing.

use fastrand::Rng;

/// A stream of draws.
#[derive(Clone, Debug)]
pub(crate) struct Dice {
    rng: Rng,
}

impl Dice {
    /// The stream of a seed.
    #[must_use]
    pub(crate) fn new(seed: u64) -> Self {
        Dice { rng: Rng::with_seed(seed) }
    }

    /// True once in `count` draws, on average.
    pub(crate) fn one_in(&mut self, count: u32) -> bool {
        self.rng.u32(0..count) == 0
    }

    /// Below `count`, which is not 0.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.rng.usize(0..count)
    }

    /// Below `count`, which is not 0.
    pub(crate) fn below_u32(&mut self, count: u32) -> u32 {
        self.rng.u32(0..count)
    }

    /// From `least` to `most`, both possible.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        self.rng.usize(least..=most)
    }

    /// From 0 to `most`, both possible.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        self.rng.u64(0..=most)
    }

    /// Any 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.rng.u64(..)
    }

    /// One of `choices`, which are not empty.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.rng.usize(0..choices.len())]
    }

    /// Puts `items` into a random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        self.rng.shuffle(items);
    }

    /// Fills `bytes`.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.rng.fill(bytes);
    }
}
