//! Sets of CPU numbers and the kernel's two text forms of them, read with a stated limit.

use crate::id::CpuId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The highest CPU (or node) number that is accepted. Linux itself stops at 8,192 CPUs; the limit
/// keeps a corrupt list from asking for memory without end.
pub const ID_MAX: u16 = u16::MAX;

const WORD_BITS: usize = 64;

/// A set of CPUs by real id, as long as it needs to be. Its text form is the kernel's cpulist
/// (`0-3,8`), which is also its serde form.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet {
    // Never ends in a zero word, so that equality and order are those of the sets.
    words: Vec<u64>,
}

/// Why a text is not a set of CPUs or nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuListError {
    /// A part is neither a number nor a range.
    #[error("'{part}' is not a cpu number or range; write a list such as 0-3,8")]
    NotANumber {
        /// The part that was refused.
        part: String,
    },
    /// A range ends before it starts.
    #[error("range '{part}' ends before it starts; write the lower number first")]
    Backwards {
        /// The part that was refused.
        part: String,
    },
    /// A number is beyond [`ID_MAX`].
    #[error("'{part}' names a cpu beyond {ID_MAX}, the highest number accepted; lower it")]
    TooLarge {
        /// The part that was refused.
        part: String,
    },
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// True when no CPU is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many CPUs are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// True when `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = position(cpu);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Adds one CPU.
    pub fn insert(&mut self, cpu: CpuId) {
        let (word, bit) = position(cpu);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// Takes one CPU out.
    pub fn remove(&mut self, cpu: CpuId) {
        let (word, bit) = position(cpu);
        if let Some(bits) = self.words.get_mut(word) {
            *bits &= !bit;
        }
        self.trim();
    }

    /// The CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::from_words(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// The CPUs of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let other = other.words.iter().copied().chain(std::iter::repeat(0));
        Self::from_words(self.words.iter().zip(other).map(|(a, b)| a & !b).collect())
    }

    /// The CPUs in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (long, short) =
            if self.words.len() >= other.words.len() { (self, other) } else { (other, self) };
        let mut words = long.words.clone();
        for (word, bits) in words.iter_mut().zip(&short.words) {
            *word |= bits;
        }
        Self { words }
    }

    /// True when every CPU of this set is in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// True when the sets share a CPU.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let bits = (0..WORD_BITS).filter(move |bit| word >> bit & 1 == 1);
            // A word's position came from a u16 number, so the sum fits one.
            bits.map(move |bit| CpuId((index * WORD_BITS + bit) as u16))
        })
    }

    /// The lowest CPU.
    #[must_use]
    pub fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// The highest CPU.
    #[must_use]
    pub fn last(&self) -> Option<CpuId> {
        self.iter().last()
    }

    /// Reads the kernel's hexadecimal mask (`00000000,0000ffff`, most significant word first), the
    /// form of `thread_siblings` and of `smp_affinity`.
    ///
    /// # Errors
    /// When a word is not hexadecimal or a CPU is beyond [`ID_MAX`].
    pub fn from_hex_mask(text: &str) -> Result<Self, CpuListError> {
        let mut set = Self::new();
        let text = clean(text).trim_start_matches("0x");
        for (index, part) in text.rsplit(',').enumerate().filter(|(_, part)| !part.is_empty()) {
            // Old kernels print 32 bits between commas, and a single word may be longer.
            let value = u128::from_str_radix(part.trim_start_matches("0x"), 16)
                .map_err(|_| CpuListError::NotANumber { part: shorten(part) })?;
            for bit in (0..128).filter(|bit| value >> bit & 1 == 1) {
                let id = u16::try_from(index * 32 + bit)
                    .map_err(|_| CpuListError::TooLarge { part: shorten(part) })?;
                set.insert(CpuId(id));
            }
        }
        Ok(set)
    }

    pub(crate) fn from_words(words: Vec<u64>) -> Self {
        let mut set = Self { words };
        set.trim();
        set
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

fn position(cpu: CpuId) -> (usize, u64) {
    (usize::from(cpu.0) / WORD_BITS, 1 << (usize::from(cpu.0) % WORD_BITS))
}

/// Text without the newline and the NUL bytes that sysfs and captured trees may carry at its ends.
pub(crate) fn clean(text: &str) -> &str {
    text.trim_matches(|c: char| c == '\0' || c.is_ascii_whitespace())
}

fn shorten(part: &str) -> String {
    part.chars().take(40).collect()
}

fn number(text: &str, part: &str) -> Result<u16, CpuListError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits {
        return Err(CpuListError::NotANumber { part: shorten(part) });
    }
    text.parse().map_err(|_| CpuListError::TooLarge { part: shorten(part) })
}

/// The ranges of a kernel list (`0-3,8`, `0-14:2`), each with both ends included.
pub(crate) fn parse_ranges(text: &str) -> Result<Vec<(u16, u16)>, CpuListError> {
    let mut ranges = Vec::new();
    for part in clean(text).split(',').map(clean).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(clean(first), part)?, number(clean(last), part)?);
        if last < first {
            return Err(CpuListError::Backwards { part: shorten(part) });
        }
        ranges.push((first, last));
    }
    Ok(ranges)
}

/// Ascending numbers as the kernel would print them: `0-3,8`.
pub(crate) fn format_ranges(ids: impl Iterator<Item = u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for id in ids {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(id) => *last = id,
            _ => ranges.push((id, id)),
        }
    }
    let one = |(first, last): (u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.into_iter().map(one).collect::<Vec<_>>().join(",")
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    /// Reads a cpulist. The empty text is the empty set; spaces, newlines and NUL bytes around the
    /// parts are ignored, as captured trees have them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut set = Self::new();
        for (first, last) in parse_ranges(text)? {
            set.extend((first..=last).map(CpuId));
        }
        Ok(set)
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        cpus.into_iter().for_each(|cpu| self.insert(cpu));
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl From<CpuId> for CpuSet {
    fn from(cpu: CpuId) -> Self {
        std::iter::once(cpu).collect()
    }
}

impl From<&CpuSet> for CpuSet {
    fn from(set: &CpuSet) -> Self {
        set.clone()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_ranges(self.iter().map(|cpu| cpu.0)))
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set(text: &str) -> CpuSet {
        text.parse().expect("a good cpulist")
    }

    #[test]
    fn lists_as_kernels_print_them_are_read() {
        let cases = [
            ("", vec![]),
            ("\n", vec![]),
            ("3", vec![3]),
            ("0,2", vec![0, 2]),
            ("0-2,4-6\n", vec![0, 1, 2, 4, 5, 6]),
            ("1-2\n\0\0", vec![1, 2]),
            (" 5 , 7-8 ", vec![5, 7, 8]),
            ("1023-1025", vec![1023, 1024, 1025]),
        ];
        for (text, ids) in cases {
            let expected: CpuSet = ids.into_iter().map(CpuId).collect();
            assert_eq!(set(text), expected, "{text:?}");
        }
    }

    #[test]
    fn bad_lists_are_refused_and_cost_no_memory() {
        for text in ["0-4294967295", "99999999999999999999", "65536"] {
            let refused = text.parse::<CpuSet>();
            assert!(matches!(refused, Err(CpuListError::TooLarge { .. })), "{text:?}: {refused:?}");
        }
        assert!(matches!("5-3".parse::<CpuSet>(), Err(CpuListError::Backwards { .. })));
        for text in ["a", "1-", "-1", "1--2", "0x3", "1 2", "+1", "1-2-3", "0-6:2/4"] {
            let refused = text.parse::<CpuSet>();
            assert!(
                matches!(refused, Err(CpuListError::NotANumber { .. })),
                "{text:?}: {refused:?}"
            );
        }
    }

    #[test]
    fn hexadecimal_masks_are_read() {
        for (text, list) in [
            ("00000000,00000003", "0-1"),
            ("1,00000000,00000001", "0,64"),
            ("ff", "0-7"),
            ("0", ""),
        ] {
            assert_eq!(CpuSet::from_hex_mask(text), Ok(set(list)), "{text:?}");
        }
        assert_eq!(CpuSet::from_hex_mask("ffffffff00000000\n"), Ok(set("32-63")));
        assert!(CpuSet::from_hex_mask("xyz").is_err());
        assert!(CpuSet::from_hex_mask(&"1,".repeat(3000)).is_err());
    }

    fn ids() -> impl Strategy<Value = BTreeSet<u16>> {
        proptest::collection::btree_set(prop_oneof![0_u16..130, any::<u16>()], 0..40)
    }

    fn from_ids(ids: &BTreeSet<u16>) -> CpuSet {
        ids.iter().copied().map(CpuId).collect()
    }

    proptest! {
        #[test]
        fn printing_and_reading_gives_the_same_set(ids in ids()) {
            let set = from_ids(&ids);
            prop_assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set.clone()));
            prop_assert_eq!(set.len(), ids.len());
            prop_assert!(set.iter().map(|cpu| cpu.0).eq(ids.iter().copied()));
        }

        #[test]
        fn the_set_operations_are_those_of_sets(a in ids(), b in ids()) {
            let (x, y) = (from_ids(&a), from_ids(&b));
            prop_assert_eq!(x.intersection(&y), from_ids(&(&a & &b)));
            prop_assert_eq!(x.union(&y), from_ids(&(&a | &b)));
            prop_assert_eq!(x.difference(&y), from_ids(&(&a - &b)));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = text.parse::<CpuSet>();
            let _ = CpuSet::from_hex_mask(&text);
        }
    }
}
