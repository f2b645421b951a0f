//! The cluster map that a client routes by, as JSON: one for a connection without a bucket, one per bucket.
//!
//! A node whose vBuckets have no chains is the whole cluster: it owns every vBucket, and there are no replicas. If they
//! have, the map of the bucket lists the nodes in them: who is active, who has replicas. Clients read `$HOST` as the
//! address they connected to, so the map is right behind any address, until an operator gives the node a name. A map is
//! rendered once for each version, and shared. Only
//! services that answer are listed: a service without a listener would keep `wait_until_ready` of the SDKs waiting.
//!
//! An operator may add an address for clients of another network. Clients take it if it is the one they connected to.
//!
//! COMPAT: gocb accepts no map without a `mgmt` port, the Java SDK none without `nodes`; a node without an HTTP
//! listener serves the others.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::profile::{External, KV, Profile};
use crate::replication::{PeerNode, Replication};
use crate::{Bucket, BucketKind, Node, VbId, VbState};

/// The place of a node that is not there, or not known.
const NOBODY: i16 = -1;
/// The name of the group of servers that every node is in: that of a cluster where nobody has made others.
pub const SERVER_GROUP: &str = "Group 1";
/// Most nodes of a map that are none of the configured peers; further ones are left out.
const STRANGERS_MAX: usize = 16;

/// The capabilities that SDKs ask a bucket for, whatever its kind; only those that exist.
pub const BUCKET_CAPABILITIES: &[&str] = &[
    "collections",
    "querySystemCollection",
    "mobileSystemCollection",
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
    "dcp",
    "dcp.IgnorePurgedTombstones",
    "touch",
    "cbhello",
    "cccp",
    "nodesExt",
    "xattr",
];
/// COMPAT: by this one the JVM SDKs tell a persistent bucket from an ephemeral one, for which they refuse `persistTo`.
/// There are no views.
const OF_PERSISTENT: &str = "couchapi";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Map<'a> {
    rev: u64,
    rev_epoch: u64,
    /// What SDKs name the cluster by when they report what they did.
    #[serde(rename = "clusterUUID")]
    cluster_uuid: &'a str,
    cluster_name: &'a str,
    #[serde(flatten)]
    bucket: Option<BucketPart<'a>>,
    nodes_ext: Vec<NodeExt<'a>>,
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
    bucket_type: &'static str,
    node_locator: &'static str,
    bucket_capabilities: Vec<&'static str>,
    bucket_capabilities_ver: &'static str,
    collections_manifest_uid: String,
    nodes: Vec<NodePart>,
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
struct NodeExt<'a> {
    services: BTreeMap<&'static str, u16>,
    this_node: bool,
    server_group: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alternate_addresses: Option<AlternateAddresses>,
}

#[derive(Serialize)]
struct AlternateAddresses {
    external: External,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerMap {
    hash_algorithm: &'static str,
    num_replicas: u8,
    server_list: Vec<String>,
    v_bucket_map: Vec<Vec<i16>>,
}

/// Returns the map of the node without a bucket.
pub fn cluster_level(node: &Node) -> Arc<str> {
    node.map.get(|| [node.map_revision(), 0, 0], |[revision, ..]| encode(node, None, revision))
}

/// Returns the map of a bucket.
pub fn bucket_level(node: &Node, bucket: &Bucket) -> Arc<str> {
    let version = || [node.map_revision(), bucket.role_changes(), bucket.collections().uid()];
    bucket.map.get(version, |[revision, ..]| encode(node, Some(bucket), revision))
}

fn encode(node: &Node, bucket: Option<&Bucket>, rev: u64) -> String {
    let profile = node.profile();
    let services = services(node, &profile);
    let host = profile.hostname.as_deref().unwrap_or("$HOST");
    let alternate_addresses = external(node).map(|external| AlternateAddresses { external });
    let chains = bucket.map(|bucket| Chains::of(node, bucket)).unwrap_or_default();
    let rev_epoch = node.map_epoch(bucket);
    let bucket = bucket.map(|bucket| bucket_part(bucket, host, &services, &chains));
    let mut nodes_ext = vec![NodeExt {
        services,
        this_node: true,
        server_group: SERVER_GROUP,
        hostname: profile.hostname.as_deref().map(Cow::Borrowed),
        alternate_addresses,
    }];
    nodes_ext.extend(chains.peers.into_iter().map(|peer| NodeExt {
        services: services_of(&peer),
        this_node: false,
        server_group: SERVER_GROUP,
        hostname: Some(Cow::Owned(peer.host.into())),
        alternate_addresses: None,
    }));
    let map = Map {
        rev,
        rev_epoch,
        cluster_uuid: &profile.uuid,
        cluster_name: &profile.cluster_name,
        bucket,
        nodes_ext,
        cluster_capabilities_ver: [1, 0],
        cluster_capabilities: ClusterCapabilities {},
    };
    // Numbers, strings and lists of them cannot fail to serialise.
    serde_json::to_string(&map).unwrap_or_default()
}

/// Returns the address for clients of another network, with the ports of the node's services: those that an operator
/// has said, or else the node's own.
pub fn external(node: &Node) -> Option<External> {
    let profile = node.profile();
    let said = profile.external.as_ref()?;
    let services = services(node, &profile);
    let ports = match said.ports.is_empty() {
        true => services.into_iter().map(|(name, port)| (name.to_owned(), port)).collect(),
        false => {
            let is_served = |name: &str| services.contains_key(name);
            said.ports
                .iter()
                .filter(|(name, _)| is_served(name))
                .map(|(name, port)| (name.clone(), *port))
                .collect()
        }
    };
    Some(External { hostname: said.hostname.clone(), ports })
}

/// The ports of all services, by their names in the map.
fn services(node: &Node, profile: &Profile) -> BTreeMap<&'static str, u16> {
    let endpoints = node.endpoints();
    let lists = [
        (KV, &endpoints.kv),
        ("mgmt", &endpoints.http),
        ("kvSSL", &endpoints.kv_tls),
        ("mgmtSSL", &endpoints.http_tls),
    ];
    let mut services: BTreeMap<&'static str, u16> =
        lists.into_iter().filter_map(|(name, list)| Some((name, list.first()?.port()))).collect();
    services.entry(KV).or_insert(0);
    let further =
        endpoints.services.iter().filter(|port| profile.services.iter().any(|one| one == port.service));
    services.extend(further.map(|port| (port.name, port.address.port())));
    services
}

/// The same of another node, as far as they are configured.
fn services_of(peer: &PeerNode) -> BTreeMap<&'static str, u16> {
    let ports = [
        (KV, Some(peer.kv.unwrap_or_default())),
        ("mgmt", peer.http),
        ("kvSSL", peer.kv_tls),
        ("mgmtSSL", peer.http_tls),
    ];
    ports.into_iter().filter_map(|(name, port)| Some((name, port?))).collect()
}

/// The chains of a bucket's vBuckets.
struct Chains {
    /// The nodes in them that can be reached, besides this one.
    peers: Vec<PeerNode>,
    strangers_left: usize,
    /// Most replicas of a vBucket.
    replicas: usize,
    /// Per vBucket the active and the replicas: 0 is this node, from 1 on those of `peers`, -1 nobody. Empty without
    /// chains.
    map: Vec<Vec<i16>>,
}

impl Default for Chains {
    fn default() -> Self {
        Self { peers: Vec::new(), strangers_left: STRANGERS_MAX, replicas: 0, map: Vec::new() }
    }
}

impl Chains {
    fn of(node: &Node, bucket: &Bucket) -> Self {
        let mut chains = Self::default();
        if bucket.has_default_roles() {
            return chains;
        }
        let (own, replication) = (node.name(), node.replication());
        for vb in (0..bucket.vbuckets()).map(VbId) {
            let (state, topology) = bucket.chains(vb);
            let mut line = Vec::new();
            match topology.chains().first() {
                Some(chain) => {
                    for name in chain {
                        let place =
                            name.as_deref().map_or(NOBODY, |name| chains.place(name, &own, &replication));
                        line.push(place);
                    }
                    // Whoever is active is asked, by whatever name the chain has it. One that was active is still
                    // asked: its answers bring the next map, where NOBODY would keep some SDKs from asking ever again.
                    if state == VbState::Active {
                        line.iter_mut().filter(|place| **place == 0).for_each(|place| *place = NOBODY);
                        line.first_mut().into_iter().for_each(|place| *place = 0);
                    }
                }
                // Alone it is active, or nobody is.
                None => line.push(if state == VbState::Active { 0 } else { NOBODY }),
            }
            chains.replicas = chains.replicas.max(line.len() - 1);
            chains.map.push(line);
        }
        for line in &mut chains.map {
            while line.len() <= chains.replicas {
                line.push(NOBODY);
            }
        }
        chains
    }

    /// Returns the place of a node in the list of servers, into which it is entered.
    fn place(&mut self, name: &str, own: &str, replication: &Replication) -> i16 {
        if name == own {
            return 0;
        }
        let known = self.peers.iter().position(|peer| *peer.name == *name);
        let at = known.or_else(|| {
            let peer = replication.find(name)?;
            if !replication.has_peer(name) {
                self.strangers_left = self.strangers_left.checked_sub(1)?;
            }
            self.peers.push(peer);
            Some(self.peers.len() - 1)
        });
        at.and_then(|at| i16::try_from(at + 1).ok()).unwrap_or(NOBODY)
    }
}

/// COMPAT: IPv6 addresses are in brackets before a port, and not elsewhere.
fn in_brackets(host: &str) -> Cow<'_, str> {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

fn bucket_part<'a>(
    bucket: &'a Bucket,
    host: &str,
    services: &BTreeMap<&'static str, u16>,
    chains: &Chains,
) -> BucketPart<'a> {
    let kv = services.get(KV).copied().unwrap_or_default();
    let host = in_brackets(host);
    let part = |host: &str, mgmt: u16, kv: u16, this_node: bool| NodePart {
        hostname: format!("{host}:{mgmt}"),
        ports: Ports { direct: kv },
        this_node,
        status: "healthy",
        cluster_membership: "active",
    };
    let mut nodes = vec![part(&host, services.get("mgmt").copied().unwrap_or(kv), kv, true)];
    let mut server_list = vec![format!("{host}:{kv}")];
    for peer in &chains.peers {
        let (host, kv) = (in_brackets(&peer.host), peer.kv.unwrap_or_default());
        nodes.push(part(&host, peer.http.unwrap_or(kv), kv, false));
        server_list.push(format!("{host}:{kv}"));
    }
    let alone = || vec![vec![0]; usize::from(bucket.vbuckets())];
    let kind = bucket.settings().kind;
    let mut bucket_capabilities = BUCKET_CAPABILITIES.to_vec();
    bucket_capabilities.extend((kind == BucketKind::Persistent).then_some(OF_PERSISTENT));
    BucketPart {
        name: bucket.name(),
        uuid: bucket.uuid(),
        bucket_type: kind.type_name(),
        node_locator: "vbucket",
        bucket_capabilities,
        bucket_capabilities_ver: "",
        collections_manifest_uid: format!("{:x}", bucket.collections().uid()),
        nodes,
        v_bucket_server_map: ServerMap {
            hash_algorithm: "CRC",
            num_replicas: chains.replicas as u8,
            server_list,
            v_bucket_map: if chains.map.is_empty() { alone() } else { chains.map.clone() },
        },
    }
}

/// Returns true if version (`epoch`, `revision`) of a bucket's map, or of that without a bucket, is not older than the
/// newest one.
pub fn is_current(node: &Node, bucket: Option<&Bucket>, epoch: i64, revision: i64) -> bool {
    let known = (u64::try_from(epoch).unwrap_or(0), u64::try_from(revision).unwrap_or(0));
    known >= (node.map_epoch(bucket), node.map_revision())
}
