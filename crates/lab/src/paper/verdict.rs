//! What a new figure says about one of the reference.

/// Figures that differ by less count as equal: machines and versions differ.
const EQUAL: f64 = 0.15;

/// A number with at most two significant digits.
fn times(factor: f64) -> String {
    match factor {
        _ if factor >= 10.0 => format!("{factor:.0}x"),
        _ => format!("{factor:.1}x"),
    }
}

/// `here` compared with `reference`, where less is better.
pub fn less(here: f64, reference: f64) -> String {
    if here <= 0.0 {
        return "nothing here".to_owned();
    }
    match reference / here {
        factor if factor > 1.0 + EQUAL => format!("{} less", times(factor)),
        factor if factor < 1.0 / (1.0 + EQUAL) => format!("{} MORE", times(1.0 / factor)),
        _ => "as much".to_owned(),
    }
}

/// `here` compared with `reference`, where more is better.
pub fn more(here: f64, reference: f64) -> String {
    if here <= 0.0 || reference <= 0.0 {
        return "-".to_owned();
    }
    match here / reference {
        factor if factor > 1.0 + EQUAL => format!("{} as many", times(factor)),
        factor if factor < 1.0 / (1.0 + EQUAL) => format!("{} FEWER", times(1.0 / factor)),
        _ => "as many".to_owned(),
    }
}

/// Whether a peer's figure is that of the reference.
pub fn reproduced(name: &str, here: Option<f64>, reference: f64) -> String {
    match here {
        None => format!("{name} was not measured"),
        Some(here) if (here / reference - 1.0).abs() <= EQUAL => format!("{name} as there"),
        Some(here) => format!("{name} {:+.0} %", (here / reference - 1.0) * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_compare_in_their_direction() {
        assert_eq!(less(3.0, 21.0), "7.0x less");
        assert_eq!(less(42.0, 21.0), "2.0x MORE");
        assert_eq!(less(20.0, 21.0), "as much");
        assert_eq!(less(0.0, 21.0), "nothing here");
        assert_eq!(more(4200.0, 42.0), "100x as many");
        assert_eq!(more(21.0, 42.0), "2.0x FEWER");
        assert_eq!(more(43.0, 42.0), "as many");
    }

    #[test]
    fn a_peer_is_reproduced_missing_or_told_by_how_much_it_differs() {
        assert_eq!(reproduced("redis", Some(95.0), 100.0), "redis as there");
        assert_eq!(reproduced("redis", Some(150.0), 100.0), "redis +50 %");
        assert_eq!(reproduced("redis", None, 100.0), "redis was not measured");
    }
}
