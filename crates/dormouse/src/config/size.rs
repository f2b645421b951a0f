//! Human-readable sizes in bytes: `512MiB`, `64MB`, `1g`, `4096`.
//!
//! `KiB`, `MiB`, `GiB`, `TiB` and the bare letters `k`, `m`, `g`, `t` are powers of two; `KB`, `MB`, `GB`, `TB` are
//! powers of ten. Case does not matter, and a space may precede the unit.

/// Examples of a size, for messages and help.
pub const FORMS: &str = "such as 512MiB, 64MB or 1g";

const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

/// Parses a size; `None` if it is not one or does not fit 64 bits. A fraction is accepted (`1.5GiB`).
pub fn read(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let (_, factor) = *UNITS.iter().find(|(name, _)| *name == unit)?;
    let number = number.replace('_', "");
    match number.split_once('.') {
        None => number.parse::<u64>().ok()?.checked_mul(factor),
        Some((whole, part)) => {
            let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
            let (digits, scale) = (u32::try_from(part.len()).ok()?, part.parse::<u64>().ok()?);
            let part = u128::from(scale) * u128::from(factor) / 10u128.checked_pow(digits)?;
            whole.checked_add(u64::try_from(part).ok()?)
        }
    }
}

/// Formats a size in the largest binary unit that is exact: `1MiB`, `1536KiB`, `30000000`.
pub fn show(bytes: u64) -> String {
    for (unit, factor) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1024),
            ("64MB", 64_000_000),
            ("512MiB", 512 << 20),
            ("1g", 1 << 30),
            ("1 GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("30mb", 30_000_000),
            ("1_000", 1000),
        ] {
            assert_eq!(read(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_size() {
        for text in [
            "",
            "MiB",
            "-1",
            "5x",
            "1.2.3m",
            "1.",
            "18446744073709551615k",
            "99999999999t",
            "1e9",
            "0x10",
            ".",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn shows_the_largest_exact_unit() {
        for text in ["1MiB", "1536KiB", "20MiB", "30000000", "2GiB", "1TiB", "0"] {
            assert_eq!(show(read(text).expect("a size")), text);
        }
    }
}
