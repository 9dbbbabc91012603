//! Streams of random numbers, each of its own seed: one for every purpose on every rail, so that
//! adding a rail, or a fault of another kind, changes no number that the others draw.

use fastrand::Rng;

/// The stream for `purpose` on `rail` in the world of `seed`. `index` tells streams of one purpose
/// apart.
pub(crate) fn stream(seed: u64, rail: &str, purpose: &str, index: u64) -> Rng {
    let mut hash = mix(seed ^ 0x5261_696c_7269_6e67);
    for bytes in [rail.as_bytes(), purpose.as_bytes(), &index.to_le_bytes()[..]] {
        // The length keeps ("ab", "c") and ("a", "bc") apart.
        hash = mix(hash ^ bytes.len() as u64);
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    Rng::with_seed(mix(hash))
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014): each bit of the result depends on each bit of `bits`.
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_coordinate_of_a_stream_matters_and_nothing_else() {
        let first = |seed, rail, purpose, index| stream(seed, rail, purpose, index).u64(..);
        let base = first(1, "rail0", "latency", 0);
        assert_eq!(base, first(1, "rail0", "latency", 0));
        let others = [
            first(2, "rail0", "latency", 0),
            first(1, "rail1", "latency", 0),
            first(1, "rail0", "lost", 0),
            first(1, "rail0", "latency", 1),
            first(1, "rail0l", "atency", 0),
        ];
        assert!(!others.contains(&base));
    }
}
