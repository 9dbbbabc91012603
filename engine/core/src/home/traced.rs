//! What is written down of reads that are traced. Nothing here runs for any other.

use railring_transport::Nanos;
use sq_cq::{CqeFields, SqeFlags, Status};

use super::{Home, PieceKind, Read};
use crate::mail::News;
use crate::memory::Memory;
use crate::trace::{PieceMark, ReadTrace, TraceOf};

/// A piece that was thrown back because its connection was torn down for another: what a work
/// completion calls a flush (`IBV_WC_WR_FLUSH_ERR`, ibv_poll_cq(3)).
const FLUSHED: Status = Status::from_wc(5);

impl Read {
    /// Whether it asked to be traced; there may have been no room for that.
    #[inline]
    pub(super) fn is_traced(&self) -> bool {
        self.flags.contains(SqeFlags::TRACE)
    }

    /// Its trace, which travels with its memory.
    #[inline]
    pub(super) fn trace(&mut self) -> Option<&mut ReadTrace> {
        match &mut self.memory {
            Memory::Many(list) => list.trace.as_deref_mut(),
            _ => None,
        }
    }

    /// The end of one of its stripes is written.
    #[cold]
    pub(super) fn trace_published(&mut self, fields: &CqeFields, now: Nanos) {
        if let Some(trace) = self.trace() {
            trace.published(fields, now);
        }
    }
}

impl Home {
    fn mark_of(&self, slot: u32) -> PieceMark {
        let piece = self.pieces.peek(slot);
        let shape = piece.shape;
        let of = if piece.kind == PieceKind::Table { TraceOf::Table } else { TraceOf::Piece };
        PieceMark {
            of,
            stripe: self.stripes.peek(piece.stripe).index,
            offset: shape.read_from,
            wanted_bytes: shape.want_to - shape.want_from,
            bytes: shape.read_bytes,
            rail: piece.rail,
            attempt: piece.attempts.saturating_add(1),
            since: piece.since,
        }
    }

    fn trace_of(&mut self, stripe_slot: u32) -> Option<&mut ReadTrace> {
        let read = self.stripes.peek(stripe_slot).read;
        self.reads.at(read).trace()
    }

    fn trace_of_piece(&mut self, slot: u32) -> Option<&mut ReadTrace> {
        self.trace_of(self.pieces.peek(slot).stripe)
    }

    /// A rail was given a piece.
    #[cold]
    pub(super) fn trace_order(&mut self, slot: u32) {
        let (mark, now) = (self.mark_of(slot), self.now);
        if let Some(trace) = self.trace_of_piece(slot) {
            trace.ordered(&mark, now);
        }
        self.pieces.at(slot).since = now;
    }

    /// A rail gave a piece back.
    #[cold]
    pub(super) fn trace_land(&mut self, slot: u32, news: &News, now: Nanos) {
        let mark = self.mark_of(slot);
        let status = match news {
            News::Landed { .. } => Status::OK,
            News::Failed { status } => *status,
            News::Flushed => FLUSHED,
            News::Stuck { .. } => Status::STUCK,
        };
        if let Some(trace) = self.trace_of_piece(slot) {
            trace.landed(&mark, status, now);
        }
        self.pieces.at(slot).since = now;
    }

    /// A piece that had landed and waited for its block table is proved.
    #[cold]
    pub(super) fn trace_check(&mut self, slot: u32, now: Nanos) {
        let mark = self.mark_of(slot);
        if let Some(trace) = self.trace_of_piece(slot) {
            trace.checked(&mark, now);
        }
    }

    /// `thief` takes a staged piece over.
    #[cold]
    pub(super) fn trace_steal(&mut self, slot: u32, thief: usize) {
        if let Some(trace) = self.trace_of_piece(slot) {
            trace.stole(thief);
        }
    }

    /// A piece of a stripe is tried again.
    #[cold]
    pub(super) fn trace_retry(&mut self, stripe_slot: u32) {
        if let Some(trace) = self.trace_of(stripe_slot) {
            trace.retried();
        }
    }
}
