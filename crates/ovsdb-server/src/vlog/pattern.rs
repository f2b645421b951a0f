//! Formats lines from patterns such as `%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m`.
//!
//! A `%` may be followed by `-` (left), `0` (zeros) and a width. All times are UTC.

use super::levels::name_of;
use net::ovsdb::Level;
use std::fmt::Write as _;
use std::time::Duration;

const SECONDS_PER_DAY: u64 = 86_400;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
/// What `%d` and `%D` mean without a pattern of their own.
const DATE: &str = "%Y-%m-%d %H:%M:%S.###";

/// The fields of a line.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    pub program: &'a str,
    pub module: &'a str,
    pub part: &'a str,
    pub level: Level,
    pub number: u64,
    /// Since 1970.
    pub time: Duration,
    pub facility: u8,
    pub text: &'a str,
}

/// Severities in the system log.
fn severity(level: Level) -> u8 {
    match level {
        Level::Emergency => 1,
        Level::Error => 3,
        Level::Warning => 4,
        Level::Information => 5,
        Level::Debug => 7,
    }
}

impl Line<'_> {
    /// Formats the line with a pattern.
    pub fn format(&self, pattern: &str) -> String {
        let mut out = String::new();
        let mut rest = pattern;
        while let Some(at) = rest.find('%') {
            let (before, after) = rest.split_at(at);
            out.push_str(before);
            rest = self.field(after.get(1..).unwrap_or_default(), &mut out);
        }
        out.push_str(rest);
        out
    }

    /// Formats one field. Returns the rest of the pattern.
    fn field<'p>(&self, mut rest: &'p str, out: &mut String) -> &'p str {
        let left = rest.strip_prefix('-').inspect(|after| rest = after).is_some();
        let zeros = rest.strip_prefix('0').inspect(|after| rest = after).is_some();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (width, after) = rest.split_at(digits);
        // No line needs more width; the bound keeps a typing error from filling the memory.
        let width = width.parse::<usize>().unwrap_or(0).min(200);
        let mut letters = after.chars();
        let letter = letters.next();
        rest = letters.as_str();
        let mut value = String::new();
        match letter {
            Some('A') => value.push_str(self.program),
            Some('B') => {
                let _ = write!(value, "{}", u16::from(self.facility) * 8 + u16::from(severity(self.level)));
            }
            Some('c') => value.push_str(self.module),
            Some('d' | 'D') => {
                let mut date = DATE;
                if let Some(inside) = rest.strip_prefix('{')
                    && let Some(end) = inside.find('}')
                {
                    let (pattern, after) = inside.split_at(end);
                    date = pattern;
                    rest = after.get(1..).unwrap_or_default();
                }
                value = time_text(date, self.time);
            }
            Some('E') => value.push_str(&host_name()),
            Some('m') => value.push_str(self.text),
            Some('N') => {
                let _ = write!(value, "{}", self.number);
            }
            Some('n') => value.push('\n'),
            Some('p') => value.push_str(name_of(Some(self.level))),
            Some('P') => {
                let _ = write!(value, "{}", std::process::id());
            }
            Some('r') => {
                let _ = write!(value, "{}", self.time.as_millis());
            }
            Some('t') => value.push_str(if self.part.is_empty() { "main" } else { self.part }),
            Some('T') if self.part.is_empty() => {}
            Some('T') => {
                let _ = write!(value, "({})", self.part);
            }
            Some(other) => value.push(other),
            None => value.push('%'),
        }
        let missing = width.saturating_sub(value.chars().count());
        let padding = if zeros { "0" } else { " " }.repeat(missing);
        if left {
            out.push_str(&value);
            out.push_str(&padding);
        } else {
            out.push_str(&padding);
            out.push_str(&value);
        }
        rest
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A UTC time in the syntax of `strftime`, as far as log patterns use it; `#` are digits of the fraction of a second.
fn time_text(pattern: &str, time: Duration) -> String {
    let (days, second_of_day) = (time.as_secs() / SECONDS_PER_DAY, time.as_secs() % SECONDS_PER_DAY);
    let (year, month, day) = date_of(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let name = |names: &[&'static str], at: u64| {
        usize::try_from(at).ok().and_then(|at| names.get(at).copied()).unwrap_or_default()
    };
    let mut out = String::new();
    let mut fraction = format!("{:09}", time.subsec_nanos()).into_bytes().into_iter();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        // Writing to a string does not fail.
        let _ = match letter {
            '#' => {
                out.push(fraction.next().map_or('0', char::from));
                Ok(())
            }
            '%' => match letters.next() {
                Some('Y') => write!(out, "{year:04}"),
                Some('y') => write!(out, "{:02}", year % 100),
                Some('m') => write!(out, "{month:02}"),
                Some('d') => write!(out, "{day:02}"),
                Some('e') => write!(out, "{day:2}"),
                Some('b' | 'h') => write!(out, "{}", name(&MONTHS, month - 1)),
                Some('a') => write!(out, "{}", name(&DAYS, days % 7)),
                Some('H') => write!(out, "{hour:02}"),
                Some('M') => write!(out, "{minute:02}"),
                Some('S') => write!(out, "{second:02}"),
                Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
                Some('F') => write!(out, "{year:04}-{month:02}-{day:02}"),
                Some('s') => write!(out, "{}", time.as_secs()),
                Some('z') => write!(out, "+0000"),
                Some('Z') => write!(out, "UTC"),
                Some('%') | None => write!(out, "%"),
                Some(other) => write!(out, "%{other}"),
            },
            other => {
                out.push(other);
                Ok(())
            }
        };
    }
    out
}

/// Year, month and day in the Gregorian calendar, from days since 1970.
fn date_of(days: u64) -> (u64, u64, u64) {
    // Years are counted from March, so that the leap day is the last; eras are of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line<'_> {
        Line {
            program: "ovsdb-server",
            module: "vlog",
            part: "",
            level: Level::Information,
            number: 7,
            time: Duration::new(1_795_166_649, 123_456_789),
            facility: 3,
            text,
        }
    }

    #[test]
    fn lines_are_as_the_stock_server_writes_them() {
        let line = line("opened log file x");
        assert_eq!(
            line.format("%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m"),
            "2026-11-20T09:24:09.123Z|00007|vlog|INFO|opened log file x"
        );
        assert_eq!(
            line.format("<%B>%D{%h %e %T} %A: %m%%"),
            "<29>Nov 20 09:24:09 ovsdb-server: opened log file x%"
        );
        assert_eq!(line.format("%5p|%-5p|%05N|%D"), " INFO|INFO |00007|2026-11-20 09:24:09.123");
        let part = Line { part: "monitor", ..line };
        assert_eq!(part.format("%c%T"), "vlog(monitor)");
    }

    #[test]
    fn the_calendar_is_right() {
        assert_eq!(date_of(0), (1970, 1, 1));
        assert_eq!(date_of(59), (1970, 3, 1));
        assert_eq!(date_of(11_016), (2000, 2, 29));
        assert_eq!(date_of(20_147), (2025, 2, 28));
        assert_eq!(date_of(47_541), (2100, 3, 1));
    }
}
