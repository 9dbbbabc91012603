//! XXH3-64 against literal values of the reference implementation, and streaming against one-shot.

use railring_catalog::checksum::{
    BlockTable, Hex, StreamingChecksum, TableError, block_checksum, block_count, encode_table,
    parse_hex, stripe_checksum, table_bytes, table_checksum, table_entry,
};

/// Byte `i` is `i mod 256`, the input of the vectors.
fn counting(len: usize) -> Vec<u8> {
    (0..len).map(|i| i as u8).collect()
}

/// Length and value of XXH3-64 with seed 0 over `counting(len)`, computed by the reference C
/// library (xxHash 0.8.1). The lengths are the borders between the algorithm's code paths (16, 128,
/// 240) and the ones at which earlier Rust ports were wrong (512, 1025).
const VECTORS: &[(usize, u64)] = &[
    (0, 0x2d06_8005_38d3_94c2),
    (1, 0xc44b_dff4_074e_ecdb),
    (2, 0xd664_5fc3_051a_9457),
    (3, 0x5f42_99fc_161c_9cbb),
    (4, 0x60da_b036_a582_11f2),
    (8, 0x3a1c_2d7c_85af_88f8),
    (9, 0xe961_2598_145b_b9dc),
    (16, 0x8355_e3a6_f617_70db),
    (17, 0x9ef3_41a9_9de3_7328),
    (128, 0x85c6_174c_7ff4_c46b),
    (129, 0xec76_42b4_31ba_3e5a),
    (240, 0x375a_384d_957f_e865),
    (241, 0x02e8_cd95_421c_6d02),
    (256, 0x9408_a443_3b95_2d71),
    (257, 0xd02c_2570_4c5c_ee8a),
    (512, 0x1059_105a_d19b_fa09),
    (1023, 0x26a0_a01d_1c92_5c06),
    (1024, 0xa870_f929_8439_8d22),
    (1025, 0x78c8_6e91_ee93_9852),
    (2048, 0xdd42_0471_ff96_bd00),
    (4200, 0x012f_f131_06fe_1503),
    (1_048_575, 0xd119_f8e2_56e9_cc3e),
    (1_048_576, 0xd36c_0e13_a3df_139e),
    (1_048_577, 0x2455_dbdc_10d8_bf5e),
];

#[test]
fn equals_the_reference_library() {
    for &(len, value) in VECTORS {
        assert_eq!(stripe_checksum(&counting(len)), value, "length {len}");
    }
}

#[test]
fn is_xxh3_and_not_xxh64() {
    // Published as signed numbers; XXH64 of no bytes is the one it must not be.
    let published: [i64; 5] = [
        3_244_421_341_483_603_138,
        -4_302_098_779_834_749_733,
        -2_998_166_160_713_018_281,
        6_864_218_090_047_839_419,
        6_979_084_321_315_492_338,
    ];
    for (len, value) in published.into_iter().enumerate() {
        assert_eq!(stripe_checksum(&counting(len)).cast_signed(), value, "length {len}");
    }
    assert_ne!(stripe_checksum(&[]).cast_signed(), -1_205_034_819_632_174_695);
}

fn streamed(bytes: &[u8], mut next: impl FnMut() -> usize) -> u64 {
    let mut sum = StreamingChecksum::new();
    sum.update(b"forgotten");
    sum.reset();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(next().clamp(1, rest.len()));
        sum.update(head);
        rest = tail;
    }
    sum.finish()
}

#[test]
fn streaming_equals_one_shot_for_every_length_and_cut() {
    let bytes: Vec<u8> =
        (0..(1usize << 20) + 1).map(|i| (i as u64).wrapping_mul(0x9e37_79b9) as u8).collect();
    let lengths = (0..=4200).chain([(1 << 20) - 1, 1 << 20, (1 << 20) + 1]);
    let mut random = 0x5eed_u64;
    for len in lengths {
        let bytes = &bytes[..len];
        let expected = stripe_checksum(bytes);
        let cuts: &[usize] = &[64, 240, 241, 256, 1024];
        for &cut in cuts {
            assert_eq!(streamed(bytes, || cut), expected, "length {len}, cut {cut}");
        }
        // One byte at a time costs too much for all lengths; the borders are what matters.
        if len < 600 || len % 101 == 0 {
            assert_eq!(streamed(bytes, || 1), expected, "length {len}, cut 1");
        }
        let mut first = true;
        let three = || if std::mem::take(&mut first) { 3 } else { 509 };
        assert_eq!(streamed(bytes, three), expected, "length {len}, cut 3 then 509");
        let seeded = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % 700) as usize
        };
        assert_eq!(streamed(bytes, seeded), expected, "length {len}, seed 0x5eed");
    }
}

#[test]
fn does_not_depend_on_the_address() {
    for len in [1, 15, 100, 200, 241, 1025, 5000] {
        let expected = stripe_checksum(&counting(len));
        for shift in 0..64 {
            let mut buffer = vec![0xa5; shift];
            buffer.extend(counting(len));
            assert_eq!(stripe_checksum(&buffer[shift..]), expected, "length {len} at {shift}");
            assert_eq!(streamed(&buffer[shift..], || 77), expected, "length {len} at {shift}");
        }
    }
}

#[test]
fn hex_is_canonical_big_endian() {
    assert_eq!(Hex(0x2d06_8005_38d3_94c2).to_string(), "2d06800538d394c2");
    assert_eq!(Hex(0xa).to_string(), "000000000000000a");
    assert_eq!(parse_hex("2D06800538d394c2"), Some(0x2d06_8005_38d3_94c2));
    for bad in
        ["", "a", "2d06800538d394c", "2d06800538d394c20", "+d06800538d394c2", "é2d06800538d394"]
    {
        assert_eq!(parse_hex(bad), None, "{bad:?}");
    }
}

#[test]
fn tables_are_little_endian_lists_of_block_checksums() {
    let stripe = counting(4096 * 2 + 1);
    let table = encode_table(&stripe, 4096);
    let mut expected = Vec::new();
    for block in [&stripe[..4096], &stripe[4096..8192], &stripe[8192..]] {
        expected.extend(block_checksum(block).to_le_bytes());
    }
    assert_eq!(table, expected);
    assert_eq!(table.len() as u64, table_bytes(stripe.len() as u64, 4096));
    assert_eq!(table_entry(&table, 2), Some(block_checksum(&stripe[8192..])));
    assert_eq!(table_entry(&table, 3), None);
    assert_eq!(table_entry(&table, usize::MAX), None);
    // The 1-byte block of value 0, little-endian: its vector is c44bdff4074eecdb.
    assert_eq!(table[16..], [0xdb, 0xec, 0x4e, 0x07, 0xf4, 0xdf, 0x4b, 0xc4]);
    let borders = [(0, 0), (1, 1), (4095, 1), (4096, 1), (4097, 2), (u64::MAX, 1 << 52)];
    for (len, blocks) in borders {
        assert_eq!(block_count(len, 4096), blocks, "length {len}");
    }
}

#[test]
fn a_block_flipped_together_with_its_entry_is_still_found() {
    // Every block differs from the others.
    let mut stripe: Vec<u8> = (0..4096 * 3 + 5).map(|i| (i ^ (i >> 12)) as u8).collect();
    let len = stripe.len() as u64;
    let good = encode_table(&stripe, 4096);
    let vouched = table_checksum(&good);
    let table = BlockTable::verify(&good, len, 4096, vouched).expect("the table that was written");
    assert_eq!(table.block_count(), 4);
    assert_eq!(table.first_bad_block(0, &stripe), None);
    assert_eq!(table.first_bad_block(1, &stripe[4096..]), None);
    assert_eq!(table.first_bad_block(1, &stripe[4096..8192]), None);
    assert_eq!(table.first_bad_block(0, &stripe[4096..]), Some(0));
    stripe[8192] ^= 1;
    assert_eq!(table.first_bad_block(0, &stripe), Some(2));
    stripe.extend([0; 5000]);
    assert_eq!(table.first_bad_block(3, &stripe[12_288..]), Some(3));
    let forged = encode_table(&stripe[..len as usize], 4096);
    assert_eq!(
        BlockTable::verify(&forged, len, 4096, vouched).expect_err("forged"),
        TableError::Checksum { expected: vouched, actual: table_checksum(&forged) }
    );
    assert_eq!(
        BlockTable::verify(&good[..24], len, 4096, vouched).expect_err("short"),
        TableError::Length { bytes: 24, expected_bytes: 32 }
    );
}
