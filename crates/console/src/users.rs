//! Users, groups and roles over HTTP, in domains:
//!
//! ```text
//!   local      users that are kept with their passwords
//!   external   users whose passwords another system would have: stored and shown, and nobody logs in as one
//!   admin      the administrators: those of the configuration, and the one of POST /settings/web; shown only
//! ```
//! COMPAT: as in Couchbase administrators are not among the local users, and unknown fields of forms are ignored.
//!
//! COMPAT: SDKs recognise "unknown user" and "not found" by their words.

use crate::buckets::{invalid, refused, unix_s};
use crate::login::Identity;
use crate::work::Party;
use crate::{Console, Refusal, stored};
use axum::extract::{Form, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::users::kept::{ExternalUser, Group, Kept, KeptUser, Keys};
use kv::users::roles::{ANY, Depth, ROLES, Rights, Role, RoleKind};
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Domains of users.
pub const LOCAL: &str = "local";
pub const EXTERNAL: &str = "external";
const ADMIN: &str = "admin";
/// Most users and groups that are kept.
const COUNT_MAX: usize = 10_000;
/// Longest password, bytes.
const PASSWORD_MAX: usize = 1024;
/// Longest full name or description, bytes.
const TEXT_MAX: usize = 1024;
/// Most groups of a user.
const GROUPS_MAX: usize = 100;
/// Most roles of a group, and of a user together with its groups.
const ROLES_MAX: usize = 1000;
/// Most roles of all users and groups together.
const ALL_ROLES_MAX: usize = 100_000;
/// Longest list of users or groups, bytes.
const LIST_BYTES_MAX: usize = 32 << 20;

type Fields = Form<Vec<(String, String)>>;

/// `GET /settings/rbac/users`: local and external ones.
pub async fn list(State(console): State<Console>, party: Party) -> Response {
    listed(console, &party, |console| {
        let kept = console.node.users().kept();
        written([LOCAL, EXTERNAL].iter().flat_map(|domain| users_of(&console, &kept, domain)))
    })
    .await
}

/// The documents of a domain's users.
fn users_of<'a>(console: &'a Console, kept: &'a Kept, domain: &'a str) -> impl Iterator<Item = Value> + 'a {
    let names: Vec<String> = match domain {
        EXTERNAL => kept.external.keys().cloned().collect(),
        _ => console.node.users().names().iter().map(ToString::to_string).collect(),
    };
    names.into_iter().filter_map(move |name| user(console, kept, domain, &name))
}

/// An array of documents. Each is made when the one before it has been written.
fn written(documents: impl Iterator<Item = Value>) -> Result<String, Refusal> {
    let mut text = "[".to_owned();
    for document in documents {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&document.to_string());
        if text.len() > LIST_BYTES_MAX {
            let reason =
                format!("The list is longer than {} MiB. Ask for single ones.", LIST_BYTES_MAX >> 20);
            return Err(invalid("_", reason));
        }
    }
    text.push(']');
    Ok(text)
}

/// What `f` writes on a thread of its own.
async fn listed(
    console: Console,
    party: &Party,
    f: impl FnOnce(Console) -> Result<String, Refusal> + Send + 'static,
) -> Response {
    match console.measure(party, f).await.flatten() {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// The domain of a user who can log in.
pub fn domain_of(console: &Console, name: &str) -> &'static str {
    let users = console.node.users();
    let is_administrator = users.is_configured(name) || users.kept().administrator.as_deref() == Some(name);
    if is_administrator { ADMIN } else { LOCAL }
}

/// What `f` makes on a thread of its own: there may be many users, with many roles.
async fn shown(
    console: Console,
    party: &Party,
    f: impl FnOnce(Console) -> Option<Value> + Send + 'static,
) -> Response {
    match console.measure(party, f).await {
        Ok(Some(document)) => Json(document).into_response(),
        Ok(None) => refused(no_such("Unknown user.")),
        Err(refusal) => refused(refusal),
    }
}

/// `GET /settings/rbac/users/DOMAIN`.
pub async fn list_domain(
    State(console): State<Console>,
    party: Party,
    Path(domain): Path<String>,
) -> Response {
    let list = move |console: Console| {
        let kept = console.node.users().kept();
        written(users_of(&console, &kept, &domain))
    };
    listed(console, &party, list).await
}

/// `GET /settings/rbac/users/DOMAIN/USER`.
pub async fn show(
    State(console): State<Console>,
    party: Party,
    Path((domain, name)): Path<(String, String)>,
) -> Response {
    let find = move |console: Console| {
        let kept = console.node.users().kept();
        user(&console, &kept, &domain, &name)
    };
    shown(console, &party, find).await
}

/// `GET /settings/rbac/groups`.
pub async fn groups(State(console): State<Console>, party: Party) -> Response {
    let all = |console: Console| {
        let kept = console.node.users().kept();
        written(kept.groups.iter().map(|(name, group)| group_document(name, group)))
    };
    listed(console, &party, all).await
}

/// `GET /settings/rbac/groups/GROUP`.
pub async fn group(State(console): State<Console>, party: Party, Path(name): Path<String>) -> Response {
    let find = move |console: Console| {
        let kept = console.node.users().kept();
        kept.groups.get(&name).map(|group| group_document(&name, group))
    };
    match console.measure(&party, find).await {
        Ok(Some(document)) => Json(document).into_response(),
        Ok(None) => refused(no_such("Unknown group.")),
        Err(refusal) => refused(refusal),
    }
}

/// `GET /settings/rbac/roles`: all kinds of roles.
pub async fn roles() -> Json<Value> {
    let document = |kind: &RoleKind| {
        let mut document = parts(kind.depth, |_| ANY);
        document.insert("role".into(), json!(kind.name));
        document.insert("name".into(), json!(kind.title));
        document.insert("desc".into(), json!(kind.about));
        document.insert("ce".into(), json!(true));
        Value::Object(document)
    };
    Json(ROLES.iter().map(document).collect())
}

/// The members that name what a role is for.
fn parts<'a>(depth: Depth, part: impl Fn(usize) -> &'a str) -> Map<String, Value> {
    let names = ["bucket_name", "scope_name", "collection_name"];
    let named = names.iter().take(depth as usize).enumerate();
    named.map(|(at, name)| ((*name).to_owned(), json!(part(at)))).collect()
}

/// A role as clients read it.
pub fn role(role: &Role) -> Value {
    let names = [role.bucket(), role.scope(), role.collection()];
    let mut document = parts(role.kind().depth, |at| names.get(at).copied().flatten().unwrap_or(ANY));
    document.insert("role".into(), json!(role.kind().name));
    Value::Object(document)
}

fn group_document(name: &str, group: &Group) -> Value {
    json!({
        "id": name,
        "description": group.description,
        "ldap_group_ref": group.ldap_group_ref,
        "roles": group.roles.iter().map(role).collect::<Vec<_>>(),
    })
}

/// A user of a domain with all its roles, each with where it comes from.
fn user(console: &Console, kept: &Kept, domain: &str, name: &str) -> Option<Value> {
    let (empty, everything) = (BTreeSet::new(), [Role::admin()]);
    let (full_name, roles, groups, changed_s): (&str, &[Role], &BTreeSet<String>, Option<u64>) = match domain
    {
        EXTERNAL => kept.external.get(name).map(|user| (&*user.name, &*user.roles, &user.groups, None))?,
        LOCAL | ADMIN if domain_of(console, name) != domain => return None,
        ADMIN if console.node.users().is_configured(name) => ("", &everything[..], &empty, None),
        LOCAL | ADMIN => {
            let user = kept.users.get(name)?;
            (&*user.name, &*user.roles, &user.groups, Some(user.password_changed_s))
        }
        _ => return None,
    };
    let mut document = json!({
        "id": name,
        "domain": domain,
        "name": full_name,
        "roles": roles_with_origins(kept, roles, groups),
        "groups": groups,
        "external_groups": [],
    });
    if let Some(changed_s) = changed_s {
        document["password_change_date"] = json!(date(changed_s));
    }
    Some(document)
}

fn roles_with_origins(kept: &Kept, roles: &[Role], groups: &BTreeSet<String>) -> Vec<Value> {
    let mut origins: Vec<(&Role, Vec<Value>)> = Vec::new();
    let mut places: HashMap<&Role, usize> = HashMap::new();
    let groups = groups.iter().filter_map(|name| kept.groups.get_key_value(name));
    let of_groups = groups.flat_map(|(name, group)| group.roles.iter().map(move |one| (one, Some(name))));
    for (one, group) in roles.iter().map(|one| (one, None)).chain(of_groups) {
        let origin = match group {
            None => json!({ "type": "user" }),
            Some(name) => json!({ "type": "group", "name": name }),
        };
        match places.get(one).and_then(|at| origins.get_mut(*at)) {
            Some((_, known)) => known.push(origin),
            None => {
                places.insert(one, origins.len());
                origins.push((one, vec![origin]));
            }
        }
    }
    let with_origins = |(one, origins): (&Role, Vec<Value>)| {
        let mut document = role(one);
        document["origins"] = json!(origins);
        document
    };
    origins.into_iter().map(with_origins).collect()
}

/// A time in the form of RFC 3339.
pub fn date(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|s| time::OffsetDateTime::from_unix_timestamp(s).ok());
    let Some(time) = time else { return String::new() };
    let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
    let (hour, minute, second) = time.to_hms();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

/// The fields of a form about a user or a group.
#[derive(Default)]
struct Request {
    name: Option<String>,
    password: Option<String>,
    roles: Option<Vec<Role>>,
    groups: Option<BTreeSet<String>>,
    description: Option<String>,
    ldap_group_ref: Option<String>,
}

fn request(
    console: &Console,
    fields: Vec<(String, String)>,
    allowed: &[&'static str],
) -> Result<Request, Refusal> {
    let mut request = Request::default();
    for (field, value) in fields {
        let Some(known) = allowed.iter().find(|known| **known == field) else { continue };
        match *known {
            "roles" => request.roles = Some(existing_roles(console, &value)?),
            "groups" => {
                let groups = list_of(&value);
                if groups.len() > GROUPS_MAX {
                    return Err(invalid("groups", format!("Allowed: at most {GROUPS_MAX} groups.")));
                }
                request.groups = Some(groups);
            }
            "password" => request.password = Some(checked_password(console, value)?),
            _ if value.len() > TEXT_MAX => {
                return Err(Refusal::Invalid {
                    field: known,
                    reason: format!("Longer than {TEXT_MAX} bytes."),
                });
            }
            "name" => request.name = Some(value),
            "description" => request.description = Some(value),
            _ => request.ldap_group_ref = Some(value),
        }
    }
    Ok(request)
}

fn list_of(text: &str) -> BTreeSet<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Returns a password that a user may have.
pub fn checked_password(console: &Console, password: String) -> Result<String, Refusal> {
    stored::check_password(console, &password)?;
    if password.is_empty() {
        return Err(invalid("password", "The password must not be empty."));
    }
    // What is no UTF-8 in a form has become replacement characters.
    let is_odd = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
    if password.len() > PASSWORD_MAX || password.contains(is_odd) {
        let reason = format!(
            "The password must be UTF-8 of at most {PASSWORD_MAX} bytes, without control characters."
        );
        return Err(invalid("password", reason));
    }
    Ok(password)
}

/// Parses roles; what they are for must be there.
fn existing_roles(console: &Console, list: &str) -> Result<Vec<Role>, Refusal> {
    let exists = |role: &Role| {
        let Some(name) = role.bucket() else { return true };
        let Some(bucket) = console.node.bucket(name) else { return false };
        let manifest = bucket.collections().manifest();
        match (role.scope(), role.collection()) {
            (None, _) => true,
            (Some(scope), None) => manifest.scope(scope).is_some(),
            (Some(scope), Some(collection)) => manifest.collection(scope, collection).is_some(),
        }
    };
    let roles = Role::parse_list(list).and_then(|roles| {
        let missing: Vec<_> = roles.iter().filter(|role| !exists(role)).map(ToString::to_string).collect();
        if missing.is_empty() { Ok(roles) } else { Err(missing) }
    });
    match roles {
        Ok(roles) if roles.len() > ROLES_MAX => {
            Err(invalid("roles", format!("Allowed: at most {ROLES_MAX} roles.")))
        }
        Ok(roles) => Ok(roles),
        Err(wrong) => Err(invalid(
            "roles",
            format!(
                "Cannot assign roles to user because the following roles are unknown, malformed or role parameters \
                 are undefined: [{}]",
                wrong.join(",")
            ),
        )),
    }
}

/// Refuses what cannot be the name of a user or group.
pub fn check_name(field: &'static str, name: &str) -> Result<(), Refusal> {
    let is_allowed = |c: char| !c.is_whitespace() && !"()<>,;:\\\"/[]?={}".contains(c);
    if !kv::users::is_name(name) || !name.chars().all(is_allowed) {
        let reason =
            format!("The name must have {}, and no spaces or any of ()<>,;:\\\"/[]?={{}}", kv::users::NAME);
        return Err(invalid(field, reason));
    }
    Ok(())
}

/// Changes users and groups on a thread of its own, since they are written to disk.
async fn change(
    console: Console,
    party: &Party,
    f: impl FnOnce(&mut Kept) -> Result<(), Refusal> + Send + 'static,
) -> Response {
    change_with(console, party, None, |kept, _| f(kept)).await
}

/// The same with the keys of a password, which are derived before anything is locked.
async fn change_with(
    console: Console,
    party: &Party,
    password: Option<String>,
    f: impl FnOnce(&mut Kept, Option<Keys>) -> Result<(), Refusal> + Send + 'static,
) -> Response {
    let (control, map_changes) = (Arc::clone(&console.control), console.map_changes.clone());
    let node = Arc::clone(&console.node);
    let change = move || {
        let keys = password.map(|password| node.users().derive(password.as_bytes()));
        let changed = control.change_users(Box::new(move |kept| f(kept, keys)));
        // Streams end whose users may no longer see their buckets.
        map_changes.send_replace(());
        changed
    };
    match console.change(party, "dm:users", change).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => refused(refusal),
    }
}

fn no_such(answer: &'static str) -> Refusal {
    Refusal::NoSuch { answer }
}

/// Refuses to touch roles with rights over others, unless the user may.
fn check_over_others<'a>(
    identity: &Identity,
    roles: impl IntoIterator<Item = &'a Role>,
) -> Result<(), Refusal> {
    if identity.roles().on_node().contain(Rights::SECURITY) {
        return Ok(());
    }
    let is_over_others = |role: &Role| role.kind().rights.meet(Rights::OVER_OTHERS);
    if roles.into_iter().any(is_over_others) {
        return Err(Refusal::Forbidden { permission: "cluster.admin.security!write" });
    }
    Ok(())
}

/// The same with the members of a group.
fn check_members(identity: &Identity, kept: &Kept, group: &str) -> Result<(), Refusal> {
    let members = kept.users.values().filter(|user| user.groups.contains(group));
    members.into_iter().try_for_each(|user| check_over_others(identity, kept.roles_of(user)))?;
    let members = kept.external.values().filter(|user| user.groups.contains(group));
    members
        .into_iter()
        .try_for_each(|user| check_over_others(identity, kept.roles_with(&user.roles, &user.groups)))
}

/// Refuses to change a user of the configuration, and one of another domain.
fn check_user(console: &Console, domain: &str, name: &str) -> Result<(), Refusal> {
    if domain != LOCAL {
        let reason =
            format!("Users of the domain {domain:?} cannot be changed. Allowed: {LOCAL}, {EXTERNAL}.");
        return Err(invalid("_", reason));
    }
    if console.node.users().is_configured(name) {
        let reason = "This user is defined in the configuration (auth.user, auth.password_file, auth.users_file), or \
                      is the development user; it cannot be changed here.";
        return Err(invalid("_", reason));
    }
    Ok(())
}

/// The same, and refuses to change the administrator.
fn check_other_user(console: &Console, domain: &str, name: &str) -> Result<(), Refusal> {
    check_user(console, domain, name)?;
    let is_administrator = console.node.users().kept().administrator.as_deref() == Some(name);
    if is_administrator && console.control.may_set_administrator().is_ok() {
        return Err(invalid("_", "This user is the administrator, who is changed with POST /settings/web."));
    }
    Ok(())
}

const USER_FIELDS: [&str; 4] = ["name", "password", "roles", "groups"];

/// `PUT /settings/rbac/users/local/USER`: creates a user, or replaces all but the password, which may be left out.
pub async fn put(
    state: State<Console>,
    party: Party,
    identity: Extension<Identity>,
    path: Path<(String, String)>,
    fields: Fields,
) -> Response {
    set(state, party, identity, path, fields, false).await
}

/// `PATCH /settings/rbac/users/local/USER`: changes what is given.
pub async fn patch(
    state: State<Console>,
    party: Party,
    identity: Extension<Identity>,
    path: Path<(String, String)>,
    fields: Fields,
) -> Response {
    set(state, party, identity, path, fields, true).await
}

async fn set(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path((domain, name)): Path<(String, String)>,
    Form(fields): Fields,
    only_given: bool,
) -> Response {
    if domain == EXTERNAL {
        return set_external(console, party, identity, name, fields, only_given).await;
    }
    let request = check_other_user(&console, &domain, &name)
        .and_then(|()| check_name("_", &name))
        .and_then(|()| request(&console, fields, &USER_FIELDS));
    let mut request = match request {
        Ok(request) => request,
        Err(refusal) => return refused(refusal),
    };
    let password = request.password.take();
    change_with(console, &party, password, move |kept, keys| {
        let old = kept.users.get(&name).cloned();
        if old.is_none() && only_given {
            return Err(no_such("Unknown user."));
        }
        if let Some(old) = &old {
            check_over_others(&identity, kept.roles_of(old))?;
        } else if kept.users.len() >= COUNT_MAX {
            return Err(invalid("_", format!("There are {COUNT_MAX} users, the maximum.")));
        }
        let password_changed_s = match (&keys, &old) {
            (None, Some(old)) => old.password_changed_s,
            _ => unix_s(),
        };
        let keys = keys.or_else(|| old.as_ref().map(|old| old.keys.clone()));
        let keys = keys.ok_or_else(|| invalid("password", "Password is required for new user."))?;
        check_groups(kept, &request)?;
        let kept_as_it_is = old.filter(|_| only_given);
        let (old_name, old_roles, old_groups) =
            kept_as_it_is.map(|old| (old.name, old.roles, old.groups)).unwrap_or_default();
        let user = KeptUser {
            name: request.name.unwrap_or(old_name),
            keys,
            roles: request.roles.unwrap_or(old_roles),
            groups: request.groups.unwrap_or(old_groups),
            password_changed_s,
        };
        check_over_others(&identity, kept.roles_of(&user))?;
        check_number(kept, &name, &user.roles, &user.groups)?;
        kept.users.insert(name, user);
        check_total(kept)
    })
    .await
}

/// Refuses groups that are not there.
fn check_groups(kept: &Kept, request: &Request) -> Result<(), Refusal> {
    let unknown = request.groups.iter().flatten().filter(|name| !kept.groups.contains_key(*name));
    let unknown: Vec<_> = unknown.cloned().collect();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(invalid("groups", format!("Groups do not exist: {}", unknown.join(","))))
}

/// Refuses more roles than a user may have, those of its groups included: each request looks at all of them.
fn check_number(kept: &Kept, name: &str, roles: &[Role], groups: &BTreeSet<String>) -> Result<(), Refusal> {
    let of_groups = groups.iter().filter_map(|group| kept.groups.get(group)).map(|group| group.roles.len());
    if roles.len() + of_groups.sum::<usize>() <= ROLES_MAX {
        return Ok(());
    }
    let reason = format!("{name} would have more than {ROLES_MAX} roles, those of its groups included.");
    Err(invalid("roles", reason))
}

/// Refuses more roles than are kept in all.
fn check_total(kept: &Kept) -> Result<(), Refusal> {
    let users = kept.users.values().map(|user| user.roles.len());
    let external = kept.external.values().map(|user| user.roles.len());
    let groups = kept.groups.values().map(|group| group.roles.len());
    if users.chain(external).chain(groups).sum::<usize>() <= ALL_ROLES_MAX {
        return Ok(());
    }
    Err(invalid("roles", format!("All users and groups together may have {ALL_ROLES_MAX} roles.")))
}

/// The same for an external user, who has no password.
async fn set_external(
    console: Console,
    party: Party,
    identity: Identity,
    name: String,
    fields: Vec<(String, String)>,
    only_given: bool,
) -> Response {
    let request =
        check_name("_", &name).and_then(|()| request(&console, fields, &["name", "roles", "groups"]));
    let request = match request {
        Ok(request) => request,
        Err(refusal) => return refused(refusal),
    };
    change(console, &party, move |kept| {
        let old = kept.external.get(&name).cloned();
        if let Some(old) = &old {
            check_over_others(&identity, kept.roles_with(&old.roles, &old.groups))?;
        } else if only_given {
            return Err(no_such("Unknown user."));
        } else if kept.external.len() >= COUNT_MAX {
            return Err(invalid("_", format!("There are {COUNT_MAX} users, the maximum.")));
        }
        check_groups(kept, &request)?;
        let former = old.filter(|_| only_given).unwrap_or_default();
        let user = ExternalUser {
            name: request.name.unwrap_or(former.name),
            roles: request.roles.unwrap_or(former.roles),
            groups: request.groups.unwrap_or(former.groups),
        };
        check_over_others(&identity, kept.roles_with(&user.roles, &user.groups))?;
        check_number(kept, &name, &user.roles, &user.groups)?;
        kept.external.insert(name, user);
        check_total(kept)
    })
    .await
}

/// `DELETE /settings/rbac/users/local/USER`. Connections of the user stay, without any rights.
pub async fn delete(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path((domain, name)): Path<(String, String)>,
) -> Response {
    if domain == EXTERNAL {
        return change(console, &party, move |kept| {
            let old = kept.external.get(&name).ok_or(no_such("User was not found."))?;
            check_over_others(&identity, kept.roles_with(&old.roles, &old.groups))?;
            kept.external.remove(&name);
            Ok(())
        })
        .await;
    }
    if let Err(refusal) = check_other_user(&console, &domain, &name) {
        return refused(refusal);
    }
    change(console, &party, move |kept| {
        let old = kept.users.get(&name).ok_or(no_such("User was not found."))?;
        check_over_others(&identity, kept.roles_of(old))?;
        kept.users.remove(&name);
        Ok(())
    })
    .await
}

/// `PUT /settings/rbac/groups/GROUP`: creates or replaces a group.
pub async fn put_group(
    state: State<Console>,
    party: Party,
    identity: Extension<Identity>,
    path: Path<String>,
    fields: Fields,
) -> Response {
    set_group(state, party, identity, path, fields, false).await
}

/// `PATCH /settings/rbac/groups/GROUP`: changes what is given.
pub async fn patch_group(
    state: State<Console>,
    party: Party,
    identity: Extension<Identity>,
    path: Path<String>,
    fields: Fields,
) -> Response {
    set_group(state, party, identity, path, fields, true).await
}

async fn set_group(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Form(fields): Fields,
    only_given: bool,
) -> Response {
    let request = check_name("_", &name)
        .and_then(|()| request(&console, fields, &["roles", "description", "ldap_group_ref"]));
    let request = match request {
        Ok(request) => request,
        Err(refusal) => return refused(refusal),
    };
    change(console, &party, move |kept| {
        let old = kept.groups.get(&name).cloned();
        if let Some(old) = &old {
            check_over_others(&identity, &old.roles)?;
            check_members(&identity, kept, &name)?;
        } else if only_given {
            return Err(no_such("Unknown group."));
        } else if kept.groups.len() >= COUNT_MAX {
            return Err(invalid("_", format!("There are {COUNT_MAX} groups, the maximum.")));
        }
        let former = old.filter(|_| only_given).unwrap_or_default();
        let group = Group {
            description: request.description.unwrap_or(former.description),
            ldap_group_ref: request.ldap_group_ref.unwrap_or(former.ldap_group_ref),
            roles: request.roles.unwrap_or(former.roles),
        };
        check_over_others(&identity, &group.roles)?;
        kept.groups.insert(name.clone(), group);
        let users = kept.users.iter().map(|(user, own)| (user, &own.roles, &own.groups));
        let external = kept.external.iter().map(|(user, own)| (user, &own.roles, &own.groups));
        for (user, roles, groups) in users.chain(external).filter(|(.., groups)| groups.contains(&name)) {
            check_number(kept, user, roles, groups)?;
        }
        check_total(kept)
    })
    .await
}

/// `DELETE /settings/rbac/groups/GROUP`: its members lose its roles.
pub async fn delete_group(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Response {
    change(console, &party, move |kept| {
        let old = kept.groups.get(&name).ok_or(no_such("Group was not found."))?;
        check_over_others(&identity, &old.roles)?;
        check_members(&identity, kept, &name)?;
        kept.groups.remove(&name);
        for user in kept.users.values_mut() {
            user.groups.remove(&name);
        }
        for user in kept.external.values_mut() {
            user.groups.remove(&name);
        }
        Ok(())
    })
    .await
}

/// `POST /controller/changePassword`: of the user who asks; a form with `password`.
pub async fn change_password(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Form(fields): Fields,
) -> Response {
    let name = identity.user.as_deref().unwrap_or_default().to_owned();
    let request =
        check_user(&console, LOCAL, &name).and_then(|()| request(&console, fields, &["password"])).and_then(
            |request| request.password.ok_or_else(|| invalid("password", "The value must be supplied")),
        );
    let password = match request {
        Ok(password) => password,
        Err(refusal) => return refused(refusal),
    };
    change_with(console.clone(), &party, Some(password), move |kept, keys| {
        if identity.now(&console).is_none() {
            return Err(no_such("Unknown user."));
        }
        let user = kept.users.get_mut(&name).ok_or(no_such("Unknown user."))?;
        keys.into_iter().for_each(|keys| user.keys = keys);
        user.password_changed_s = unix_s();
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(roles: usize, first: usize) -> Group {
        let role = |number| Role::parse(&format!("data_reader[b:s:c{number}]")).unwrap();
        Group { roles: (first..first + roles).map(role).collect(), ..Group::default() }
    }

    #[test]
    fn the_roles_of_groups_count_as_their_members_own() {
        let mut kept = Kept::default();
        kept.groups.insert("one".to_owned(), group(ROLES_MAX / 2, 0));
        kept.groups.insert("two".to_owned(), group(ROLES_MAX / 2, 1000));
        let groups: BTreeSet<String> = kept.groups.keys().cloned().collect();
        assert!(check_number(&kept, "ann", &[], &groups).is_ok());
        assert!(check_number(&kept, "ann", &[Role::admin()], &groups).is_err());
        assert!(check_number(&kept, "ann", &[Role::admin()], &BTreeSet::new()).is_ok());
    }

    #[test]
    fn there_are_so_many_roles_in_all() {
        let mut kept = Kept::default();
        for number in 0..ALL_ROLES_MAX / ROLES_MAX {
            kept.groups.insert(number.to_string(), group(ROLES_MAX, number));
        }
        assert!(check_total(&kept).is_ok());
        let more = ExternalUser { roles: vec![Role::admin()], ..Default::default() };
        kept.external.insert("ann".to_owned(), more);
        assert!(check_total(&kept).is_err());
    }

    #[test]
    fn a_list_is_written_piece_by_piece_and_refused_if_it_is_long() {
        let documents = |count: usize| std::iter::repeat_n(json!({ "id": "a" }), count);
        assert_eq!(written(documents(2)).unwrap(), r#"[{"id":"a"},{"id":"a"}]"#);
        assert_eq!(written(documents(0)).unwrap(), "[]");
        let mut made = 0;
        let long = std::iter::repeat_with(|| {
            made += 1;
            json!("x".repeat(1 << 20))
        });
        assert!(written(long).is_err());
        assert_eq!(made, LIST_BYTES_MAX >> 20);
    }
}
