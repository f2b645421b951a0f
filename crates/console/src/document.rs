//! The JSON documents of Couchbase's REST interface, built from the node. Their shapes follow the public documentation;
//! the vBucket map and the ports come from the same cluster configuration that the KV port serves.

use crate::Console;
use crate::buckets::{HISTORY, is_magma};
use crate::login::Identity;
use crate::{node_setup, stored};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use kv::{BUCKET_SETTINGS, Bucket, BucketKind, Eviction, SettingKind, SettingValue};
use serde_json::{Map, Value, json};

/// The server version that clients see; it decides which features they try.
///
/// COMPAT: tools take it apart: numbers, a build number that is not 0, and an edition of two. What there is of KV here,
/// up to `enableCrossClusterVersioning`, is there in the enterprise edition of 7.6.6, and in no community edition:
/// `couchbase-cli` would refuse maximum expiries, compression and groups.
pub const IMPLEMENTATION_VERSION: &str = "7.6.6-6126-enterprise";
/// The name of the group of servers that the node is in.
pub const SERVER_GROUP: &str = kv::cluster_config::SERVER_GROUP;
/// Major 7, minor 6, as `clusterCompatibility` encodes them.
const CLUSTER_COMPATIBILITY: u32 = 7 * 0x1_0000 + 6;

/// The status of a node that reads a bucket from disk.
const WARMS_UP: &str = "warmup";

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

/// The full document of a bucket, with the document of this node.
pub fn bucket(console: &Console, bucket: &Bucket, host: &str, mut node: Value) -> Value {
    let name = bucket.name();
    let settings = bucket.settings();
    let memory = bucket.memory();
    let mut document = parsed(&terse(console, bucket, host).0);
    let percent =
        if memory.budget == 0 { 0.0 } else { memory.resident as f64 * 100.0 / memory.budget as f64 };
    let path = format!("/pools/default/buckets/{name}");
    let persisted = bucket.journal_bytes();
    if warms_up(bucket) {
        node["status"] = json!(WARMS_UP);
    }
    let about = json!({
        "name": name,
        "uuid": bucket.uuid(),
        "bucketType": settings.kind.type_name(),
        "purgeInterval": f64::from(settings.tombstone_age_s()) / 86_400.0,
        "authType": "sasl",
        "nodeLocator": "vbucket",
        "uri": format!("{path}?bucket_uuid={}", bucket.uuid()),
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
            // The node samples nothing. For rates, read the totals twice.
            "opsPerSec": 0,
            "diskFetches": 0,
            "diskUsed": persisted,
            "dataUsed": persisted,
            "vbActiveNumNonResident": 0,
        },
        "stats": {
            "uri": format!("{path}/stats"),
            "nodeStatsListURI": format!("{path}/nodes"),
        },
        "autoCompactionSettings": false,
        "threadsNumber": 3,
        "rank": 0,
        "nodes": [node],
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
    let mut shown: Map<String, Value> = shown.collect();
    // COMPAT: what is not of this kind of bucket is not there.
    if !is_magma(&settings) {
        HISTORY.iter().for_each(|field| drop(shown.remove(*field)));
    }
    match settings.kind {
        BucketKind::Ephemeral => {
            shown.remove("replicaIndex");
            shown.insert("storageBackend".into(), json!("undefined"));
        }
        BucketKind::Persistent if settings.labels.storage_backend == "undefined" => {
            shown.insert("storageBackend".into(), json!("couchstore"));
        }
        BucketKind::Persistent => {}
    }
    Value::Object(shown)
}

/// `flush` is present if the bucket may be flushed: clients check for it.
fn controllers(bucket: &Bucket) -> Value {
    let path = |name: &str| format!("/pools/default/buckets/{}/controller/{name}", bucket.name());
    let mut controllers =
        json!({ "compactAll": path("compactBucket"), "compactDB": path("compactDatabases") });
    if bucket.flush_enabled() {
        controllers["flush"] = json!(path("doFlush"));
    }
    controllers
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
    let is_ipv6 = endpoints.http.first().is_some_and(std::net::SocketAddr::is_ipv6);
    let family = if is_ipv6 { "inet6" } else { "inet" };
    let machine = Machine::read();
    let mut ports = json!({ "direct": direct });
    if let Some(tls) = endpoints.http_tls.first() {
        ports["httpsMgmt"] = json!(tls.port());
    }
    let mut node = json!({
        "hostname": format!("{name}:{http}"),
        "configuredHostname": format!("{name}:{http}"),
        "otpNode": format!("ns_1@{name}"),
        "nodeUUID": profile.uuid,
        "thisNode": true,
        "status": if draining || warms_up { WARMS_UP } else { "healthy" },
        "clusterMembership": "active",
        "recoveryType": "none",
        "serverGroup": SERVER_GROUP,
        "clusterCompatibility": CLUSTER_COMPATIBILITY,
        "version": IMPLEMENTATION_VERSION,
        "os": format!("{}-unknown-{}", std::env::consts::ARCH, std::env::consts::OS),
        "uptime": console.started.elapsed().as_secs().to_string(),
    });
    let more = json!({
        "addressFamily": family,
        "addressFamilyOnly": false,
        "nodeEncryption": false,
        "nodeEncryptionClientCertVerification": false,
        "externalListeners": [{ "afamily": family, "nodeEncryption": false }],
        "ports": ports,
        "services": node_setup::names_of_services(console),
        "cpuCount": machine.cores,
        "memoryTotal": machine.memory,
        "memoryFree": machine.memory_free,
        "systemStats": {
            "cpu_cores_available": machine.cores,
            "mem_total": machine.memory,
            "mem_limit": machine.memory,
            "mem_free": machine.memory_free,
            "swap_total": machine.swap,
            "swap_used": machine.swap.saturating_sub(machine.swap_free),
        },
        "mcdMemoryAllocated": mebibytes(console.control.memory_bytes()),
        "mcdMemoryReserved": mebibytes(console.control.memory_bytes()),
        "interestingStats": interesting(console),
    });
    merge(&mut node, more);
    if let Some(external) = kv::cluster_config::external(&console.node) {
        node["alternateAddresses"] = json!({ "external": external });
    }
    node
}

/// Figures of all buckets.
fn interesting(console: &Console) -> Value {
    let persisted: u64 = console.node.buckets().iter().map(|bucket| bucket.journal_bytes()).sum();
    let items = items(console);
    json!({
        "curr_items": items,
        "curr_items_tot": items,
        "mem_used": resident(console),
        "couch_docs_actual_disk_size": persisted,
        "couch_docs_data_size": persisted,
        "vb_replica_curr_items": 0,
    })
}

/// What the kernel says of the machine, bytes.
#[derive(Default)]
struct Machine {
    cores: usize,
    memory: u64,
    memory_free: u64,
    swap: u64,
    swap_free: u64,
}

impl Machine {
    fn read() -> Self {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            kibibytes.unwrap_or_default() * 1024
        };
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: bytes("MemTotal"),
            memory_free: bytes("MemAvailable"),
            swap: bytes("SwapTotal"),
            swap_free: bytes("SwapFree"),
        }
    }
}

/// `/nodes/self`: this node with what it stores.
pub fn self_document(console: &Console, host: &str) -> Value {
    let mut node = this_node(console, host);
    let storage =
        json!({ "ssd": [], "hdd": [{ "path": "", "index_path": "", "quotaMb": "none", "state": "ok" }] });
    merge(&mut node, json!({ "storage": storage, "storageTotals": storage_totals(console) }));
    merge(&mut node, quotas(console));
    node
}

/// `/pools/default/serverGroups`: one group with this node.
pub fn server_groups(console: &Console, host: &str) -> Value {
    let group = json!({
        "name": SERVER_GROUP,
        "uri": "/pools/default/serverGroups/0",
        "addNodeURI": "/pools/default/serverGroups/0/addNode",
        "nodes": [this_node(console, host)],
    });
    json!({ "groups": [group], "uri": "/pools/default/serverGroups?rev=1" })
}

/// `/pools/default/terseClusterInfo`.
pub fn terse_cluster(console: &Console, host: &str) -> Value {
    let profile = console.node.profile();
    let name = profile.hostname.as_deref().map_or_else(|| host.to_owned(), bracketed);
    json!({
        "clusterUUID": profile.uuid,
        "clusterName": profile.cluster_name,
        "orchestrator": format!("ns_1@{name}"),
        "isBalanced": true,
        "clusterCompatVersion": "7.6",
    })
}

/// Name and port of this node over HTTP.
pub fn address(console: &Console, host: &str) -> String {
    let http = console.node.endpoints().http.first().map_or(0, std::net::SocketAddr::port);
    let profile = console.node.profile();
    let name = profile.hostname.as_deref().map_or_else(|| host.to_owned(), bracketed);
    format!("{name}:{http}")
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
    let profile = console.node.profile();
    let mut pool = json!({
        "name": "default",
        "clusterName": profile.cluster_name,
        "balanced": true,
        "rebalanceStatus": "none",
        "rebalanceProgressUri": "/pools/default/rebalanceProgress",
        "failoverWarnings": [],
        "alerts": [],
        "counters": {},
        "maxBucketCount": crate::BUCKETS_MAX,
        "nodes": [this_node(console, host)],
        "buckets": {
            "uri": "/pools/default/buckets",
            "terseBucketsBase": "/pools/default/b/",
            "terseStreamingBucketsBase": "/pools/default/bs/",
        },
        "bucketNames": console.node.buckets().iter().filter(|bucket| identity.sees(bucket.name()))
            .map(|bucket| json!({ "bucketName": bucket.name(), "uuid": bucket.uuid() })).collect::<Vec<_>>(),
        "nodeServicesUri": "/pools/default/nodeServices",
        "serverGroupsUri": "/pools/default/serverGroups?rev=1",
        "checkPermissionsURI": "/pools/default/checkPermissions",
        "tasks": { "uri": "/pools/default/tasks" },
        "remoteClusters": { "uri": "/pools/default/remoteClusters" },
        "storageTotals": storage_totals(console),
    });
    merge(&mut pool, stored::AUTO_COMPACTION.shown(&profile));
    merge(&mut pool, quotas(console));
    pool
}

/// Memory of the services, MiB. Those that are not there have what clients expect to find, unless something was set.
fn quotas(console: &Console) -> Value {
    let quota = mebibytes(console.control.memory_bytes());
    let mut quotas = json!({
        "memoryQuota": quota,
        "indexMemoryQuota": 512,
        "ftsMemoryQuota": 512,
        "cbasMemoryQuota": 1024,
        "eventingMemoryQuota": 256,
        "queryMemoryQuota": 0,
    });
    merge(&mut quotas, json!(console.node.profile().quotas));
    quotas
}

fn storage_totals(console: &Console) -> Value {
    let quota = console.control.memory_bytes();
    let buckets = console.node.buckets();
    let claimed: u64 = buckets.iter().map(|bucket| bucket.memory().budget).sum();
    let payload: u64 = buckets.iter().map(|bucket| bucket.memory().payload).sum();
    let persisted: u64 = buckets.iter().map(|bucket| bucket.journal_bytes()).sum();
    let machine = Machine::read();
    json!({
        "ram": {
            "total": machine.memory,
            "used": machine.memory.saturating_sub(machine.memory_free),
            "quotaTotal": quota,
            "quotaTotalPerNode": quota,
            "quotaUsed": claimed,
            "quotaUsedPerNode": claimed,
            "usedByData": payload,
        },
        "hdd": { "usedByData": persisted },
    })
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
