//! The roles of vBuckets over HTTP, as in SET_VBUCKET and GET_VBUCKET.

use crate::answers::Answers;
use crate::buckets::{invalid, missing, refused};
use crate::login::{Identity, forbidden, permission};
use crate::work::{Lane, Party};
use crate::{Console, Refusal};
use axum::extract::{Form, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::{Bucket, Cookie, KvError, NodeContext, Outcome, RoleChange, RoleError, Unavailable, VbId, VbState};
use net::Clock;
use parking_lot::MutexGuard;
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::sync::Arc;

type Fields = Form<Vec<(String, String)>>;

/// `GET /pools/default/buckets/B/vbuckets`: the role of each vBucket, and what it has. 503 while its journal is read:
/// it is not known before.
pub async fn list(State(console): State<Console>, party: Party, Path(name): Path<String>) -> Response {
    let Some(bucket) = console.node.bucket(&name) else { return missing() };
    let all = 0..=bucket.vbuckets() - 1;
    described(&console, &party, bucket, all).await
}

/// Those that are shown, in the party's turn: there may be many.
async fn described(
    console: &Console,
    party: &Party,
    bucket: Arc<Bucket>,
    vbs: RangeInclusive<u16>,
) -> Response {
    let show = move |console: Console| all_shown(&console, &bucket, vbs);
    console.describe(party, show).await.unwrap_or_else(refused)
}

/// `GET /pools/default/buckets/B/vbuckets/N`.
pub async fn show(State(console): State<Console>, Path((name, vb)): Path<(String, u16)>) -> Response {
    let Some((bucket, vb)) = find(&console, &name, vb) else { return missing() };
    match shown(&console, &bucket, vb) {
        Ok(shown) => Json(shown).into_response(),
        Err(why) => unavailable(vb, &why),
    }
}

fn all_shown(console: &Console, bucket: &Bucket, vbs: RangeInclusive<u16>) -> Response {
    let mut all = Vec::new();
    for vb in vbs.map(VbId) {
        match shown(console, bucket, vb) {
            Ok(shown) => all.push(shown),
            Err(why) => return unavailable(vb, &why),
        }
    }
    Json(Value::Array(all)).into_response()
}

/// Of a damaged vBucket nothing is known but that it is damaged.
fn shown(console: &Console, bucket: &Bucket, vb: VbId) -> Result<Value, Unavailable> {
    match bucket.closed(vb) {
        None => {}
        Some(Unavailable::Damaged) => return Ok(json!({ "vbucket": vb.0, "damaged": true })),
        Some(why) => return Err(why),
    }
    let mut shown = execute(console, |cx| bucket.role(cx, vb)).to_json();
    execute(console, |cx| bucket.tell_collections(cx, vb));
    let (info, rank) = (bucket.vb_info(vb), bucket.rank(vb));
    shown["vbucket"] = json!(vb.0);
    shown["high_seqno"] = json!(info.as_ref().map(|info| info.high_seqno));
    shown["history_term"] = json!(rank.term);
    shown["complete_seqno"] = json!(rank.seqno);
    if execute(console, |cx| bucket.is_emptied(cx, vb)) {
        shown["emptied"] = json!(true);
    }
    if let Some(what) = execute(console, |cx| bucket.lacks(cx, vb)).name() {
        shown["may_lack"] = json!(what);
    }
    shown["persisted_seqno"] = json!(info.as_ref().map(|info| info.persisted_seqno));
    Ok(shown)
}

fn unavailable(vb: VbId, why: &impl std::fmt::Display) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("vBucket {}: {why}\r\n", vb.0)).into_response()
}

/// `POST /pools/default/buckets/B/vbuckets/N`: a form with `state`, by its name, `topology`, as JSON, `source`, a node
/// or nothing, `term` and `takeover`. A field that is not given stays unchanged. A term is answered once the promise to
/// accept nothing lower is on disk. The answer is what GET shows then.
pub async fn set(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path((name, vb)): Path<(String, u16)>,
    Form(fields): Fields,
) -> Response {
    let Some((bucket, vb)) = find(&console, &name, vb) else { return missing() };
    match request(&fields, false) {
        Ok(Wanted { change, .. }) => match check_names(&console, &identity, &name, &change) {
            None => set_all(console, party, bucket, vb.0..=vb.0, change).await,
            Some(forbidden) => forbidden,
        },
        Err(refusal) => refused(refusal),
    }
}

/// Returns the refusal of a change that names nodes which this user may not name.
fn check_names(
    console: &Console,
    identity: &Identity,
    bucket: &str,
    change: &RoleChange,
) -> Option<Response> {
    let needed = change.needs(&console.node.name(), &console.node.replication());
    let is_allowed = identity.roles().on(&[bucket]).contain(needed);
    (!is_allowed).then(|| forbidden(&permission(needed, "cluster")))
}

/// `POST /pools/default/buckets/B/vbuckets`: the same for those from `first` to `last`; without these, for all. The
/// first that cannot be changed ends it: those before it are changed.
pub async fn set_range(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Form(fields): Fields,
) -> Response {
    let Some(bucket) = console.node.bucket(&name) else { return missing() };
    let Wanted { change, first, last } = match request(&fields, true) {
        Ok(wanted) => wanted,
        Err(refusal) => return refused(refusal),
    };
    if let Some(forbidden) = check_names(&console, &identity, &name, &change) {
        return forbidden;
    }
    let end = bucket.vbuckets() - 1;
    let (first, last) = (first.unwrap_or(0), last.unwrap_or(end));
    if first > last || last > end {
        return refused(invalid("last", format!("Allowed: first <= last <= {end}.")));
    }
    set_all(console, party, bucket, first..=last, change).await
}

/// Goes on if the client does not wait for the answer: the letters are taken all the same.
async fn set_all(
    console: Console,
    party: Party,
    bucket: Arc<Bucket>,
    vbs: RangeInclusive<u16>,
    change: RoleChange,
) -> Response {
    let turn = match console.lanes.turn(Lane::Awaited, &party).await {
        Ok(turn) => turn,
        Err(refusal) => return refused(refusal),
    };
    let all = tokio::spawn(async move {
        let _turn = turn;
        set_each(&console, &party, bucket, vbs, change).await
    });
    all.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

async fn set_each(
    console: &Console,
    party: &Party,
    bucket: Arc<Bucket>,
    vbs: RangeInclusive<u16>,
    change: RoleChange,
) -> Response {
    let (own, of, range) = (console.clone(), Arc::clone(&bucket), vbs.clone());
    let set = move || Ok(set_now(&own, &of, range, &change));
    let (mut result, tickets) = match console.change(party, "dm:roles", set).await {
        Ok(set) => set,
        Err(refusal) => return refused(refusal),
    };
    for ticket in tickets {
        if Answers::outcome(console, ticket).await != Outcome::Persisted {
            let text = "The promise of the term is not on disk yet\r\n";
            result = result.and(Err((StatusCode::SERVICE_UNAVAILABLE, text).into_response().into()));
        }
    }
    match result {
        Ok(()) => described(console, party, bucket, vbs).await,
        Err(response) => *response,
    }
}

/// Changes roles up to the first that cannot be changed. Returns why, and the tickets of the promises that are not on
/// disk yet.
fn set_now(
    console: &Console,
    bucket: &Bucket,
    vbs: RangeInclusive<u16>,
    change: &RoleChange,
) -> (Result<(), Box<Response>>, Vec<u64>) {
    let mut result = Ok(());
    let mut tickets = Vec::new();
    for vb in vbs.map(VbId) {
        if let Some(why) = bucket.closed(vb) {
            result = Err(unavailable(vb, &why).into());
            break;
        }
        let set = execute(console, |cx| set_one(bucket, cx, vb, change.clone()));
        match set {
            Ok(ticket) => tickets.extend(ticket),
            Err(why) => {
                result = Err(why.answer(vb).into());
                break;
            }
        }
    }
    console.node.note_map_change();
    console.map_changes.send_replace(());
    (result, tickets)
}

/// Why a role was not set, or its promise is not kept.
enum NotSet {
    Refused(RoleError),
    Unkept(KvError),
}

/// Changes a role. Returns the ticket of the letter that says that its promise is on disk, if that is to come.
fn set_one(
    bucket: &Bucket,
    cx: &mut NodeContext,
    vb: VbId,
    change: RoleChange,
) -> Result<Option<u64>, NotSet> {
    let has_term = change.term.is_some();
    bucket.set_role(cx, vb, change).map_err(NotSet::Refused)?;
    if !has_term {
        return Ok(None);
    }
    let thread = u16::try_from(cx.thread).unwrap_or(u16::MAX);
    let cookie = Cookie { thread, connection: 0, ticket: cx.ticket() };
    let is_kept = bucket.await_promise(cx, vb, cookie).map_err(NotSet::Unkept)?;
    Ok((!is_kept).then_some(cookie.ticket))
}

impl NotSet {
    fn answer(&self, vb: VbId) -> Response {
        let (field, status, error) = match self {
            Self::Unkept(error) => return unavailable(vb, error),
            Self::Refused(error @ RoleError::Term { .. }) => ("term", StatusCode::CONFLICT, error),
            Self::Refused(error @ (RoleError::Promised { .. } | RoleError::Used { .. })) => {
                ("term", StatusCode::CONFLICT, error)
            }
            Self::Refused(error @ RoleError::TermMost) => ("term", StatusCode::BAD_REQUEST, error),
            Self::Refused(error @ RoleError::Source) => ("source", StatusCode::BAD_REQUEST, error),
            Self::Refused(error @ RoleError::TakeOver) => ("takeover", StatusCode::BAD_REQUEST, error),
            Self::Refused(error @ RoleError::Refilling) => ("state", StatusCode::SERVICE_UNAVAILABLE, error),
        };
        let reason = format!("vBucket {}: {error}", vb.0);
        (status, Json(json!({ "errors": { field: reason } }))).into_response()
    }
}

fn find(console: &Console, name: &str, vb: u16) -> Option<(Arc<Bucket>, VbId)> {
    let bucket = console.node.bucket(name)?;
    (vb < bucket.vbuckets()).then_some((bucket, VbId(vb)))
}

/// What a form asks for.
#[derive(Default)]
struct Wanted {
    change: RoleChange,
    first: Option<u16>,
    last: Option<u16>,
}

fn request(fields: &[(String, String)], is_range: bool) -> Result<Wanted, Refusal> {
    let mut wanted = Wanted::default();
    let change = &mut wanted.change;
    for (field, value) in fields {
        let json = match field.as_str() {
            "state" => {
                let known = VbState::from_name(value);
                change.state =
                    Some(known.ok_or_else(|| invalid("state", "Allowed: active, replica, pending, dead."))?);
                continue;
            }
            "first" if is_range => {
                wanted.first = Some(number("first", value)?);
                continue;
            }
            "last" if is_range => {
                wanted.last = Some(number("last", value)?);
                continue;
            }
            "source" if value.is_empty() => Value::Null,
            "source" | "by" => Value::from(value.as_str()),
            "topology" | "term" | "takeover" => {
                serde_json::from_str(value).map_err(|error| invalid(name_of(field), error.to_string()))?
            }
            other => {
                let further = if is_range { ", first, last" } else { "" };
                let allowed = format!("Allowed: state, topology, source, term, takeover, by{further}.");
                return Err(invalid("_", format!("Unknown field {other:?}. {allowed}")));
            }
        };
        change.read(field, &json).map_err(|reason| invalid(name_of(field), reason))?;
    }
    Ok(wanted)
}

fn number(field: &'static str, value: &str) -> Result<u16, Refusal> {
    value.parse().map_err(|_| invalid(field, "Allowed: the number of a vBucket."))
}

/// Returns the name of a field with a value in JSON.
fn name_of(field: &str) -> &'static str {
    ["topology", "term", "takeover", "by"].into_iter().find(|name| *name == field).unwrap_or("source")
}

/// Executes `f` on this thread of the node, which caches nothing between calls.
pub fn execute<R>(console: &Console, f: impl FnOnce(&mut NodeContext) -> R) -> R {
    let mut cx = console.cx.lock();
    cx.now = Clock::start().now();
    cx.tend();
    let result = f(&mut cx);
    if cx.has_letters() {
        console.answers.wake();
    }
    cx.end_batch();
    cx.rest();
    cx.rest();
    // Whoever waits is next: a walk takes it again at once.
    MutexGuard::unlock_fair(cx);
    result
}
