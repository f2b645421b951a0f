//! Scopes and collections over HTTP. Each change answers with the manifest's new uid, in hexadecimal, once a majority
//! of the replicas has it.
//!
//! COMPAT: SDKs recognise errors by their sentences, which [`ManifestError`] has.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::answers::Answers;
use crate::buckets::{missing, refused};
use crate::login::Identity;
use crate::vbuckets::execute;
use crate::work::{Lane, Party};
use crate::{Console, Refusal, pools};
use axum::extract::{Form, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::collections::{Manifest, ManifestError, Wanted};
use kv::users::roles::Rights;
use kv::{Bucket, Cookie, Outcome, VbId};
use serde_json::{Value, json};

/// How long a change waits for the replicas, and for those of the change before.
const MAJORITY_TIMEOUT: Duration = Duration::from_secs(10);

type Fields = Form<Vec<(String, String)>>;

/// `GET /pools/default/buckets/B/scopes`: the manifest, as COLLECTIONS_GET_MANIFEST returns it: what the user may know.
pub async fn manifest(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Response {
    let Some(bucket) = console.node.bucket(&name) else { return missing() };
    let show = move |_| {
        let manifest = bucket.collections().manifest();
        Json(manifest.visible(|place| identity.roles().reach(&[&[&*name], place].concat())).to_json())
    };
    pools::described(&console, &party, show).await
}

/// Changes the manifest of a bucket, and waits until a majority of each chain has the change.
async fn change(
    console: Console,
    party: &Party,
    bucket: &str,
    f: impl Fn(&mut Manifest) -> Result<(), ManifestError> + Clone + Send + 'static,
) -> Response {
    change_on(console, party, bucket, move |manifest| f(manifest).map(|()| true)).await
}

/// The same by several changes, until `f` returns true. It goes on if the client does not wait for the answer: the
/// letters are taken all the same.
async fn change_on(
    console: Console,
    party: &Party,
    bucket: &str,
    f: impl Fn(&mut Manifest) -> Result<bool, ManifestError> + Clone + Send + 'static,
) -> Response {
    let Some(bucket) = console.node.bucket(bucket) else { return missing() };
    let turn = match console.lanes.turn(Lane::Awaited, party).await {
        Ok(turn) => turn,
        Err(refusal) => return refused(refusal),
    };
    let party = party.clone();
    let changes = async move {
        let _turn = turn;
        loop {
            match change_once(&console, &party, &bucket, f.clone()).await {
                Ok((uid, true)) => return Json(json!({ "uid": format!("{uid:x}") })).into_response(),
                Ok((_, false)) => {}
                Err(response) => return *response,
            }
        }
    };
    let changed = tokio::spawn(changes).await;
    changed.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// Makes one change. Returns the manifest's uid and what `f` returned.
async fn change_once(
    console: &Console,
    party: &Party,
    bucket: &Arc<Bucket>,
    f: impl Fn(&mut Manifest) -> Result<bool, ManifestError> + Clone + Send + 'static,
) -> Result<(u64, bool), Box<Response>> {
    let began = Instant::now();
    let (uid, is_last) = loop {
        // One change after the other. Another one may come in between.
        await_majority(console, bucket).await;
        let (f, bucket, node) = (f.clone(), Arc::clone(bucket), Arc::clone(&console.node));
        let map_changes = console.map_changes.clone();
        let change = move || {
            let mut is_last = true;
            let changed = bucket.change_collections(|manifest| f(manifest).map(|last| is_last = last));
            if changed.is_ok() {
                node.note_map_change();
                map_changes.send_replace(());
            }
            Ok::<_, Refusal>(changed.map(|uid| (uid, is_last)))
        };
        // A thread of its own, since it may be written to disk.
        match console.change(party, "dm:collections", change).await {
            Ok(Ok(changed)) => break changed,
            Ok(Err(ManifestError::Unacknowledged)) if began.elapsed() < MAJORITY_TIMEOUT => {}
            Ok(Err(error)) => return Err(failed(&error).into()),
            Err(refusal) => return Err(refused(refusal).into()),
        }
    };
    let (lacking, all) = await_majority(console, bucket).await;
    if lacking > 0 {
        let reached = all - lacking;
        let text = format!(
            "The change is made on this node, with uid {uid:x}. Within {} s it has reached a majority of the replicas \
             for {reached} of {all} vBuckets. A failover may undo it. No other change is accepted before it has",
            MAJORITY_TIMEOUT.as_secs()
        );
        return Err((StatusCode::GATEWAY_TIMEOUT, Json(json!({ "errors": { "_": text } })))
            .into_response()
            .into());
    }
    Ok((uid, is_last))
}

/// Waits until a majority of each chain has acknowledged what has changed of the scopes and collections. Returns the
/// number of vBuckets of which it has not in time, and that of all.
async fn await_majority(console: &Console, bucket: &Bucket) -> (u16, u16) {
    let (mut tickets, mut lacking) = (Vec::new(), 0);
    execute(console, |cx| {
        let thread = u16::try_from(cx.thread).unwrap_or(u16::MAX);
        for vb in (0..bucket.vbuckets()).map(VbId) {
            let cookie = Cookie { thread, connection: 0, ticket: cx.ticket() };
            match bucket.await_collections(cx, vb, cookie, MAJORITY_TIMEOUT) {
                Ok(true) => {}
                Ok(false) => tickets.push(cookie.ticket),
                Err(_) => lacking += 1,
            }
        }
    });
    for ticket in tickets {
        lacking += u16::from(Answers::outcome(console, ticket).await != Outcome::Persisted);
    }
    (lacking, bucket.vbuckets())
}

fn failed(error: &ManifestError) -> Response {
    let (status, field) = match error {
        ManifestError::Name(_) => (StatusCode::BAD_REQUEST, "name"),
        ManifestError::MaxTtl => (StatusCode::BAD_REQUEST, "maxTTL"),
        ManifestError::ScopeMissing(_) | ManifestError::CollectionMissing(..) => (StatusCode::NOT_FOUND, "_"),
        ManifestError::Unkept(_) => (StatusCode::INTERNAL_SERVER_ERROR, "_"),
        ManifestError::NotActive => (StatusCode::CONFLICT, "_"),
        ManifestError::Unacknowledged | ManifestError::Closed(_) | ManifestError::Superseded { .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, "_")
        }
        ManifestError::ScopeExists(_)
        | ManifestError::CollectionExists(..)
        | ManifestError::Default
        | ManifestError::System
        | ManifestError::TooMany(_)
        | ManifestError::ScopeFull(_) => (StatusCode::BAD_REQUEST, "_"),
    };
    (status, Json(json!({ "errors": { field: error.to_string() } }))).into_response()
}

fn bad_field(field: &str, reason: String) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "errors": { field: reason } }))).into_response()
}

/// The settings of a collection in a form.
#[derive(Default)]
struct Settings {
    name: Option<String>,
    max_ttl_s: Option<i64>,
    history: Option<bool>,
}

fn settings(fields: Vec<(String, String)>, allowed: &[&str]) -> Result<Settings, Box<Response>> {
    let mut settings = Settings::default();
    for (field, value) in fields {
        match field.as_str() {
            "name" if allowed.contains(&"name") => settings.name = Some(value),
            "maxTTL" if allowed.contains(&"maxTTL") => match value.parse() {
                Ok(max_ttl_s) => settings.max_ttl_s = Some(max_ttl_s),
                Err(_) => return Err(failed(&ManifestError::MaxTtl).into()),
            },
            "history" if allowed.contains(&"history") => match value.as_str() {
                "true" => settings.history = Some(true),
                "false" => settings.history = Some(false),
                _ => return Err(bad_field("history", "history must be true or false".into()).into()),
            },
            other => {
                let reason = format!("Unsupported key {other:?}. Allowed: {}.", allowed.join(", "));
                return Err(bad_field("_", reason).into());
            }
        }
    }
    Ok(settings)
}

/// `POST /pools/default/buckets/B/scopes`: a form with the `name`.
pub async fn add_scope(
    State(console): State<Console>,
    party: Party,
    Path(bucket): Path<String>,
    Form(fields): Fields,
) -> Response {
    if console.node.bucket(&bucket).is_none() {
        return missing();
    }
    let name = match settings(fields, &["name"]) {
        Ok(settings) => settings.name,
        Err(response) => return *response,
    };
    let Some(name) = name else { return bad_field("name", "The value must be supplied".into()) };
    change(console, &party, &bucket, move |manifest| manifest.add_scope(&name)).await
}

/// `DELETE /pools/default/buckets/B/scopes/S`: the scope with its collections.
pub async fn remove_scope(
    State(console): State<Console>,
    party: Party,
    Path((bucket, scope)): Path<(String, String)>,
) -> Response {
    change(console, &party, &bucket, move |manifest| manifest.remove_scope(&scope)).await
}

/// `POST /pools/default/buckets/B/scopes/S/collections`: a form with `name`, `maxTTL` (seconds; 0: the bucket's; -1:
/// none) and `history`.
pub async fn add_collection(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path((bucket, scope)): Path<(String, String)>,
    Form(fields): Fields,
) -> Response {
    if console.node.bucket(&bucket).is_none() {
        return missing();
    }
    let settings = match settings(fields, &["name", "maxTTL", "history"]) {
        Ok(settings) => settings,
        Err(response) => return *response,
    };
    let Some(name) = settings.name else { return bad_field("name", "The value must be supplied".into()) };
    let (max_ttl_s, history) = (settings.max_ttl_s.unwrap_or(0), settings.history.unwrap_or(false));
    let is_of_bucket = identity.roles().on(&[&bucket]).contain(Rights::COLLECTIONS);
    change(console, &party, &bucket, move |manifest| {
        if !is_of_bucket {
            manifest.check_part(&scope)?;
        }
        manifest.add_collection(&scope, &name, max_ttl_s, history)
    })
    .await
}

/// `PATCH /pools/default/buckets/B/scopes/S/collections/C`: a form with `maxTTL` and `history`.
pub async fn set_collection(
    State(console): State<Console>,
    party: Party,
    Path((bucket, scope, name)): Path<(String, String, String)>,
    Form(fields): Fields,
) -> Response {
    if console.node.bucket(&bucket).is_none() {
        return missing();
    }
    let settings = match settings(fields, &["maxTTL", "history"]) {
        Ok(settings) => settings,
        Err(response) => return *response,
    };
    let Settings { max_ttl_s, history, .. } = settings;
    change(console, &party, &bucket, move |manifest| {
        manifest.set_collection(&scope, &name, max_ttl_s, history)
    })
    .await
}

/// `DELETE /pools/default/buckets/B/scopes/S/collections/C`.
pub async fn remove_collection(
    State(console): State<Console>,
    party: Party,
    Path((bucket, scope, name)): Path<(String, String, String)>,
) -> Response {
    change(console, &party, &bucket, move |manifest| manifest.remove_collection(&scope, &name)).await
}

/// `PUT /pools/default/buckets/B/scopes`: a JSON document of all that there is to be afterwards.
pub async fn replace(
    State(console): State<Console>,
    party: Party,
    Path(bucket): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let wanted = match wanted(&body) {
        Ok(wanted) => wanted,
        Err(reason) => return bad_field("scopes", reason),
    };
    change_on(console, &party, &bucket, move |manifest| manifest.become_like(&wanted)).await
}

fn wanted(body: &Value) -> Result<Vec<Wanted>, String> {
    let name = |value: &Value| value.get("name").and_then(Value::as_str).map(str::to_owned);
    let mut wanted = Vec::new();
    let scopes = body.get("scopes").and_then(Value::as_array).ok_or("must be a list of scopes")?;
    for scope in scopes {
        let scope_name = name(scope).ok_or("each scope must have a name")?;
        let empty = Vec::new();
        let collections = scope.get("collections").and_then(Value::as_array).unwrap_or(&empty);
        wanted.push(Wanted { scope: scope_name.clone(), collection: None });
        for collection in collections {
            let collection_name = name(collection).ok_or("each collection must have a name")?;
            let max_ttl_s = match collection.get("maxTTL") {
                None => 0,
                Some(value) => value.as_i64().ok_or("maxTTL must be an integer")?,
            };
            let history = match collection.get("history") {
                None => false,
                Some(value) => value.as_bool().ok_or("history must be true or false")?,
            };
            let collection = Some((collection_name, max_ttl_s, history));
            wanted.push(Wanted { scope: scope_name.clone(), collection });
        }
    }
    let mut seen = HashSet::new();
    for Wanted { scope, collection } in &wanted {
        let name = collection.as_ref().map(|(name, ..)| name);
        if !seen.insert((scope, name)) {
            return Err(match name {
                Some(name) => format!("the collection {name:?} is listed twice in the scope {scope:?}"),
                None => format!("the scope {scope:?} is listed twice"),
            });
        }
    }
    Ok(wanted)
}

/// `POST /pools/default/buckets/B/scopes/@ensureManifest/UID`: answers once this manifest, or a later one, is in force.
/// On a single node every change is in force before its uid is known.
pub async fn ensure(State(console): State<Console>, Path((bucket, uid)): Path<(String, String)>) -> Response {
    let Some(bucket) = console.node.bucket(&bucket) else { return missing() };
    match u64::from_str_radix(&uid, 16) {
        Ok(uid) if uid <= bucket.collections().uid() => Json(json!({})).into_response(),
        Ok(_) => {
            (StatusCode::GATEWAY_TIMEOUT, Json(json!({ "errors": { "_": "There is no such manifest yet" } })))
                .into_response()
        }
        Err(_) => bad_field("uid", "The uid must be a hexadecimal number".into()),
    }
}
