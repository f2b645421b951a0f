//! What a new figure says about one of the reference.

/// Figures that differ by less count as equal: machines and versions differ.
const EQUAL: f64 = 0.15;

/// A factor, without digits that mean nothing.
fn times(factor: f64) -> String {
    match factor {
        _ if factor >= 10.0 => format!("{factor:.0}x"),
        _ => format!("{factor:.1}x"),
    }
}

/// `here` compared with `reference`, where less is better.
pub fn less(here: f64, reference: f64) -> String {
    if here <= 0.0 {
        return "none at all".to_owned();
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

/// Whether a peer's figures, in order, are those of the reference.
pub fn reproduced(name: &str, here: &[Option<f64>], reference: &[f64]) -> String {
    let pairs = here.iter().zip(reference);
    let change = |(here, there): (&Option<f64>, &f64)| here.map(|here| here / there - 1.0);
    let changes: Vec<Option<f64>> = pairs.map(change).collect();
    if changes.iter().all(Option::is_none) {
        return format!("{name} was not measured");
    }
    if changes.iter().flatten().all(|change| change.abs() <= EQUAL) {
        return format!("{name} as there");
    }
    let shown = |change: &Option<f64>| match change {
        Some(change) => format!("{:+.0} %", change * 100.0),
        None => "-".to_owned(),
    };
    format!("{name} {}", changes.iter().map(shown).collect::<Vec<_>>().join(" / "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_compare_in_their_direction() {
        assert_eq!(less(3.0, 21.0), "7.0x less");
        assert_eq!(less(42.0, 21.0), "2.0x MORE");
        assert_eq!(less(20.0, 21.0), "as much");
        assert_eq!(less(0.0, 21.0), "none at all");
        assert_eq!(more(4200.0, 42.0), "100x as many");
        assert_eq!(more(21.0, 42.0), "2.0x FEWER");
        assert_eq!(more(43.0, 42.0), "as many");
    }

    #[test]
    fn a_peer_is_reproduced_missing_or_told_by_how_much_it_differs() {
        assert_eq!(reproduced("redis", &[Some(95.0), None], &[100.0, 1.0]), "redis as there");
        assert_eq!(reproduced("redis", &[Some(150.0), None], &[100.0, 1.0]), "redis +50 % / -");
        // Half and half as much again are not the same on the mean.
        assert_eq!(reproduced("redis", &[Some(50.0), Some(150.0)], &[100.0, 100.0]), "redis -50 % / +50 %");
        assert_eq!(reproduced("redis", &[None], &[100.0]), "redis was not measured");
    }
}
