//! Memory by prefixes of keys, estimated from a random sample of documents.
//!
//! ```text
//!   sample     n of N documents, drawn in groups of the index: its prefix, its bytes as allocated
//!   a prefix   n_i of the sample, y_i bytes of y       share of documents n_i / n, share of bytes y_i / y
//!   interval   of documents: Wilson's; of bytes: of a ratio of sums, by its variance;
//!              both for 95 %, wider by the root of the design effect,
//!              and narrower by sqrt(1 - n / N), since none is drawn twice
//! ```
//! Groups have the same chance, so documents do. But keys that resemble each other are not spread over vBuckets like
//! random ones: CRC-32 is linear. So documents of one group may be more alike than those of a random sample. The design
//! effect is how much larger that makes a variance: the one of sums over groups, in relation to the one above.
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
use crate::work::Party;
use crate::{Console, Refusal};

/// Documents of a sample, and least and most of them: few groups of the index tell nothing, or there are none.
const SAMPLE: u64 = 16 << 10;
const SAMPLE_LEAST: u64 = 256;
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

/// Sums over the groups of the index, of products of what they have of a prefix, `y`, and in all, `x`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Products {
    yy: f64,
    yx: f64,
}

impl Products {
    fn add(&mut self, y: f64, x: f64) {
        self.yy += y * y;
        self.yx += y * x;
    }

    /// The variance of the sum of `y - share * x`.
    fn variance(&self, share: f64, all: &Self) -> f64 {
        (self.yy - 2.0 * share * self.yx + share * share * all.yy).max(0.0)
    }
}

/// A prefix: its documents, and those of them that are in the present group of the index.
#[derive(Debug, Clone, Copy, Default)]
struct Prefix {
    sums: Sums,
    present: Sums,
    documents: Products,
    bytes: Products,
}

impl Prefix {
    fn end_group(&mut self, all: &Sums) {
        self.documents.add(self.present.documents, all.documents);
        self.bytes.add(self.present.bytes, all.bytes);
        self.present = Sums::default();
    }
}

/// All of a sample.
#[derive(Default)]
struct Drawn {
    prefixes: HashMap<Vec<u8>, Prefix>,
    all: Prefix,
    group: u64,
    /// The prefixes in the present group.
    met: Vec<Vec<u8>>,
}

impl Drawn {
    fn add(&mut self, group: u64, prefix: &[u8], sums: &Sums) {
        if group != self.group {
            self.end_group();
            self.group = group;
        }
        if !self.prefixes.contains_key(prefix) {
            self.prefixes.insert(prefix.to_vec(), Prefix::default());
        }
        if let Some(known) = self.prefixes.get_mut(prefix) {
            if known.present.documents == 0.0 {
                self.met.push(prefix.to_vec());
            }
            known.sums.add(sums);
            known.present.add(sums);
        }
        self.all.sums.add(sums);
        self.all.present.add(sums);
    }

    fn end_group(&mut self) {
        let all = self.all.present;
        for prefix in self.met.drain(..) {
            self.prefixes.get_mut(&prefix).into_iter().for_each(|known| known.end_group(&all));
        }
        self.all.end_group(&all);
    }
}

/// `GET /pools/default/buckets/B/prefixes`.
pub async fn show(State(console): State<Console>, party: Party, uri: Uri) -> Response {
    let parsed = Place::of(&uri).and_then(|mut place| {
        let wanted = Wanted::of(&mut place)?;
        Ok((place, wanted))
    });
    let (place, wanted) = match parsed {
        Ok(parsed) => parsed,
        Err(refusal) => return refused(refusal),
    };
    match console.walk(&party, move |console| estimate(&console, &place, &wanted)).await {
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
    let mut drawn = Drawn::default();
    let chance = walk::chance(wanted.sample.max(SAMPLE_LEAST), items);
    let walked = walk::sample(console, &bucket, chance, false, &mut |group, key, document| {
        if collection.is_none_or(|id| id == key.collection) {
            drawn.add(group, wanted.prefix(key.bytes), &Sums::of(document));
        }
        true
    })?;
    drawn.end_group();
    let all = drawn.all.sums;
    // Documents come and go, and some that have expired are still counted.
    let items = if walked.is_complete { all.documents } else { (items as f64).max(all.documents) };
    let whole = Whole { all, items, is_exact: walked.is_complete };
    let mut prefixes: Vec<_> = drawn.prefixes.into_iter().collect();
    prefixes.sort_unstable_by(|(one, a), (other, b)| {
        b.sums.bytes.total_cmp(&a.sums.bytes).then_with(|| one.cmp(other))
    });
    let rest = prefixes.split_off(prefixes.len().min(LISTED));
    // Of the rest together the products are not known.
    let mut most = Effects::default();
    let listed: Vec<Value> = prefixes
        .iter()
        .map(|(prefix, known)| {
            let effects = whole.effects(known, &drawn.all);
            most = most.or(effects);
            let mut group = whole.describe(&known.sums, effects);
            group["prefix"] = json!(std::str::from_utf8(prefix).ok());
            group["encoded"] = json!(encoded(prefix));
            group
        })
        .collect();
    let mut others = Sums::default();
    rest.iter().for_each(|(_, known)| others.add(&known.sums));
    let mut others = whole.describe(&others, most);
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

/// Design effects, at least 1: of shares of documents, and of bytes.
#[derive(Debug, Clone, Copy)]
struct Effects {
    documents: f64,
    bytes: f64,
}

impl Default for Effects {
    fn default() -> Self {
        Self { documents: 1.0, bytes: 1.0 }
    }
}

impl Effects {
    fn or(self, other: Self) -> Self {
        Self { documents: self.documents.max(other.documents), bytes: self.bytes.max(other.bytes) }
    }
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

    fn effects(&self, prefix: &Prefix, all: &Prefix) -> Effects {
        let (n, sums) = (self.all.documents, &prefix.sums);
        let item_share = ratio(sums.documents, n);
        let of_documents = n * item_share * (1.0 - item_share);
        let byte_share = ratio(sums.bytes, self.all.bytes);
        let effect = |grouped: f64, single: f64| if single > 0.0 { (grouped / single).max(1.0) } else { 1.0 };
        Effects {
            documents: effect(prefix.documents.variance(item_share, &all.documents), of_documents),
            bytes: effect(prefix.bytes.variance(byte_share, &all.bytes), self.byte_variance(sums)),
        }
    }

    /// The variance of a sum of bytes less its share of all: the deviations are y (1 - R) with the prefix and -y R
    /// without it.
    fn byte_variance(&self, sums: &Sums) -> f64 {
        let share = ratio(sums.bytes, self.all.bytes);
        let inside = sums.squares * (1.0 - share) * (1.0 - share);
        inside + (self.all.squares - sums.squares).max(0.0) * share * share
    }

    fn describe(&self, sums: &Sums, effects: Effects) -> Value {
        let (item_share, byte_share) =
            (ratio(sums.documents, self.all.documents), ratio(sums.bytes, self.all.bytes));
        json!({
            "sampled": rounded(sums.documents),
            "items": rounded(item_share * self.items),
            "itemShare": item_share,
            "itemShareInterval": self.item_interval(sums, effects.documents),
            "bytes": rounded(byte_share * self.mean_bytes() * self.items),
            "byteShare": byte_share,
            "byteShareInterval": self.byte_interval(sums, effects.bytes),
            "meanValueBytes": ratio(sums.value_bytes, sums.documents),
            "withExpiry": ratio(sums.with_expiry, sums.documents),
        })
    }

    /// Wilson's interval, of as many documents as would be as certain if they were drawn one by one.
    fn item_interval(&self, sums: &Sums, effect: f64) -> [f64; 2] {
        let (n, share) = (self.all.documents / effect, ratio(sums.documents, self.all.documents));
        let z = Z * self.correction();
        if z == 0.0 {
            return [share, share];
        }
        if n == 0.0 {
            return [0.0, 1.0];
        }
        let middle = (share + z * z / (2.0 * n)) / (1.0 + z * z / n);
        let half = z / (1.0 + z * z / n) * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
        within(middle, half)
    }

    /// The interval of a ratio of sums.
    fn byte_interval(&self, sums: &Sums, effect: f64) -> [f64; 2] {
        let (n, share) = (self.all.documents, ratio(sums.bytes, self.all.bytes));
        if n < 2.0 || self.all.bytes == 0.0 {
            return if self.is_exact { [share, share] } else { [0.0, 1.0] };
        }
        let deviation = (self.byte_variance(sums) * effect * n / (n - 1.0)).sqrt() / self.all.bytes;
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
        let [low, high] = whole.item_interval(&group, 1.0);
        assert!((low - 0.2101).abs() < 1e-4 && (high - 0.2947).abs() < 1e-4, "{low} {high}");
        let [low, high] = whole.byte_interval(&group, 1.0);
        assert!((low - 0.2075).abs() < 1e-4 && (high - 0.2925).abs() < 1e-4, "{low} {high}");
        let exact = Whole { is_exact: true, items: 400.0, ..whole };
        assert_eq!(exact.item_interval(&group, 1.0), [0.25, 0.25]);
        assert_eq!(exact.byte_interval(&group, 1.0), [0.25, 0.25]);
    }

    #[test]
    fn one_large_document_makes_the_bytes_uncertain() {
        let mut all = sums(99, 100);
        let large = sums(1, 10_000);
        all.add(&large);
        let whole = Whole { all, items: 1e9, is_exact: false };
        let [low, high] = whole.byte_interval(&large, 1.0);
        assert!(low < 0.05 && high > 0.95, "{low} {high}");
    }

    /// Half of the documents seen: narrower by the square root of a half.
    #[test]
    fn what_is_not_drawn_twice_is_more_certain() {
        let (all, group) = (sums(400, 100), sums(100, 100));
        let width = |items| {
            let [low, high] = Whole { all, items, is_exact: false }.byte_interval(&group, 1.0);
            high - low
        };
        assert!((width(800.0) / width(1e12) - 0.5_f64.sqrt()).abs() < 1e-6);
    }

    /// Groups that have either one prefix or the other tell no more than one document each.
    #[test]
    fn documents_that_are_alike_in_a_group_count_once() {
        let intervals = |is_alike: bool| {
            let mut drawn = Drawn::default();
            for number in 0..10_000_u64 {
                let group = number / 20;
                let which = if is_alike { group } else { number };
                drawn.add(group, if which % 4 == 0 { b"a:" } else { b"b:" }, &sums(1, 100));
            }
            drawn.end_group();
            let whole = Whole { all: drawn.all.sums, items: 1e9, is_exact: false };
            let a = &drawn.prefixes[b"a:".as_slice()];
            let effects = whole.effects(a, &drawn.all);
            let width = |[low, high]: [f64; 2]| high - low;
            (
                effects,
                width(whole.item_interval(&a.sums, effects.documents)),
                width(whole.byte_interval(&a.sums, effects.bytes)),
            )
        };
        let (effects, documents, bytes) = intervals(true);
        assert!(
            (effects.documents - 20.0).abs() < 1e-6 && (effects.bytes - 20.0).abs() < 1e-6,
            "{effects:?}"
        );
        let (spread, least_documents, least_bytes) = intervals(false);
        assert!(spread.documents == 1.0 && spread.bytes == 1.0, "{spread:?}");
        assert!((documents / least_documents - 20_f64.sqrt()).abs() < 0.05, "{documents} {least_documents}");
        assert!((bytes / least_bytes - 20_f64.sqrt()).abs() < 0.05, "{bytes} {least_bytes}");
    }

    #[test]
    fn nothing_is_no_division_by_zero() {
        let whole = Whole { all: Sums::default(), items: 0.0, is_exact: true };
        let described = whole.describe(&Sums::default(), Effects::default()).to_string();
        assert!(!described.contains("null"), "{described}");
        let unknown = Whole { items: 7.0, is_exact: false, ..whole };
        assert_eq!(unknown.item_interval(&Sums::default(), 1.0), [0.0, 1.0]);
        assert_eq!(unknown.byte_interval(&Sums::default(), 1.0), [0.0, 1.0]);
    }
}
