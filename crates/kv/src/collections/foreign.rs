//! What another node has made of the scopes and collections: a change of its own, or all of them.

use std::cell::Cell;

use serde_json::Value;

use super::{
    Change, Collection, Collections, DEFAULT_ID, Dropped, ID_MAX, Manifest, ManifestError, Scope,
    SystemEvent, check_ttl,
};

/// A change that another node has made, with what it takes to make it here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignChange<'a> {
    /// A new scope.
    CreateScope {
        /// Its id.
        id: u32,
        /// Its name.
        name: &'a str,
    },
    /// A new collection.
    CreateCollection {
        /// Its scope.
        scope: u32,
        /// Its id.
        id: u32,
        /// Its name.
        name: &'a str,
        /// Its maximum expiry.
        max_ttl_s: i32,
    },
    /// A scope is gone.
    DropScope {
        /// Its id.
        id: u32,
    },
    /// A collection is gone.
    DropCollection {
        /// Its scope.
        scope: u32,
        /// Its id.
        id: u32,
    },
}

impl ForeignChange<'_> {
    /// Returns it as the event that leads to the manifest of this uid.
    pub(crate) fn event(&self, uid: u64) -> SystemEvent {
        let (what, scope, collection) = match *self {
            Self::CreateScope { id, .. } => (Change::CreateScope, id, 0),
            Self::CreateCollection { scope, id, .. } => (Change::CreateCollection, scope, id),
            Self::DropScope { id } => (Change::DropScope, id, 0),
            Self::DropCollection { scope, id } => (Change::DropCollection, scope, id),
        };
        SystemEvent { uid, what, scope, collection }
    }
}

impl Manifest {
    /// Makes a change that another node has made, with its ids. Each vBucket tells of it: what is there already, or was
    /// dropped later, stays so.
    pub(crate) fn follow(&mut self, uid: u64, change: &ForeignChange<'_>) {
        let was_dropped = |what: Change, id: u32| {
            self.drops.iter().any(|Dropped { event, .. }| {
                event.what == what
                    && event.uid >= uid
                    && id == if what == Change::DropScope { event.scope } else { event.collection }
            })
        };
        match *change {
            ForeignChange::CreateScope { id, name } => {
                if self.scopes.iter().all(|scope| scope.id != id) && !was_dropped(Change::DropScope, id) {
                    self.scopes.push(Scope { id, name: name.to_owned(), collections: Vec::new(), since: 0 });
                    self.next_scope = self.next_scope.max(id.saturating_add(1));
                }
            }
            ForeignChange::CreateCollection { scope, id, name, max_ttl_s } => {
                let is_new = self.of_id(id).is_none() && !was_dropped(Change::DropCollection, id);
                let into = self.scopes.iter_mut().find(|one| one.id == scope);
                if let Some(into) = into.filter(|_| is_new && id <= ID_MAX) {
                    let name = name.to_owned();
                    into.collections.push(Collection { id, name, max_ttl_s, history: false, since: 0 });
                    self.next_collection = self.next_collection.max(id + 1);
                }
            }
            ForeignChange::DropScope { id } => {
                let is_there = self.scopes.iter().any(|scope| scope.id == id);
                if !is_there && !was_dropped(Change::DropScope, id) {
                    self.drops.push(Dropped { since: uid, event: change.event(uid) });
                }
                self.next_scope = self.next_scope.max(id.saturating_add(1));
                self.scopes.retain(|scope| scope.id != id || id == DEFAULT_ID);
            }
            ForeignChange::DropCollection { id, .. } => {
                if self.of_id(id).is_none() && !was_dropped(Change::DropCollection, id) {
                    self.drops.push(Dropped { since: uid, event: change.event(uid) });
                }
                self.next_collection = self.next_collection.max(id.saturating_add(1));
                for scope in &mut self.scopes {
                    scope.collections.retain(|one| one.id != id || id == DEFAULT_ID);
                }
            }
        }
    }

    /// Returns what another node has, from the JSON that clients read; `None` if that is none.
    pub fn from_json(json: &Value) -> Option<Self> {
        let mut manifest = Self::default();
        manifest.adopt(json).map(|()| manifest)
    }

    /// Takes all of what another node has, from the JSON that clients read, with its ids; `None` if that is none.
    fn adopt(&mut self, json: &Value) -> Option<()> {
        let hex = |value: &Value, name| u64::from_str_radix(value.get(name)?.as_str()?, 16).ok();
        let id = |value| u32::try_from(hex(value, "uid")?).ok().filter(|id| *id <= ID_MAX);
        let name = |value: &Value| value.get("name")?.as_str().map(str::to_owned);
        let since = |manifest: &Self, id: u32| manifest.of_id(id).map_or(0, |(_, one)| one.since);
        let mut scopes = Vec::new();
        for of in json.get("scopes")?.as_array()? {
            let scope_id = id(of)?;
            let mut collections = Vec::new();
            for one in of.get("collections")?.as_array()? {
                let id = id(one)?;
                let max_ttl_s = check_ttl(one.get("maxTTL").and_then(Value::as_i64).unwrap_or(0)).ok()?;
                let history = one.get("history").and_then(Value::as_bool).unwrap_or(false);
                self.next_collection = self.next_collection.max(id + 1);
                collections.push(Collection {
                    id,
                    name: name(one)?,
                    max_ttl_s,
                    history,
                    since: since(self, id),
                });
            }
            self.next_scope = self.next_scope.max(scope_id + 1);
            let since = self.scopes.iter().find(|scope| scope.id == scope_id).map_or(0, |scope| scope.since);
            scopes.push(Scope { id: scope_id, name: name(of)?, collections, since });
        }
        let has_default = scopes.iter().any(|scope| scope.id == DEFAULT_ID);
        (self.scopes, self.uid) = (scopes, hex(json, "uid")?);
        has_default.then_some(())
    }
}

impl Collections {
    /// Makes a change that has led another node to the manifest of this uid. Returns whether a collection is gone.
    pub(crate) fn follow(
        &self,
        uid: u64,
        change: &ForeignChange<'_>,
        keep: impl FnOnce(&Manifest) -> std::io::Result<()>,
    ) -> Result<bool, ManifestError> {
        let f = |manifest: &mut Manifest| {
            manifest.follow(uid, change);
            manifest.uid = manifest.uid.max(uid);
            Ok(())
        };
        // A manifest whose changes are not all told yet has the uid of the one before.
        self.replace(|old| old.uid.max(uid), f, keep).map(|(_, drops)| drops)
    }

    /// Takes the manifest of another node, unless it is older. Returns whether a collection is gone.
    pub(crate) fn adopt(
        &self,
        json: &Value,
        keep: impl FnOnce(&Manifest) -> std::io::Result<()>,
    ) -> Result<bool, ManifestError> {
        let adopted = Cell::new(0);
        let f = |manifest: &mut Manifest| {
            let mut other = manifest.clone();
            other.adopt(json).ok_or(ManifestError::Name("It is no manifest"))?;
            if other.uid >= manifest.uid {
                *manifest = other;
            }
            adopted.set(manifest.uid);
            Ok(())
        };
        self.replace(|old| old.uid.max(adopted.get()), f, keep).map(|(_, drops)| drops)
    }
}
