//! Buckets over HTTP: list, show, create, delete.

use crate::login::{Identity, forbidden};
use crate::work::{Lane, Party};
use crate::{BucketChange, BucketRequest, Console, Refusal, document, pools, vbuckets};
use axum::extract::{Form, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::users::roles::Rights;
use kv::{
    BUCKET_SETTINGS, Bucket, BucketKind, BucketSetting, BucketSettings, Eviction, SettingKind, SettingValue,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// How long deletions are remembered in a bucket that is made without saying so, as in Couchbase; in days what may be
/// said.
const DEFAULT_PURGE_S: u32 = 3 * 86_400;
const PURGE_DAYS: std::ops::RangeInclusive<f64> = 0.04..=60.0;

/// `GET /pools/default/buckets`: those that the user may see.
pub async fn list(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
) -> Response {
    let host = pools::host(&console, &headers);
    let list = move |console: Console| -> Json<Value> {
        let buckets = console.node.buckets().into_iter().filter(|bucket| identity.sees(bucket.name()));
        let node = document::node(&console, &host, false);
        Json(buckets.map(|bucket| document::bucket(&console, &bucket, &host, node.clone())).collect())
    };
    pools::described(&console, &party, list).await
}

/// `GET /pools/default/buckets/B`.
pub async fn show(
    State(console): State<Console>,
    party: Party,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let host = pools::host(&console, &headers);
    match console.node.bucket(&name) {
        Some(bucket) => {
            let show = move |console: Console| {
                let node = document::node(&console, &host, false);
                Json(document::bucket(&console, &bucket, &host, node))
            };
            pools::described(&console, &party, show).await
        }
        None => missing(),
    }
}

/// `GET /pools/default/b/B`.
pub async fn terse(
    State(console): State<Console>,
    party: Party,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let host = pools::host(&console, &headers);
    match console.node.bucket(&name) {
        Some(bucket) => {
            let show = move |console: Console| document::terse(&console, &bucket, &host);
            pools::described(&console, &party, show).await
        }
        None => missing(),
    }
}

/// `POST /pools/default/buckets`: a form.
pub async fn create(
    State(console): State<Console>,
    party: Party,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    let request = match request(&fields) {
        Ok(request) => request,
        Err(refusal) => return refused(refusal),
    };
    let (control, map_changes) = (Arc::clone(&console.control), console.map_changes.clone());
    let create = move || control.create_bucket(request).inspect(|()| map_changes.send_replace(()));
    match console.change(&party, "dm:create", create).await {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `POST /pools/default/buckets/B`: a form of the settings to change. At the next start, the configuration of the
/// bucket applies again; for a persistent bucket that it does not name, the change is kept.
pub async fn change(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    let Some(bucket) = console.node.bucket(&name) else { return missing() };
    let change = match change_request(&bucket, &fields) {
        Ok(change) => change,
        Err(refusal) => return refused(refusal),
    };
    let may_take_shares = identity.roles().on_node().contain(Rights::NODE);
    let change = BucketChange { may_take_shares, ..change };
    let control = Arc::clone(&console.control);
    let change = move || control.change_bucket(&name, change);
    match console.change(&party, "dm:settings", change).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `POST /pools/default/buckets/B/controller/doFlush`: deletes everything stored so far.
pub async fn flush(State(console): State<Console>, party: Party, Path(name): Path<String>) -> Response {
    let Some(bucket) = console.node.bucket(&name) else { return missing() };
    if !bucket.flush_enabled() {
        // COMPAT: SDKs recognise this sentence and map it to their "bucket not flushable" error.
        let reason = "Flush is disabled for the bucket";
        return (StatusCode::BAD_REQUEST, Json(json!({ "_": reason }))).into_response();
    }
    let own = console.clone();
    let flush = move || match vbuckets::execute(&own, |cx| bucket.flush(cx, 0)) {
        Ok(()) => Ok(()),
        Err(error) => Err(Refusal::NotNow { reason: error.to_string() }),
    };
    match console.change(&party, "dm:flush", flush).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `DELETE /pools/default/buckets/B`. Answers once its files are removed.
pub async fn delete(State(console): State<Console>, party: Party, Path(name): Path<String>) -> Response {
    let (control, map_changes) = (Arc::clone(&console.control), console.map_changes.clone());
    let delete = move || {
        let deleted = control.delete_bucket(&name);
        // It may be gone even after an error.
        map_changes.send_replace(());
        deleted
    };
    match console.change(&party, "dm:delete", delete).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `POST /pools/default/buckets/B/backup`: a form with an optional `label`, by default the current second. Answers once
/// the copy is complete.
pub async fn backup(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    let mut label = None;
    for (field, value) in fields {
        match field.as_str() {
            "label" => label = Some(value),
            other => return refused(invalid("_", format!("Unknown field {other:?}. Allowed: label."))),
        }
    }
    let label = label.unwrap_or_else(|| unix_s().to_string());
    let control = Arc::clone(&console.control);
    // The disk is that of all buckets.
    let is_bounded = !identity.roles().on_node().contain(Rights::NODE);
    let copy = move || control.backup_bucket(&name, &label, is_bounded);
    match console.work(Lane::Copies, &party, "dm:backup", copy).await.flatten() {
        Ok(directory) => Json(json!({ "directory": directory })).into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// The wall clock, seconds since 1970.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The answer for a missing bucket, in Couchbase's words.
pub fn missing() -> Response {
    (StatusCode::NOT_FOUND, "Requested resource not found.\r\n").into_response()
}

pub fn refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Missing => missing(),
        Refusal::NoSuch { answer } => (StatusCode::NOT_FOUND, Json(json!(answer))).into_response(),
        Refusal::Forbidden { permission } => forbidden(permission),
        Refusal::TooMany { reason } => {
            let later = [(header::RETRY_AFTER, "1")];
            (StatusCode::TOO_MANY_REQUESTS, later, Json(json!({ "errors": { "_": reason } }))).into_response()
        }
        Refusal::NotNow { reason } => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "errors": { "_": reason } }))).into_response()
        }
        Refusal::Failed { reason } => {
            (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({ "errors": { "_": reason } }))).into_response()
        }
        Refusal::Invalid { field, reason } => {
            (StatusCode::BAD_REQUEST, Json(json!({ "errors": { field: reason }, "summaries": {} })))
                .into_response()
        }
    }
}

pub fn invalid(field: &'static str, reason: impl Into<String>) -> Refusal {
    Refusal::Invalid { field, reason: reason.into() }
}

fn not_allowed(field: &'static str, value: &str, allowed: &str) -> Refusal {
    invalid(field, format!("{value:?} is not allowed. Allowed: {allowed}."))
}

/// Parses the form. A value that requests what is not there is refused by name.
///
/// COMPAT: unknown fields are ignored, as Couchbase does: products send what some version of it knows.
fn request(fields: &[(String, String)]) -> Result<BucketRequest, Refusal> {
    let mut name = None;
    let (mut kind, mut policy, mut purge_s) = (None, None, None);
    let mut settings = BucketSettings { memory_bytes: 0, ..BucketSettings::default() };
    for (field, value) in fields {
        match field.as_str() {
            "name" => name = Some(value.clone()),
            "bucketType" => kind = Some(bucket_kind(value)?),
            "ramQuota" | "ramQuotaMB" => settings.memory_bytes = quota(value)?,
            "evictionPolicy" => policy = Some(value.as_str()),
            "purgeInterval" => purge_s = Some(purge_interval(value)?),
            "authType" => only(value, &["sasl"], "authType", "sasl")?,
            other => {
                if let Some((field, setting)) = setting_of(other) {
                    let value = setting_value(field, setting, value)?;
                    let set = setting.set(&mut settings, value);
                    debug_assert!(set.is_ok(), "{field} was checked");
                }
            }
        }
    }
    let name = name
        .filter(|name| !name.is_empty())
        .ok_or_else(|| invalid("name", "Bucket name needs to be specified."))?;
    settings.kind = kind.unwrap_or(BucketKind::Persistent);
    let purge_s = purge_s.unwrap_or(DEFAULT_PURGE_S);
    match settings.kind {
        BucketKind::Ephemeral => settings.purge_age_s = purge_s,
        BucketKind::Persistent => settings.persistence.tombstone_age_s = purge_s,
    }
    match policy {
        Some(policy) => set_eviction(&mut settings, policy)?,
        None if settings.kind == BucketKind::Ephemeral => settings.eviction = Eviction::FailNewData,
        None => settings.labels.full_eviction = is_magma(&settings),
    }
    settings.labels.history_default = is_magma(&settings);
    if let Some((_, value)) = fields.iter().find(|(field, _)| field == "historyRetentionCollectionDefault") {
        settings.labels.history_default &= ["1", "true"].contains(&value.as_str());
    }
    check_history(fields, &settings)?;
    check_durability(settings.kind, settings.least_durability)?;
    if settings.labels.conflict_resolution == "custom" {
        return Err(not_allowed("conflictResolutionType", "custom", "seqno, lww"));
    }
    if settings.memory_bytes == 0 {
        return Err(invalid("ramQuota", "The RAM quota needs to be specified, in MiB."));
    }
    Ok(BucketRequest { name, settings })
}

/// Parses the form of a change. A fixed field may be given with the bucket's present value: SDKs send all fields they
/// know.
///
/// COMPAT: its name, its type, and unknown fields are ignored, as Couchbase does.
fn change_request(bucket: &Bucket, fields: &[(String, String)]) -> Result<BucketChange, Refusal> {
    let settings = bucket.settings();
    let mut change = BucketChange::default();
    let mut changed = bucket.settings_in_force();
    for (field, value) in fields {
        let is_same = match field.as_str() {
            "ramQuota" | "ramQuotaMB" => {
                change.memory_bytes = Some(quota(value)?);
                true
            }
            "purgeInterval" => purge_interval(value)? == settings.tombstone_age_s(),
            "authType" => only(value, &["sasl"], "authType", "sasl").map(|()| true)?,
            "evictionPolicy" => {
                set_eviction(&mut changed, value)?;
                let full_eviction = BUCKET_SETTINGS.iter().find(|setting| setting.key == "full_eviction");
                let value = SettingValue::Flag(changed.labels.full_eviction);
                change.settings.extend(full_eviction.map(|setting| (setting, value)));
                changed.eviction == settings.eviction
            }
            other => match setting_of(other) {
                Some((field, setting)) => {
                    let value = setting_value(field, setting, value)?;
                    if setting.live.is_some() {
                        let set = setting.set(&mut changed, value);
                        debug_assert!(set.is_ok(), "{field} was checked");
                        change.settings.push((setting, value));
                    }
                    setting.live.is_some() || value == setting.get(settings)
                }
                None => true,
            },
        };
        match field.as_str() {
            _ if is_same => {}
            "conflictResolutionType" => {
                let reason = "Conflict resolution type not allowed in update bucket";
                return Err(invalid("conflictResolutionType", reason));
            }
            _ => {
                let live = setting_fields(|setting| setting.live.is_some());
                let allowed = std::iter::once("ramQuota").chain(live).collect::<Vec<_>>().join(", ");
                let reason = format!("{field:?} was fixed when the bucket was created. Allowed: {allowed}.");
                return Err(invalid("_", reason));
            }
        }
    }
    check_durability(settings.kind, changed.least_durability)?;
    check_history(fields, &changed)?;
    if bucket.labels().cross_cluster_versioning && !changed.labels.cross_cluster_versioning {
        let reason = "It cannot be taken back: make another bucket and copy the documents.";
        return Err(invalid("enableCrossClusterVersioning", reason));
    }
    Ok(change)
}

/// Converts the days after which deletions may be forgotten to seconds; 0: at once.
fn purge_interval(days: &str) -> Result<u32, Refusal> {
    let is_allowed = |days: &f64| *days == 0.0 || PURGE_DAYS.contains(days);
    let allowed = || not_allowed("purgeInterval", days, "0, or 0.04 to 60 days");
    let days = days.parse::<f64>().ok().filter(is_allowed).ok_or_else(allowed)?;
    Ok((days * 86_400.0).round() as u32)
}

/// The setting that a form field stands for.
fn setting_of(field: &str) -> Option<(&'static str, &'static BucketSetting)> {
    BUCKET_SETTINGS.iter().find_map(|setting| Some((setting.field.filter(|name| *name == field)?, setting)))
}

fn setting_fields(is_meant: fn(&BucketSetting) -> bool) -> impl Iterator<Item = &'static str> {
    BUCKET_SETTINGS.iter().filter(move |setting| is_meant(setting)).filter_map(|setting| setting.field)
}

/// Returns true if it is a bucket that may have settings of history.
pub fn is_magma(settings: &BucketSettings) -> bool {
    settings.kind == BucketKind::Persistent && settings.labels.storage_backend == "magma"
}

/// The fields about old versions, which magma alone keeps in Couchbase.
pub const HISTORY: [&str; 3] =
    ["historyRetentionCollectionDefault", "historyRetentionBytes", "historyRetentionSeconds"];
/// The least `historyRetentionBytes`, if there are any.
const HISTORY_BYTES_MIN: u64 = 2 << 30;

/// Refuses history of other buckets. That there shall be none may be said of each.
fn check_history(fields: &[(String, String)], settings: &BucketSettings) -> Result<(), Refusal> {
    if is_magma(settings) {
        let bytes = settings.labels.history_bytes;
        return match bytes == 0 || bytes >= HISTORY_BYTES_MIN {
            true => Ok(()),
            false => {
                let allowed = format!("0, or at least {HISTORY_BYTES_MIN} bytes");
                Err(not_allowed("historyRetentionBytes", &bytes.to_string(), &allowed))
            }
        };
    }
    let asks = |name: &&str| {
        fields.iter().any(|(field, value)| field == name && !["0", "false"].contains(&value.as_str()))
    };
    match HISTORY.into_iter().find(asks) {
        Some(field) => Err(invalid(field, "History is for buckets with storageBackend=magma only.")),
        None => Ok(()),
    }
}

/// Converts a field's value to its setting's type.
fn setting_value(
    field: &'static str,
    setting: &'static BucketSetting,
    text: &str,
) -> Result<SettingValue<'static>, Refusal> {
    let (value, allowed) = match setting.kind {
        SettingKind::Count { min, max, unit, .. } => (number(text), format!("{min} to {max} {unit}")),
        SettingKind::Bytes { min, max, .. } => (number(text), format!("{min} to {max} bytes")),
        SettingKind::PowerOfTwo { max, .. } => (number(text), format!("a power of two from 1 to {max}")),
        SettingKind::Flag { .. } => (one_of(text, &["0", "false"], &["1", "true"]), "0 or 1".to_owned()),
        SettingKind::Switch { .. } => (one_of(text, &["off"], &["on"]), "on or off".to_owned()),
        SettingKind::Word { words, .. } => (Some(SettingValue::Word(text)), words.join(", ")),
    };
    let value = value.and_then(|value| setting.check(value).ok());
    value.ok_or_else(|| not_allowed(field, text, &allowed))
}

fn number(text: &str) -> Option<SettingValue<'static>> {
    text.parse().ok().map(SettingValue::Number)
}

fn one_of(text: &str, no: &[&str], yes: &[&str]) -> Option<SettingValue<'static>> {
    let (is_no, is_yes) = (no.contains(&text), yes.contains(&text));
    (is_no || is_yes).then_some(SettingValue::Flag(is_yes))
}

fn quota(value: &str) -> Result<u64, Refusal> {
    let mebibytes: Option<u64> = value.parse().ok().filter(|quota| *quota > 0);
    mebibytes
        .and_then(|quota| quota.checked_mul(1 << 20))
        .ok_or_else(|| not_allowed("ramQuota", value, "a positive number of MiB"))
}

fn bucket_kind(word: &str) -> Result<BucketKind, Refusal> {
    match word {
        "ephemeral" => Ok(BucketKind::Ephemeral),
        // COMPAT: the server's own name for what SDKs call "couchbase" is "membase".
        "couchbase" | "membase" | "persistent" => Ok(BucketKind::Persistent),
        _ => Err(not_allowed("bucketType", word, "couchbase (persistent), ephemeral")),
    }
}

fn set_eviction(settings: &mut BucketSettings, policy: &str) -> Result<(), Refusal> {
    match (settings.kind, policy) {
        (BucketKind::Ephemeral, "nruEviction") => settings.eviction = Eviction::AutoDelete,
        (BucketKind::Ephemeral, "noEviction") => settings.eviction = Eviction::FailNewData,
        (BucketKind::Ephemeral, _) => {
            let allowed = "for an ephemeral bucket nruEviction or noEviction";
            return Err(not_allowed("evictionPolicy", policy, allowed));
        }
        (BucketKind::Persistent, _) => {
            settings.labels.full_eviction = match policy {
                "valueOnly" => false,
                "fullEviction" => true,
                _ => {
                    let allowed =
                        "for a persistent bucket valueOnly or fullEviction; keys stay in memory with either";
                    return Err(not_allowed("evictionPolicy", policy, allowed));
                }
            };
        }
    }
    Ok(())
}

fn check_durability(kind: BucketKind, least: kv::LeastDurability) -> Result<(), Refusal> {
    if kind == BucketKind::Ephemeral && least.needs_disk() {
        return Err(not_allowed(
            "durabilityMinLevel",
            least.name(),
            "for an ephemeral bucket none or majority",
        ));
    }
    Ok(())
}

fn only(value: &str, allowed: &[&str], field: &'static str, said: &str) -> Result<(), Refusal> {
    if allowed.contains(&value) { Ok(()) } else { Err(not_allowed(field, value, said)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv::{Compression, HeapChoice};

    fn read(form: &str) -> Result<BucketRequest, Refusal> {
        let pairs = form.split('&').filter_map(|pair| pair.split_once('='));
        request(&pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn a_complete_form_is_understood() {
        let request = read(
            "name=a&bucketType=ephemeral&ramQuotaMB=128&evictionPolicy=noEviction&replicaNumber=1&numVBuckets=64\
             &itemHeap=slab",
        );
        let request = request.expect("valid");
        assert_eq!(request.name, "a");
        assert_eq!(request.settings.memory_bytes, 128 << 20);
        assert_eq!(request.settings.eviction, Eviction::FailNewData);
        assert!(request.settings.defragmenter);
        let off = read("name=a&bucketType=ephemeral&ramQuotaMB=128&defragmenter=off").expect("valid");
        assert!(!off.settings.defragmenter);
        assert_eq!(request.settings.vbuckets, 64);
        assert_eq!(request.settings.item_heap, HeapChoice::Slab);
        assert_eq!(request.settings.compression, Compression::Passive);
        let off = read("name=a&bucketType=ephemeral&ramQuota=9&compressionMode=off").expect("valid");
        assert_eq!(off.settings.compression, Compression::Off);
    }

    #[test]
    fn the_page_names_every_field() {
        let page = include_str!("../../../docs/http.md");
        let row = |start: &str| page.lines().find(|line| line.starts_with(start)).expect("a row").to_owned();
        let (making, changing) =
            (row("| `POST /pools/default/buckets` |"), row("| `POST /pools/default/buckets/B` |"));
        for setting in BUCKET_SETTINGS {
            let Some(field) = setting.field else { continue };
            assert!(making.contains(&format!("`{field}`")), "{field}: {making}");
            assert_eq!(
                changing.contains(&format!("`{field}`")),
                setting.live.is_some(),
                "{field}: {changing}"
            );
        }
    }

    #[test]
    fn what_sdks_call_couchbase_is_persistent() {
        for form in
            ["name=a&ramQuota=128", "name=a&ramQuota=128&bucketType=couchbase&evictionPolicy=valueOnly"]
        {
            assert_eq!(read(form).expect("valid").settings.kind, BucketKind::Persistent, "{form}");
        }
        let membase = read("name=a&ramQuota=128&bucketType=membase&flushIntervalMs=7").expect("valid");
        assert_eq!(membase.settings.kind, BucketKind::Persistent);
        assert_eq!(membase.settings.persistence.flush_interval_ms, 7);
    }

    #[test]
    fn deletions_are_remembered_for_three_days() {
        for (form, ephemeral_s, persistent_s) in [
            ("bucketType=ephemeral", 259_200, 259_200),
            ("bucketType=ephemeral&purgeInterval=0.04", 3456, 259_200),
            ("purgeInterval=0&bucketType=ephemeral", 0, 259_200),
            ("bucketType=couchbase", 0, 259_200),
            ("purgeInterval=2.5", 0, 216_000),
        ] {
            let settings = read(&format!("name=a&ramQuota=128&{form}")).expect("valid").settings;
            let ages = (settings.purge_age_s, settings.persistence.tombstone_age_s);
            assert_eq!(ages, (ephemeral_s, persistent_s), "{form}");
        }
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let form = "name=a&ramQuota=9&colour=red&numReplicas=1&pitrEnabled=false&autoCompactionDefined=false\
                    &databaseFragmentationThreshold[percentage]=30&threadsNumber=3&saslPassword=&proxyPort=11211";
        assert_eq!(read(form), read("name=a&ramQuota=9"));
    }

    #[test]
    fn what_is_not_said_is_as_in_couchbase() {
        let settings = |form: &str| read(&format!("name=a&ramQuota=9&{form}")).expect("valid").settings;
        let (couchstore, magma) = (settings(""), settings("storageBackend=magma"));
        assert_eq!(settings("bucketType=ephemeral").eviction, Eviction::FailNewData);
        assert_eq!((couchstore.labels.replicas, couchstore.labels.replica_index), (1, false));
        assert!(!couchstore.labels.full_eviction && magma.labels.full_eviction);
        assert!(!couchstore.labels.history_default && magma.labels.history_default);
        let without =
            settings("storageBackend=magma&historyRetentionCollectionDefault=false&evictionPolicy=valueOnly");
        assert!(!without.labels.full_eviction && !without.labels.history_default);
        // What asks for nothing is no request.
        settings("bucketType=ephemeral&historyRetentionBytes=0&historyRetentionCollectionDefault=false");
        for field in HISTORY {
            for kind in [
                "bucketType=ephemeral&storageBackend=magma",
                "storageBackend=couchstore",
                "bucketType=couchbase",
            ] {
                let value = if field == HISTORY[0] { "true" } else { "2147483648" };
                let refused = read(&format!("name=a&ramQuota=9&{kind}&{field}={value}"));
                assert!(
                    matches!(refused, Err(Refusal::Invalid { field: of, .. }) if of == field),
                    "{kind} {field}"
                );
            }
            settings(&format!(
                "storageBackend=magma&{field}={}",
                if field == HISTORY[0] { "true" } else { "2147483648" }
            ));
        }
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (form, field) in [
            ("name=a&ramQuota=128&purgeInterval=0.01", "purgeInterval"),
            ("name=a&ramQuota=128&purgeInterval=61", "purgeInterval"),
            ("name=a&ramQuota=128&purgeInterval=NaN", "purgeInterval"),
            ("bucketType=ephemeral&ramQuota=128", "name"),
            ("name=a&bucketType=magma&ramQuota=128", "bucketType"),
            ("name=a&bucketType=couchbase&ramQuota=128&evictionPolicy=noEviction", "evictionPolicy"),
            ("name=a&bucketType=ephemeral&ramQuota=128&evictionPolicy=valueOnly", "evictionPolicy"),
            ("name=a&bucketType=couchbase&ramQuota=128&flushIntervalMs=-1", "flushIntervalMs"),
            ("name=a&ramQuota=128&defragmenter=yes", "defragmenter"),
            ("name=a&bucketType=ephemeral", "ramQuota"),
            ("name=a&bucketType=ephemeral&ramQuota=-1", "ramQuota"),
            ("name=a&bucketType=ephemeral&ramQuota=18446744073709551615", "ramQuota"),
            ("name=a&bucketType=ephemeral&ramQuota=9&numVBuckets=3", "numVBuckets"),
            ("name=a&bucketType=ephemeral&ramQuota=9&itemHeap=heap", "itemHeap"),
            ("name=a&bucketType=ephemeral&ramQuota=9&maxTTL=-5", "maxTTL"),
            (
                "name=a&bucketType=ephemeral&ramQuota=9&durabilityMinLevel=persistToMajority",
                "durabilityMinLevel",
            ),
            ("name=a&ramQuota=9&evictionPolicy=allEviction", "evictionPolicy"),
            ("name=a&ramQuota=9&replicaNumber=4", "replicaNumber"),
            ("name=a&ramQuota=9&storageBackend=disk", "storageBackend"),
            ("name=a&bucketType=ephemeral&ramQuota=9&compressionMode=zstd", "compressionMode"),
            ("name=a&bucketType=memcached&ramQuota=9", "bucketType"),
            ("name=a&ramQuota=9&conflictResolutionType=custom", "conflictResolutionType"),
            ("name=a&ramQuota=9&storageBackend=magma&historyRetentionBytes=7", "historyRetentionBytes"),
        ] {
            match read(form) {
                Err(Refusal::Invalid { field: refused, reason }) => {
                    assert_eq!(refused, field, "{form}");
                    let given = form.split('&').filter_map(|pair| pair.split_once('='));
                    let named =
                        given.filter(|(name, _)| *name == field).all(|(_, value)| reason.contains(value));
                    assert!(named, "{form}: {reason}");
                }
                other => panic!("{form}: {other:?}"),
            }
        }
    }
}
