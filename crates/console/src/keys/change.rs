//! Storing, deleting and keeping documents longer, with the engine's checks and the bucket's least durability.

use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kv::{
    Bucket, Cookie, Durability, Entry, Expiry, Key, KvError, LARGE_VALUE, Mutated, NodeContext, Outcome,
    Store, Value, Written,
};
use serde_json::json;
use wire::binary::datatype;
use wire::subdocument;

use super::place::{self, Place};
use super::{Refused, check_key, collection_of, fetched, on_documents};
use crate::answers::Answers;
use crate::buckets::invalid;
use crate::work::Party;
use crate::{Console, Refusal};

/// Which version of the document the change is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// Whatever is there.
    Any,
    /// There must be none (`If-None-Match: *`).
    Missing,
    /// There must be one (`If-Match: *`).
    Present,
    /// The one with this CAS.
    Version(u64),
}

impl Condition {
    const fn cas(self) -> u64 {
        match self {
            Self::Version(cas) => cas,
            Self::Any | Self::Missing | Self::Present => 0,
        }
    }

    /// Checks the present version.
    fn check(self, entry: &mut Entry<'_>) -> Result<(), KvError> {
        match (self, entry.check_version(self.cas())) {
            (Self::Missing, Ok(())) => Err(KvError::Exists),
            (Self::Missing | Self::Any, Err(KvError::NotFound)) => Ok(()),
            (_, checked) => checked,
        }
    }
}

/// What to store.
#[derive(Debug, Default, PartialEq, Eq)]
struct Form {
    /// `None`: it stays.
    value: Option<Vec<u8>>,
    /// `None`: those of the document; 0 for a new one.
    flags: Option<u32>,
    expiry: Option<NewExpiry>,
    cas: Option<u64>,
}

/// The expiry as it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewExpiry {
    /// Seconds since 1970; 0: never.
    At(u32),
    /// Seconds from now.
    In(u32),
}

impl NewExpiry {
    fn from(self, now_s: u32) -> Expiry {
        match self {
            Self::At(at) => Expiry::At(at),
            Self::In(seconds) => Expiry::At(now_s.saturating_add(seconds)),
        }
    }
}

/// `PUT .../docs/KEY`.
pub async fn put(
    console: Console,
    party: Party,
    mut place: Place,
    headers: HeaderMap,
    body: &[u8],
) -> Response {
    let parsed = form(&headers, body).and_then(|form| {
        let cas = merged(form.cas, query_cas(&mut place)?)?;
        place.end("key, cas")?;
        if form.value.is_none() && form.flags.is_some() {
            return Err(invalid("flags", "Flags are stored together with a value."));
        }
        if form.value.is_none() && form.expiry.is_none() {
            return Err(invalid("value", "Give a value, an expiry, or both."));
        }
        Ok((condition(&headers, cas)?, form))
    });
    let (condition, form) = match parsed {
        Ok(parsed) => parsed,
        Err(refusal) => return Refused::from(refusal).into_response(),
    };
    let store = move |console: &_, bucket: &_, key: Key<'_>| store(console, bucket, key, condition, &form);
    change(console, party, place, store).await
}

/// `DELETE .../docs/KEY`.
pub async fn delete(console: Console, party: Party, mut place: Place, headers: HeaderMap) -> Response {
    let parsed = query_cas(&mut place).and_then(|cas| {
        place.end("key, cas")?;
        condition(&headers, cas)
    });
    let condition = match parsed {
        Ok(Condition::Missing) => {
            let refusal = invalid("If-None-Match", "Only what is there can be deleted.");
            return Refused::from(refusal).into_response();
        }
        Ok(condition) => condition,
        Err(refusal) => return Refused::from(refusal).into_response(),
    };
    let remove = move |console: &_, bucket: &_, key: Key<'_>| remove(console, bucket, key, condition.cas());
    change(console, party, place, remove).await
}

/// A change that is done, or the ticket of the one that waits.
enum Made {
    Done(Mutated),
    Waits(u64),
}

/// Changes a document to completion, even if the client no longer waits for it, and answers.
async fn change(
    console: Console,
    party: Party,
    place: Place,
    f: impl FnOnce(&Console, &Arc<Bucket>, Key<'_>) -> Result<Made, KvError> + Send + 'static,
) -> Response {
    if console.control.draining() {
        let reason = "The node is draining: it takes no changes.";
        return Refused::from(Refusal::NotNow { reason: reason.into() }).into_response();
    }
    let changing = tokio::spawn(async move {
        let made = on_documents(&console, &party, move |console| {
            let (bucket, collection) = collection_of(console, &place)?;
            let bytes = place.key.clone().unwrap_or_default();
            let key = Key { collection, bytes: &bytes };
            check_key(key)?;
            Ok(f(console, &bucket, key)?)
        });
        match made.await? {
            Made::Done(mutated) => Ok(mutated),
            Made::Waits(ticket) => match Answers::outcome(&console, ticket).await {
                Outcome::Durable(mutated) => Ok(mutated),
                _ => Err(Refused::Ambiguous),
            },
        }
    });
    match changing.await {
        Ok(Ok(mutated)) => {
            let Mutated { cas, seqno, .. } = mutated;
            let about = json!({ "cas": cas.to_string(), "seqno": seqno.to_string() });
            ([(header::ETAG, format!("\"{cas}\""))], Json(about)).into_response()
        }
        Ok(Err(refused)) => refused.into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The durability that the bucket demands of each write, and the ticket of its answer.
fn durability(bucket: &Bucket, cx: &mut NodeContext) -> Option<Durability> {
    let level = bucket.least_durability().level()?;
    let thread = u16::try_from(cx.thread).unwrap_or(u16::MAX);
    let cookie = Cookie { thread, connection: 0, ticket: cx.ticket() };
    Some(Durability { level, timeout_ms: None, cookie })
}

fn made(written: Written, durability: Option<&Durability>) -> Result<Made, KvError> {
    match (written, durability) {
        (Written::Done(mutated), _) => Ok(Made::Done(mutated)),
        (Written::Pending, Some(durability)) => Ok(Made::Waits(durability.cookie.ticket)),
        (Written::Pending, None) => unreachable!("only a durable write waits"),
    }
}

fn store(
    console: &Console,
    bucket: &Arc<Bucket>,
    key: Key<'_>,
    condition: Condition,
    form: &Form,
) -> Result<Made, KvError> {
    let at = bucket.locate(key);
    let value_max = console.node.limits().kv_value_bytes;
    if form.value.as_ref().is_some_and(|value| value.len() > value_max) {
        return Err(KvError::TooBig);
    }
    fetched(console, bucket, key, at, |cx| {
        let expiry = form.expiry.map_or(Expiry::Keep, |expiry| expiry.from(cx.now.unix_s));
        let Some(value) = &form.value else {
            let touched = bucket.change(cx, key, at, |entry| {
                entry.glance();
                condition.check(entry)?;
                let before = entry.document().map(|document| document.cas());
                let touched = entry.touch(expiry)?;
                // A writer who may not read must not learn that it had this expiry.
                if before == Some(touched.cas) { entry.revise(0) } else { Ok(touched) }
            });
            if matches!(touched, Ok(_) | Err(KvError::NotFound)) {
                bucket.count_touch(cx, touched.is_ok());
            }
            return touched.map(Made::Done);
        };
        // Readers check short values themselves.
        let is_json = value.len() > LARGE_VALUE && subdocument::check(value).is_ok();
        let datatype = if is_json { datatype::JSON } else { datatype::RAW };
        let durability = durability(bucket, cx);
        let written = bucket.edit(cx, key, at, durability.as_ref(), value.len(), |entry| {
            condition.check(entry)?;
            let flags = form.flags.or_else(|| entry.document().map(|document| document.flags()));
            let (flags, value) = (flags.unwrap_or_default(), Value::Bytes(value));
            entry.store_any(Store { flags, expiry, datatype, value, new_cas: 0 })
        });
        // It is executed again, and counted then.
        if written != Err(KvError::NotResident) {
            let counted = written.as_ref().map(drop).map_err(|error| *error);
            bucket.count_store(cx, condition.cas() != 0, counted);
        }
        made(written?, durability.as_ref())
    })
}

fn remove(console: &Console, bucket: &Arc<Bucket>, key: Key<'_>, cas: u64) -> Result<Made, KvError> {
    let at = bucket.locate(key);
    fetched(console, bucket, key, at, |cx| {
        let durability = durability(bucket, cx);
        let written = match &durability {
            None => bucket.remove(cx, key, at, cas).map(Written::Done),
            Some(durability) => bucket.remove_durably(cx, key, at, durability, cas),
        };
        made(written?, durability.as_ref())
    })
}

/// The condition of the headers, or of a `cas`.
fn condition(headers: &HeaderMap, cas: Option<u64>) -> Result<Condition, Refusal> {
    for name in [header::IF_MATCH, header::IF_NONE_MATCH] {
        if headers.get_all(&name).iter().count() > 1 {
            return Err(invalid("_", format!("Allowed: at most one {name}.")));
        }
    }
    let one = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
    let condition = match (one(header::IF_MATCH), one(header::IF_NONE_MATCH)) {
        (None, None) => return Ok(cas.map_or(Condition::Any, Condition::Version)),
        (None, Some("*")) => Condition::Missing,
        (Some("*"), None) => return Ok(cas.map_or(Condition::Present, Condition::Version)),
        (Some(tag), None) => Condition::Version(cas_of("If-Match", tag.trim_matches('"'))?),
        (_, Some(_)) => {
            return Err(invalid("If-None-Match", "Allowed: *, which means: only if there is none."));
        }
    };
    match cas {
        Some(cas) if condition != Condition::Version(cas) => {
            Err(invalid("cas", "The headers name another version than the cas."))
        }
        _ => Ok(condition),
    }
}

fn query_cas(place: &mut Place) -> Result<Option<u64>, Refusal> {
    place.take("cas").map(|text| cas_of("cas", &String::from_utf8_lossy(&text))).transpose()
}

fn merged(one: Option<u64>, other: Option<u64>) -> Result<Option<u64>, Refusal> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => Err(invalid("cas", "Two different versions are named.")),
        _ => Ok(one.or(other)),
    }
}

fn cas_of(field: &'static str, text: &str) -> Result<u64, Refusal> {
    let cas = text.parse().ok().filter(|cas| *cas > 0);
    cas.ok_or_else(|| invalid(field, "The CAS of a document is a positive number of 64 bits."))
}

/// Parses the body: a form, or a JSON object with the same fields.
fn form(headers: &HeaderMap, body: &[u8]) -> Result<Form, Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let fields = if kind.eq_ignore_ascii_case("application/json") {
        json_fields(body)?
    } else if kind.is_empty() || kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        place::fields(body)?
    } else {
        let allowed = "The body must be application/x-www-form-urlencoded or application/json.";
        return Err(invalid("Content-Type", allowed));
    };
    let mut form = Form::default();
    for (field, value) in fields {
        let text = || String::from_utf8_lossy(&value);
        let seconds = |field| {
            let allowed = || invalid(field, "A number of seconds is needed, 0 to 4294967295.");
            text().parse().map_err(|_| allowed())
        };
        match field.as_str() {
            "value" | "base64" if form.value.is_some() => {
                return Err(invalid("value", "There are two values."));
            }
            "value" => form.value = Some(value),
            "base64" => {
                let decoded = STANDARD.decode(&value);
                form.value = Some(decoded.map_err(|_| invalid("base64", "The value is not base64."))?);
            }
            "flags" => {
                let flags = text().parse().map_err(|_| invalid("flags", "Allowed: 0 to 4294967295."))?;
                form.flags = Some(flags);
            }
            "expiry" | "ttl" if form.expiry.is_some() => {
                return Err(invalid("ttl", "Give either expiry or ttl, once."));
            }
            "expiry" => form.expiry = Some(NewExpiry::At(seconds("expiry")?)),
            "ttl" => {
                form.expiry = Some(match seconds("ttl")? {
                    0 => NewExpiry::At(0),
                    seconds => NewExpiry::In(seconds),
                })
            }
            "cas" => form.cas = Some(cas_of("cas", &text())?),
            other => {
                let allowed = "value, base64, flags, expiry, ttl, cas";
                return Err(invalid("_", format!("Unknown field {other:?}. Allowed: {allowed}.")));
            }
        }
    }
    Ok(form)
}

fn json_fields(body: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Refusal> {
    let fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(body).map_err(|error| invalid("_", format!("Not a JSON object: {error}.")))?;
    let bytes = |(name, value): (String, serde_json::Value)| match value {
        serde_json::Value::String(text) => Ok((name, text.into_bytes())),
        serde_json::Value::Number(number) if name != "value" && name != "base64" => {
            Ok((name, number.to_string().into_bytes()))
        }
        _ => Err(invalid("_", format!("{name:?} must be text, or where a number is meant, a number."))),
    };
    fields.into_iter().map(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: &str, body: &str) -> Result<Form, Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
        form(&headers, body.as_bytes())
    }

    #[test]
    fn forms_and_json_say_the_same() {
        let whole = Form {
            value: Some(b"a b&{}".to_vec()),
            flags: Some(7),
            expiry: Some(NewExpiry::In(60)),
            cas: Some(u64::MAX),
        };
        let form = "value=a+b%26%7B%7D&flags=7&ttl=60&cas=18446744073709551615";
        assert_eq!(read("application/x-www-form-urlencoded; charset=utf-8", form).unwrap(), whole);
        let json = r#"{"value":"a b&{}","flags":7,"ttl":60,"cas":"18446744073709551615"}"#;
        assert_eq!(read("application/json", json).unwrap(), whole);
        let bytes = Form { value: Some(vec![0xff, 0]), expiry: Some(NewExpiry::At(0)), ..Form::default() };
        assert_eq!(read("application/x-www-form-urlencoded", "value=%FF%00&expiry=0").unwrap(), bytes);
        assert_eq!(read("application/json", r#"{"base64":"/wA=","ttl":0}"#).unwrap(), bytes);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, field) in [
            (r#"{"value":1}"#, "_"),
            (r#"{"value":"a","base64":"YQ=="}"#, "value"),
            (r#"{"base64":"?"}"#, "base64"),
            (r#"{"flags":-1}"#, "flags"),
            (r#"{"expiry":1,"ttl":1}"#, "ttl"),
            (r#"{"ttl":1.5}"#, "ttl"),
            (r#"{"cas":0}"#, "cas"),
            (r#"{"colour":"red"}"#, "_"),
            ("[]", "_"),
        ] {
            let refused = read("application/json", body);
            assert!(
                matches!(refused, Err(Refusal::Invalid { field: named, .. }) if named == field),
                "{body}"
            );
        }
    }

    #[test]
    fn headers_name_versions() {
        let of = |pairs: &[(HeaderName, &str)], cas| {
            let pairs = pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
            condition(&pairs.collect(), cas)
        };
        assert_eq!(of(&[], None).unwrap(), Condition::Any);
        assert_eq!(of(&[], Some(7)).unwrap(), Condition::Version(7));
        assert_eq!(of(&[(header::IF_MATCH, "\"7\"")], None).unwrap(), Condition::Version(7));
        assert_eq!(of(&[(header::IF_MATCH, "7")], Some(7)).unwrap(), Condition::Version(7));
        assert_eq!(of(&[(header::IF_MATCH, "*")], None).unwrap(), Condition::Present);
        assert_eq!(of(&[(header::IF_NONE_MATCH, "*")], None).unwrap(), Condition::Missing);
        for (pairs, cas) in [
            (&[(header::IF_MATCH, "\"7\"")][..], Some(8)),
            (&[(header::IF_MATCH, "W/\"7\"")], None),
            (&[(header::IF_NONE_MATCH, "\"7\"")], None),
            (&[(header::IF_NONE_MATCH, "*")], Some(7)),
        ] {
            assert!(of(pairs, cas).is_err(), "{pairs:?}");
        }
    }
}
