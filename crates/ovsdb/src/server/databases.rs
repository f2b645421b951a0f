//! The databases of a server: those backed by files, and `_Server`.

use super::laggards::Laggards;
use super::session::SessionMonitor;
use super::{Log, Now, Server, SessionId};
use crate::database::Database;
use crate::error::Error;
use crate::history::CommitId;
use crate::schema::TableId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Identifies a database of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatabaseId(u32);

impl DatabaseId {
    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A database and what belongs to it.
pub(super) struct Hosted<L> {
    pub database: Database,
    pub log: Option<L>,
    /// The last commit that is in the log.
    pub written: CommitId,
    /// The commit that represents the opening of the database: ephemeral columns have lost what they had before it.
    pub opened: CommitId,
    /// Monitors that were left behind.
    pub laggards: Laggards,
    /// Tables whose changes are logged.
    pub logged_tables: BTreeSet<TableId>,
    /// The schema as `get_schema` answers it, once it has been asked for.
    pub schema_text: Option<Arc<Vec<u8>>>,
}

/// The databases of a server.
pub(super) struct Databases<L> {
    slots: Vec<Option<Hosted<L>>>,
    names: BTreeMap<Box<str>, DatabaseId>,
}

impl<L> Default for Databases<L> {
    fn default() -> Self {
        Self { slots: Vec::new(), names: BTreeMap::new() }
    }
}

impl<L> Databases<L> {
    #[inline]
    pub fn find(&self, name: &str) -> Option<DatabaseId> {
        self.names.get(name).copied()
    }

    #[inline]
    pub fn get(&self, id: DatabaseId) -> Option<&Hosted<L>> {
        self.slots.get(id.index())?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: DatabaseId) -> Option<&mut Hosted<L>> {
        self.slots.get_mut(id.index())?.as_mut()
    }

    /// Adds a database. Ids are not reused, so that one database is never mistaken for another.
    pub fn insert(&mut self, database: Database, log: Option<L>) -> DatabaseId {
        let id = DatabaseId(self.slots.len() as u32);
        self.names.insert(database.name().into(), id);
        let written = database.commit_number();
        self.slots.push(Some(Hosted {
            database,
            log,
            written,
            opened: written,
            laggards: Laggards::default(),
            logged_tables: BTreeSet::new(),
            schema_text: None,
        }));
        id
    }

    pub fn remove(&mut self, name: &str) -> Option<(DatabaseId, Hosted<L>)> {
        let id = self.names.remove(name)?;
        let hosted = self.slots.get_mut(id.index())?.take()?;
        Some((id, hosted))
    }

    pub fn iter(&self) -> impl Iterator<Item = (DatabaseId, &Hosted<L>)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, hosted)| hosted.as_ref().map(|hosted| (DatabaseId(slot as u32), hosted)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Hosted<L>> {
        self.slots.iter_mut().flatten()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(|name| &**name)
    }
}

/// The name of the database that describes the databases.
pub(super) const SERVER_DATABASE: &str = "_Server";

impl<L> Server<L> {
    /// The names of all databases in order, `_Server` among them.
    pub fn databases(&self) -> impl Iterator<Item = &str> {
        self.databases.names()
    }

    /// A database.
    pub fn database(&self, name: &str) -> Option<&Database> {
        self.databases.find(name).and_then(|id| self.databases.get(id)).map(|hosted| &hosted.database)
    }

    /// A database's log.
    pub fn log(&self, name: &str) -> Option<&L> {
        self.databases.find(name).and_then(|id| self.databases.get(id))?.log.as_ref()
    }

    /// A database and its log. The caller must not change the database behind the server's back.
    pub fn database_and_log(&mut self, name: &str) -> Option<(&mut Database, Option<&mut L>)> {
        let id = self.databases.find(name)?;
        let hosted = self.databases.get_mut(id)?;
        Some((&mut hosted.database, hosted.log.as_mut()))
    }
}

impl<L: Log> Server<L> {
    /// Hosts one more database. Sessions that are not aware of database changes are closed.
    pub fn add_database(&mut self, database: Database, log: Option<L>, now: Now) -> Result<(), Error> {
        self.flush_group();
        let name = database.name().to_owned();
        if self.databases.find(&name).is_some() {
            return Err(Error::new("ovsdb error", format!("{name}: duplicate database name")));
        }
        let id = self.databases.insert(database, log);
        // First: a session that is closed is not notified of the database.
        self.close_unaware(&format!("adding {name} database"));
        self.announce_database(id, now)?;
        self.sessions.publish();
        Ok(())
    }

    /// Stops hosting a database; `reason` (e.g. "by user request") follows "removing NAME database" in the log. Its
    /// monitors and waiting transactions are cancelled; sessions that are not aware of database changes are closed.
    pub fn remove_database(&mut self, name: &str, reason: &str, now: Now) -> Option<(Database, Option<L>)> {
        self.flush_group();
        if name == SERVER_DATABASE {
            return None;
        }
        let id = self.databases.find(name)?;
        self.cancel_monitors(id);
        self.cancel_waits(id);
        self.close_unaware(&format!("removing {name} database {reason}"));
        self.renounce_database(name, now);
        let (_, hosted) = self.databases.remove(name)?;
        self.sessions.publish();
        Some((hosted.database, hosted.log))
    }

    /// Closes the sessions that have not stated that they are aware of database changes.
    pub(super) fn close_unaware(&mut self, reason: &str) {
        let unaware: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| !session.database_change_aware && !session.ended)
            .map(|(id, _)| id)
            .collect();
        for id in unaware {
            self.close_session(id, reason);
        }
    }

    /// Ends the monitors of a database and notifies their sessions, unless those are about to be closed.
    pub(super) fn cancel_monitors(&mut self, database: DatabaseId) {
        let sessions: Vec<SessionId> = self.sessions.iter().map(|(id, _)| id).collect();
        for id in sessions {
            let session = self.sessions.get_mut(id).filter(|session| session.database_change_aware);
            let Some(session) = session else { continue };
            let (cancelled, kept) = std::mem::take(&mut session.monitors)
                .into_iter()
                .partition(|monitor| monitor.database == database);
            session.monitors = kept;
            let cancelled: Vec<SessionMonitor> = cancelled;
            let bytes: usize = cancelled.iter().map(|monitor| monitor.bytes).sum();
            session.kept_bytes = session.kept_bytes.saturating_sub(bytes);
            for monitor in cancelled {
                self.leave_group(&monitor, id);
                self.notify_session(id, "monitor_canceled", &monitor.id);
            }
        }
    }
}
