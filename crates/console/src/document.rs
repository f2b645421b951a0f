//! The JSON documents of Couchbase's REST interface, built from the node. Their shapes follow the public documentation;
//! the vBucket map and the ports come from the same cluster configuration that the KV port serves.

use crate::Console;
use crate::login::Identity;
use crate::node_setup;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use kv::{BUCKET_SETTINGS, Bucket, BucketKind, Eviction, SettingKind, SettingValue};
use serde_json::{Map, Value, json};

/// The server version that SDKs see; it decides which features they try. The second part is a build number, which some
/// of them read.
pub const IMPLEMENTATION_VERSION: &str = concat!("7.6.0-0-dormouse-", env!("CARGO_PKG_VERSION"));
/// Major 7, minor 6, as `clusterCompatibility` encodes them.
const CLUSTER_COMPATIBILITY: u32 = 7 * 0x1_0000 + 6;

/// A document that is text already.
pub struct JsonText(pub String);

impl IntoResponse for JsonText {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

/// The terse map of a bucket, as `GET_CLUSTER_CONFIG` returns it, with `$HOST` replaced. The map is rendered once, and
/// only its text changed here; a host has no characters that JSON escapes.
pub fn terse(console: &Console, bucket: &Bucket, host: &str) -> JsonText {
    JsonText(kv::cluster_config::bucket_level(&console.node, bucket).replace("$HOST", host))
}

/// `/pools/default/nodeServices`.
pub fn node_services(console: &Console, host: &str) -> JsonText {
    JsonText(kv::cluster_config::cluster_level(&console.node).replace("$HOST", host))
}

/// The full document of a bucket.
pub fn bucket(console: &Console, bucket: &Bucket, host: &str) -> Value {
    let name = bucket.name();
    let settings = bucket.settings();
    let memory = bucket.memory();
    let mut document = parsed(&terse(console, bucket, host).0);
    let percent =
        if memory.budget == 0 { 0.0 } else { memory.resident as f64 * 100.0 / memory.budget as f64 };
    let about = json!({
        "name": name,
        "uuid": bucket.uuid(),
        "bucketType": settings.kind.type_name(),
        "purgeInterval": f64::from(settings.tombstone_age_s()) / 86_400.0,
        "authType": "sasl",
        "nodeLocator": "vbucket",
        "uri": format!("/pools/default/buckets/{name}?bucket_uuid={}", bucket.uuid()),
        "streamingUri": format!("/pools/default/bs/{name}?bucket_uuid={}", bucket.uuid()),
        "evictionPolicy": match (settings.kind, settings.eviction) {
            (BucketKind::Persistent, _) if bucket.labels().full_eviction => "fullEviction",
            (BucketKind::Persistent, _) => "valueOnly",
            (_, Eviction::AutoDelete) => "nruEviction",
            (_, Eviction::FailNewData) => "noEviction",
        },
        // COMPAT: the C++ core of the SDKs terminates the process if this member is missing.
        "controllers": controllers(bucket),
        "quota": { "ram": memory.budget, "rawRAM": memory.budget },
        "basicStats": {
            "itemCount": memory.items,
            "memUsed": memory.payload + memory.metadata + memory.index,
            "residentBytes": memory.resident,
            "quotaPercentUsed": percent,
        },
        "nodes": [node(console, host, warms_up(bucket))],
    });
    merge(&mut document, about);
    merge(&mut document, settings_in_force(bucket));
    document
}

/// The settings that have form fields.
fn settings_in_force(bucket: &Bucket) -> Value {
    let settings = bucket.settings_in_force();
    let shown = BUCKET_SETTINGS.iter().filter_map(|setting| {
        let value = match (setting.get(&settings), &setting.kind) {
            (SettingValue::Number(number), _) => json!(number),
            (SettingValue::Flag(is_on), SettingKind::Switch { .. }) => {
                json!(if is_on { "on" } else { "off" })
            }
            (SettingValue::Flag(flag), _) => json!(flag),
            (SettingValue::Word(word), _) => json!(word),
        };
        Some((setting.field?.to_owned(), value))
    });
    Value::Object(shown.collect())
}

/// `flush` is present if the bucket may be flushed: clients check for it.
fn controllers(bucket: &Bucket) -> Value {
    if bucket.flush_enabled() {
        json!({ "flush": format!("/pools/default/buckets/{}/controller/doFlush", bucket.name()) })
    } else {
        json!({})
    }
}

/// Returns true if some of a bucket's vBuckets are still being read from disk.
pub fn warms_up(bucket: &Bucket) -> bool {
    bucket.persistence().is_some_and(|persistence| persistence.warm_up().is_running())
}

/// The document of this node, as in `nodes`.
pub fn node(console: &Console, host: &str, warms_up: bool) -> Value {
    let endpoints = console.node.endpoints();
    let http = endpoints.http.first().map_or(0, std::net::SocketAddr::port);
    let direct = endpoints.kv.first().map_or(0, std::net::SocketAddr::port);
    let draining = console.control.draining();
    let profile = console.node.profile();
    let name = profile.hostname.as_deref().map_or_else(|| host.to_owned(), bracketed);
    let mut node = json!({
        "hostname": format!("{name}:{http}"),
        "configuredHostname": format!("{name}:{http}"),
        "otpNode": format!("ns_1@{name}"),
        "nodeUUID": "",
        "thisNode": true,
        "status": if draining || warms_up { "warmup" } else { "healthy" },
        "clusterMembership": "active",
        "recoveryType": "none",
        "clusterCompatibility": CLUSTER_COMPATIBILITY,
        "version": IMPLEMENTATION_VERSION,
        "os": std::env::consts::OS,
        "ports": { "direct": direct },
        "services": node_setup::names_of_services(console),
        "uptime": console.started.elapsed().as_secs().to_string(),
        "mcdMemoryAllocated": mebibytes(console.control.memory_bytes()),
        "mcdMemoryReserved": mebibytes(console.control.memory_bytes()),
        "interestingStats": {
            "curr_items": items(console),
            "mem_used": resident(console),
        },
    });
    if let Some(external) = kv::cluster_config::external(&console.node) {
        node["alternateAddresses"] = json!({ "external": external });
    }
    node
}

/// A host as it stands before a port.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// The document of this node, as in `/pools/default` and `/pools/nodes`.
pub fn this_node(console: &Console, host: &str) -> Value {
    node(console, host, console.node.buckets().iter().any(|bucket| warms_up(bucket)))
}

/// `/pools/default`.
pub fn default_pool(console: &Console, identity: &Identity, host: &str) -> Value {
    let quota = console.control.memory_bytes();
    let profile = console.node.profile();
    let claimed: u64 = console.node.buckets().iter().map(|bucket| bucket.memory().budget).sum();
    let payload: u64 = console.node.buckets().iter().map(|bucket| bucket.memory().payload).sum();
    let mut pool = json!({
        "name": "default",
        "clusterName": profile.cluster_name,
        "balanced": true,
        "rebalanceStatus": "none",
        "rebalanceProgressUri": "/pools/default/rebalanceProgress",
        "maxBucketCount": crate::BUCKETS_MAX,
        "memoryQuota": mebibytes(quota),
        "nodes": [this_node(console, host)],
        "buckets": {
            "uri": "/pools/default/buckets",
            "terseBucketsBase": "/pools/default/b/",
            "terseStreamingBucketsBase": "/pools/default/bs/",
        },
        "bucketNames": console.node.buckets().iter().filter(|bucket| identity.sees(bucket.name()))
            .map(|bucket| json!({ "bucketName": bucket.name(), "uuid": bucket.uuid() })).collect::<Vec<_>>(),
        "nodeServicesUri": "/pools/default/nodeServices",
        "storageTotals": {
            "ram": {
                "quotaTotal": quota,
                "quotaTotalPerNode": quota,
                "quotaUsed": claimed,
                "quotaUsedPerNode": claimed,
                "usedByData": payload,
            },
        },
    });
    merge(&mut pool, json!(profile.quotas));
    pool
}

fn items(console: &Console) -> u64 {
    console.node.buckets().iter().map(|bucket| bucket.memory().items).sum()
}

fn resident(console: &Console) -> u64 {
    console.node.buckets().iter().map(|bucket| bucket.memory().resident).sum()
}

fn mebibytes(bytes: u64) -> u64 {
    bytes >> 20
}

fn parsed(config: &str) -> Value {
    serde_json::from_str(config).unwrap_or_else(|_| Value::Object(Map::new()))
}

/// Merges the members of `over` into the object `base`, replacing existing ones.
fn merge(base: &mut Value, over: Value) {
    if let (Value::Object(base), Value::Object(over)) = (base, over) {
        base.extend(over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_replaces_and_adds() {
        let mut base = json!({ "a": 1, "b": 2 });
        merge(&mut base, json!({ "b": 3, "c": 4 }));
        assert_eq!(base, json!({ "a": 1, "b": 3, "c": 4 }));
    }
}
