//! Which bytes: a byte range becomes stripes, a stripe becomes pieces. Pure arithmetic.
//!
//! ```text
//!   object   0        stripe 0        │        stripe 1        │   stripe 2 (short)
//!   range          ├───────────────────────────────────┤
//!   cuts           └── from..to of 0 ─┘└─ from..to of 1 ┘
//!
//!   one cut  blocks  │░░░░│████│████│████│██░░│      █ wanted   ░ read for its proof or alignment
//!   pieces           ├ staged ┤ direct ──┤ staged ┤
//! ```
//!
//! A *direct* piece is read where the caller wants it. Edges that the device or the proof needs
//! wider than the caller asked for are read into staging memory and copied: a *staged* piece.

use railring_transport::Alignment;

/// The sizes an object is cut by, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) size_bytes: u64,
    pub(crate) stripe_bytes: u64,
    pub(crate) block_bytes: u64,
}

/// Part of one stripe: bytes `from..to` of the stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) stripe: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Layout {
    /// Bytes of stripe `index`; the last may be shorter, and past the end there are none.
    #[inline]
    pub(crate) fn stripe_len(&self, index: u32) -> u64 {
        let start = u64::from(index).saturating_mul(self.stripe_bytes);
        self.size_bytes.saturating_sub(start).min(self.stripe_bytes)
    }

    /// The stripe that byte `offset` is of, and where in it.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most 65,535 stripes")]
    pub(crate) fn place(&self, offset: u64) -> (u32, u64) {
        let bytes = self.stripe_bytes;
        // A division is dearer than all else that is done to find a stripe.
        let stripe =
            if bytes.is_power_of_two() { offset >> bytes.trailing_zeros() } else { offset / bytes };
        (stripe as u32, offset - stripe * bytes)
    }

    /// Stripes that `offset..offset + len` touches, as first and count. The range is within the
    /// object and not empty.
    #[inline(always)]
    pub(crate) fn stripes(&self, offset: u64, len: u64) -> (u32, u32) {
        let (first, from) = self.place(offset);
        if from + len <= self.stripe_bytes {
            return (first, 1);
        }
        let (last, _) = self.place(offset + len - 1);
        (first, last - first + 1)
    }

    /// What `offset..offset + len` wants of stripe `index`, which it touches.
    #[inline]
    pub(crate) fn cut(&self, index: u32, offset: u64, len: u64) -> Cut {
        let start = u64::from(index) * self.stripe_bytes;
        let from = offset.saturating_sub(start);
        let to = (offset + len - start).min(self.stripe_len(index));
        Cut { stripe: index, from, to }
    }
}

/// How the bytes of a piece get to where they are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Read in place.
    Direct,
    /// Read into staging memory, then copied.
    Staged,
}

/// One transfer: read `read_bytes` at `read_from` of the stripe; `want_from..want_to` of it go to
/// the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceShape {
    pub(crate) way: Way,
    pub(crate) read_from: u64,
    /// What is asked of the device: may run past the stripe's end into padding.
    pub(crate) read_bytes: u64,
    /// What must come back for the piece to be whole: ends at the stripe's end at the latest.
    pub(crate) bytes_min: u64,
    pub(crate) want_from: u64,
    pub(crate) want_to: u64,
}

/// What pieces of one cut are cut by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutRules {
    pub(crate) stripe_len: u64,
    /// Edges of reads lie on multiples of this (or the stripe's end): the block where each block
    /// must be whole for its proof, else the device's alignment. A power of two.
    pub(crate) grain: u64,
    pub(crate) length_align: u64,
    /// Longest direct piece; at least one grain is always allowed.
    pub(crate) piece_bytes: u64,
    /// Longest request of any rail; at least a grain.
    pub(crate) request_bytes_max: u64,
    /// Longest staged read; a multiple of the grain.
    pub(crate) staging_bytes: u64,
}

/// Whether the caller's memory is aligned so that the device may write it in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landing {
    Aligned,
    Misaligned,
}

impl CutRules {
    /// The grain of reads that must be multiples of `block_bytes` (1 where no block needs to be
    /// whole) on rails that want `alignment`.
    pub(crate) fn grain_of(block_bytes: u64, alignment: Alignment) -> u64 {
        let device = alignment.offset_bytes.max(alignment.length_bytes).max(alignment.memory_bytes);
        block_bytes.max(u64::from(device))
    }

    /// The piece that starts at wanted byte `at`, of a cut that ends before byte `to`.
    #[inline]
    pub(crate) fn piece(&self, at: u64, to: u64, landing: Landing) -> PieceShape {
        debug_assert!(at < to && to <= self.stripe_len, "a cut lies in its stripe");
        let mask = self.grain - 1;
        if at & mask == 0 && landing == Landing::Aligned {
            let end = self.direct_end(to);
            if end > at {
                let limit = at + (self.piece_bytes & !mask).max(self.grain);
                // A remainder shorter than a grain would be a piece of its own: take it along.
                let whole = limit + self.grain > end && end - at <= self.request_bytes_max;
                let want_to = if whole { end } else { limit.min(end) };
                let bytes = want_to - at;
                return PieceShape {
                    way: Way::Direct,
                    read_from: at,
                    read_bytes: bytes,
                    bytes_min: bytes,
                    want_from: at,
                    want_to,
                };
            }
        }
        self.staged(at, to, landing)
    }

    /// Where direct pieces must end: on a grain, or with the stripe if its length suits the device.
    fn direct_end(&self, to: u64) -> u64 {
        let ends_stripe = to == self.stripe_len && to & (self.length_align - 1) == 0;
        if ends_stripe { to } else { to & !(self.grain - 1) }
    }

    fn staged(&self, at: u64, to: u64, landing: Landing) -> PieceShape {
        let mask = self.grain - 1;
        let read_from = at & !mask;
        let span = match landing {
            // Only the edge: from the next grain on, pieces are direct.
            Landing::Aligned => self.grain,
            Landing::Misaligned => (self.staging_bytes & !mask).max(self.grain),
        };
        let want_to = to.min(read_from + span);
        let read_to = ((want_to + mask) & !mask).min(self.stripe_len);
        let bytes_min = read_to - read_from;
        PieceShape {
            way: Way::Staged,
            read_from,
            read_bytes: bytes_min.next_multiple_of(self.length_align),
            bytes_min,
            want_from: at,
            want_to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        (0u32..6, 1u64..200_000, 0u64..6, -1i64..2).prop_map(|(block, stripe, stripes, off)| {
            let size = (stripe * stripes).saturating_add_signed(off);
            Layout { size_bytes: size, stripe_bytes: stripe, block_bytes: 4096 << block }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// The cuts of a range partition it, in order, and stay in their stripes.
        #[test]
        fn cuts_partition_a_range(layout in layouts(), a in 0.0..1.0f64, b in 0.0..1.0f64) {
            prop_assume!(layout.size_bytes > 0);
            let size = layout.size_bytes as f64;
            let (x, y) = ((a * size) as u64, (b * size) as u64);
            let (offset, end) = (x.min(y), x.max(y) + 1);
            let len = end.min(layout.size_bytes) - offset;
            let (first, count) = layout.stripes(offset, len);
            let mut at = offset;
            for index in first..first + count {
                let cut = layout.cut(index, offset, len);
                prop_assert!(cut.from < cut.to && cut.to <= layout.stripe_len(index));
                prop_assert_eq!(u64::from(index) * layout.stripe_bytes + cut.from, at);
                at += cut.to - cut.from;
            }
            prop_assert_eq!(at, offset + len);
        }

        /// The pieces of a cut partition what is wanted; reads are aligned, whole in blocks where
        /// they must be, reach past the stripe's end by padding only, and fit their limits.
        #[test]
        fn pieces_partition_a_cut(
            len in 1u64..3_000_000, a in 0.0..1.0f64, b in 0.0..1.0f64,
            block in prop::sample::select(vec![1u64, 4096, 65536]),
            align in prop::sample::select(vec![1u32, 512, 4096]),
            piece_kib in 1u64..1024,
            landing in prop::sample::select(vec![Landing::Aligned, Landing::Misaligned]),
        ) {
            let alignment =
                Alignment { offset_bytes: align, length_bytes: align, memory_bytes: align };
            let rules = CutRules {
                stripe_len: len,
                grain: CutRules::grain_of(block, alignment),
                length_align: u64::from(align),
                piece_bytes: piece_kib * 1024,
                request_bytes_max: 1 << 20,
                staging_bytes: 128 << 10,
            };
            let (x, y) = ((a * len as f64) as u64, (b * len as f64) as u64);
            let (from, to) = (x.min(y), (x.max(y) + 1).min(len));
            let mut at = from;
            while at < to {
                let piece = rules.piece(at, to, landing);
                prop_assert_eq!(piece.want_from, at);
                prop_assert!(piece.want_to > at && piece.want_to <= to);
                prop_assert_eq!(piece.read_from % u64::from(align), 0);
                prop_assert_eq!(piece.read_bytes % u64::from(align), 0);
                let read_end = piece.read_from + piece.bytes_min;
                prop_assert!(piece.read_from <= at && read_end >= piece.want_to);
                prop_assert!(read_end <= len);
                prop_assert!(piece.read_bytes >= piece.bytes_min);
                prop_assert!(piece.read_bytes < piece.bytes_min + u64::from(align));
                prop_assert_eq!(piece.read_from % block, 0, "starts on a block");
                prop_assert!(read_end.is_multiple_of(block) || read_end == len, "ends on a block");
                match piece.way {
                    Way::Direct => {
                        prop_assert_eq!(landing, Landing::Aligned);
                        prop_assert_eq!((piece.read_from, piece.read_bytes),
                            (at, piece.want_to - at));
                        prop_assert!(piece.read_bytes < rules.piece_bytes + 2 * rules.grain);
                        prop_assert!(piece.read_bytes <= rules.request_bytes_max);
                    }
                    Way::Staged => prop_assert!(
                        piece.read_bytes <= rules.staging_bytes.max(rules.grain)),
                }
                at = piece.want_to;
            }
        }
    }

    #[test]
    fn a_whole_aligned_stripe_is_one_piece() {
        let rules = CutRules {
            stripe_len: 1 << 20,
            grain: 4096,
            length_align: 4096,
            piece_bytes: 1 << 20,
            request_bytes_max: 1 << 20,
            staging_bytes: 1 << 17,
        };
        let piece = rules.piece(0, 1 << 20, Landing::Aligned);
        assert_eq!((piece.way, piece.read_bytes), (Way::Direct, 1 << 20));
    }

    #[test]
    fn the_second_stripe_of_an_object_of_4_mib_and_a_byte_is_one_byte() {
        let layout =
            Layout { size_bytes: (4 << 20) + 1, stripe_bytes: 4 << 20, block_bytes: 65536 };
        assert_eq!(layout.stripes(0, layout.size_bytes), (0, 2));
        assert_eq!(layout.stripe_len(1), 1);
        assert_eq!(layout.stripe_len(2), 0);
    }
}
