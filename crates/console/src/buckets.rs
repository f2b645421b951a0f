//! Buckets over HTTP: list, show, create, delete.

use crate::{BucketRequest, Console, Refusal, document, pools};
use axum::Json;
use axum::extract::{Form, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use kv::{BucketKind, BucketSettings, Eviction};
use serde_json::{Value, json};

/// `GET /pools/default/buckets`.
pub async fn list(State(console): State<Console>, headers: HeaderMap) -> Json<Value> {
    let host = pools::host(&console, &headers);
    Json(console.node.buckets().iter().map(|bucket| document::bucket(&console, bucket, &host)).collect())
}

/// `GET /pools/default/buckets/B`.
pub async fn show(State(console): State<Console>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    let host = pools::host(&console, &headers);
    match console.node.bucket(&name) {
        Some(bucket) => Json(document::bucket(&console, &bucket, &host)).into_response(),
        None => missing(),
    }
}

/// `GET /pools/default/b/B`.
pub async fn terse(State(console): State<Console>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    let host = pools::host(&console, &headers);
    match console.node.bucket(&name) {
        Some(bucket) => Json(document::terse(&console, &bucket, &host)).into_response(),
        None => missing(),
    }
}

/// `POST /pools/default/buckets`, a form.
pub async fn create(State(console): State<Console>, Form(fields): Form<Vec<(String, String)>>) -> Response {
    match request(&fields).and_then(|request| console.control.create_bucket(request)) {
        Ok(()) => {
            console.map_changes.send_replace(());
            StatusCode::ACCEPTED.into_response()
        }
        Err(refusal) => refused(refusal),
    }
}

/// `DELETE /pools/default/buckets/B`.
pub async fn delete(State(console): State<Console>, Path(name): Path<String>) -> Response {
    match console.control.delete_bucket(&name) {
        Ok(()) => {
            console.map_changes.send_replace(());
            StatusCode::OK.into_response()
        }
        Err(refusal) => refused(refusal),
    }
}

/// The answer for a bucket that is not there, in Couchbase's words.
pub fn missing() -> Response {
    (StatusCode::NOT_FOUND, "Requested resource not found.\r\n").into_response()
}

fn refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Missing => missing(),
        Refusal::Invalid { field, reason } => {
            (StatusCode::BAD_REQUEST, Json(json!({ "errors": { field: reason }, "summaries": {} })))
                .into_response()
        }
    }
}

fn invalid(field: &'static str, reason: impl Into<String>) -> Refusal {
    Refusal::Invalid { field, reason: reason.into() }
}

/// Understands the form. Fields with one possible meaning on a single node are accepted; a value that asks for what
/// is not there is refused by name, and so is an unknown field.
fn request(fields: &[(String, String)]) -> Result<BucketRequest, Refusal> {
    let mut name = None;
    let mut kind = None;
    let mut settings = BucketSettings { memory_bytes: 0, ..BucketSettings::default() };
    for (field, value) in fields {
        match field.as_str() {
            "name" => name = Some(value.clone()),
            "bucketType" => kind = Some(bucket_kind(value)?),
            "ramQuota" | "ramQuotaMB" => {
                let mebibytes: Option<u64> = value.parse().ok().filter(|quota| *quota > 0);
                settings.memory_bytes = mebibytes
                    .and_then(|quota| quota.checked_mul(1 << 20))
                    .ok_or_else(|| invalid("ramQuota", "The RAM quota must be a positive number of MiB."))?;
            }
            "evictionPolicy" => {
                settings.eviction = match value.as_str() {
                    "nruEviction" => Eviction::AutoDelete,
                    "noEviction" => Eviction::FailNewData,
                    _ => {
                        return Err(invalid(
                            "evictionPolicy",
                            "Allowed for an ephemeral bucket: nruEviction or noEviction.",
                        ));
                    }
                }
            }
            "numVBuckets" => {
                settings.vbuckets = value
                    .parse()
                    .ok()
                    .filter(|count: &u16| count.is_power_of_two() && *count <= 1024)
                    .ok_or_else(|| invalid("numVBuckets", "Allowed: a power of two from 1 to 1024."))?;
            }
            // A node by itself has nowhere to put a replica; clients send the field always.
            "replicaNumber" => {
                if !value.parse::<u8>().is_ok_and(|count| count <= 3) {
                    return Err(invalid("replicaNumber", "Allowed: 0 to 3; a single node keeps none."));
                }
            }
            "maxTTL" => {
                only(value, &["0"], "maxTTL", "Only 0 exists: buckets have no expiry of their own yet.")?
            }
            "flushEnabled" => only(value, &["0", "1", "true", "false"], "flushEnabled", "Allowed: 0 or 1.")?,
            "compressionMode" => {
                only(value, &["off", "passive"], "compressionMode", "Only off and passive exist yet.")?
            }
            "durabilityMinLevel" => {
                only(
                    value,
                    &["none", "majority"],
                    "durabilityMinLevel",
                    "Allowed on an ephemeral bucket: none or majority.",
                )?;
            }
            "conflictResolutionType" => {
                only(value, &["seqno"], "conflictResolutionType", "Only seqno exists.")?;
            }
            "authType" => only(value, &["sasl"], "authType", "Only sasl exists.")?,
            "replicaIndex" => only(value, &["0", "1", "false", "true"], "replicaIndex", "Allowed: 0 or 1.")?,
            "saslPassword"
            | "proxyPort"
            | "threadsNumber"
            | "parallelDBAndViewCompaction"
            | "storageBackend" => {}
            other => {
                return Err(invalid(
                    "_",
                    format!(
                        "Unknown field {other:?}. Allowed: name, bucketType, ramQuota, evictionPolicy, numVBuckets."
                    ),
                ));
            }
        }
    }
    let name = name
        .filter(|name| !name.is_empty())
        .ok_or_else(|| invalid("name", "Bucket name needs to be specified."))?;
    settings.kind = kind.map_or_else(|| bucket_kind("couchbase"), Ok)?;
    if settings.memory_bytes == 0 {
        return Err(invalid("ramQuota", "The RAM quota needs to be specified, in MiB."));
    }
    Ok(BucketRequest { name, settings })
}

fn bucket_kind(word: &str) -> Result<BucketKind, Refusal> {
    match word {
        "ephemeral" | "memcached" => Ok(BucketKind::Ephemeral),
        "couchbase" | "membase" | "persistent" => Err(invalid(
            "bucketType",
            format!(
                "{word:?} means a persistent bucket, and persistent buckets do not exist yet. Allowed: ephemeral, memcached."
            ),
        )),
        _ => Err(invalid("bucketType", "Allowed: ephemeral, memcached.")),
    }
}

fn only(value: &str, allowed: &[&str], field: &'static str, reason: &str) -> Result<(), Refusal> {
    if allowed.contains(&value) { Ok(()) } else { Err(invalid(field, reason)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: &str) -> Result<BucketRequest, Refusal> {
        let pairs = form.split('&').filter_map(|pair| pair.split_once('='));
        request(&pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn a_complete_form_is_understood() {
        let request = read(
            "name=a&bucketType=ephemeral&ramQuotaMB=128&evictionPolicy=noEviction&replicaNumber=1&numVBuckets=64",
        );
        let request = request.expect("valid");
        assert_eq!(request.name, "a");
        assert_eq!(request.settings.memory_bytes, 128 << 20);
        assert_eq!(request.settings.eviction, Eviction::FailNewData);
        assert_eq!(request.settings.vbuckets, 64);
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (form, field) in [
            ("bucketType=ephemeral&ramQuota=128", "name"),
            ("name=a&ramQuota=128", "bucketType"),
            ("name=a&bucketType=couchbase&ramQuota=128", "bucketType"),
            ("name=a&bucketType=ephemeral", "ramQuota"),
            ("name=a&bucketType=ephemeral&ramQuota=-1", "ramQuota"),
            ("name=a&bucketType=ephemeral&ramQuota=18446744073709551615", "ramQuota"),
            ("name=a&bucketType=ephemeral&ramQuota=9&numVBuckets=3", "numVBuckets"),
            ("name=a&bucketType=ephemeral&ramQuota=9&maxTTL=5", "maxTTL"),
            ("name=a&bucketType=ephemeral&ramQuota=9&colour=red", "_"),
        ] {
            match read(form) {
                Err(Refusal::Invalid { field: refused, .. }) => assert_eq!(refused, field, "{form}"),
                other => panic!("{form}: {other:?}"),
            }
        }
    }
}
