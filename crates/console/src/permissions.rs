//! `POST /pools/default/checkPermissions`: whether the user has permissions, by the names that Couchbase has for them.
//!
//! ```text
//!   cluster!admin                                     on the node
//!   cluster.pools!write
//!   cluster.bucket[orders].settings!write             on a bucket; [.] is any
//!   cluster.collection[orders:eu:new].data.docs!read  on a scope or a collection
//! ```
//! A permission that nothing here takes is there for those who may do everything, and for nobody else.

use crate::login::Identity;
use crate::pools;
use crate::work::Party;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::users::roles::{Rights, Roles};
use serde_json::{Map, Value, json};

use crate::Console;

/// What a permission takes, by the end of its object and its operation; the first that fits. `None` fits any operation.
const TAKES: &[(&str, Option<&str>, Rights)] = &[
    ("data.docs", Some("read"), Rights::READ),
    ("data.docs", Some("insert"), Rights::WRITE),
    ("data.docs", Some("upsert"), Rights::WRITE),
    ("data.docs", Some("delete"), Rights::WRITE),
    ("data.docs", Some("range_scan"), Rights::READ),
    ("data.docs", None, Rights::READ.and(Rights::WRITE)),
    ("data.xattr", Some("read"), Rights::READ),
    ("data.xattr", Some("write"), Rights::WRITE),
    ("data.sxattr", Some("read"), Rights::READ.and(Rights::SYSTEM_ATTRIBUTES)),
    ("data.sxattr", Some("write"), Rights::WRITE.and(Rights::SYSTEM_ATTRIBUTES)),
    ("data.dcp", Some("read"), Rights::READ.and(Rights::SYSTEM_ATTRIBUTES)),
    ("data.meta", Some("write"), Rights::WRITE.and(Rights::SYSTEM_ATTRIBUTES)),
    ("data", Some("read"), Rights::READ),
    ("data", Some("write"), Rights::WRITE),
    ("data", Some("flush"), Rights::FLUSH),
    ("", Some("flush"), Rights::FLUSH),
    ("", Some("compact"), Rights::BUCKET),
    ("collections", Some("read"), Rights::SEE),
    ("collections", None, Rights::COLLECTIONS),
    ("stats", Some("read"), Rights::STATISTICS),
];
/// The same of the whole node.
const TAKES_ON_NODE: &[(&str, Option<&str>, Rights)] = &[
    ("admin.security.admin", Some("read"), Rights::SEE_USERS),
    ("admin.security", Some("read"), Rights::SEE_USERS),
    ("admin.security", Some("write"), Rights::SECURITY),
    ("admin.users", Some("read"), Rights::SEE_USERS),
    ("admin.users", Some("write"), Rights::USERS),
    ("admin.users.external", Some("write"), Rights::EXTERNAL_USERS),
    ("admin.stats_export", Some("read"), Rights::METRICS),
    ("admin.logs", Some("read"), Rights::SEE_USERS),
    ("admin.memcached", Some("read"), Rights::SEE),
    ("admin", Some("read"), Rights::ALL),
    ("buckets", Some("create"), Rights::NODE),
    ("settings", Some("read"), Rights::SEE),
    ("stats", Some("read"), Rights::SEE),
    ("tasks", Some("read"), Rights::NONE),
    ("nodes", Some("read"), Rights::SEE),
    ("pools", Some("read"), Rights::NONE),
    ("server_groups", Some("read"), Rights::SEE),
    ("server_groups", Some("write"), Rights::NODE),
    ("settings", Some("write"), Rights::NODE),
    ("nodes", Some("write"), Rights::NODE),
    ("pools", Some("write"), Rights::NODE),
    ("", Some("read"), Rights::SEE),
];

/// Names any bucket.
const ANY_BUCKET: &str = ".";

/// The handler. The body has the permissions, separated by commas.
pub async fn check(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    body: String,
) -> Response {
    pools::described(&console, &party, move |console| answers(&console, &identity, &body)).await
}

fn answers(console: &Console, identity: &Identity, body: &str) -> Response {
    let buckets: Vec<String> = console.node.buckets().iter().map(|bucket| bucket.name().to_owned()).collect();
    let mut answers = Map::new();
    for permission in body.split(',').map(str::trim).filter(|permission| !permission.is_empty()) {
        let Some(has) = has(identity.roles(), permission, &buckets) else {
            return (StatusCode::BAD_REQUEST, Json(json!(["Malformed permissions."]))).into_response();
        };
        answers.insert(permission.to_owned(), json!(has));
    }
    Json(Value::Object(answers)).into_response()
}

/// Whether roles give a permission; `None` if it is none.
fn has(roles: &Roles, permission: &str, buckets: &[String]) -> Option<bool> {
    let (object, operation) = permission.split_once('!').filter(|(_, operation)| !operation.is_empty())?;
    let object = object.strip_prefix("cluster")?;
    if roles.on_node().contain(Rights::ALL) {
        return Some(true);
    }
    let needs = |table: &[(&str, Option<&str>, Rights)], end: &str| {
        let fits = |(known, of, _): &&(&str, Option<&str>, Rights)| {
            *known == end && of.is_none_or(|of| of == operation)
        };
        table.iter().find(fits).map_or(Rights::ALL, |(.., rights)| *rights)
    };
    let object = object.strip_prefix('.').unwrap_or(object);
    let Some((kind, rest)) = object.split_once('[') else {
        return Some(roles.on_node().contain(needs(TAKES_ON_NODE, object)));
    };
    // A name may have dots, and no brackets.
    let (place, end) = rest.split_once(']')?;
    let end = end.strip_prefix('.').unwrap_or(end);
    let names: Vec<&str> = match kind {
        "bucket" => vec![place],
        "scope" | "collection" => place.split(':').collect(),
        _ => return Some(false),
    };
    let names: Vec<&str> = names.into_iter().take_while(|name| *name != "*" && *name != ANY_BUCKET).collect();
    let (rights, sees) = match (end, operation) {
        ("settings", "read") | ("", "read") => (Rights::SEE, true),
        ("settings" | "", "write" | "manage") => (Rights::BUCKET, false),
        ("", "delete") => (Rights::BUCKET, false),
        (end, _) => (needs(TAKES, end), false),
    };
    if place == ANY_BUCKET {
        return Some(buckets.iter().any(|bucket| roles.somewhere_in(bucket).contain(rights)));
    }
    Some(match names.first() {
        Some(bucket) if sees => roles.somewhere_in(bucket).contain(rights),
        _ => roles.on(&names).contain(rights),
    })
}

#[cfg(test)]
mod tests {
    use super::has;
    use kv::users::roles::{Role, Roles};

    fn asked(roles: &str, permission: &str) -> Option<bool> {
        let roles = Roles::new([Role::parse_list(roles).expect("roles").into()]);
        has(&roles, permission, &["orders".to_owned(), "other".to_owned()])
    }

    #[test]
    fn permissions_are_those_of_roles() {
        for (roles, permission, expected) in [
            ("admin", "cluster!admin", true),
            ("admin", "cluster.made.up!what", true),
            ("ro_admin", "cluster.settings!read", true),
            ("ro_admin", "cluster.settings!write", false),
            ("ro_admin", "cluster.admin.security!read", true),
            ("ro_admin", "cluster.bucket[orders].settings!read", true),
            ("ro_admin", "cluster.bucket[orders].data.docs!read", false),
            ("cluster_admin", "cluster.buckets!create", true),
            ("cluster_admin", "cluster.bucket[any.name]!delete", true),
            ("cluster_admin", "cluster.admin.security!write", false),
            ("cluster_admin", "cluster!admin", false),
            ("bucket_admin[orders]", "cluster.bucket[orders].settings!write", true),
            ("bucket_admin[orders]", "cluster.bucket[other].settings!write", false),
            ("bucket_admin[orders]", "cluster.bucket[.].settings!write", true),
            ("bucket_admin[orders]", "cluster.bucket[orders]!flush", true),
            ("bucket_admin[orders]", "cluster.bucket[other]!compact", false),
            ("data_reader[orders:eu]", "cluster.collection[orders:eu:new].data.docs!read", true),
            ("data_reader[orders:eu]", "cluster.collection[orders:us:new].data.docs!read", false),
            ("data_reader[orders:eu]", "cluster.bucket[orders].data.docs!read", false),
            ("data_reader[orders:eu]", "cluster.bucket[orders].settings!read", true),
            ("data_reader[orders:eu]", "cluster.bucket[*].data.docs!read", false),
            ("data_reader[*]", "cluster.bucket[*].data.docs!read", true),
            ("data_writer[orders]", "cluster.bucket[orders].data.docs!upsert", true),
            ("data_writer[orders]", "cluster.bucket[orders].data.docs!read", false),
            ("data_writer[orders]", "cluster.made.up!what", false),
            ("data_writer[orders]", "cluster.bucket[orders].n1ql.select!execute", false),
            ("", "cluster.pools!read", true),
            ("", "cluster!admin", false),
        ] {
            assert_eq!(asked(roles, permission), Some(expected), "{roles}: {permission}");
        }
        for malformed in ["cluster", "cluster!", "!read", "other!read", "cluster.bucket[orders!read"] {
            assert_eq!(asked("data_reader[*]", malformed), None, "{malformed}");
        }
    }
}
