//! The cluster map that a client routes by, as JSON: one for a connection without a bucket, one per bucket.
//!
//! A single node is the whole cluster: it owns every vBucket, and there are no replicas. Clients read `$HOST` as the
//! address they connected to, so the map is right behind any address. Only services that answer are listed: a service
//! without a listener would keep `wait_until_ready` of the SDKs waiting.
//!
//! COMPAT: gocb accepts no map without a `mgmt` port, the Java SDK none without `nodes`; a node without an HTTP
//! listener serves the others.

use serde::Serialize;

use crate::{Bucket, Node};

/// First part of the map's version: rises when revisions start over. They never do on a single node.
pub const EPOCH: u64 = 1;

/// The capabilities that SDKs ask a bucket for; only those that exist.
pub const BUCKET_CAPABILITIES: &[&str] = &[
    "collections",
    "durableWrite",
    "tombstonedUserXAttrs",
    "subdoc.AccessDeleted",
    "subdoc.BinaryXattr",
    "subdoc.DocumentMacroSupport",
    "subdoc.ReplaceBodyWithXattr",
    "subdoc.ReplicaRead",
    "subdoc.ReviveDocument",
    "preserveExpiry",
    "rangeScan",
    "touch",
    "cbhello",
    "cccp",
    "nodesExt",
    "xattr",
];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Map<'a> {
    rev: u64,
    rev_epoch: u64,
    #[serde(flatten)]
    bucket: Option<BucketPart<'a>>,
    nodes_ext: [NodeExt; 1],
    cluster_capabilities_ver: [u8; 2],
    cluster_capabilities: ClusterCapabilities,
}

#[derive(Serialize)]
struct ClusterCapabilities {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BucketPart<'a> {
    name: &'a str,
    uuid: &'a str,
    node_locator: &'static str,
    bucket_capabilities: &'static [&'static str],
    bucket_capabilities_ver: &'static str,
    collections_manifest_uid: String,
    nodes: [NodePart; 1],
    v_bucket_server_map: ServerMap,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodePart {
    hostname: String,
    ports: Ports,
    this_node: bool,
    status: &'static str,
    cluster_membership: &'static str,
}

#[derive(Serialize)]
struct Ports {
    direct: u16,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeExt {
    services: Services,
    this_node: bool,
}

#[derive(Serialize)]
struct Services {
    kv: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    mgmt: Option<u16>,
    #[serde(rename = "kvSSL", skip_serializing_if = "Option::is_none")]
    kv_tls: Option<u16>,
    #[serde(rename = "mgmtSSL", skip_serializing_if = "Option::is_none")]
    mgmt_tls: Option<u16>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerMap {
    hash_algorithm: &'static str,
    num_replicas: u8,
    server_list: [String; 1],
    v_bucket_map: Vec<[i16; 1]>,
}

/// Returns the map of the node without a bucket.
pub fn cluster_level(node: &Node) -> String {
    encode(node, None)
}

/// Returns the map of a bucket.
pub fn bucket_level(node: &Node, bucket: &Bucket) -> String {
    encode(node, Some(bucket))
}

fn encode(node: &Node, bucket: Option<&Bucket>) -> String {
    let endpoints = node.endpoints();
    let kv = endpoints.kv.first().map_or(0, std::net::SocketAddr::port);
    let mgmt = endpoints.http.first().map(std::net::SocketAddr::port);
    let kv_tls = endpoints.kv_tls.first().map(std::net::SocketAddr::port);
    let mgmt_tls = endpoints.http_tls.first().map(std::net::SocketAddr::port);
    let services = Services { kv, mgmt, kv_tls, mgmt_tls };
    let map = Map {
        rev: node.map_revision(),
        rev_epoch: EPOCH,
        bucket: bucket.map(|bucket| bucket_part(bucket, kv, mgmt)),
        nodes_ext: [NodeExt { services, this_node: true }],
        cluster_capabilities_ver: [1, 0],
        cluster_capabilities: ClusterCapabilities {},
    };
    // Numbers, strings and lists of them cannot fail to serialise.
    serde_json::to_string(&map).unwrap_or_default()
}

fn bucket_part(bucket: &Bucket, kv: u16, mgmt: Option<u16>) -> BucketPart<'_> {
    BucketPart {
        name: bucket.name(),
        uuid: bucket.uuid(),
        node_locator: "vbucket",
        bucket_capabilities: BUCKET_CAPABILITIES,
        bucket_capabilities_ver: "",
        collections_manifest_uid: format!("{:x}", bucket.collections().uid()),
        nodes: [NodePart {
            hostname: format!("$HOST:{}", mgmt.unwrap_or(kv)),
            ports: Ports { direct: kv },
            this_node: true,
            status: "healthy",
            cluster_membership: "active",
        }],
        v_bucket_server_map: ServerMap {
            hash_algorithm: "CRC",
            num_replicas: 0,
            server_list: [format!("$HOST:{kv}")],
            v_bucket_map: vec![[0]; usize::from(bucket.vbuckets())],
        },
    }
}

/// Returns true if version (`epoch`, `revision`) of the map is not older than the newest one.
pub fn is_current(node: &Node, epoch: i64, revision: i64) -> bool {
    let known = (u64::try_from(epoch).unwrap_or(0), u64::try_from(revision).unwrap_or(0));
    known >= (EPOCH, node.map_revision())
}
