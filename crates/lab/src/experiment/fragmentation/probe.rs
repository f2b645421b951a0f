//! What a server says of its memory, and what the kernel says.

use crate::client::{figure, redis_information, statistics};
use crate::process::{self, Memory};
use crate::subject::{Kind, Server};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Where a server is asked.
#[derive(Clone, Copy)]
pub struct Probe {
    kind: Kind,
    pid: u32,
    address: SocketAddr,
}

/// Memory of a server at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Found {
    /// What the kernel counts.
    pub memory: Memory,
    /// What the server has asked its allocator for on behalf of the data: keys, values, metadata, index. Redis and
    /// Valkey count what the allocator rounded it to.
    pub used_bytes: u64,
    /// What the allocator has mapped, where it tells.
    pub mapped_bytes: Option<u64>,
}

impl Probe {
    /// Of a server.
    pub fn new(kind: Kind, server: &Server) -> Self {
        let address = server.memcached.unwrap_or(server.target.address);
        Self { kind, pid: server.pid, address }
    }

    /// Asks now.
    pub fn ask(&self) -> Result<Found> {
        let memory = process::memory(self.pid)?;
        let sum = |figures: &BTreeMap<String, String>, names: &[&str]| {
            names.iter().map(|name| figure(figures, name)).sum::<Result<u64>>()
        };
        let (used_bytes, mapped_bytes) = match self.kind {
            Kind::Dormouse | Kind::DormouseSlab | Kind::DormouseBlock => {
                let used = sum(&statistics(self.address, "memory")?, &["payload", "metadata", "index"])?;
                (used, figure(&statistics(self.address, "allocator")?, "mapped_bytes").ok())
            }
            Kind::Memcached => {
                let used = sum(&statistics(self.address, "")?, &["bytes", "hash_bytes"])?;
                (used, figure(&statistics(self.address, "slabs")?, "total_malloced").ok())
            }
            Kind::Redis | Kind::Valkey => {
                let figures = redis_information(self.address, "memory")?;
                (figure(&figures, "used_memory")?, None)
            }
            Kind::Floor => (0, None),
        };
        Ok(Found { memory, used_bytes, mapped_bytes })
    }
}
