//! Changes to a running node: buckets within the node's memory, the users, draining. One per process.

use crate::allocator;
use crate::bucket_store::{BACKUPS_MAX, BucketStore, IDENTITY, NoBackup};
use crate::budgets::{Budgets, DoesNotFit};
use crate::config::keys::BUCKET_MEMORY_MIN;
use crate::config::{BucketSection, OvsdbSection, size};
use crate::databases::Watcher;
use crate::log_tail::Tail;
use crate::machine;
use crate::node_store::NodeStore;
use crate::password::{Login, Source};
use console::{BucketChange, BucketRequest, Change, Refusal};
use kv::node::BucketError;
use kv::profile::Profile;
use kv::users::Reach;
use kv::users::kept::Kept;
use kv::{BUCKET_NAME, BucketKind, BucketSettings, Node, is_bucket_name};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use transport::ServerTls;

/// The node and its management state.
pub struct Control {
    node: Arc<Node>,
    memory_bytes: AtomicU64,
    /// Locked while buckets are created or deleted, so that budgets and buckets agree.
    budgets: Mutex<Budgets>,
    development: AtomicBool,
    /// Whether everybody may do everything over HTTP, until an administrator is set.
    is_open: AtomicBool,
    /// Whether the administrator is one of the configuration.
    is_configured: AtomicBool,
    draining: AtomicBool,
    /// Locked while users or the profile change.
    kept: Mutex<NodeStore>,
    /// The persistent buckets; `None` without a data directory.
    store: Option<BucketStore>,
    databases: OnceLock<Watcher>,
    log: OnceLock<Tail>,
    tls: Option<Arc<ServerTls>>,
}

impl Control {
    /// Manages `node`, whose buckets may use `memory_bytes` together. If it `is_open`, everybody may do everything over
    /// HTTP until an administrator is set.
    pub fn new(
        node: Arc<Node>,
        memory_bytes: u64,
        login: &Login,
        is_open: bool,
        store: Option<BucketStore>,
        kept: NodeStore,
        tls: Option<Arc<ServerTls>>,
    ) -> Self {
        let control = Self {
            node,
            memory_bytes: AtomicU64::new(memory_bytes),
            kept: Mutex::new(kept),
            is_open: AtomicBool::new(is_open),
            is_configured: AtomicBool::new(false),
            budgets: Mutex::new(Budgets::new(memory_bytes)),
            development: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            store,
            databases: OnceLock::new(),
            log: OnceLock::new(),
            tls,
        };
        control.set_login(login);
        control
    }

    /// Creates the buckets of the configuration, and opens the others in the data directory: `found`. For a bucket that
    /// is in both, the configuration takes precedence. All claims come first, so that each bucket starts with its final
    /// share.
    pub fn create_at_start(
        &self,
        configured: &[BucketSection],
        found: &[BucketSection],
    ) -> Result<(), Refusal> {
        let is_configured = |name: &str| configured.iter().any(|section| section.name == name);
        let others = found.iter().filter(|section| !is_configured(&section.name));
        let sections: Vec<(&BucketSection, bool)> = configured
            .iter()
            .map(|section| (section, true))
            .chain(others.map(|section| (section, false)))
            .collect();
        let mut budgets = self.budgets();
        for (section, _) in &sections {
            let in_words = |free| of_bucket(&section.name, does_not_fit(free));
            budgets.claim(&section.name, section.memory_bytes).map_err(in_words)?;
        }
        for (section, is_configured) in sections {
            let name = section.name.as_str();
            if section.settings.kind == BucketKind::Ephemeral && found.iter().any(|found| found.name == name)
            {
                let reason = "kind = \"ephemeral\", but the data directory holds a persistent bucket of this name; \
                              allowed: kind = \"persistent\", or to leave the bucket out: it is opened as it was set \
                              last";
                let refusal = Refusal::Invalid { field: "kind", reason: reason.into() };
                return Err(of_bucket(name, refusal));
            }
            let settings = BucketSettings {
                memory_bytes: budgets.budget(name).unwrap_or_default(),
                eviction: section.eviction.of_ephemeral(),
                ..section.settings.clone()
            };
            let wanted = settings.clone();
            self.make(name, settings, section.memory_bytes).map_err(|refusal| of_bucket(name, refusal))?;
            self.log_opened(name, is_configured.then_some(&wanted));
        }
        Ok(())
    }

    /// Logs what an operator should know about a persistent bucket that was opened; `wanted` are the configured
    /// settings.
    fn log_opened(&self, name: &str, wanted: Option<&BucketSettings>) {
        let Some(bucket) = self.node.bucket(name) else { return };
        let Some(persistence) = bucket.persistence() else { return };
        let Some(wanted) = wanted else {
            tracing::info!(bucket = name, "not in the configuration: opened with its last settings");
            return;
        };
        let (vbuckets, shards) = (bucket.vbuckets(), persistence.shards());
        if wanted.vbuckets != vbuckets {
            tracing::warn!(
                bucket = name,
                vbuckets,
                "the configuration says {}, but this was fixed when the bucket was created",
                wanted.vbuckets
            );
        }
        if usize::from(wanted.persistence.shards.min(vbuckets)) != shards {
            tracing::warn!(
                bucket = name,
                shards,
                "the configuration says {}, but this was fixed when the bucket was created",
                wanted.persistence.shards
            );
        }
    }

    /// Reserves memory for the OVSDB databases of the configuration.
    pub fn claim_databases(&self, databases: &[OvsdbSection]) -> Result<(), Refusal> {
        let mut budgets = self.budgets();
        for database in databases {
            if let Some(file) = &database.file {
                // No bucket name contains a colon.
                let name = format!("ovsdb:{}", file.display());
                budgets.claim(&name, Some(database.memory_bytes)).map_err(does_not_fit)?;
            }
        }
        Ok(())
    }

    /// Sets where the last lines of the log are.
    pub fn set_log(&self, tail: Tail) {
        // Called once per process.
        let _ = self.log.set(tail);
    }

    /// Sets the source of the OVSDB databases' figures.
    pub fn set_databases(&self, watcher: Watcher) {
        // Called once per process.
        let _ = self.databases.set(watcher);
    }

    /// Replaces the configuration's users with these. Sessions of those who are gone have no rights any more.
    pub fn set_login(&self, login: &Login) {
        let users = self.node.users();
        let reach = if login.is_development() { Reach::Loopback } else { Reach::Anywhere };
        for (name, password) in login.users() {
            users.set(name, password.as_bytes(), reach);
        }
        let is_in_force = |name: &str| login.users().any(|(other, _)| other == name);
        for name in users.configured_names().iter().filter(|name| !is_in_force(name)) {
            users.remove(name);
        }
        self.development.store(login.is_development(), Ordering::Relaxed);
        self.is_configured.store(login.source == Source::Files, Ordering::Relaxed);
    }

    /// Changes users; `store` is locked meanwhile.
    fn change_kept(
        &self,
        store: &NodeStore,
        f: impl FnOnce(&mut Kept) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let before = self.node.users().kept();
        let mut kept = Kept::clone(&before);
        f(&mut kept)?;
        let is_last = before.has_administrator() && !kept.has_administrator();
        let is_only = !self.is_configured.load(Ordering::Relaxed) && !self.is_development();
        if is_last && is_only {
            let reason = "Nobody could manage the node any more: this is its last administrator.";
            return Err(Refusal::Invalid { field: "_", reason: reason.into() });
        }
        store.keep_users(&kept).map_err(|error| unkept("users", &error))?;
        let has_administrator = kept.has_administrator();
        self.node.users().set_kept(kept);
        if has_administrator {
            self.is_open.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn is_development(&self) -> bool {
        self.development.load(Ordering::Relaxed)
    }

    fn kept(&self) -> MutexGuard<'_, NodeStore> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `/health` report from now on that the node is draining.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn budgets(&self) -> MutexGuard<'_, Budgets> {
        // Each change of the claims is a single step, so they are consistent even after a panic in a holder of the
        // lock.
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a bucket of a fixed size; shares shrink to make room for it.
    fn create_sized(&self, name: &str, settings: BucketSettings) -> Result<(), Refusal> {
        let mut budgets = self.budgets();
        if self.node.bucket(name).is_some() {
            return Err(refusal(BucketError::Exists(name.to_owned())));
        }
        budgets.claim(name, Some(settings.memory_bytes)).map_err(does_not_fit)?;
        let size = Some(settings.memory_bytes);
        let made = self.make(name, settings, size);
        if made.is_err() {
            budgets.release(name);
        }
        self.apply_shares(&budgets);
        made
    }

    /// Creates or opens a bucket; `size` is its fixed size, if it has one.
    fn make(&self, name: &str, settings: BucketSettings, size: Option<u64>) -> Result<(), Refusal> {
        if self.node.buckets().len() >= console::BUCKETS_MAX {
            let reason = format!("The node has {} buckets, the maximum.", console::BUCKETS_MAX);
            return Err(Refusal::Invalid { field: "name", reason });
        }
        let memory = size::show(settings.memory_bytes);
        match settings.kind {
            BucketKind::Ephemeral => {
                match &self.store {
                    Some(store) => {
                        let invalid = |reason| Refusal::Failed { reason };
                        let collections = store.collections(name).map_err(invalid)?;
                        let keep = store.keeper(name);
                        self.node.create_bucket_with(name, settings, collections, keep).map_err(refusal)?;
                    }
                    None => drop(self.node.create_bucket(name, settings).map_err(refusal)?),
                }
                tracing::info!(bucket = name, memory, "bucket created");
            }
            BucketKind::Persistent => self.open(name, settings, size)?,
        }
        Ok(())
    }

    fn open(&self, name: &str, settings: BucketSettings, size: Option<u64>) -> Result<(), Refusal> {
        let store = self.store()?;
        let (memory, sync) = (size::show(settings.memory_bytes), settings.persistence.sync);
        store.keep(name, size, &settings).map_err(|error| failed(name, &error))?;
        let directory = store.directory(name);
        let opened = self.node.open_bucket(name, settings, store.disk(), &directory);
        if opened.is_err() && !directory.join(IDENTITY).exists() {
            // The bucket was not created, so its stored settings are removed too: now, or else at the next start.
            let _ = store.forget(name);
        }
        let bucket = opened.map_err(refusal)?;
        let directory = directory.display();
        let segments = bucket.persistence().map_or(0, |persistence| persistence.warm_up().segments);
        tracing::info!(bucket = name, memory, %directory, segments, "persistent bucket opened");
        if !sync {
            tracing::warn!(
                bucket = name,
                "sync = false: what is reported as durable is NOT safe from a crash of the machine"
            );
        }
        Ok(())
    }

    fn store(&self) -> Result<&BucketStore, Refusal> {
        self.store.as_ref().ok_or_else(|| {
            let reason = "A persistent bucket needs a data directory, and this node has none (node.data, --data). \
                Allowed here: ephemeral.";
            Refusal::Invalid { field: "bucketType", reason: reason.into() }
        })
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
    fn login_required(&self) -> bool {
        !self.is_development()
    }

    fn create_bucket(&self, request: BucketRequest) -> Result<(), Refusal> {
        if !is_bucket_name(&request.name) {
            let reason = format!("Bucket name: allowed are {BUCKET_NAME}.");
            return Err(Refusal::Invalid { field: "name", reason });
        }
        check_size(request.settings.memory_bytes)?;
        if let Some(store) = self.store.as_ref().filter(|_| self.node.bucket(&request.name).is_none()) {
            // Those of an earlier bucket of this name.
            store.forget_collections(&request.name).map_err(|error| failed(&request.name, &error))?;
        }
        self.create_sized(&request.name, request.settings)
    }

    fn backup_bucket(&self, name: &str, label: &str, is_bounded: bool) -> Result<PathBuf, Refusal> {
        let bucket = self.node.bucket(name).ok_or(Refusal::Missing)?;
        let Some(persistence) = bucket.persistence() else {
            let reason = "Only persistent buckets can be copied, and this one is ephemeral.";
            return Err(Refusal::Invalid { field: "_", reason: reason.into() });
        };
        if !is_bucket_name(label) {
            let reason = format!("Label: allowed are {BUCKET_NAME}.");
            return Err(Refusal::Invalid { field: "label", reason });
        }
        let made = self.store()?.backup(name, label, persistence, is_bounded);
        let directory = made.map_err(|why| match why {
            // It was deleted meanwhile, and its files with it.
            _ if bucket.is_gone() => Refusal::Missing,
            NoBackup::TooMany => Refusal::TooMany {
                reason: format!(
                    "There are {BACKUPS_MAX} backups of this bucket. A user who may manage the node can make more; on \
                     the machine, some can be moved away."
                ),
            },
            NoBackup::DiskFull { free_bytes, needed_bytes } => Refusal::NotNow {
                reason: format!(
                    "The disk has {} MiB left, and a backup needs {} MiB, of which it leaves a part to all buckets.",
                    free_bytes >> 20,
                    needed_bytes.div_ceil(1 << 20)
                ),
            },
            NoBackup::Failed(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let reason = format!("A backup {label:?} already exists.");
                Refusal::Invalid { field: "label", reason }
            }
            NoBackup::Failed(error) => failed(name, &error),
        })?;
        tracing::info!(bucket = name, directory = %directory.display(), "backup complete");
        Ok(directory)
    }

    fn set_allocator(&self, fields: &[(String, String)]) -> Result<(), Refusal> {
        allocator::set(fields)
    }

    fn heap_profile(&self) -> Result<PathBuf, Refusal> {
        let store = self.store.as_ref().ok_or_else(|| Refusal::Invalid {
            field: "_",
            reason: "A heap profile needs a data directory, and this node has none (node.data, --data)."
                .into(),
        })?;
        allocator::write_profile(store.data())
    }

    fn delete_bucket(&self, name: &str) -> Result<(), Refusal> {
        let mut budgets = self.budgets();
        let is_persistent = self.node.bucket(name).is_some_and(|bucket| bucket.persistence().is_some());
        let deleted = self.node.delete_bucket(name).map_err(refusal);
        if deleted != Err(Refusal::Missing) && self.node.bucket(name).is_none() {
            budgets.release(name);
            self.apply_shares(&budgets);
        }
        deleted?;
        if is_persistent {
            self.store()?.forget(name).map_err(|error| failed(name, &error))?;
        } else if let Some(store) = &self.store {
            store.forget_collections(name).map_err(|error| failed(name, &error))?;
        }
        tracing::info!(bucket = name, "bucket deleted");
        Ok(())
    }

    fn change_bucket(&self, name: &str, change: BucketChange) -> Result<(), Refusal> {
        // Locked so that no settings are written for a bucket that is being deleted.
        let mut budgets = self.budgets();
        let bucket = self.node.bucket(name).ok_or(Refusal::Missing)?;
        let size_before = budgets.size(name);
        if let Some(bytes) = change.memory_bytes {
            check_size(bytes)?;
            match change.may_take_shares {
                true => budgets.claim(name, Some(bytes)).map_err(does_not_fit)?,
                false => budgets.claim_spare(name, bytes).map_err(is_not_spare)?,
            }
        }
        let mut settings = bucket.settings_in_force();
        for (setting, value) in &change.settings {
            // The caller has checked it.
            let set = setting.set(&mut settings, *value);
            debug_assert!(set.is_ok(), "{}", setting.key);
        }
        if bucket.persistence().is_some() {
            let kept = self.store().and_then(|store| {
                let kept = store.keep(name, budgets.size(name), &settings);
                kept.map_err(|error| failed(name, &error))
            });
            if let Err(refusal) = kept {
                // The previous claim still fits.
                let _ = budgets.claim(name, size_before);
                return Err(refusal);
            }
        }
        if let Some(bytes) = change.memory_bytes {
            bucket.set_budget(bytes);
            self.apply_shares(&budgets);
            tracing::info!(bucket = name, memory = size::show(bytes), "budget changed");
        }
        for live in change.settings.iter().filter_map(|(setting, _)| setting.live.as_ref()) {
            (live.apply)(&bucket, &settings);
        }
        Ok(())
    }

    fn change_users(&self, f: Change<'_, Kept, Result<(), Refusal>>) -> Result<(), Refusal> {
        let had_administrator = self.node.users().kept().has_administrator();
        self.change_kept(&self.kept(), f)?;
        let has_administrator = self.node.users().kept().has_administrator();
        if has_administrator && !had_administrator && self.is_development() {
            tracing::warn!(
                "there is an administrator now: the development user ends with the next start, and memcached ports \
                 require a login from then on"
            );
        }
        Ok(())
    }

    fn change_profile(&self, f: Change<'_, Profile, ()>) -> Result<(), Refusal> {
        let store = self.kept();
        let before = self.node.profile();
        let mut profile = Profile::clone(&before);
        f(&mut profile);
        if profile != *before {
            store.keep_profile(&profile).map_err(|error| unkept("settings", &error))?;
            self.node.set_profile(profile);
        }
        Ok(())
    }

    fn is_provisioned(&self) -> bool {
        !self.is_open.load(Ordering::Relaxed)
    }

    fn administrator(&self) -> Option<String> {
        let users = self.node.users();
        let configured = users.configured_names().first().map(|name| name.as_ref().to_owned());
        configured.or_else(|| users.kept().administrator.clone())
    }

    fn may_set_administrator(&self) -> Result<(), Refusal> {
        if !self.is_configured.load(Ordering::Relaxed) {
            return Ok(());
        }
        let reason = "The administrator is defined in the configuration (auth.user, auth.password_file, \
                      auth.users_file).";
        Err(Refusal::Invalid { field: "username", reason: reason.into() })
    }

    fn set_administrator(&self, user: &str, password: &str, by_anybody: bool) -> Result<(), Refusal> {
        self.may_set_administrator()?;
        let users = self.node.users();
        let keys = users.derive(password.as_bytes());
        let store = self.kept();
        if by_anybody && self.is_provisioned() {
            let reason = "There is an administrator already.";
            return Err(Refusal::Invalid { field: "username", reason: reason.into() });
        }
        self.change_kept(&store, |kept| {
            kept.set_administrator(user, keys, machine::unix_ms() / 1000);
            Ok(())
        })?;
        for name in users.configured_names() {
            users.remove(&name);
        }
        users.demand_login();
        self.development.store(false, Ordering::Relaxed);
        tracing::info!(user, "administrator set");
        Ok(())
    }

    fn set_memory(&self, bytes: u64) -> Result<(), Refusal> {
        let invalid = |reason| Err(Refusal::Invalid { field: "memoryQuota", reason });
        let machine = machine::memory_bytes().unwrap_or(u64::MAX);
        if bytes > machine {
            return invalid(format!("RAM quota: this machine has {} MiB.", machine >> 20));
        }
        let mut budgets = self.budgets();
        if let Err(least) = budgets.set_node_bytes(bytes) {
            return invalid(format!("RAM quota: the buckets need {} MiB.", least.div_ceil(1 << 20)));
        }
        self.node.set_memory(bytes);
        self.memory_bytes.store(bytes, Ordering::Relaxed);
        self.apply_shares(&budgets);
        tracing::info!(memory = size::show(bytes), "memory of the node changed");
        Ok(())
    }

    fn certificates(&self) -> Option<String> {
        self.tls.as_ref().map(|tls| tls.chain_pem())
    }

    fn memory_bytes(&self) -> u64 {
        // Not read from the budgets: they are locked while a bucket is opened, and a disk may be slow.
        self.memory_bytes.load(Ordering::Relaxed)
    }

    fn certificate_expiry_s(&self) -> Option<u64> {
        let expiry_s = self.tls.as_ref()?.not_after()?;
        Some(u64::try_from(expiry_s).unwrap_or_default())
    }

    fn databases(&self) -> Vec<console::DatabaseFigures> {
        self.databases.get().map(Watcher::figures).unwrap_or_default()
    }

    fn ask_databases(&self, question: console::DatabaseQuestion) -> Result<console::DatabaseAnswer, Refusal> {
        match (self.databases.get(), &question) {
            (Some(watcher), _) => watcher.ask(question),
            (None, console::DatabaseQuestion::Reports { database: None }) => {
                Ok(console::DatabaseAnswer::Reports { sessions: 0, databases: Vec::new() })
            }
            (None, _) => Err(console::NO_SUCH_DATABASE),
        }
    }

    fn log_tail(&self, question: &console::LogQuestion) -> console::LogTail {
        self.log.get().map(|tail| tail.read(question)).unwrap_or_default()
    }

    fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

fn check_size(bytes: u64) -> Result<(), Refusal> {
    if bytes >= BUCKET_MEMORY_MIN {
        return Ok(());
    }
    let reason = format!("RAM quota: allowed are {} MiB and more.", BUCKET_MEMORY_MIN >> 20);
    Err(Refusal::Invalid { field: "ramQuota", reason })
}

fn does_not_fit(DoesNotFit { free_bytes }: DoesNotFit) -> Refusal {
    let reason = format!("RAM quota: the node has at most {} MiB left for this bucket.", free_bytes >> 20);
    Refusal::Invalid { field: "ramQuota", reason }
}

fn is_not_spare(DoesNotFit { free_bytes }: DoesNotFit) -> Refusal {
    let reason = format!(
        "RAM quota: at most {} MiB are left for this bucket without taking memory from others. A user who may \
         manage the node can do that.",
        free_bytes >> 20
    );
    Refusal::Invalid { field: "ramQuota", reason }
}

fn refusal(error: BucketError) -> Refusal {
    match error {
        BucketError::Missing(_) => Refusal::Missing,
        // COMPAT: SDKs recognise this sentence and map it to their "bucket exists" error.
        BucketError::Exists(_) => {
            Refusal::Invalid { field: "name", reason: "Bucket with given name already exists".into() }
        }
        BucketError::Journal(reason) => Refusal::Failed { reason },
        other => Refusal::Invalid { field: "_", reason: other.to_string() },
    }
}

fn unkept(what: &str, error: &io::Error) -> Refusal {
    Refusal::Failed { reason: format!("the {what} could not be written: {error}") }
}

/// The refusal after a disk error.
fn failed(name: &str, error: &io::Error) -> Refusal {
    Refusal::Failed { reason: format!("bucket {name:?}: {error}") }
}

/// A refusal at the start, where no form field says which bucket is meant.
fn of_bucket(name: &str, refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Invalid { field, reason } => {
            Refusal::Invalid { field, reason: format!("bucket {name:?}: {reason}") }
        }
        Refusal::Failed { reason } => Refusal::Failed { reason: format!("bucket {name:?}: {reason}") },
        other => other,
    }
}
