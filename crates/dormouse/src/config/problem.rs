//! A mistake in the configuration, as one line: place, key, value, and what is allowed.

use std::fmt;

/// Where a setting was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of a configuration file.
    File {
        /// The file name as given.
        file: String,
        /// Line, counted from 1.
        line: usize,
    },
    /// A command-line flag, with its dashes.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One mistake. Its `Display` is exactly one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    origin: Option<Origin>,
    text: String,
}

impl Problem {
    /// A mistake at a known place.
    pub fn at(origin: &Origin, text: impl Into<String>) -> Self {
        Self { origin: Some(origin.clone()), text: text.into() }
    }

    /// A mistake that does not belong to a single line.
    pub fn new(text: impl Into<String>) -> Self {
        Self { origin: None, text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        // A value may hold line breaks; the message stays one line.
        for (index, part) in self.text.split(['\n', '\r']).filter(|part| !part.trim().is_empty()).enumerate()
        {
            if index > 0 {
                f.write_str(" ")?;
            }
            f.write_str(part.trim_end())?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// The candidate that `word` probably means, if one is close enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edit distance with adjacent transpositions (optimal string alignment), over bytes.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let width = b.len() + 1;
    let mut rows = vec![0usize; (a.len() + 1) * width];
    let at = |i: usize, j: usize| i * width + j;
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[at(i, j)] = if i == 0 || j == 0 {
                i + j
            } else {
                let change = usize::from(a[i - 1] != b[j - 1]);
                let mut best =
                    (rows[at(i - 1, j)] + 1).min(rows[at(i, j - 1)] + 1).min(rows[at(i - 1, j - 1)] + change);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[at(i - 2, j - 2)] + 1);
                }
                best
            };
        }
    }
    rows[at(a.len(), b.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_are_found_and_far_ones_are_not() {
        let keys = ["workers", "memory", "data", "item_size_max"];
        assert_eq!(nearest("wrokers", keys), Some("workers"));
        assert_eq!(nearest("Memroy", keys), Some("memory"));
        assert_eq!(nearest("item_max_size", keys), None);
        assert_eq!(nearest("item_size", keys), Some("item_size_max"));
        assert_eq!(nearest("elephant", keys), None);
    }

    #[test]
    fn a_problem_is_one_line() {
        let origin = Origin::File { file: "a.toml".into(), line: 7 };
        assert_eq!(Problem::at(&origin, "x = \"a\nb\": no").to_string(), "a.toml:7: x = \"a b\": no");
        assert_eq!(Problem::new("one").to_string(), "one");
    }
}
