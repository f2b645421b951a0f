//! Which remotes are configured, which are in force, and how the latter follow from the former.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ovsdb::database::Database;
use ovsdb::error::Error;
use ovsdb::file;
use ovsdb::history::CommitId;
use ovsdb::schema::DatabaseSchema;

use super::control::Outstanding;
use super::database_remote::{Place, RemoteError, place, targets};
use super::event_loop::EventLoop;
use super::logger::Level;
use super::remote::{DatabaseRemote, Endpoint, Remote, Security};
use super::{Core, DatabaseLog};

/// Silence after which a peer on another machine is probed, unless configured otherwise.
pub(super) const PROBE_MS: u64 = 5_000;
/// The DSCP code point of packets, unless configured otherwise: network control (CS6).
const DSCP: u8 = 48;

/// The settings of a remote besides its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    /// Silence after which the peer is probed; 0: never.
    pub probe_ms: Option<u64>,
    /// Longest wait between attempts to connect.
    pub backoff_max_ms: Option<u64>,
    pub read_only: bool,
    pub role: String,
    /// The DSCP code point of its packets, of six bits.
    pub dscp: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self { probe_ms: None, backoff_max_ms: None, read_only: false, role: String::new(), dscp: DSCP }
    }
}

impl Options {
    /// These options, with the values in `before` for those that are unset.
    fn over(self, before: &Self) -> Self {
        Self {
            probe_ms: self.probe_ms.or(before.probe_ms),
            backoff_max_ms: self.backoff_max_ms.or(before.backoff_max_ms),
            ..self
        }
    }

    /// Returns true if sessions made with `other` must be closed: what they may do has changed.
    fn ends_sessions_of(&self, other: &Self) -> bool {
        (self.read_only, &self.role, self.dscp) != (other.read_only, &other.role, other.dscp)
    }
}

/// A remote in force.
#[derive(Debug)]
pub(super) struct InForce {
    pub remote: Remote,
    pub options: Options,
    /// Its listener's slot, if it is open.
    pub listener: Option<usize>,
    /// Sessions that came through it.
    pub sessions: usize,
    /// The log already says that its host has no address.
    is_known_unresolved: bool,
}

impl InForce {
    /// The protocol of those who connect through it.
    pub fn security(&self) -> Security {
        match self.remote {
            Remote::ListenTcp(_, security) => security,
            _ => Security::Plain,
        }
    }

    /// The host name that its listener has to wait for.
    fn host(&self) -> Option<&str> {
        match &self.remote {
            Remote::ListenTcp(Endpoint::Host(host, _), _) if self.listener.is_none() => Some(host),
            _ => None,
        }
    }
}

/// The prefix of a socket that the process has inherited. Only whoever starts the process knows its open files.
const INHERITED: &str = "pfd:";

/// A configured database remote, and where it pointed when it was last checked.
#[derive(Debug)]
struct Watched {
    remote: DatabaseRemote,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// Its place in this schema.
    place: Place,
    schema: Arc<DatabaseSchema>,
    commit: CommitId,
}

/// All remotes.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    /// As given, with the parsed form of database remotes.
    configured: BTreeMap<String, Option<Watched>>,
    pub in_force: BTreeMap<Box<str>, InForce>,
    /// The names of the databases that have logs.
    pub hosted: Vec<String>,
    pub outstanding: Vec<Outstanding>,
    /// The configured remotes have changed.
    changed: bool,
}

impl Remotes {
    /// The database remotes that point to rows: their databases and places.
    pub fn reported(&self) -> impl Iterator<Item = (&str, Place)> {
        self.configured.values().flatten().filter_map(|watched| {
            let place = watched.seen.as_ref()?.place;
            place.targets.map(|_| (watched.remote.database.as_str(), place))
        })
    }
}

impl EventLoop {
    /// As [`Self::add_remote`], while the process serves: inherited sockets are refused.
    pub fn add_remote_later(&mut self, text: &str) -> Result<(), RemoteError> {
        if text.starts_with(INHERITED) {
            return Err(RemoteError::Inherited);
        }
        self.add_remote(text)
    }

    /// Adds a remote as written; it takes effect when the loop runs. An existing one is left unchanged.
    pub fn add_remote(&mut self, text: &str) -> Result<(), RemoteError> {
        let watched = match text.strip_prefix("db:") {
            Some(rest) => {
                let remote = DatabaseRemote::parse(rest).ok_or(RemoteError::Syntax)?;
                let database = self
                    .server
                    .database(&remote.database)
                    .ok_or_else(|| RemoteError::Database(remote.database.clone()))?;
                place(database, &remote)?;
                Some(Watched { remote, seen: None })
            }
            None => None,
        };
        self.remotes.configured.entry(text.to_owned()).or_insert(watched);
        self.remotes.changed = true;
        Ok(())
    }

    /// Removes a configured remote and ends its sessions. Returns false if there is none.
    pub fn remove_remote(&mut self, text: &str) -> bool {
        let removed = self.remotes.configured.remove(text).is_some();
        if removed {
            self.configure();
        }
        removed
    }

    /// The configured remotes, as they were given, in order.
    pub fn remotes(&self) -> impl Iterator<Item = &str> {
        self.remotes.configured.keys().map(String::as_str)
    }

    /// Hosts a database whose log is on the disk.
    pub fn add_database(&mut self, database: Database, log: DatabaseLog) -> Result<(), Error> {
        let name = database.name().to_owned();
        self.server.add_database(database, Some(log), self.now)?;
        self.remotes.hosted.push(name);
        self.remotes.hosted.sort_unstable();
        Ok(())
    }

    /// Stops hosting a database. Returns false if there is none with this name.
    pub fn remove_database(&mut self, name: &str, reason: &str) -> bool {
        self.remotes.hosted.retain(|hosted| hosted != name);
        let removed = self.server.remove_database(name, reason, self.now).is_some();
        self.compactions.forget(name);
        self.configure();
        removed
    }

    /// The names of the databases with logs, in order.
    pub fn hosted(&self) -> &[String] {
        &self.remotes.hosted
    }

    /// Updates the remotes in force if something that they depend on has changed.
    pub(super) fn configure_if_changed(&mut self) {
        let server = &self.server;
        let mut changed = self.remotes.changed;
        for watched in self.remotes.configured.values_mut().flatten() {
            changed = has_changed(server, watched) || changed;
        }
        if changed {
            self.configure();
        }
    }

    /// Updates the remotes in force to match the configured ones.
    pub(super) fn configure(&mut self) {
        self.remotes.changed = false;
        let mut wanted: BTreeMap<Box<str>, Options> = BTreeMap::new();
        let mut refused = Vec::new();
        for (name, watched) in &mut self.remotes.configured {
            let Some(watched) = watched else {
                wanted.entry(name.as_str().into()).or_default();
                continue;
            };
            watched.seen = None;
            if let Some(database) = self.server.database(&watched.remote.database)
                && let Ok(place) = place(database, &watched.remote)
            {
                let (schema, commit) = (Arc::clone(database.schema()), database.commit_number());
                watched.seen = Some(Seen { place, schema, commit });
                for (target, options) in targets(database, place) {
                    if target.starts_with(INHERITED) {
                        refused.push(target);
                        continue;
                    }
                    // COMPAT: the remote may exist already, from the command line, a string or another row. What a row
                    // states about it prevails.
                    let merged = wanted.entry(target.into()).or_default();
                    if let Some(options) = options {
                        *merged = options.over(merged);
                    }
                }
            }
        }
        for target in refused {
            let text = format!("{target}: pfd: remotes can only be given on the command line");
            self.log("ovsdb_server", Level::Warning, &text);
        }
        let gone: Vec<Box<str>> = self
            .remotes
            .in_force
            .iter()
            .filter(|(name, _)| !wanted.contains_key(*name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.retire(&name);
        }
        for (name, options) in wanted {
            match self.remotes.in_force.get(&name) {
                None => self.enforce(&name, options),
                Some(state) if state.options != options => self.change_options(&name, options),
                Some(_) => {}
            }
        }
        self.report_soon();
    }

    /// Applies changed options from a remote's row. Sessions are kept unless they must be closed.
    fn change_options(&mut self, name: &str, options: Options) {
        let Some(state) = self.remotes.in_force.get_mut(name) else { return };
        let before = std::mem::replace(&mut state.options, options.clone());
        if let Some(super::event_loop::Slot::Listener(listener, _)) =
            state.listener.and_then(|slot| self.slots.get(slot))
        {
            listener.set_dscp(options.dscp);
        }
        self.change_outgoing(name, &options);
        if options.ends_sessions_of(&before) {
            self.close_sessions_of(name);
        } else if options.probe_ms != before.probe_ms {
            self.change_probes(name, options.probe_ms);
        }
    }

    fn retire(&mut self, name: &str) {
        self.log("ovsdb_jsonrpc_server", Level::Information, &format!("{name}: remote deconfigured"));
        if let Some(state) = self.remotes.in_force.remove(name) {
            if let Some(slot) = state.listener {
                self.close_slot(slot);
            }
            self.remove_outgoing(name);
            self.close_sessions_of(name);
        }
    }

    fn enforce(&mut self, name: &str, options: Options) {
        let remote = Remote::parse(name, &self.settings.run_directory);
        let mut listener = None;
        match &remote {
            Remote::ListenTcp(Endpoint::Host(host, _), _) => self.resolver.start(host),
            Remote::ListenUnix(_) | Remote::ListenTcp(..) | Remote::ListenInherited(_) => {
                listener = self.open_listener(name, &remote, options.dscp, true).ok();
            }
            // A database remote that is itself named in a database is ignored.
            Remote::Database(_) => {}
            _ => self.add_outgoing(name, remote.clone(), &options),
        }
        self.remotes.in_force.insert(
            name.into(),
            InForce { remote, options, listener, sessions: 0, is_known_unresolved: false },
        );
    }

    /// Waits at most this long for the host names that listeners need. For use before the loop runs: whoever starts the
    /// process expects the listeners to be open.
    pub fn await_names(&mut self, at_most: Duration) {
        let begun = Instant::now();
        while self.resolver.is_busy() {
            let Some(left) = at_most.checked_sub(begun.elapsed()) else { return };
            self.resolver.wait(left);
            self.use_names();
        }
    }

    /// Continues with what waited for host names that are now resolved.
    pub(super) fn use_names(&mut self) {
        for (host, address) in self.resolver.take() {
            let waiting: Vec<Box<str>> = self
                .remotes
                .in_force
                .iter()
                .filter(|(_, state)| state.host() == Some(&host))
                .map(|(name, _)| name.clone())
                .collect();
            for name in waiting {
                match address {
                    Some(address) => self.open_named_listener(&name, address),
                    None => self.cannot_resolve(&name, &host),
                }
            }
            self.connect_named(&host, address);
        }
    }

    /// The host of a listener has no address now; the first time this is logged.
    fn cannot_resolve(&mut self, name: &str, host: &str) {
        self.listen_again_later();
        if let Some(state) = self.remotes.in_force.get_mut(name)
            && !std::mem::replace(&mut state.is_known_unresolved, true)
        {
            self.log("dns_resolve", Level::Warning, &format!("{host}: failed to resolve"));
        }
    }

    fn open_named_listener(&mut self, name: &str, mut address: SocketAddr) {
        let Some(state) = self.remotes.in_force.get(name) else { return };
        let Remote::ListenTcp(Endpoint::Host(_, port), security) = &state.remote else { return };
        address.set_port(*port);
        let remote = Remote::ListenTcp(Endpoint::Address(address), *security);
        let listener = self.open_listener(name, &remote, state.options.dscp, true).ok();
        if let Some(state) = self.remotes.in_force.get_mut(name) {
            state.listener = listener;
        }
        self.report_soon();
    }

    /// Retries the listeners that could not be opened.
    pub(super) fn retry_listeners(&mut self) {
        let closed: Vec<(Box<str>, Remote, u8)> = self
            .remotes
            .in_force
            .iter()
            .filter(|(_, state)| state.listener.is_none())
            .map(|(name, state)| (name.clone(), state.remote.clone(), state.options.dscp))
            .collect();
        for (name, remote, dscp) in closed {
            match &remote {
                Remote::ListenTcp(Endpoint::Host(host, _), _) => self.resolver.start(host),
                Remote::ListenUnix(_) | Remote::ListenTcp(..) | Remote::ListenInherited(_) => {
                    let listener = self.open_listener(&name, &remote, dscp, false).ok();
                    if let Some(state) = self.remotes.in_force.get_mut(&name) {
                        state.listener = listener;
                    }
                    self.report_soon();
                }
                _ => {}
            }
        }
    }
}

/// Returns true if a commit since the last check touched what a database remote depends on.
fn has_changed(server: &Core, watched: &mut Watched) -> bool {
    let Some(database) = server.database(&watched.remote.database) else { return watched.seen.is_some() };
    let Some(Seen { place, schema, commit }) = &mut watched.seen else { return true };
    if !Arc::ptr_eq(schema, database.schema()) {
        return true;
    }
    let last = database.commit_number();
    if *commit == last {
        return false;
    }
    let before = std::mem::replace(commit, last);
    // The last commit checked was undone, or is too old: check again.
    before > last
        || before < database.oldest_kept()
        || database
            .changes_since(before)
            .any(|change| change.table == place.table || Some(change.table) == place.targets)
}

/// Takes the notes of the databases' logs.
pub(super) fn take_notes(server: &mut Core, hosted: &[String]) -> Vec<(&'static str, Level, String)> {
    let mut notes = Vec::new();
    for name in hosted {
        if let Some((database, Some(log))) = server.database_and_log(name) {
            let damage = database.take_damage().map(ToString::to_string);
            notes.extend(damage.map(|text| ("ovsdb_server", Level::Error, text)));
            notes
                .extend(log.take_notes().into_iter().map(|note| (note.module, level(note.level), note.text)));
        }
    }
    notes
}

/// Converts a note's level to a logger's.
pub(super) fn level(level: file::Level) -> Level {
    match level {
        file::Level::Info => Level::Information,
        file::Level::Warn => Level::Warning,
        file::Level::Error => Level::Error,
    }
}
