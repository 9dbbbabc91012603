//! Owns the padding that gives each ring index a cache line pair of its own.

use std::ops::Deref;

/// A value alone on 128 bytes: adjacent-line prefetching makes pairs of 64-byte lines travel.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(T);

impl<T> Padded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
