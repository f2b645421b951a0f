//! What an operator has said about the node and its cluster: names, addresses for clients elsewhere, services.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The service that every node has.
pub const KV: &str = "kv";

/// What an operator has said. Kept on disk as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    /// Which cluster it is: 32 hexadecimal digits, drawn when there are none.
    pub uuid: String,
    /// The cluster's name.
    pub cluster_name: String,
    /// The name or address that the node has for its clients; `None`: the one that each client used.
    pub hostname: Option<String>,
    /// Under which address clients of another network reach it.
    pub external: Option<External>,
    /// Memory of all buckets, MiB, unless the configuration says it.
    pub memory_mib: Option<u64>,
    /// Memory of services that are not there, MiB, by the names of their settings. Stored and shown.
    pub quotas: BTreeMap<String, u64>,
    /// How indexes would be stored. Stored and shown.
    pub storage_mode: Option<String>,
    /// Services besides [`KV`] that clients are told of, if their ports are open.
    pub services: Vec<String>,
    /// Settings of a cluster that mean nothing on a node alone, by page and field. Stored and shown.
    pub stored: BTreeMap<String, BTreeMap<String, String>>,
}

/// An address for clients of another network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct External {
    /// The name or address.
    pub hostname: String,
    /// The ports there, by their names in cluster maps; without any, they are the node's own.
    #[serde(default)]
    pub ports: BTreeMap<String, u16>,
}
