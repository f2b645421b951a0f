//! What a request's path and query name, as bytes: keys may be any bytes, and need not be UTF-8.
//!
//! ```text
//!   /pools/default/buckets/BUCKET/scopes/SCOPE/collections/COLLECTION/docs/KEY?query
//!   /pools/default/buckets/BUCKET/scopes/SCOPE/collections/COLLECTION/docs?key=KEY
//!   /pools/default/buckets/BUCKET/prefixes?scope=SCOPE&collection=COLLECTION
//! ```
//! The second form is for the keys `.` and `..`: clients take them for steps through the path, percent-encoded or not.
//! Rights are checked, and requests executed, with what is parsed here.

use axum::http::Uri;

use crate::Refusal;
use crate::buckets::invalid;

/// The collection that a request is about, or the whole bucket; and the key, if it names one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The bucket.
    pub bucket: String,
    /// The scope and the collection in it.
    pub collection: Option<(String, String)>,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The query's other fields.
    pub fields: Vec<(String, Vec<u8>)>,
}

impl Place {
    /// Parses the address of a request; see above.
    pub fn of(uri: &Uri) -> Result<Self, Refusal> {
        let mut segments = uri.path().split('/').skip(4);
        let mut segment = || segments.next().unwrap_or_default();
        let bucket = text("bucket", segment())?;
        let (mut scope, mut collection, mut key) = (None, None, None);
        if segment() == "scopes" {
            scope = Some(text("scope", segment())?);
            segment();
            collection = Some(text("collection", segment())?);
            segment();
            let last = segment();
            key = (!last.is_empty()).then(|| decoded("key", last.as_bytes(), false)).transpose()?;
        }
        let mut fields = fields(uri.query().unwrap_or_default().as_bytes())?;
        // What the path names is not taken from the query.
        if collection.is_some() {
            key = key.or(take(&mut fields, "key"));
        } else {
            let mut name = |field| take(&mut fields, field).map(String::from_utf8).transpose();
            let not_there = |_| invalid("collection", "Names of scopes and collections are text.");
            scope = name("scope").map_err(not_there)?;
            collection = name("collection").map_err(not_there)?;
        }
        let collection = match (scope, collection) {
            (None, None) => None,
            (Some(scope), Some(collection)) => Some((scope, collection)),
            _ => return Err(invalid("collection", "Give both scope and collection, or neither.")),
        };
        Ok(Self { bucket, collection, key, fields })
    }

    /// Returns bucket, scope and collection, as far as they are named.
    pub fn names(&self) -> Vec<&str> {
        let inner =
            self.collection.iter().flat_map(|(scope, collection)| [scope.as_str(), collection.as_str()]);
        std::iter::once(self.bucket.as_str()).chain(inner).collect()
    }

    /// Returns true if the query has a field that nobody has taken.
    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, _)| field == name)
    }

    /// Takes a field of the query.
    pub fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        take(&mut self.fields, name)
    }

    /// Takes a field that is a number of this range.
    pub fn take_number(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
        let number = number.filter(|number| range.contains(number));
        let allowed = || invalid(name, format!("Allowed: {} to {}.", range.start(), range.end()));
        number.map(Some).ok_or_else(allowed)
    }

    /// Refuses a query with fields that nobody took.
    pub fn end(&self, allowed: &str) -> Result<(), Refusal> {
        match self.fields.first() {
            None => Ok(()),
            Some((name, _)) => Err(invalid("_", format!("Unknown field {name:?}. Allowed: {allowed}."))),
        }
    }
}

fn take(fields: &mut Vec<(String, Vec<u8>)>, name: &str) -> Option<Vec<u8>> {
    let at = fields.iter().position(|(field, _)| field == name)?;
    Some(fields.remove(at).1)
}

fn text(name: &'static str, encoded: &str) -> Result<String, Refusal> {
    let bytes = decoded(name, encoded.as_bytes(), false)?;
    String::from_utf8(bytes).map_err(|_| invalid(name, "Not UTF-8."))
}

/// Parses `name=value&name=value`, percent-encoded, with blanks as `+`. Values are bytes.
pub fn fields(text: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Refusal> {
    let pairs = text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let mut parts = pair.splitn(2, |byte| *byte == b'=');
            let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let name = String::from_utf8(decoded("_", name, true)?);
            let name = name.map_err(|_| invalid("_", "Names of fields are text."))?;
            Ok((name, decoded("_", value, true)?))
        })
        .collect()
}

/// Decodes percent-encoded bytes. `field` is what an error names.
fn decoded(field: &'static str, encoded: &[u8], has_plus: bool) -> Result<Vec<u8>, Refusal> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let (mut bytes, mut rest) = (Vec::with_capacity(encoded.len()), encoded.iter());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => match (digit(rest.next()), digit(rest.next())) {
                // Two digits of 4 bits.
                (Some(high), Some(low)) => (high << 4 | low) as u8,
                _ => {
                    return Err(invalid(field, "A percent sign must be followed by two hexadecimal digits."));
                }
            },
            b'+' if has_plus => b' ',
            byte => *byte,
        });
    }
    Ok(bytes)
}

/// Encodes bytes as a segment of a path, or a value of a query.
pub fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(*byte))
            }
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = "/pools/default/buckets/b/scopes/s/collections/c/docs";

    fn of(text: &str) -> Result<Place, Refusal> {
        Place::of(&text.parse().unwrap())
    }

    #[test]
    fn keys_are_any_bytes() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        for key in [&all[..], b"a/b", b"..", b"\xff", b"100%", b"a+b c", "\u{1f980}".as_bytes()] {
            for address in [format!("{DOCS}/{}", encoded(key)), format!("{DOCS}?key={}", encoded(key))] {
                let place = of(&address).unwrap();
                assert_eq!(place.key.as_deref(), Some(key), "{address}");
                assert_eq!(place.names(), ["b", "s", "c"]);
            }
        }
        for address in [DOCS.to_owned(), format!("{DOCS}/")] {
            assert_eq!(of(&address).unwrap().key, None);
        }
        assert_eq!(of(&format!("{DOCS}/a+b/")).unwrap().key.as_deref(), Some(&b"a+b"[..]));
    }

    #[test]
    fn the_path_wins_over_the_query() {
        let place = of(&format!("{DOCS}/k?key=other&scope=x&collection=y")).unwrap();
        assert_eq!(place.names(), ["b", "s", "c"]);
        assert_eq!(place.key.as_deref(), Some(&b"k"[..]));
        let whole = of("/pools/default/buckets/b/prefixes?depth=2").unwrap();
        assert_eq!(whole.names(), ["b"]);
        assert_eq!(whole.fields, [("depth".to_owned(), b"2".to_vec())]);
        let part = of("/pools/default/buckets/b/prefixes?scope=s&collection=c").unwrap();
        assert_eq!(part.names(), ["b", "s", "c"]);
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for (address, field) in [
            (format!("{DOCS}/%f"), "key"),
            (format!("{DOCS}/%zz"), "key"),
            ("/pools/default/buckets/%FF/prefixes".to_owned(), "bucket"),
            ("/pools/default/buckets/b/prefixes?scope=s".to_owned(), "collection"),
            (format!("{DOCS}?prefix=%"), "_"),
        ] {
            assert!(
                matches!(of(&address), Err(Refusal::Invalid { field: named, .. }) if named == field),
                "{address}"
            );
        }
    }
}
