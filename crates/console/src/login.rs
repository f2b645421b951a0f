//! HTTP Basic login, as two middlewares: for reads (required if a password is configured) and for changes (always
//! required); and what each request needs of its user's roles.

use crate::Console;
use crate::acts::{self, Act};
use crate::admission::Client;
use crate::buckets::refused;
use crate::keys::place::Place;
use crate::work::Party;
use crate::{pools, users};
use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{ConnectInfo, RawPathParams, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use axum::{Extension, Json};
use base64::Engine as _;
use kv::users::roles::{Rights, Role, Roles};
use kv::users::{Caller, LoggedIn, Standing};
use net::Clock;
use serde_json::{Value, json};
use std::sync::Arc;

/// Who sent a request.
#[derive(Clone)]
pub struct Identity {
    /// The name; `None` for a read without a login.
    pub user: Option<Arc<str>>,
    /// Its roles.
    standing: Arc<Standing>,
}

impl Identity {
    /// Reads without a login, where no password is configured: everything except documents.
    fn of_reader() -> Self {
        Self::without_login(Role::parse("ro_admin").into_iter().collect())
    }

    /// Everybody, before there is a user.
    fn of_anybody() -> Self {
        Self::without_login([Role::admin()].into())
    }

    fn without_login(roles: Arc<[Role]>) -> Self {
        Self { user: None, standing: Arc::new(Standing { id: 0, roles: Roles::new([roles]) }) }
    }

    /// Returns all roles, those of groups included.
    pub fn roles(&self) -> &Roles {
        &self.standing.roles
    }

    /// The same user with the rights of this moment; `None` if it may not be here any more.
    pub fn now(&self, console: &Console) -> Option<Self> {
        let Some(user) = &self.user else {
            let is_open = !console.control.login_required() || !console.control.is_provisioned();
            return is_open.then(|| self.clone());
        };
        let standing = console.node.users().standing(user)?;
        (standing.id == self.standing.id).then(|| Self { user: self.user.clone(), standing })
    }

    /// Returns true if it may see a bucket, or a part of it.
    pub fn sees(&self, bucket: &str) -> bool {
        self.roles().somewhere_in(bucket).meet(Rights::SEE)
    }
}

/// Admits reads: all of them with the development password, else those with a login. A wrong login is refused in either
/// case.
pub async fn to_read(
    console: State<Console>,
    client: ConnectInfo<Client>,
    mut request: Request,
    next: Next,
) -> Response {
    let given = request.headers().contains_key(header::AUTHORIZATION);
    if !given && !console.control.login_required() {
        request.extensions_mut().insert(Identity::of_reader());
        return next.run(request).await;
    }
    to_change(console, client, request, next).await
}

/// Admits requests with a user's name and password.
pub async fn to_change(
    State(console): State<Console>,
    ConnectInfo(client): ConnectInfo<Client>,
    mut request: Request,
    next: Next,
) -> Response {
    if !console.control.is_provisioned() {
        request.extensions_mut().insert(Identity::of_anybody());
        return next.run(request).await;
    }
    let Some(LoggedIn { name, standing }) = log_in(&console, &client, request.headers()) else {
        return refusal();
    };
    client.connection.set_user(Arc::clone(&name));
    request.extensions_mut().insert(Identity { user: Some(name), standing });
    next.run(request).await
}

/// The user whose name and password are in the headers.
pub fn log_in(console: &Console, client: &Client, headers: &HeaderMap) -> Option<LoggedIn> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (user, password) = credentials(value)?;
    console.node.users().log_in(&user, password.as_bytes(), caller(client))
}

fn caller(client: &Client) -> Caller {
    Caller {
        address: Some(client.address),
        loopback: client.address.is_loopback(),
        connection: client.connection.id(),
        mono_us: Clock::start().now().mono_us,
    }
}

/// What a request needs, besides a login.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// Nothing.
    Login,
    /// Rights on the node.
    Node(Rights),
    /// To see the bucket of the path, or a part of it.
    SeeBucket,
    /// To read documents of the bucket of the path, or of a part of it.
    ReadSome,
    /// Rights on the bucket of the path.
    Bucket(Rights),
    /// To manage the collections of the scope of the path.
    Scope,
    /// To manage users of the domain of the path.
    Users,
    /// Rights on the documents of the collection that the address names, or of the whole bucket.
    Documents(Rights),
}

type PathParts = Result<RawPathParams, RawPathParamsRejection>;

/// Lets requests through whose user has the rights.
pub fn by(need: Need, handlers: MethodRouter<Console>) -> MethodRouter<Console> {
    handlers.route_layer(axum::middleware::from_fn_with_state(need, check))
}

/// The same for requests with bodies. A body is awaited only of a user who has the rights, and they are looked at again
/// once it is there, which may take a while.
pub fn by_then_body(console: &Console, need: Need, handlers: MethodRouter<Console>) -> MethodRouter<Console> {
    handlers.route_layer(axum::middleware::from_fn_with_state((console.clone(), need), check_then_receive))
}

async fn check(
    State(need): State<Need>,
    path: PathParts,
    Extension(identity): Extension<Identity>,
    request: Request,
    next: Next,
) -> Response {
    match need.met(&identity, &path, request.uri()) {
        Ok(()) => next.run(request).await,
        Err(response) => *response,
    }
}

async fn check_then_receive(
    State((console, need)): State<(Console, Need)>,
    ConnectInfo(client): ConnectInfo<Client>,
    path: PathParts,
    Extension(identity): Extension<Identity>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(response) = need.met(&identity, &path, request.uri()) {
        return *response;
    }
    let (parts, body) = request.into_parts();
    let body = match client.connection.receive(body).await {
        Ok(body) => body,
        Err(response) => return *response,
    };
    let Some(identity) = identity.now(&console) else { return refusal() };
    if let Err(response) = need.met(&identity, &path, &parts.uri) {
        return *response;
    }
    let act = Act::of(need, &parts.method, &parts.uri, &body);
    let mut request = Request::from_parts(parts, Body::from(body));
    let user = identity.user.clone();
    request.extensions_mut().insert(identity);
    match act {
        Some(act) => acts::executed(console.acts, act, user, client.address, next.run(request)).await,
        None => next.run(request).await,
    }
}

impl Need {
    /// Returns the answer for a user without the rights.
    fn met(self, identity: &Identity, path: &PathParts, uri: &Uri) -> Result<(), Box<Response>> {
        // A key need not be UTF-8. Where anything else is not, the handler refuses the request.
        let path = path.as_ref().ok();
        let part = |name: &str| {
            let found = path.into_iter().flatten().find(|(part, _)| *part == name);
            found.map_or("", |(_, value)| value)
        };
        let (roles, bucket, scope) = (identity.roles(), part("bucket"), part("scope"));
        let (is_allowed, permission) = match self {
            Self::Login => (true, String::new()),
            Self::Node(rights) => (roles.on_node().contain(rights), permission(rights, "cluster")),
            Self::SeeBucket => {
                (identity.sees(bucket), permission(Rights::SEE, &format!("cluster.bucket[{bucket}]")))
            }
            Self::ReadSome => (
                roles.somewhere_in(bucket).contain(Rights::READ),
                permission(Rights::READ, &format!("cluster.bucket[{bucket}]")),
            ),
            Self::Bucket(rights) => (
                roles.on(&[bucket]).contain(rights),
                permission(rights, &format!("cluster.bucket[{bucket}]")),
            ),
            Self::Scope => (
                roles.on(&[bucket, scope]).contain(Rights::COLLECTIONS),
                permission(Rights::COLLECTIONS, &format!("cluster.scope[{bucket}:{scope}]")),
            ),
            Self::Users => {
                let rights = match part("domain") {
                    users::EXTERNAL => Rights::EXTERNAL_USERS,
                    _ => Rights::USERS,
                };
                (roles.on_node().contain(rights), permission(rights, "cluster"))
            }
            Self::Documents(rights) => {
                let place = Place::of(uri).map_err(|refusal| Box::new(refused(refusal)))?;
                let names = place.names();
                let kind = if names.len() > 1 { "collection" } else { "bucket" };
                let object = format!("cluster.{kind}[{}]", names.join(":"));
                (roles.on(&names).contain(rights), permission(rights, &object))
            }
        };
        if is_allowed { Ok(()) } else { Err(forbidden(&permission).into()) }
    }
}

/// The name of rights on an object, as clients know it.
pub fn permission(rights: Rights, object: &str) -> String {
    let names = [
        (Rights::SEE, "settings!read"),
        (Rights::BUCKET, "settings!write"),
        (Rights::FLUSH, "data!flush"),
        (Rights::COLLECTIONS, "collections!write"),
        (Rights::NODE, "pools!write"),
        (Rights::SEE_USERS, "admin.users!read"),
        (Rights::USERS, "admin.users!write"),
        (Rights::EXTERNAL_USERS, "admin.users.external!write"),
        (Rights::SECURITY, "admin.security!write"),
        (Rights::METRICS, "admin.stats_export!read"),
        (Rights::STATISTICS, "stats!read"),
        (Rights::READ, "data.docs!read"),
        (Rights::WRITE, "data.docs!write"),
    ];
    let known = names.iter().find(|(known, _)| rights != Rights::ALL && rights.contain(*known));
    let name = known.map_or("admin!all", |(_, name)| name);
    format!("{object}.{name}")
}

/// 403 with what is missing.
pub fn forbidden(permission: &str) -> Response {
    let message = "Forbidden. User needs the following permissions";
    (StatusCode::FORBIDDEN, Json(json!({ "message": message, "permissions": [permission] }))).into_response()
}

/// `GET /whoami`: the user of the request, after [`to_change`].
///
/// COMPAT: gocb's `WaitUntilReady` of the management service waits for this to answer 200.
pub async fn whoami(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
) -> Response {
    let show = move |console: Console| {
        let roles: Vec<Value> = identity.roles().iter().map(users::role).collect();
        let name = identity.user.as_deref();
        let domain = name.map_or(users::LOCAL, |name| users::domain_of(&console, name));
        Json(json!({ "id": name, "domain": domain, "roles": roles }))
    };
    pools::described(&console, &party, show).await
}

fn refusal() -> Response {
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic realm=\"Dormouse\", charset=\"UTF-8\"")])
        .into_response()
}

/// User and password of an `Authorization: Basic` value (RFC 7617).
fn credentials(value: &str) -> Option<(String, String)> {
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::credentials;

    #[test]
    fn reads_basic_credentials_only() {
        let some = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(credentials("Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA=="), some("Administrator", "password"));
        assert_eq!(credentials("basic YTpiOmM="), some("a", "b:c"));
        for wrong in ["", "Basic", "Basic ?", "Bearer YTpi", "Basic YQ==", "Basic /w=="] {
            assert_eq!(credentials(wrong), None, "{wrong}");
        }
    }
}
