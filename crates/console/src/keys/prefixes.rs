//! Memory by prefixes of keys, estimated from a random sample of documents.
//!
//! ```text
//!   sample     n of N documents, each with the same chance: its prefix, its bytes as allocated
//!   a group    n_i of the sample, y_i bytes of y       share of documents n_i / n, share of bytes y_i / y
//!   interval   of documents: Wilson's; of bytes: of a ratio of sums, by its variance;
//!              both for 95 %, and narrower by sqrt(1 - n / N), since none is drawn twice
//! ```
//! If the sample is the whole, the shares are exact and the intervals are empty.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use kv::{Document, KvError};
use serde_json::{Value, json};

use super::place::{Place, encoded};
use super::{Refused, collection_of, walk};
use crate::buckets::{invalid, refused};
use crate::{Console, Refusal};

/// Documents of a sample, and most of them.
const SAMPLE: u64 = 16 << 10;
const SAMPLE_MAX: u64 = 64 << 10;
/// Groups that are listed; the rest are summed up.
const LISTED: usize = 50;
/// Longest separator.
const SEPARATOR_MAX: usize = 16;
/// Most separators that a prefix may have.
const DEPTH_MAX: u64 = 8;
/// The quantile of the normal distribution that leaves 2.5 % on either side.
const Z: f64 = 1.959_964;

/// How keys are grouped, and how many are drawn.
struct Wanted {
    separator: Vec<u8>,
    depth: u64,
    sample: u64,
}

impl Wanted {
    fn of(place: &mut Place) -> Result<Self, Refusal> {
        let separator = place.take("separator").unwrap_or_else(|| b":".to_vec());
        if separator.is_empty() || separator.len() > SEPARATOR_MAX {
            return Err(invalid("separator", format!("Allowed: 1 to {SEPARATOR_MAX} bytes.")));
        }
        let depth = place.take_number("depth", 1..=DEPTH_MAX)?.unwrap_or(1);
        let sample = place.take_number("sample", 1..=SAMPLE_MAX)?.unwrap_or(SAMPLE);
        place.end("scope, collection, separator, depth, sample")?;
        Ok(Self { separator, depth, sample })
    }

    /// The key up to its separator of this depth, or up to its last one; empty without any.
    fn prefix<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        let (mut end, mut depth) = (0, 0);
        while depth < self.depth
            && let Some(rest) = key.get(end..)
            && let Some(at) = rest.windows(self.separator.len()).position(|part| part == self.separator)
        {
            end += at + self.separator.len();
            depth += 1;
        }
        key.get(..end).unwrap_or_default()
    }
}

/// Sums over the documents of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    documents: f64,
    /// Bytes as allocated, and their squares.
    bytes: f64,
    squares: f64,
    value_bytes: f64,
    with_expiry: f64,
}

impl Sums {
    fn of(document: &Document<'_>) -> Self {
        let bytes = document.footprint() as f64;
        Self {
            documents: 1.0,
            bytes,
            squares: bytes * bytes,
            value_bytes: document.noted_value_len() as f64,
            with_expiry: if document.expiry() == 0 { 0.0 } else { 1.0 },
        }
    }

    fn add(&mut self, other: &Self) {
        self.documents += other.documents;
        self.bytes += other.bytes;
        self.squares += other.squares;
        self.value_bytes += other.value_bytes;
        self.with_expiry += other.with_expiry;
    }
}

/// `GET /pools/default/buckets/B/prefixes`.
pub async fn show(State(console): State<Console>, uri: Uri) -> Response {
    let parsed = Place::of(&uri).and_then(|mut place| {
        let wanted = Wanted::of(&mut place)?;
        Ok((place, wanted))
    });
    let (place, wanted) = match parsed {
        Ok(parsed) => parsed,
        Err(refusal) => return refused(refusal),
    };
    match console.walk(move |console| estimate(&console, &place, &wanted)).await {
        Ok(Ok(document)) => Json(document).into_response(),
        Ok(Err(refused)) => refused.into_response(),
        Err(refusal) => refused(refusal),
    }
}

fn estimate(console: &Console, place: &Place, wanted: &Wanted) -> Result<Value, Refused> {
    let (bucket, collection) = match &place.collection {
        Some(_) => collection_of(console, place).map(|(bucket, id)| (bucket, Some(id)))?,
        None => (console.node.bucket(&place.bucket).ok_or(KvError::BucketGone)?, None),
    };
    let items = match collection {
        Some(id) => bucket.collection_items(id),
        None => bucket.accounts().items,
    };
    let (mut groups, mut all) = (HashMap::<Vec<u8>, Sums>::new(), Sums::default());
    let walked = walk::sample(console, &bucket, wanted.sample, items, &mut |key, document| {
        if collection.is_some_and(|id| id != key.collection) {
            return false;
        }
        let (prefix, sums) = (wanted.prefix(key.bytes), Sums::of(document));
        all.add(&sums);
        match groups.get_mut(prefix) {
            Some(group) => group.add(&sums),
            None => drop(groups.insert(prefix.to_vec(), sums)),
        }
        true
    })?;
    // Documents come and go, and some that have expired are still counted.
    let items = if walked.is_complete { all.documents } else { (items as f64).max(all.documents) };
    let whole = Whole { all, items, is_exact: walked.is_complete };
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_unstable_by(|(one, a), (other, b)| b.bytes.total_cmp(&a.bytes).then_with(|| one.cmp(other)));
    let rest = groups.split_off(groups.len().min(LISTED));
    let listed: Vec<Value> = groups
        .iter()
        .map(|(prefix, sums)| {
            let mut group = whole.describe(sums);
            group["prefix"] = json!(std::str::from_utf8(prefix).ok());
            group["encoded"] = json!(encoded(prefix));
            group
        })
        .collect();
    let mut others = Sums::default();
    rest.iter().for_each(|(_, sums)| others.add(sums));
    let mut others = whole.describe(&others);
    others["prefixes"] = json!(rest.len());
    Ok(json!({
        "items": rounded(items),
        "bytes": rounded(whole.mean_bytes() * items),
        "sampled": rounded(all.documents),
        "fraction": if items > 0.0 { all.documents / items } else { 1.0 },
        "exact": walked.is_complete,
        "closedVBuckets": walked.closed_vbuckets,
        "depth": wanted.depth,
        "prefixes": listed,
        "others": others,
    }))
}

/// What the sample is drawn from, and its sums.
struct Whole {
    all: Sums,
    items: f64,
    is_exact: bool,
}

impl Whole {
    fn mean_bytes(&self) -> f64 {
        ratio(self.all.bytes, self.all.documents)
    }

    /// How much narrower an interval is because no document is drawn twice.
    fn correction(&self) -> f64 {
        if self.is_exact { 0.0 } else { (1.0 - ratio(self.all.documents, self.items)).max(0.0).sqrt() }
    }

    fn describe(&self, sums: &Sums) -> Value {
        let (item_share, byte_share) =
            (ratio(sums.documents, self.all.documents), ratio(sums.bytes, self.all.bytes));
        json!({
            "sampled": rounded(sums.documents),
            "items": rounded(item_share * self.items),
            "itemShare": item_share,
            "itemShareInterval": self.item_interval(sums),
            "bytes": rounded(byte_share * self.mean_bytes() * self.items),
            "byteShare": byte_share,
            "byteShareInterval": self.byte_interval(sums),
            "meanValueBytes": ratio(sums.value_bytes, sums.documents),
            "withExpiry": ratio(sums.with_expiry, sums.documents),
        })
    }

    /// Wilson's interval.
    fn item_interval(&self, sums: &Sums) -> [f64; 2] {
        let (n, share) = (self.all.documents, ratio(sums.documents, self.all.documents));
        let z = Z * self.correction();
        if n == 0.0 || z == 0.0 {
            return [share, share];
        }
        let middle = (share + z * z / (2.0 * n)) / (1.0 + z * z / n);
        let half = z / (1.0 + z * z / n) * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
        within(middle, half)
    }

    /// The interval of a ratio of sums: the deviations are y (1 - R) in the group and -y R outside.
    fn byte_interval(&self, sums: &Sums) -> [f64; 2] {
        let (n, share) = (self.all.documents, ratio(sums.bytes, self.all.bytes));
        if n < 2.0 || self.all.bytes == 0.0 {
            return if self.is_exact { [share, share] } else { [0.0, 1.0] };
        }
        let inside = sums.squares * (1.0 - share) * (1.0 - share);
        let outside = (self.all.squares - sums.squares).max(0.0) * share * share;
        let deviation = ((inside + outside) * n / (n - 1.0)).sqrt() / self.all.bytes;
        within(share, Z * self.correction() * deviation)
    }
}

fn within(middle: f64, half: f64) -> [f64; 2] {
    [(middle - half).max(0.0), (middle + half).min(1.0)]
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A count, which is not negative.
fn rounded(count: f64) -> u64 {
    count.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_with_their_separator() {
        let prefix = |separator: &str, depth, key: &str| {
            let wanted = Wanted { separator: separator.into(), depth, sample: 1 };
            String::from_utf8(wanted.prefix(key.as_bytes()).to_vec()).unwrap()
        };
        assert_eq!(prefix(":", 1, "user:7:name"), "user:");
        assert_eq!(prefix(":", 2, "user:7:name"), "user:7:");
        assert_eq!(prefix(":", 3, "user:7:name"), "user:7:");
        assert_eq!(prefix("::", 1, "a:b::c"), "a:b::");
        assert_eq!(prefix("::", 2, "a:::"), "a::");
        assert_eq!(prefix(":", 1, "plain"), "");
        assert_eq!(prefix(":", 1, ":"), ":");
    }

    fn sums(documents: u32, bytes: u32) -> Sums {
        let (documents, bytes) = (f64::from(documents), f64::from(bytes));
        Sums { documents, bytes: documents * bytes, squares: documents * bytes * bytes, ..Sums::default() }
    }

    /// Equal documents: the interval of the bytes is that of the documents, and both are as in textbooks.
    #[test]
    fn intervals_are_those_of_textbooks() {
        let whole = Whole { all: sums(400, 100), items: 1e9, is_exact: false };
        let group = sums(100, 100);
        let [low, high] = whole.item_interval(&group);
        assert!((low - 0.2101).abs() < 1e-4 && (high - 0.2947).abs() < 1e-4, "{low} {high}");
        let [low, high] = whole.byte_interval(&group);
        assert!((low - 0.2075).abs() < 1e-4 && (high - 0.2925).abs() < 1e-4, "{low} {high}");
        let exact = Whole { is_exact: true, items: 400.0, ..whole };
        assert_eq!(exact.item_interval(&group), [0.25, 0.25]);
        assert_eq!(exact.byte_interval(&group), [0.25, 0.25]);
    }

    #[test]
    fn one_large_document_makes_the_bytes_uncertain() {
        let mut all = sums(99, 100);
        let large = sums(1, 10_000);
        all.add(&large);
        let whole = Whole { all, items: 1e9, is_exact: false };
        let [low, high] = whole.byte_interval(&large);
        assert!(low < 0.05 && high > 0.95, "{low} {high}");
    }

    /// Half of the documents seen: narrower by the square root of a half.
    #[test]
    fn what_is_not_drawn_twice_is_more_certain() {
        let (all, group) = (sums(400, 100), sums(100, 100));
        let width = |items| {
            let [low, high] = Whole { all, items, is_exact: false }.byte_interval(&group);
            high - low
        };
        assert!((width(800.0) / width(1e12) - 0.5_f64.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn nothing_is_no_division_by_zero() {
        let whole = Whole { all: Sums::default(), items: 0.0, is_exact: true };
        let described = whole.describe(&Sums::default()).to_string();
        assert!(!described.contains("null"), "{described}");
    }
}
