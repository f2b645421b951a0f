//! Names that somebody got almost right: of keys and of values in experiment files.

use regex::Regex;
use std::sync::LazyLock;

/// serde's words: the unknown name, and the known ones.
static UNKNOWN: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"unknown (field|variant) `([^`]*)`, expected (.*)").ok());
static QUOTED: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("`([^`]*)`").ok());

/// The candidate that `word` probably means, if one is close enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let near = candidates.into_iter().map(|candidate| (distance(&word, candidate), candidate));
    let near = near.filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1));
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// How many letters must be added, removed, replaced or swapped with their neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // Of each beginning of `a` to each beginning of `b`.
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    let at = |rows: &[Vec<usize>], i: usize, j: usize| rows.get(i).and_then(|row| row.get(j)).copied();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let above = at(&rows, i, j + 1).unwrap_or(0) + 1;
            let left = row.last().copied().unwrap_or(0) + 1;
            let replaced = at(&rows, i, j).unwrap_or(0) + usize::from(x != y);
            let mut best = above.min(left).min(replaced);
            if i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x) {
                best = best.min(at(&rows, i - 1, j - 1).unwrap_or(0) + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    at(&rows, a.len(), b.len()).unwrap_or(0)
}

/// An unknown name that a parser's error tells, and the names that it knows.
pub fn unknown(error: &str) -> Option<(bool, &str, Vec<&str>)> {
    let found = UNKNOWN.as_ref()?.captures(error)?;
    let (kind, word, known) = (found.get(1)?.as_str(), found.get(2)?.as_str(), found.get(3)?.as_str());
    let known = QUOTED.as_ref()?.captures_iter(known).filter_map(|one| Some(one.get(1)?.as_str()));
    Some((kind == "field", word, known.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_are_found_and_far_ones_are_not() {
        let keys = ["items", "key_bytes", "value_bytes", "connections", "requests_per_second"];
        assert_eq!(nearest("conections", keys), Some("connections"));
        assert_eq!(nearest("Itmes", keys), Some("items"));
        assert_eq!(nearest("value_byte", keys), Some("value_bytes"));
        assert_eq!(nearest("elephant", keys), None);
        assert_eq!((distance("abc", "acb"), distance("", "ab"), distance("ab", "ab")), (1, 2, 0));
    }

    #[test]
    fn unknown_names_are_read_from_errors() {
        let error = "TOML parse error\nunknown field `x`, expected one of `a`, `b`\n";
        assert_eq!(unknown(error), Some((true, "x", vec!["a", "b"])));
        let error = "unknown variant `y`, expected `a` or `b`";
        assert_eq!(unknown(error), Some((false, "y", vec!["a", "b"])));
        assert_eq!(unknown("missing field `z`"), None);
    }
}
