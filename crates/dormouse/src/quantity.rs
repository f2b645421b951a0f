//! Figures as people read them: sizes, shares, rates, durations.

/// A size in the largest binary unit, to three digits: `1.50 GiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut size = value as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = match size {
        _ if unit == 0 || size >= 100.0 => 0,
        _ if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{size:.digits$} {}", UNITS.get(unit).copied().unwrap_or("B"))
}

/// A part of a whole.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { UNKNOWN.to_owned() } else { share(part as f64 / whole as f64) }
}

/// A ratio in per cent.
pub fn share(ratio: f64) -> String {
    if ratio.is_finite() { format!("{:.1} %", 100.0 * ratio) } else { UNKNOWN.to_owned() }
}

/// A rate or a large count, short: `12.3 k`.
pub fn rate(value: f64) -> String {
    match value {
        _ if !value.is_finite() => UNKNOWN.to_owned(),
        _ if value >= 1e9 => format!("{:.2} G", value / 1e9),
        _ if value >= 1e6 => format!("{:.2} M", value / 1e6),
        _ if value >= 1e4 => format!("{:.1} k", value / 1e3),
        _ if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

/// A time in its two largest units: `1 d 3 h`.
pub fn duration(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// What stands for a figure that there is not.
pub const UNKNOWN: &str = "-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_shown() {
        assert_eq!(
            [0, 1023, 1536, 10 << 20, 1 << 60].map(bytes).join(" "),
            "0 B 1023 B 1.50 KiB 10.0 MiB 1048576 TiB"
        );
        assert_eq!(
            [0.0, 0.25, 99.0, 1234.5, 12_345.0, 2e6, 3e9].map(rate).join(" "),
            "0 0.2 99 1234 12.3 k 2.00 M 3.00 G"
        );
        assert_eq!([59, 60, 3661, 90_061].map(duration).join(", "), "59 s, 1 min, 1 h 1 min, 1 d 1 h");
        assert_eq!((percent(1, 3).as_str(), percent(1, 0).as_str()), ("33.3 %", UNKNOWN));
        assert_eq!((rate(f64::NAN).as_str(), share(f64::NAN).as_str()), (UNKNOWN, UNKNOWN));
    }
}
