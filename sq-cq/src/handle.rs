//! Owns the two kinds of slot-and-generation names: what a read uses, and the read itself.

/// Names an open object or a buffer of the engine. A slot is reused, its generation is not (until
/// `u32` wraps), so a handle that outlived its object is detected instead of meaning another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Handle {
    /// Index into the engine's table.
    pub slot: u32,
    /// How often the slot had been given out when this handle was made.
    pub generation: u32,
}

impl Handle {
    /// Names nothing: generation 0 is never given out.
    pub const NONE: Self = Self { slot: 0, generation: 0 };
}

/// Names one accepted read of one ring, from its push until its last CQE is popped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct ReadId {
    /// Index among the reads that this ring can have live, below `cq_entries`.
    pub slot: u32,
    /// Goes up by one each time the slot is given to another read; starts at 1.
    pub generation: u32,
}
