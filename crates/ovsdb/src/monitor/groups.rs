//! Groups of equal monitors, and which of them monitor a table.

use super::plan::Spec;
use crate::history::CommitId;
use crate::schema::TableId;
use crate::server::{DatabaseId, SessionId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// Identifies a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(u32);

/// Identifies a monitor in its group; increases in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemberId(u64);

/// Monitors that ask for the same.
#[derive(Debug)]
pub(crate) struct Group {
    pub spec: Spec,
    /// In order of arrival.
    pub members: BTreeMap<MemberId, Member>,
    /// `{"id":null,"method":"update","params":[`
    pub head: Box<[u8]>,
    /// The rows that existed at a commit, while a session still sends them.
    pub initial: Option<(CommitId, Weak<Vec<u8>>)>,
    /// What members that missed everything between two commits were sent, while a session still sends it.
    pub missed: Option<(CommitId, CommitId, Weak<Vec<u8>>)>,
    key: Option<Box<[u8]>>,
    /// Increases in order of creation.
    serial: u64,
    stamp: u64,
}

/// A monitor in its group.
#[derive(Debug)]
pub(crate) struct Member {
    pub session: SessionId,
    /// Its id, as canonical JSON.
    pub id: Box<[u8]>,
    /// The last commit it was notified of, if it was left behind.
    pub behind: Option<CommitId>,
}

impl Group {
    /// The rows that exist at `commit`: those that a session still sends, or the result of `make`.
    pub fn initial(&mut self, commit: CommitId, make: impl FnOnce(&Spec) -> Vec<u8>) -> Arc<Vec<u8>> {
        if let Some((at, rows)) = &self.initial
            && *at == commit
            && let Some(rows) = rows.upgrade()
        {
            return rows;
        }
        let rows = Arc::new(make(&self.spec));
        self.initial = Some((commit, Arc::downgrade(&rows)));
        rows
    }

    /// What happened after commit `from` up to `to`: the text that a session still sends, or the result of `make`.
    pub fn missed(
        &mut self,
        from: CommitId,
        to: CommitId,
        make: impl FnOnce(&Spec) -> Vec<u8>,
    ) -> Arc<Vec<u8>> {
        if let Some((first, last, text)) = &self.missed
            && (*first, *last) == (from, to)
            && let Some(text) = text.upgrade()
        {
            return text;
        }
        let text = Arc::new(make(&self.spec));
        self.missed = Some((from, to, Arc::downgrade(&text)));
        text
    }
}

/// All groups of a server.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: Vec<Option<Group>>,
    free: Vec<GroupId>,
    by_key: HashMap<Box<[u8]>, GroupId>,
    /// By database, those that monitor a table, in order of creation.
    interested: Vec<BTreeMap<(TableId, u64), GroupId>>,
    stamp: u64,
    serials: u64,
    /// Number of monitors.
    members: usize,
}

impl Groups {
    /// Number of monitors.
    pub fn monitors(&self) -> usize {
        self.members
    }

    #[inline]
    pub fn get(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id.0 as usize)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(id.0 as usize)?.as_mut()
    }

    /// In no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.iter_mut().flatten()
    }

    /// Adds a monitor to the group of those that ask for the same.
    pub fn join(&mut self, spec: Spec, member: Member) -> (GroupId, MemberId) {
        self.members += 1;
        self.serials += 1;
        let serial = self.serials;
        let member_id = MemberId(serial);
        let key = spec.key().map(Vec::into_boxed_slice);
        if let Some(id) = key.as_ref().and_then(|key| self.by_key.get(key)).copied()
            && let Some(group) = self.get_mut(id)
        {
            group.members.insert(member_id, member);
            return (id, member_id);
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.groups.push(None);
            GroupId((self.groups.len() - 1) as u32)
        });
        if let Some(key) = &key {
            self.by_key.insert(key.clone(), id);
        }
        for plan in &spec.tables {
            if let Some(interested) = self.interested_in(spec.database) {
                interested.insert((plan.table, serial), id);
            }
        }
        let head = format!("{{\"id\":null,\"method\":\"{}\",\"params\":[", spec.version.method());
        let group = Group {
            spec,
            members: BTreeMap::from([(member_id, member)]),
            head: head.into_bytes().into(),
            initial: None,
            missed: None,
            key,
            serial,
            stamp: 0,
        };
        if let Some(place) = self.groups.get_mut(id.0 as usize) {
            *place = Some(group);
        }
        (id, member_id)
    }

    fn interested_in(&mut self, database: DatabaseId) -> Option<&mut BTreeMap<(TableId, u64), GroupId>> {
        if self.interested.len() <= database.index() {
            self.interested.resize_with(database.index() + 1, BTreeMap::new);
        }
        self.interested.get_mut(database.index())
    }

    /// Removes a monitor; the group is removed with its last one.
    pub fn leave(&mut self, id: GroupId, member: MemberId) -> Option<Member> {
        let group = self.groups.get_mut(id.0 as usize)?.as_mut()?;
        let member = group.members.remove(&member)?;
        self.members -= 1;
        if group.members.is_empty() {
            let group = self.groups.get_mut(id.0 as usize)?.take()?;
            if let Some(key) = &group.key {
                self.by_key.remove(key);
            }
            for plan in &group.spec.tables {
                if let Some(interested) = self.interested_in(group.spec.database) {
                    interested.remove(&(plan.table, group.serial));
                }
            }
            self.free.push(id);
        }
        Some(member)
    }

    /// Appends the groups that monitor any of the tables to `found`, each once.
    pub fn find_interested(
        &mut self,
        database: DatabaseId,
        tables: impl Iterator<Item = TableId>,
        found: &mut Vec<GroupId>,
    ) {
        self.stamp += 1;
        let Some(interested) = self.interested.get(database.index()) else { return };
        let mut last = None;
        for table in tables {
            if last.replace(table) == Some(table) {
                continue;
            }
            for id in interested.range((table, 0)..=(table, u64::MAX)).map(|(_, id)| id) {
                let Some(Some(group)) = self.groups.get_mut(id.0 as usize) else { continue };
                if group.stamp != self.stamp {
                    group.stamp = self.stamp;
                    found.push(*id);
                }
            }
        }
    }

    /// Returns true if nobody monitors the database.
    #[inline]
    pub fn is_unwatched(&self, database: DatabaseId) -> bool {
        self.interested.get(database.index()).is_none_or(BTreeMap::is_empty)
    }
}
