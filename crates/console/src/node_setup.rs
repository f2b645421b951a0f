//! What an operator says about the node: its name, memory, services, administrator, addresses for other networks.
//! Single requests and `/clusterInit`, which takes everything at once, share their fields.

use crate::buckets::{invalid, refused};
use crate::login::Identity;
use crate::users::{check_name, checked_password};
use crate::work::Party;
use crate::{Console, Refusal, pools};
use axum::extract::{Form, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::profile::{External, KV, Profile};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

type Fields = Form<Vec<(String, String)>>;

/// Longest name of a cluster.
const CLUSTER_NAME_MAX: usize = 256;
/// Longest host name.
const HOST_NAME_MAX: usize = 253;
/// Fields with the memory of services that are not there.
const QUOTAS: [&str; 5] =
    ["indexMemoryQuota", "ftsMemoryQuota", "cbasMemoryQuota", "eventingMemoryQuota", "queryMemoryQuota"];
/// Fields of the administrator.
const ADMINISTRATOR: [&str; 2] = ["username", "password"];
const STORAGE_MODES: [&str; 4] = ["plasma", "magma", "memory_optimized", "forestdb"];
/// Ports of an external address, by their names in maps.
const PORTS: [&str; 20] = [
    "kv",
    "kvSSL",
    "mgmt",
    "mgmtSSL",
    "capi",
    "capiSSL",
    "n1ql",
    "n1qlSSL",
    "fts",
    "ftsSSL",
    "cbas",
    "cbasSSL",
    "eventingAdminPort",
    "eventingSSL",
    "indexAdmin",
    "indexHttp",
    "indexHttps",
    "indexScan",
    "backupAPI",
    "backupAPIHTTPS",
];

/// What a request says.
#[derive(Default)]
struct Setup {
    cluster_name: Option<String>,
    hostname: Option<String>,
    services: Option<Vec<String>>,
    memory_mib: Option<u64>,
    quotas: BTreeMap<String, u64>,
    storage_mode: Option<String>,
    user: Option<String>,
    password: Option<String>,
}

impl Setup {
    /// Enters what is said; the rest stays.
    fn apply(self, profile: &mut Profile) {
        profile.memory_mib = self.memory_mib.or(profile.memory_mib);
        profile.hostname = self.hostname.or(profile.hostname.take());
        profile.storage_mode = self.storage_mode.or(profile.storage_mode.take());
        if let Some(cluster_name) = self.cluster_name {
            profile.cluster_name = cluster_name;
        }
        if let Some(services) = self.services {
            profile.services = services;
        }
        profile.quotas.extend(self.quotas);
    }
}

/// Parses a form with some of the fields, and all that are `required`.
///
/// COMPAT: others are ignored: scripts send what some version of Couchbase knows.
fn setup(
    console: &Console,
    fields: Vec<(String, String)>,
    required: &[&'static str],
    allowed: &[&str],
) -> Result<Setup, Refusal> {
    let is_given = |name: &str| fields.iter().any(|(field, _)| field == name);
    if let Some(missing) = required.iter().find(|name| !is_given(name)) {
        return Err(invalid(missing, "The value must be supplied"));
    }
    let allowed = [required, allowed].concat();
    let mut setup = Setup::default();
    for (field, value) in fields {
        let Some(field) = allowed.iter().find(|known| **known == field) else { continue };
        let not_allowed = |allowed: &str| Refusal::Invalid {
            field: "_",
            reason: format!("{field} = {value:?} is not allowed. Allowed: {allowed}."),
        };
        match *field {
            "clusterName" if value.len() > CLUSTER_NAME_MAX || value.contains(char::is_control) => {
                return Err(not_allowed("at most 256 bytes without control characters"));
            }
            "clusterName" => setup.cluster_name = Some(value),
            "hostname" if !is_host_name(&value) => return Err(not_allowed("an IP address or a host name")),
            "hostname" => setup.hostname = Some(value),
            "services" => setup.services = Some(services(console, &value)?),
            "memoryQuota" => {
                setup.memory_mib = Some(mebibytes(&value).ok_or_else(|| not_allowed("a number of MiB"))?)
            }
            "indexerStorageMode" | "storageMode" if !STORAGE_MODES.contains(&value.as_str()) => {
                return Err(not_allowed(&STORAGE_MODES.join(", ")));
            }
            "indexerStorageMode" | "storageMode" => setup.storage_mode = Some(value),
            "username" => {
                check_name("username", &value)?;
                setup.user = Some(value);
            }
            "password" => setup.password = Some(checked_password(console, value)?),
            // Neither changes anything: ports are set when the node is started, and nothing is ever sent home.
            "port" if !is_own_port(console, &value) => {
                return Err(not_allowed("SAME, or the port of this request"));
            }
            "sendStats" if !["true", "false"].contains(&value.as_str()) => {
                return Err(not_allowed("true or false"));
            }
            "port" | "sendStats" => {}
            quota => {
                let mebibytes = mebibytes(&value).ok_or_else(|| not_allowed("a number of MiB"))?;
                setup.quotas.insert(quota.to_owned(), mebibytes);
            }
        }
    }
    Ok(setup)
}

fn mebibytes(text: &str) -> Option<u64> {
    text.parse().ok().filter(|mebibytes| (1..=u64::MAX >> 20).contains(mebibytes))
}

fn is_own_port(console: &Console, text: &str) -> bool {
    let own = &console.node.endpoints().http;
    text == "SAME" || own.iter().any(|address| address.port().to_string() == text)
}

/// An address, or a name of the characters that names in the DNS have.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.parse::<std::net::IpAddr>().is_ok() || text.len() <= HOST_NAME_MAX && text.split('.').all(is_label)
}

/// The services besides KV.
fn services(console: &Console, list: &str) -> Result<Vec<String>, Refusal> {
    let known = &console.node.endpoints().services;
    let mut services = Vec::new();
    let mut has_kv = false;
    for name in list.split(',').map(str::trim) {
        match name {
            KV => has_kv = true,
            known if services.iter().any(|service| service == known) => {}
            other if known.iter().any(|port| port.service == other) => services.push(other.to_owned()),
            other => {
                let allowed: Vec<_> =
                    std::iter::once(KV).chain(known.iter().map(|port| port.service)).collect();
                let reason = format!("There is no service {other:?}. Allowed: {}.", allowed.join(", "));
                return Err(invalid("services", reason));
            }
        }
    }
    if has_kv {
        Ok(services)
    } else {
        Err(invalid("services", "The node serves kv, which must be among them."))
    }
}

/// Does what the form says, on a thread of its own. Memory first, since it may not fit; the administrator last, since
/// from then on requests need a login.
async fn apply(
    console: Console,
    party: &Party,
    identity: Identity,
    setup: Result<Setup, Refusal>,
) -> Result<(), Refusal> {
    let setup = setup?;
    let (control, map_changes) = (Arc::clone(&console.control), console.map_changes.clone());
    let node = Arc::clone(&console.node);
    let set_up = move || {
        if setup.user.is_some() {
            control.may_set_administrator()?;
        }
        let (memory_before, profile_before) = (control.memory_bytes(), node.profile());
        if let Some(mebibytes) = setup.memory_mib {
            control.set_memory(mebibytes << 20)?;
        }
        let Setup { user, password, memory_mib, .. } = &setup;
        let (administrator, sets_memory) = (user.clone().zip(password.clone()), memory_mib.is_some());
        let kept = control.change_profile(Box::new(move |profile| setup.apply(profile)));
        if kept.is_err() && sets_memory {
            // It fitted before.
            let _ = control.set_memory(memory_before);
        }
        kept?;
        let set = administrator.map_or(Ok(()), |(user, password)| {
            control.set_administrator(&user, &password, identity.user.is_none())
        });
        if set.is_err() {
            // All of it, or nothing.
            control.change_profile(Box::new(|profile| *profile = Profile::clone(&profile_before)))?;
            if sets_memory {
                control.set_memory(memory_before)?;
            }
        }
        map_changes.send_replace(());
        set
    };
    console.change(party, "dm:setup", set_up).await
}

fn answer(result: Result<(), Refusal>) -> Response {
    match result {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `POST /node/controller/rename`: the name that the node has in maps.
pub async fn rename(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Form(fields): Fields,
) -> Response {
    let setup = setup(&console, fields, &["hostname"], &[]);
    answer(apply(console, &party, identity, setup).await)
}

/// `POST /node/controller/setupServices`.
pub async fn set_services(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Form(fields): Fields,
) -> Response {
    let setup = setup(&console, fields, &["services"], &[]);
    answer(apply(console, &party, identity, setup).await)
}

/// `POST /nodeInit`: the name that the node has in maps. Where data lies is in its configuration.
pub async fn init_node(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Form(fields): Fields,
) -> Response {
    let setup = setup(&console, fields, &[], &["hostname"]);
    answer(apply(console, &party, identity, setup).await)
}

/// `POST /pools/default`: the cluster's name, and memory.
pub async fn set_pool(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Form(fields): Fields,
) -> Response {
    let setup = setup(&console, fields, &[], &[&["memoryQuota", "clusterName"][..], &QUOTAS].concat());
    answer(apply(console, &party, identity, setup).await)
}

/// `GET /settings/indexes`.
pub async fn index_settings(State(console): State<Console>) -> Json<Value> {
    Json(json!({ "storageMode": console.node.profile().storage_mode.as_deref().unwrap_or_default() }))
}

/// `POST /settings/indexes`.
pub async fn set_index_settings(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Form(fields): Fields,
) -> Response {
    let setup = setup(&console, fields, &[], &["storageMode"]);
    match apply(console.clone(), &party, identity, setup).await {
        Ok(()) => index_settings(State(console)).await.into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `GET /settings/web`.
pub async fn web_settings(State(console): State<Console>) -> Json<Value> {
    let port = console.node.endpoints().http.first().map_or(0, std::net::SocketAddr::port);
    Json(json!({ "port": port, "username": console.control.administrator() }))
}

/// `POST /settings/web`: the administrator. From then on requests need a login.
pub async fn set_web_settings(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    Form(fields): Fields,
) -> Response {
    let setup = setup(&console, fields, &ADMINISTRATOR, &["port"]);
    set_up(console, &party, identity, &headers, setup).await
}

/// `POST /clusterInit`: everything at once.
pub async fn init(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    Form(fields): Fields,
) -> Response {
    let own =
        ["hostname", "services", "memoryQuota", "clusterName", "indexerStorageMode", "port", "sendStats"];
    let setup = setup(&console, fields, &ADMINISTRATOR, &[&own[..], &QUOTAS].concat());
    set_up(console, &party, identity, &headers, setup).await
}

async fn set_up(
    console: Console,
    party: &Party,
    identity: Identity,
    headers: &HeaderMap,
    setup: Result<Setup, Refusal>,
) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let host = host.unwrap_or_else(|| pools::host(&console, headers));
    match apply(console, party, identity, setup).await {
        Ok(()) => Json(json!({ "newBaseUri": format!("http://{host}/") })).into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `PUT /node/controller/setupAlternateAddresses/external`: a form with `hostname`, and ports by their names in maps.
pub async fn set_external(State(console): State<Console>, party: Party, Form(fields): Fields) -> Response {
    let external = match external(fields) {
        Ok(external) => external,
        Err(refusal) => return refused(refusal),
    };
    set_profile(console, &party, |profile| profile.external = Some(external)).await
}

/// `DELETE /node/controller/setupAlternateAddresses/external`.
pub async fn remove_external(State(console): State<Console>, party: Party) -> Response {
    set_profile(console, &party, |profile| profile.external = None).await
}

async fn set_profile(
    console: Console,
    party: &Party,
    f: impl FnOnce(&mut Profile) + Send + 'static,
) -> Response {
    let (control, map_changes) = (Arc::clone(&console.control), console.map_changes.clone());
    let change = move || {
        control.change_profile(Box::new(f))?;
        map_changes.send_replace(());
        Ok(())
    };
    answer(console.change(party, "dm:setup", change).await)
}

fn external(fields: Vec<(String, String)>) -> Result<External, Refusal> {
    let (mut hostname, mut ports) = (None, BTreeMap::new());
    for (field, value) in fields {
        let port = || value.parse().ok().filter(|port: &u16| *port > 0);
        match field.as_str() {
            "hostname" if is_host_name(&value) => hostname = Some(value),
            "hostname" => {
                let reason = format!("{value:?} is not allowed. Allowed: an IP address or a host name.");
                return Err(invalid("hostname", reason));
            }
            name if PORTS.contains(&name) => {
                let reason = || format!("{name} = {value:?} is not allowed. Allowed: a port, 1 to 65535.");
                ports.insert(name.to_owned(), port().ok_or_else(|| invalid("_", reason()))?);
            }
            other => {
                let reason = format!("There is no port {other:?}. Allowed: hostname, {}.", PORTS.join(", "));
                return Err(invalid("_", reason));
            }
        }
    }
    let hostname = hostname.ok_or_else(|| invalid("hostname", "hostname should be specified"))?;
    Ok(External { hostname, ports })
}

/// `GET /pools/default/certificate`: the certificate that the TLS ports show, in PEM.
pub async fn certificate(State(console): State<Console>) -> Response {
    match console.control.certificates() {
        Some(pem) => ([(header::CONTENT_TYPE, "text/plain")], pem).into_response(),
        None => {
            let reason =
                "There is no certificate: the node has no TLS ports (tls.certificate in the configuration).";
            (StatusCode::NOT_FOUND, Json(json!({ "errors": { "_": reason } }))).into_response()
        }
    }
}

/// The services of the node, as in its document.
pub fn names_of_services(console: &Console) -> Vec<String> {
    let profile = console.node.profile();
    let known = &console.node.endpoints().services;
    let further = profile.services.iter().filter(|name| known.iter().any(|port| port.service == **name));
    std::iter::once(KV.to_owned()).chain(further.cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_addresses_or_names() {
        for good in ["127.0.0.1", "::1", "db1.example", "localhost", "a_b-c", "172.17.0.2"] {
            assert!(is_host_name(good), "{good}");
        }
        for bad in ["", "a b", "http://x", "a..b", ".", "x:80", "[::1]", "a/b", "$HOST", "é"] {
            assert!(!is_host_name(bad), "{bad}");
        }
    }

    #[test]
    fn external_addresses_have_known_ports() {
        let read = |form: &str| {
            let pairs = form.split('&').filter_map(|pair| pair.split_once('='));
            external(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
        };
        let known = read("hostname=h&kv=1&mgmt=65535&capi=3").unwrap();
        assert_eq!((known.hostname.as_str(), known.ports.len()), ("h", 3));
        assert!(read("hostname=h").unwrap().ports.is_empty());
        for bad in ["kv=1", "hostname=h&kv=0", "hostname=h&kv=65536", "hostname=h&telnet=23", "hostname=a b"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
