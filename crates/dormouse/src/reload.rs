//! SIGHUP: reads the configuration again, applies what can be applied, and logs what cannot.

use crate::allocator::Allocator;
use crate::cli::Serve;
use crate::config::{BucketSection, Config, Problem, keys, reader};
use crate::control::Control;
use crate::logging::Logging;
use crate::password::{self, Login};
use crate::serve::{load_tls_to_nodes, problem_of, replication, warn_of_certificate};
use console::{BucketChange, Control as _, Refusal};
use kv::replication::Replication;
use kv::{BUCKET_SETTINGS, Limits, Node};
use std::collections::BTreeSet;
use std::sync::Arc;
use transport::{OutgoingTls, ServerTls};

/// The configuration in force, and the components it is applied to.
pub struct Reload<'a> {
    /// The command line: its flags override the file on reload too.
    pub arguments: &'a Serve,
    /// The configuration read last.
    pub config: Config,
    /// The users in force.
    pub login: Login,
    /// Receives certificates, if there were any at the start.
    pub tls: Option<Arc<ServerTls>>,
    /// Receives whom other nodes' certificates must be signed by, if there was somebody at the start.
    pub to_nodes: Option<Arc<OutgoingTls>>,
    /// Receives limits.
    pub node: Arc<Node>,
    /// Receives users.
    pub control: Arc<Control>,
    /// Receives the log level.
    pub logging: Logging,
    /// The allocator settings at the start; receives new ones.
    pub allocator: Allocator,
}

impl Reload<'_> {
    /// Reads and applies. A mistake is logged and changes nothing.
    pub fn apply(&mut self) {
        if let Err(problem) = self.try_apply() {
            tracing::error!("configuration not reloaded: {problem}");
        }
    }

    fn try_apply(&mut self) -> Result<(), Problem> {
        let next = reader::load(self.arguments.config.as_deref(), &self.arguments.flags())?;
        let login = password::login(&next.auth)?;
        password::warn_of_readers(&next.auth);
        let mut changed = changed_keys(&self.config, &next);
        if login.password != self.login.password {
            changed.insert("auth.password_file".into());
        }
        if login.others != self.login.others {
            changed.insert("auth.users_file".into());
        }
        let replication = replication(&next, &login)?;
        let to_nodes = load_tls_to_nodes(&next)?;
        let files = next.tls.files();
        if let (Some(tls), Some(files)) = (&self.tls, &files) {
            tls.reload(files).map_err(|error| Problem::new(format!("tls: {error}")))?;
        }
        warn_of_certificate(self.tls.as_ref(), &next);
        let same_tls = self.tls.is_some() == files.is_some();
        if let (Some(tls), Some(next)) = (&self.to_nodes, &to_nodes) {
            tls.replace(next);
        }
        let same_links = self.to_nodes.is_some() == to_nodes.is_some();
        // First the changes that a disk error can prevent: nothing else changes then, and the next reload retries them.
        for section in &next.buckets {
            let before = self.config.buckets.iter().find(|before| before.name == section.name);
            self.change_bucket(before, section)?;
        }
        // Whether listeners require a login is fixed at the start; as long as that stays the same, users may change.
        let same_mode = login.source == self.login.source;
        if same_mode && login != self.login {
            self.control.set_login(&login);
        }
        self.node.set_limits(limits(&next));
        // Its name is part of what others have acknowledged.
        let node = self.node.replication().node.clone();
        self.node.set_replication(Replication { node, ..replication });
        self.node.set_timeout_mode(next.node.durability_timeout_mode);
        self.node.requests().set_always(next.node.record_requests);
        self.logging.set_level(next.log.level);
        self.allocator.apply(&next);
        for key in &changed {
            let is_fixed = !same_mode && key.starts_with("auth.")
                || !same_tls && key.starts_with("tls.")
                || !same_links && key == "replication.ca";
            if can_reload(key) && !is_fixed {
                tracing::info!(key, "reloaded");
            } else {
                tracing::warn!(key, "changed in the file, but needs a restart");
            }
        }
        tracing::info!(changed = changed.len(), "configuration read again");
        if same_mode {
            self.login = login;
        }
        self.config = next;
        Ok(())
    }

    /// Changes a bucket as over HTTP: if it is persistent, the change is stored too.
    fn change_bucket(&self, before: Option<&BucketSection>, section: &BucketSection) -> Result<(), Problem> {
        let before = before.map(|section| section.settings.clone()).unwrap_or_default();
        let live = BUCKET_SETTINGS.iter().filter(|setting| setting.live.is_some());
        let values = live.map(|setting| (setting, setting.get(&before), setting.get(&section.settings)));
        let changed = values.filter(|(_, before, now)| before != now);
        let settings: Vec<_> = changed.map(|(setting, _, now)| (setting, now)).collect();
        if settings.is_empty() {
            return Ok(());
        }
        let change = BucketChange { settings, ..BucketChange::default() };
        match self.control.change_bucket(&section.name, change) {
            // A new section creates no bucket before the next start.
            Ok(()) | Err(Refusal::Missing) => Ok(()),
            Err(refusal) => Err(problem_of(refusal)),
        }
    }
}

/// The node's limits from the configuration.
pub fn limits(config: &Config) -> Limits {
    let limits = &config.limits;
    Limits {
        memcached_item_bytes: config.memcached.first().map_or(1 << 20, |port| port.item_size_max),
        kv_value_bytes: config.kv.item_size_max,
        line_bytes: limits.line_bytes,
        frame_bytes: limits.frame_bytes,
        turn_requests: limits.turn_requests,
        output_backlog_bytes: limits.output_backlog_bytes,
        stuck_peer_ms: limits.stuck_peer_ms,
        unfinished_request_ms: limits.unfinished_request_ms,
        connections: limits.connections,
        loopback_connections: limits.loopback_connections,
        slow_request_us: config.node.slow_request_us,
        large_request_bytes: config.node.large_request_bytes,
    }
}

fn changed_keys(old: &Config, new: &Config) -> BTreeSet<String> {
    let paths = old.given.keys().chain(new.given.keys());
    paths.filter(|path| old.given.get(*path) != new.given.get(*path)).cloned().collect()
}

/// Returns true if the key of a path such as `bucket[1].memory` can be applied to a running node.
fn can_reload(path: &str) -> bool {
    let Some((section, key)) = path.rsplit_once('.') else { return false };
    let section = section.split('[').next().unwrap_or(section);
    keys::rows()
        .iter()
        .any(|row| row.name == section && row.keys.iter().any(|known| known.name == key && known.reload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::reader::{Flags, load};

    #[test]
    fn changes_are_found_by_key() {
        let old = load(None, &Flags { workers: Some("1".into()), ..Flags::default() }).expect("valid");
        let flags =
            Flags { workers: Some("2".into()), bucket: vec!["default,64MiB".into()], ..Flags::default() };
        let new = load(None, &flags).expect("valid");
        let changed: Vec<String> = changed_keys(&old, &new).into_iter().collect();
        assert_eq!(changed, ["bucket[0].memory", "bucket[0].name", "node.workers"]);
        assert!(changed_keys(&new, &new).is_empty());
    }

    #[test]
    fn the_table_says_what_can_be_reloaded() {
        assert!(can_reload("limits.connections"));
        assert!(can_reload("log.level"));
        assert!(can_reload("allocator.thp") && !can_reload("allocator.narenas"));
        assert!(can_reload("node.durability_timeout_mode"));
        assert!(!can_reload("bucket[3].memory"));
        assert!(!can_reload("node.workers"));
    }
}
