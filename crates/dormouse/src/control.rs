//! What changes a running node: buckets within the node's memory, the user, draining. One per process.

use crate::budgets::{Budgets, DoesNotFit};
use crate::config::key::is_bucket_name;
use crate::config::keys::BUCKET_MEMORY_MIN;
use crate::config::{BucketSection, OvsdbSection, size};
use crate::databases::Watcher;
use crate::password::Login;
use console::{BucketRequest, Refusal};
use kv::node::BucketError;
use kv::users::Reach;
use kv::{BucketSettings, Node};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The node with what governs it.
pub struct Control {
    node: Arc<Node>,
    /// Held while buckets come or go, so that budgets and buckets agree.
    budgets: Mutex<Budgets>,
    development: AtomicBool,
    draining: AtomicBool,
    databases: OnceLock<Watcher>,
}

impl Control {
    /// Governs `node`, whose buckets may use `memory_bytes` together.
    pub fn new(node: Arc<Node>, memory_bytes: u64, login: &Login) -> Self {
        let control = Self {
            node,
            budgets: Mutex::new(Budgets::new(memory_bytes)),
            development: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            databases: OnceLock::new(),
        };
        control.set_login(login);
        control
    }

    /// Makes the buckets of the configuration. All claims come first, so that each bucket starts with its final share.
    pub fn create_configured(&self, buckets: &[BucketSection]) -> Result<(), Refusal> {
        let mut budgets = self.budgets();
        for bucket in buckets {
            budgets.claim(&bucket.name, bucket.memory_bytes).map_err(does_not_fit)?;
        }
        for bucket in buckets {
            let settings = BucketSettings {
                kind: bucket.kind,
                memory_bytes: budgets.budget(&bucket.name).unwrap_or_default(),
                vbuckets: bucket.vbuckets,
                eviction: bucket.eviction,
            };
            self.make(&bucket.name, settings)?;
        }
        Ok(())
    }

    /// Sets memory aside for the OVSDB databases of the configuration.
    pub fn claim_databases(&self, databases: &[OvsdbSection]) -> Result<(), Refusal> {
        let mut budgets = self.budgets();
        for database in databases {
            if let Some(file) = &database.file {
                // No bucket has a name with a colon.
                let name = format!("ovsdb:{}", file.display());
                budgets.claim(&name, Some(database.memory_bytes)).map_err(does_not_fit)?;
            }
        }
        Ok(())
    }

    /// Says who knows the figures of the OVSDB databases.
    pub fn set_databases(&self, watcher: Watcher) {
        // Once per process.
        let _ = self.databases.set(watcher);
    }

    /// Puts a user in force instead of all others; open sessions stay.
    pub fn set_login(&self, login: &Login) {
        let users = self.node.users();
        let reach = if login.development { Reach::Loopback } else { Reach::Anywhere };
        users.set(&login.user, login.password.as_bytes(), reach);
        for name in users.names().iter().filter(|name| ***name != *login.user) {
            users.remove(name);
        }
        self.development.store(login.development, Ordering::Relaxed);
    }

    /// From now on `/health` says that the node is on its way out.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn budgets(&self) -> MutexGuard<'_, Budgets> {
        // Claims change in one step each, so what a panicking holder left is whole.
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a bucket of a size of its own; shares shrink for it.
    fn create_sized(&self, name: &str, settings: BucketSettings) -> Result<(), Refusal> {
        let mut budgets = self.budgets();
        if self.node.bucket(name).is_some() {
            return Err(refusal(BucketError::Exists(name.to_owned())));
        }
        budgets.claim(name, Some(settings.memory_bytes)).map_err(does_not_fit)?;
        let made = self.make(name, settings);
        if made.is_err() {
            budgets.release(name);
        }
        self.apply_shares(&budgets);
        made
    }

    fn make(&self, name: &str, settings: BucketSettings) -> Result<(), Refusal> {
        if self.node.buckets().len() >= console::BUCKETS_MAX {
            let reason = format!("The node has {} buckets, and more are not allowed.", console::BUCKETS_MAX);
            return Err(Refusal::Invalid { field: "name", reason });
        }
        let memory = size::show(settings.memory_bytes);
        self.node.create_bucket(name, settings).map_err(refusal)?;
        tracing::info!(bucket = name, memory, "bucket created");
        Ok(())
    }

    fn apply_shares(&self, budgets: &Budgets) {
        for name in budgets.sharing() {
            if let (Some(bucket), Some(bytes)) = (self.node.bucket(name), budgets.budget(name)) {
                bucket.set_budget(bytes);
            }
        }
    }
}

impl console::Control for Control {
    fn login(&self, user: &str, password: &str, from_loopback: bool) -> bool {
        self.node.users().verify(user, password.as_bytes(), from_loopback).is_some()
    }

    fn login_required(&self) -> bool {
        !self.development.load(Ordering::Relaxed)
    }

    fn create_bucket(&self, request: BucketRequest) -> Result<(), Refusal> {
        if !is_bucket_name(&request.name) {
            let reason = "Bucket name: allowed are 1 to 100 of the characters A-Z a-z 0-9 _ - . %, not beginning with a dot.";
            return Err(Refusal::Invalid { field: "name", reason: reason.into() });
        }
        let size = request.settings.memory_bytes;
        if size < BUCKET_MEMORY_MIN {
            let reason = format!("RAM quota: allowed are {} MiB and more.", BUCKET_MEMORY_MIN >> 20);
            return Err(Refusal::Invalid { field: "ramQuota", reason });
        }
        self.create_sized(&request.name, request.settings)
    }

    fn delete_bucket(&self, name: &str) -> Result<(), Refusal> {
        let mut budgets = self.budgets();
        self.node.delete_bucket(name).map_err(refusal)?;
        budgets.release(name);
        self.apply_shares(&budgets);
        tracing::info!(bucket = name, "bucket deleted");
        Ok(())
    }

    fn memory_bytes(&self) -> u64 {
        self.budgets().node_bytes()
    }

    fn databases(&self) -> Vec<console::DatabaseFigures> {
        self.databases.get().map(Watcher::figures).unwrap_or_default()
    }

    fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

fn does_not_fit(DoesNotFit { free_bytes }: DoesNotFit) -> Refusal {
    let reason = format!("RAM quota: the node has at most {} MiB left for this bucket.", free_bytes >> 20);
    Refusal::Invalid { field: "ramQuota", reason }
}

fn refusal(error: BucketError) -> Refusal {
    match error {
        BucketError::Missing(_) => Refusal::Missing,
        // COMPAT: SDKs know this sentence and make their "bucket exists" error of it.
        BucketError::Exists(_) => {
            Refusal::Invalid { field: "name", reason: "Bucket with given name already exists".into() }
        }
        other => Refusal::Invalid { field: "_", reason: other.to_string() },
    }
}
