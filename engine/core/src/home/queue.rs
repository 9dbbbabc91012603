//! What waits for one rail: block tables first, because what waits for them may have all the
//! staging memory that the rest waits for.

use super::{Piece, PieceKind, STAGED};
use crate::slab::{List, Slab};

#[derive(Debug, Default)]
pub(super) struct Queue {
    tables: List<STAGED>,
    bytes: List<STAGED>,
}

impl Queue {
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.tables.len() + self.bytes.len()
    }

    /// The next to go.
    #[inline]
    pub(super) fn front(&self) -> Option<u32> {
        self.tables.front().or_else(|| self.bytes.front())
    }

    /// The last to go.
    pub(super) fn back(&self) -> Option<u32> {
        self.bytes.back().or_else(|| self.tables.back())
    }

    pub(super) fn push(&mut self, pieces: &mut Slab<Piece>, slot: u32) {
        self.list_of(pieces, slot).push_back(pieces, slot);
    }

    #[inline]
    pub(super) fn remove(&mut self, pieces: &mut Slab<Piece>, slot: u32) {
        self.list_of(pieces, slot).remove(pieces, slot);
    }

    #[inline]
    fn list_of(&mut self, pieces: &Slab<Piece>, slot: u32) -> &mut List<STAGED> {
        match pieces.peek(slot).kind {
            PieceKind::Table => &mut self.tables,
            PieceKind::Direct | PieceKind::Staged => &mut self.bytes,
        }
    }
}
