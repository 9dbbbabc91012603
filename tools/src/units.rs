//! Numbers with units: sizes and ranges as typed, sizes, rates and times as shown.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Suffixes of sizes. As in dd and fio, a single letter counts in powers of 1,024.
const SUFFIXES: &[(&str, u64)] = &[
    ("", 1),
    ("B", 1),
    ("K", 1 << 10),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
    ("T", 1 << 40),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// A number of bytes, typed as `4096`, `64KiB`, `4M` or `1GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    #[error("a size begins with digits: write 4096, 64KiB, 4M or 1GB")]
    NoDigits,
    #[error("unknown unit '{unit}': use K, M, G, T (or KiB, MiB, ...) or KB, MB, GB, TB")]
    Unit { unit: String },
    #[error("sizes go up to {} bytes", u64::MAX)]
    TooLarge,
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(SizeError::NoDigits);
        }
        let unit = unit.trim_start();
        let (_, factor) = SUFFIXES
            .iter()
            .find(|(suffix, _)| suffix.eq_ignore_ascii_case(unit))
            .ok_or_else(|| SizeError::Unit { unit: unit.to_owned() })?;
        // Digits only, so the one thing that can go wrong is too many of them.
        let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
        number.checked_mul(*factor).map(Size).ok_or(SizeError::TooLarge)
    }
}

/// A time, typed as `20us`, `1ms` or `500ns`, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) u64);

/// Why a text is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a time is a number and a unit: 500ns, 20us, 1ms or 2s, up to 1000 s")]
pub(crate) struct SpanError;

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor = match unit.trim_start() {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return Err(SpanError),
        };
        let number: u64 = number.parse().map_err(|_| SpanError)?;
        let nanoseconds = number.checked_mul(factor).filter(|ns| *ns <= 1_000_000_000_000);
        nanoseconds.map(Span).ok_or(SpanError)
    }
}

/// A range of bytes, typed as `A..B`, `A..` or `..B`; B is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    /// The end, exclusive; none: the object's.
    pub(crate) end: Option<u64>,
}

/// Why a text is not a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RangeError {
    #[error("a range is A..B, A.. or ..B, in bytes; units are fine: 1M..2M")]
    NotARange,
    #[error("in {which}: {source}")]
    Size { which: &'static str, source: SizeError },
    #[error("it ends at {end}, before it starts at {start}")]
    Backwards { start: u64, end: u64 },
}

impl FromStr for ByteRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let (start, end) = text.split_once("..").ok_or(RangeError::NotARange)?;
        let size = |which, text: &str| {
            let parsed = text.parse().map(|Size(bytes)| bytes);
            parsed.map_err(|source| RangeError::Size { which, source })
        };
        let start = if start.is_empty() { 0 } else { size("the start", start)? };
        let end = if end.is_empty() { None } else { Some(size("the end", end)?) };
        match end {
            Some(end) if end < start => Err(RangeError::Backwards { start, end }),
            _ => Ok(ByteRange { start, end }),
        }
    }
}

/// Shows bytes in the largest binary unit that leaves a number of at least 1: `4 MiB`, `146.5 MiB`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let found = units.into_iter().find(|(_, shift)| self.0 >> shift > 0);
        let text = match found {
            None => format!("{} B", self.0),
            Some((unit, shift)) if self.0.trailing_zeros() >= shift => {
                format!("{} {unit}", self.0 >> shift)
            }
            Some((unit, shift)) => format!("{:.1} {unit}", ratio(self.0, 1 << shift)),
        };
        f.pad(&text)
    }
}

/// Shows a rate in decimal units, as disks and networks are sold: `512 MB/s`, `1.73 GB/s`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate(pub(crate) f64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            rate if rate >= 1e9 => format!("{:.2} GB/s", rate / 1e9),
            rate if rate >= 1e7 => format!("{:.0} MB/s", rate / 1e6),
            rate if rate >= 1e6 => format!("{:.1} MB/s", rate / 1e6),
            rate => format!("{:.0} kB/s", rate / 1e3),
        };
        f.pad(&text)
    }
}

/// Shows a time with two or three digits that matter: `850 ns`, `12.3 us`, `4.1 ms`, `2.3 s`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time(pub(crate) Duration);

impl Time {
    pub(crate) fn from_ns(nanoseconds: u64) -> Self {
        Time(Duration::from_nanos(nanoseconds))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (number, unit) = match self.0.as_nanos() {
            0..1_000 => (seconds * 1e9, "ns"),
            1_000..1_000_000 => (seconds * 1e6, "us"),
            1_000_000..1_000_000_000 => (seconds * 1e3, "ms"),
            _ => (seconds, "s"),
        };
        let digits = usize::from(number < 100.0 && unit != "ns");
        f.pad(&format!("{number:.digits$} {unit}"))
    }
}

/// Shows a count with commas between the thousands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count(pub(crate) u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() * 4 / 3);
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// `1 stripe`, `2 stripes`.
pub(crate) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", Count(count), if count == 1 { one } else { many })
}

/// A quotient for people.
#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
pub(crate) fn ratio(numerator: u64, denominator: u64) -> f64 {
    numerator as f64 / denominator as f64
}

/// Bytes per second.
pub(crate) fn rate(bytes: u64, time: Duration) -> Rate {
    Rate(ratio(bytes, 1) / time.as_secs_f64().max(1e-9))
}

/// Nanoseconds since 1970 as `2026-01-31 12:34:56Z`.
pub(crate) fn date(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Days since 1970 as year, month and day: Hinnant, "chrono-compatible low-level date algorithms",
/// `civil_from_days`, for days that are not negative.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_based = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_an_end() {
        let parse = |text: &str| text.parse::<Span>().map(|span| span.0);
        assert_eq!(parse("0ns"), Ok(0));
        assert_eq!(parse("20us"), Ok(20_000));
        assert_eq!(parse("1000 s"), Ok(1_000_000_000_000));
        for bad in ["", "5", "us", "-1ms", "1.5ms", "1001s", "99999999999999999999s", "1h"] {
            assert_eq!(parse(bad), Err(SpanError), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_in_both_systems() {
        let sizes = [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65_536),
            ("4M", 4 << 20),
            ("4mib", 4 << 20),
            ("1 GB", 1_000_000_000),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in sizes {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "K", "-1", "4X", "1.5M", "+4", "4 K K"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        for text in ["18446744073709551616", "16777216T", "99999999999999999999999"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::TooLarge), "{text}");
        }
    }

    #[test]
    fn ranges_are_read() {
        let range = |start, end| Ok(ByteRange { start, end });
        assert_eq!("1K..2K".parse(), range(1024, Some(2048)));
        assert_eq!("5..".parse(), range(5, None));
        assert_eq!("..7".parse(), range(0, Some(7)));
        assert_eq!("3..3".parse(), range(3, Some(3)));
        for text in ["", "5", "5..3", "a..b", "0..18446744073709551616", "1-2"] {
            assert!(text.parse::<ByteRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_shown_for_people() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(4 << 20).to_string(), "4 MiB");
        assert_eq!(Bytes(153_621_360).to_string(), "146.5 MiB");
        assert_eq!(Rate(1.729e9).to_string(), "1.73 GB/s");
        assert_eq!(Time::from_ns(850).to_string(), "850 ns");
        assert_eq!(Time::from_ns(12_340).to_string(), "12.3 us");
        assert_eq!(Time::from_ns(412_340).to_string(), "412 us");
        assert_eq!(Count(1_234_567).to_string(), "1,234,567");
        assert_eq!(Count(123).to_string(), "123");
        assert_eq!(date(0), "1970-01-01 00:00:00Z");
        assert_eq!(date(951_782_400_000_000_000), "2000-02-29 00:00:00Z");
        assert_eq!(date(1_798_675_199_000_000_000), "2026-12-30 23:59:59Z");
    }
}
