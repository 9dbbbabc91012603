//! Numbers with their units, as people read them.

/// Bits per second: `200 Gb/s`, `31.5 Gb/s`.
#[must_use]
pub fn bits_text(bits_per_second: u64) -> String {
    scaled(bits_per_second, 1000, &["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"])
}

/// Bytes in binary units: `4 KiB`, `503 GiB`.
#[must_use]
pub fn bytes_text(bytes: u64) -> String {
    scaled(bytes, 1024, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// `1 rail`, `2 rails`.
pub(crate) fn plural(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Three digits at most, one after the point at most.
fn scaled(value: u64, step: u64, units: &[&str]) -> String {
    let mut unit = 0;
    let mut size = 1_u128;
    let value = u128::from(value);
    while unit + 1 < units.len() && value >= size * u128::from(step) {
        size *= u128::from(step);
        unit += 1;
    }
    let tenths = (value * 10 + size / 2) / size;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {}", units[unit]),
        (whole, _) if whole >= 100 => format!("{} {}", (tenths + 5) / 10, units[unit]),
        (whole, part) => format!("{whole}.{part} {}", units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_at_most() {
        let cases = [
            (0, "0 b/s"),
            (31_507_692_307, "31.5 Gb/s"),
            (252_061_538_461, "252 Gb/s"),
            (1_600_000_000_000, "1.6 Tb/s"),
            (400_000_000_000, "400 Gb/s"),
        ];
        for (bits, text) in cases {
            assert_eq!(bits_text(bits), text);
        }
        assert_eq!(bytes_text(4096), "4 KiB");
        assert_eq!(bytes_text(u64::MAX), "16384 PiB");
    }
}
