//! A server's memory, as reported by the server and by the kernel.

use crate::client::{figure, redis_information, statistics};
use crate::process::{self, Memory};
use crate::subject::{Kind, Server};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Where a server reports its memory.
#[derive(Clone, Copy)]
pub struct Probe {
    kind: Kind,
    pid: u32,
    address: SocketAddr,
}

/// Memory of a server at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Found {
    /// As counted by the kernel.
    pub memory: Memory,
    /// What the server has requested from its allocator for the data: keys, values, metadata, index. Redis and Valkey
    /// count the sizes after the allocator's rounding.
    pub used_bytes: u64,
    /// What the allocator has mapped, if it reports that.
    pub mapped_bytes: Option<u64>,
}

impl Probe {
    /// A probe of a server.
    pub fn new(kind: Kind, server: &Server) -> Self {
        let address = server.memcached.unwrap_or(server.target.address);
        Self { kind, pid: server.pid, address }
    }

    /// Reads the figures now.
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
