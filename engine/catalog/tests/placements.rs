//! Placements: a table of bad ones with the error each must give, and laws of the good ones.

use proptest::prelude::*;
use railring_catalog::checksum::block_count;
use railring_catalog::{
    ExtentKind, GeometryError, Owner, Placement, PlacementError, STRIPE_BYTES_MAX, Source,
    StripePlacement,
};

const STRIPE: u64 = 10_000;

/// Three stripes (the last of 5 bytes) over two sources, two copies, all checksums.
fn good() -> Placement {
    placement(2 * STRIPE + 5, STRIPE, 4096, 2, 2)
}

/// Stripes back to back in slots of two stripe lengths, tables in the slot's second half.
fn placement(size: u64, stripe: u64, block: u32, sources: u16, copies: u16) -> Placement {
    let source = |i| Source { endpoint: format!("/disk{i}"), handle: "data".into() };
    let slot =
        stripe.next_multiple_of(4096) + (block_count(stripe, block) * 8).next_multiple_of(4096);
    let stripes = (0..size.div_ceil(stripe) as u32).map(|index| {
        let offset = u64::from(index) * slot;
        let table_offset = offset + stripe.next_multiple_of(4096);
        let owner = |c| Owner { source: (index as u16 + c) % sources, offset, table_offset };
        StripePlacement {
            index,
            len_bytes: stripe.min(size - u64::from(index) * stripe),
            owners: (0..copies).map(owner).collect(),
            checksum: Some(u64::from(index) << 33),
            table_checksum: Some(u64::from(index) << 34),
        }
    });
    Placement {
        key: "models/llama".parse().expect("a legal name"),
        generation: 7,
        etag: "e".into(),
        handle: "h".into(),
        layout_version: 1,
        size_bytes: size,
        stripe_bytes: stripe,
        block_bytes: block,
        sources: (0..sources).map(source).collect(),
        stripes: stripes.collect(),
    }
}

type Case = (&'static str, fn(&mut Placement), PlacementError);

/// Sizes that no object may have.
fn bad_sizes() -> Vec<Case> {
    vec![
        ("stripe size 0", |p| p.stripe_bytes = 0, GeometryError::StripeBytesZero.into()),
        (
            "stripe size over 4 GiB",
            |p| p.stripe_bytes = STRIPE_BYTES_MAX + 1,
            GeometryError::StripeBytesTooLarge { stripe_bytes: STRIPE_BYTES_MAX + 1 }.into(),
        ),
        (
            "block size 0",
            |p| p.block_bytes = 0,
            GeometryError::BlockBytes { block_bytes: 0 }.into(),
        ),
        (
            "block size no power of two",
            |p| p.block_bytes = 4097,
            GeometryError::BlockBytes { block_bytes: 4097 }.into(),
        ),
        (
            "block size 2 KiB",
            |p| p.block_bytes = 2048,
            GeometryError::BlockBytes { block_bytes: 2048 }.into(),
        ),
        (
            "block size 2 MiB",
            |p| p.block_bytes = 2 << 20,
            GeometryError::BlockBytes { block_bytes: 2 << 20 }.into(),
        ),
        (
            "table over 1 MiB",
            |p| p.stripe_bytes = (131_072 << 12) + 1,
            GeometryError::TooManyBlocks {
                stripe_bytes: (131_072 << 12) + 1,
                block_bytes: 4096,
                blocks: 131_073,
            }
            .into(),
        ),
        (
            "65,536 stripes",
            |p| p.size_bytes = 65_535 * STRIPE + 1,
            GeometryError::TooManyStripes { stripes: 65_536 }.into(),
        ),
        (
            "size 2^64 - 1",
            |p| p.size_bytes = u64::MAX,
            GeometryError::TooManyStripes { stripes: u64::MAX.div_ceil(STRIPE) }.into(),
        ),
    ]
}

/// Everything that is wrong with the object itself or its sources.
fn bad_headers() -> Vec<Case> {
    use PlacementError as E;
    vec![
        ("generation 0", |p| p.generation = 0, E::GenerationZero),
        ("layout version 0", |p| p.layout_version = 0, E::LayoutVersionZero),
        ("no handle", |p| p.handle.clear(), E::HandleEmpty),
        (
            "a source without endpoint",
            |p| p.sources[1].endpoint.clear(),
            E::EndpointEmpty { source_index: 1 },
        ),
        (
            "a source without handle",
            |p| p.sources[0].handle.clear(),
            E::SourceHandleEmpty { source_index: 0 },
        ),
        (
            "the same source twice",
            |p| p.sources[1] = p.sources[0].clone(),
            E::DuplicateSource { first: 0, second: 1 },
        ),
        (
            "65,536 sources",
            |p| p.sources.resize(65_536, p.sources[0].clone()),
            E::TooManySources { sources: 65_536 },
        ),
    ]
}

/// Everything that is wrong with a stripe.
fn bad_stripes() -> Vec<Case> {
    use PlacementError as E;
    vec![
        ("stripe missing", |p| drop(p.stripes.remove(1)), E::MissingStripe { stripe: 1 }),
        ("all stripes missing", |p| p.stripes.clear(), E::MissingStripe { stripe: 0 }),
        (
            "stripe twice",
            |p| p.stripes.push(p.stripes[1].clone()),
            E::DuplicateStripe { stripe: 1 },
        ),
        (
            "stripe out of range",
            |p| p.stripes[0].index = 3,
            E::StripeOutOfRange { stripe: 3, stripe_count: 3 },
        ),
        (
            "stripe far out of range",
            |p| p.stripes[0].index = u32::MAX,
            E::StripeOutOfRange { stripe: u32::MAX, stripe_count: 3 },
        ),
        (
            "a stripe of an empty object",
            |p| p.size_bytes = 0,
            E::StripeOutOfRange { stripe: 0, stripe_count: 0 },
        ),
        (
            "last stripe padded",
            |p| p.stripes[2].len_bytes = STRIPE,
            E::LengthContradictsSize { stripe: 2, len_bytes: STRIPE, expected_bytes: 5 },
        ),
        (
            "middle stripe short",
            |p| p.stripes[1].len_bytes -= 1,
            E::LengthContradictsSize { stripe: 1, len_bytes: 9_999, expected_bytes: STRIPE },
        ),
        ("no owner", |p| p.stripes[1].owners.clear(), E::NoOwner { stripe: 1 }),
        (
            "256 owners",
            |p| p.stripes[1].owners = vec![p.stripes[0].owners[0]; 256],
            E::TooManyOwners { stripe: 1, owners: 256 },
        ),
        (
            "source out of range",
            |p| p.stripes[2].owners[1].source = 2,
            E::SourceOutOfRange { stripe: 2, source_index: 2, sources: 2 },
        ),
    ]
}

/// Everything that is wrong with extents and checksums.
fn bad_extents() -> Vec<Case> {
    use PlacementError as E;
    let overlap = |stripe, kind, other, other_kind| E::OverlappingExtents {
        stripe,
        kind,
        other,
        other_kind,
        source_index: 0,
    };
    let overflow = |kind, offset| E::ExtentOverflow { stripe: 0, kind, source_index: 0, offset };
    use ExtentKind::{Data, Table};
    vec![
        (
            "data past 2^64",
            |p| p.stripes[0].owners[0].offset = u64::MAX - 1,
            overflow(Data, u64::MAX - 1),
        ),
        (
            "padding past 2^63",
            |p| p.stripes[0].owners[0].offset = (1 << 63) - STRIPE,
            overflow(Data, (1 << 63) - STRIPE),
        ),
        (
            "table past 2^64",
            |p| p.stripes[0].owners[0].table_offset = u64::MAX,
            overflow(Table, u64::MAX),
        ),
        (
            "two stripes in one place",
            |p| p.stripes[1].owners[1].offset = p.stripes[0].owners[0].offset,
            overlap(1, Data, 0, Data),
        ),
        (
            "one byte shared",
            |p| p.stripes[1].owners[1].offset = p.stripes[0].owners[0].offset + STRIPE - 1,
            overlap(1, Data, 0, Data),
        ),
        (
            "a table in the data",
            |p| p.stripes[0].owners[0].table_offset = 8,
            overlap(0, Table, 0, Data),
        ),
        (
            "two tables in one place",
            |p| p.stripes[1].owners[1].table_offset = p.stripes[0].owners[0].table_offset + 8,
            overlap(1, Table, 0, Table),
        ),
        (
            "the same owner twice",
            |p| p.stripes[0].owners[1] = p.stripes[0].owners[0],
            overlap(0, Data, 0, Data),
        ),
        (
            "one stripe without checksum",
            |p| (p.stripes[1].checksum, p.stripes[1].table_checksum) = (None, None),
            E::PartialChecksums { stripe: 1 },
        ),
        (
            "one stripe without table checksum",
            |p| p.stripes[2].table_checksum = None,
            E::PartialTableChecksums { stripe: 2 },
        ),
        (
            "a table checksum alone",
            |p| p.stripes[2].checksum = None,
            E::TableWithoutChecksum { stripe: 2 },
        ),
    ]
}

#[test]
fn each_bad_placement_has_its_own_error() {
    let cases = [bad_sizes(), bad_headers(), bad_stripes(), bad_extents()].concat();
    assert!(cases.len() >= 30);
    for (name, spoil, error) in cases {
        let mut bad = good();
        spoil(&mut bad);
        assert_eq!(bad.validate(), Err(error.clone()), "{name}");
        let text = error.to_string();
        assert!(!text.ends_with('.') && !text.starts_with(char::is_uppercase), "{text}");
    }
}

#[test]
fn legal_corners_are_accepted() {
    let empty = placement(0, STRIPE, 4096, 1, 1).validate().expect("an empty object is legal");
    assert_eq!((empty.stripe_count(), empty.size_bytes(), empty.stripe_at(0)), (0, 0, None));
    let most = placement(65_535, 1, 4096, 1, 1).validate().expect("65,535 stripes are legal");
    assert_eq!(most.stripe_count(), 65_535);
    assert_eq!(most.stripe_len(65_534), 1);
    placement(STRIPE_BYTES_MAX, STRIPE_BYTES_MAX, 64 << 10, 1, 1).validate().expect("4 GiB");
    placement(9, 131_072 << 12, 4096, 1, 1).validate().expect("131,072 blocks");
    let mut touching = good();
    touching.stripes[1].owners[1].offset = STRIPE;
    assert_accepted(touching);
    let mut last = good();
    last.stripes[0].owners[0].offset = (1 << 63) - STRIPE - 4096;
    assert_accepted(last);
}

fn assert_accepted(mut p: Placement) {
    // A moved stripe may lie on a table; only data is under test here.
    p.stripes.iter_mut().for_each(|s| s.table_checksum = None);
    p.validate().expect("legal");
}

proptest! {
    #[test]
    fn any_order_compiles_to_the_same_and_answers_like_the_list(
        size in 0u64..200_000, stripe in 1u64..70_000, sources in 1u16..5, copies in 1u16..5,
        swaps in prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..9),
    ) {
        prop_assume!(size.div_ceil(stripe) < 1000);
        let p = placement(size, stripe, 4096, sources, copies.min(sources));
        let valid = p.validate().expect("built to be legal");
        let mut mixed = p.clone();
        if !p.stripes.is_empty() {
            for [a, b] in swaps {
                mixed.stripes.swap(a.index(p.stripes.len()), b.index(p.stripes.len()));
            }
        }
        prop_assert_eq!(mixed.validate().expect("order is free"), valid.clone());
        prop_assert_eq!(valid.stripe_count() as usize, p.stripes.len());
        let mut total = 0;
        for s in &p.stripes {
            prop_assert_eq!(valid.stripe_offset(s.index), total);
            prop_assert_eq!(valid.stripe_len(s.index), s.len_bytes);
            prop_assert_eq!(valid.owners(s.index), &s.owners[..]);
            prop_assert_eq!(valid.checksum(s.index), s.checksum);
            prop_assert_eq!(valid.table_checksum(s.index), s.table_checksum);
            prop_assert_eq!(u64::from(valid.blocks(s.index)), block_count(s.len_bytes, 4096));
            prop_assert_eq!(valid.stripe_at(total), Some(s.index));
            total += s.len_bytes;
            prop_assert_eq!(valid.stripe_at(total - 1), Some(s.index));
        }
        prop_assert_eq!(total, size);
        prop_assert_eq!(valid.stripe_at(size), None);
    }

    #[test]
    fn json_round_trip(size in 0u64..100_000, sums in any::<bool>()) {
        let mut p = placement(size, STRIPE, 8192, 3, 2);
        if !sums {
            p.stripes.iter_mut().for_each(|s| (s.checksum, s.table_checksum) = (None, None));
        }
        let json = serde_json::to_string(&p).expect("plain data");
        prop_assert_eq!(serde_json::from_str::<Placement>(&json).expect("its own"), p);
    }

    /// Numbers of any size anywhere: an answer, never a panic or a large allocation.
    #[test]
    fn arbitrary_numbers_never_panic(
        size in any::<u64>(), stripe in any::<u64>(), block in any::<u32>(), small in any::<bool>(),
        raw in prop::collection::vec((0u32..5, any::<u16>(), any::<[u64; 3]>()), 0..6),
    ) {
        let mut p = good();
        if small {
            (p.size_bytes, p.stripe_bytes) = (size % 40_000, stripe % 20_000);
        } else {
            (p.size_bytes, p.stripe_bytes, p.block_bytes) = (size, stripe, block);
        }
        type Raw = (u32, u16, [u64; 3]);
        let stripe = |(index, source, [len_bytes, offset, table_offset]): Raw| StripePlacement {
            index,
            len_bytes: if small { len_bytes % 20_000 } else { len_bytes },
            owners: vec![Owner { source: source % 3, offset, table_offset }],
            checksum: Some(1),
            table_checksum: Some(2),
        };
        p.stripes = raw.into_iter().map(stripe).collect();
        let _ = p.validate();
    }
}
