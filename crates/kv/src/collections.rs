//! The scopes and collections of a bucket.
//!
//! ```text
//!   Manifest      what there is, by name and id, with a version (uid); replaced as a whole by each change
//!   Known         by id, without a lock: whether a collection is there, its maximum expiry, its number of documents
//!   SystemEvent   a change, as streams tell it: each vBucket gives it a seqno of its own (`index/events.rs`)
//! ```
//! Ids are never used twice: a dropped collection is gone for every request that takes its vBucket's lock later, and
//! its documents are reclaimed in the background. The default collection has id 0, is always there, and costs no
//! memory here. Which manifest counts when nodes have different ones: [`version`].

mod foreign;
mod live;
mod system;
mod version;

pub use foreign::ForeignChange;
pub(crate) use foreign::TERM_BITS;
pub use live::Collections;
use live::ID_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
pub use system::SYSTEM;
use thiserror::Error;
pub use version::{IDS_PER_CHANGE, Version};

use crate::Unavailable;

/// Name of the scope and the collection that every bucket has.
pub const DEFAULT: &str = "_default";
/// Id of both.
pub const DEFAULT_ID: u32 = 0;
/// Longest name of a scope or a collection.
pub const NAME_MAX: usize = 251;
/// Most scopes of a bucket, and most collections in all of them, besides the system's.
pub const COUNT_MAX: usize = 1200;
/// A collection's maximum expiry: its documents never get one, whatever the bucket's is.
pub const TTL_NEVER: i32 = -1;

/// The first id after the reserved ones.
const FIRST_ID: u32 = 8;
/// Most drops that are remembered.
pub(crate) const DROPS_MOST: usize = 256;

/// A collection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collection {
    /// Its id, in front of its keys.
    pub id: u32,
    /// Its name, unique in its scope.
    pub name: String,
    /// Maximum expiry of its documents in seconds; 0: the bucket's; [`TTL_NEVER`].
    #[serde(default)]
    pub max_ttl_s: i32,
    /// Whether change streams keep every version. Stored and returned; nothing depends on it.
    #[serde(default)]
    pub history: bool,
    /// The manifest's uid since which it is there.
    #[serde(default)]
    since: u64,
}

/// A scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// Its id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its collections.
    pub collections: Vec<Collection>,
    /// The manifest's uid since which it is there.
    #[serde(default)]
    since: u64,
}

/// All scopes and collections of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Raised by each change, and by each term.
    pub uid: u64,
    /// The term of the active that made it; 0 on a node without roles.
    #[serde(default)]
    term: u64,
    next_scope: u32,
    next_collection: u32,
    /// The scopes, the default one first.
    pub scopes: Vec<Scope>,
    /// What has been dropped, oldest first, for vBuckets that have yet to tell it.
    #[serde(default)]
    drops: Vec<Dropped>,
    /// Drops up to this uid have been forgotten.
    #[serde(default)]
    forgotten_uid: u64,
}

/// A scope or a collection that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Dropped {
    since: u64,
    event: SystemEvent,
}

/// A change of the scopes and collections, as it is told in streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemEvent {
    /// The manifest all of whose changes have been told with this one.
    pub uid: u64,
    /// What has happened.
    pub what: Change,
    /// The scope.
    pub scope: u32,
    /// The collection; 0 for one that happened to a scope.
    pub collection: u32,
}

/// What happens to scopes and collections, in the order in which changes of one manifest are told. The numbers are in
/// the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Change {
    /// A collection is gone.
    DropCollection = 1,
    /// A scope is gone, with its collections.
    DropScope = 2,
    /// There is a new scope.
    CreateScope = 3,
    /// There is a new collection.
    CreateCollection = 4,
}

impl Change {
    /// Returns the change of a number in the journal.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let all = [Self::DropCollection, Self::DropScope, Self::CreateScope, Self::CreateCollection];
        all.into_iter().find(|change| *change as u8 == number)
    }
}

impl SystemEvent {
    /// Returns true if nothing is left to tell of `older` once this is told.
    pub(crate) fn supersedes(&self, older: &Self) -> bool {
        match (self.what, older.what) {
            (Change::DropScope, Change::CreateScope) => self.scope == older.scope,
            (Change::DropCollection, Change::CreateCollection) => self.collection == older.collection,
            _ => false,
        }
    }
}

/// A scope, or a collection in one, that is to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The scope's name.
    pub scope: String,
    /// The collection's name, maximum expiry and history.
    pub collection: Option<(String, i64, bool)>,
}

/// Writes the manifest of a bucket without a journal, durably.
pub type Keep = Box<dyn Fn(&Manifest) -> std::io::Result<()> + Send + Sync>;

/// Why scopes and collections cannot be changed as requested. The texts are those that SDKs recognise.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// Not a name.
    #[error("{0}")]
    Name(&'static str),
    /// Not a maximum expiry.
    #[error("maxTTL must be an integer between -1 and 2147483647")]
    MaxTtl,
    /// The scope exists.
    #[error("Scope with name \"{0}\" already exists")]
    ScopeExists(String),
    /// The collection exists.
    #[error("Collection with name \"{1}\" in scope \"{0}\" already exists")]
    CollectionExists(String, String),
    /// There is no such scope.
    #[error("Scope with name \"{0}\" is not found")]
    ScopeMissing(String),
    /// There is no such collection.
    #[error("Collection with name \"{1}\" in scope \"{0}\" is not found")]
    CollectionMissing(String, String),
    /// The default scope and collection stay.
    #[error("Deleting _default scope or collection is not allowed")]
    Default,
    /// The server's own scope stays as it is.
    #[error("The scope _system and its collections are not allowed to change")]
    System,
    /// There are too many.
    #[error("Maximum number of {0} has been reached")]
    TooMany(&'static str),
    /// The scope has its part of what a bucket may have.
    #[error(
        "Maximum number of collections has been reached for scope \"{0}\": as many are left to others. A user who may \
         manage the collections of the bucket can add more"
    )]
    ScopeFull(String),
    /// The change could not be written to disk.
    #[error("the change could not be kept: {0}")]
    Unkept(String),
    /// Another node makes the changes.
    #[error("Scopes and collections are changed by the active of vBucket 0, which is another node")]
    NotActive,
    /// vBucket 0 is being read, or damaged: whether this node is its active is not known.
    #[error("Scopes and collections are changed by the active of vBucket 0. On this node: {0}")]
    Closed(Unavailable),
    /// The manifest is of a later term than this node's role in vBucket 0: others have decided since.
    #[error(
        "Scopes and collections are changed by the active of vBucket 0. This node is that in term {role}, and they are \
         of term {manifest}: promote a node, or set the roles"
    )]
    Superseded {
        /// The role's term.
        role: u64,
        /// The manifest's term.
        manifest: u64,
    },
    /// A majority of some chain has yet to acknowledge the change before.
    #[error(
        "The last change of scopes and collections has not reached a majority of the replicas yet: try again once they \
         are connected, or change the chains of the vBuckets"
    )]
    Unacknowledged,
}

impl Default for Manifest {
    fn default() -> Self {
        let (id, name) = (DEFAULT_ID, DEFAULT.to_owned());
        let collection = Collection { id, name: name.clone(), max_ttl_s: 0, history: false, since: 0 };
        let scopes = vec![Scope { id, name, collections: vec![collection], since: 0 }];
        let (drops, forgotten_uid) = (Vec::new(), 0);
        Self {
            uid: 0,
            term: 0,
            next_scope: FIRST_ID,
            next_collection: FIRST_ID,
            scopes,
            drops,
            forgotten_uid,
        }
    }
}

fn check_name(name: &str) -> Result<(), ManifestError> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(ManifestError::Name("Length must be between 1 and 251"));
    }
    if name.starts_with(['_', '%']) {
        return Err(ManifestError::Name("First character must not be _ or %"));
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'%')) {
        return Err(ManifestError::Name(
            "Can only contain characters A-Z, a-z, 0-9 and the following symbols _ - %",
        ));
    }
    Ok(())
}

fn check_ttl(max_ttl_s: i64) -> Result<i32, ManifestError> {
    i32::try_from(max_ttl_s).ok().filter(|ttl| *ttl >= TTL_NEVER).ok_or(ManifestError::MaxTtl)
}

impl Manifest {
    /// The term of the active that made it; 0 on a node without roles.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Returns a scope.
    pub fn scope(&self, name: &str) -> Option<&Scope> {
        self.scopes.iter().find(|scope| scope.name == name)
    }

    /// Returns a collection.
    pub fn collection(&self, scope: &str, name: &str) -> Option<&Collection> {
        self.scope(scope)?.collections.iter().find(|collection| collection.name == name)
    }

    /// Returns the scope and the collection of an id.
    pub fn of_id(&self, id: u32) -> Option<(&Scope, &Collection)> {
        let of = |scope: &'_ Scope| scope.collections.iter().position(|collection| collection.id == id);
        self.scopes.iter().find_map(|scope| of(scope).map(|at| (scope, &scope.collections[at])))
    }

    /// Returns all collections.
    pub fn collections(&self) -> impl Iterator<Item = (&Scope, &Collection)> {
        self.scopes.iter().flat_map(|scope| scope.collections.iter().map(move |one| (scope, one)))
    }

    fn scope_mut(&mut self, name: &str) -> Result<&mut Scope, ManifestError> {
        let found = self.scopes.iter_mut().find(|scope| scope.name == name);
        found.ok_or_else(|| ManifestError::ScopeMissing(name.to_owned()))
    }

    /// Adds a scope.
    pub fn add_scope(&mut self, name: &str) -> Result<(), ManifestError> {
        check_name(name)?;
        if self.scope(name).is_some() {
            return Err(ManifestError::ScopeExists(name.to_owned()));
        }
        let count = self.scopes.iter().filter(|scope| scope.name != SYSTEM).count();
        if count >= COUNT_MAX || self.next_scope > ID_MAX {
            return Err(ManifestError::TooMany("scopes"));
        }
        let (id, name) = (self.next_scope, name.to_owned());
        self.scopes.push(Scope { id, name, collections: Vec::new(), since: 0 });
        self.next_scope += 1;
        self.uid += 1;
        Ok(())
    }

    /// Removes a scope with its collections.
    pub fn remove_scope(&mut self, name: &str) -> Result<(), ManifestError> {
        if name == DEFAULT {
            return Err(ManifestError::Default);
        }
        if name == SYSTEM {
            return Err(ManifestError::System);
        }
        let at = self.scopes.iter().position(|scope| scope.name == name);
        self.scopes.remove(at.ok_or_else(|| ManifestError::ScopeMissing(name.to_owned()))?);
        self.uid += 1;
        Ok(())
    }

    /// Refuses if another collection of a scope would leave fewer to the others than the scope has.
    pub fn check_part(&self, scope: &str) -> Result<(), ManifestError> {
        let own = self.scope(scope).map_or(0, |scope| scope.collections.len());
        let left = COUNT_MAX.saturating_sub(self.own_collections());
        if own < left { Ok(()) } else { Err(ManifestError::ScopeFull(scope.to_owned())) }
    }

    /// The number of collections besides the system's.
    fn own_collections(&self) -> usize {
        self.collections().filter(|(scope, _)| scope.name != SYSTEM).count()
    }

    /// Adds a collection.
    pub fn add_collection(
        &mut self,
        scope: &str,
        name: &str,
        max_ttl_s: i64,
        history: bool,
    ) -> Result<(), ManifestError> {
        if scope == SYSTEM {
            return Err(ManifestError::System);
        }
        check_name(name)?;
        let max_ttl_s = check_ttl(max_ttl_s)?;
        let count = self.own_collections();
        let id = self.next_collection;
        let into = self.scope_mut(scope)?;
        if into.collections.iter().any(|collection| collection.name == name) {
            return Err(ManifestError::CollectionExists(scope.to_owned(), name.to_owned()));
        }
        if count >= COUNT_MAX || id > ID_MAX {
            return Err(ManifestError::TooMany("collections"));
        }
        into.collections.push(Collection { id, name: name.to_owned(), max_ttl_s, history, since: 0 });
        self.next_collection += 1;
        self.uid += 1;
        Ok(())
    }

    /// Changes a collection's settings; `None` leaves one as it is.
    pub fn set_collection(
        &mut self,
        scope: &str,
        name: &str,
        max_ttl_s: Option<i64>,
        history: Option<bool>,
    ) -> Result<(), ManifestError> {
        let max_ttl_s = max_ttl_s.map(check_ttl).transpose()?;
        let missing = || ManifestError::CollectionMissing(scope.to_owned(), name.to_owned());
        let of = self.scope_mut(scope)?;
        let collection = of.collections.iter_mut().find(|collection| collection.name == name);
        let collection = collection.ok_or_else(missing)?;
        let changed = Collection {
            max_ttl_s: max_ttl_s.unwrap_or(collection.max_ttl_s),
            history: history.unwrap_or(collection.history),
            ..collection.clone()
        };
        if *collection != changed {
            if scope == SYSTEM {
                return Err(ManifestError::System);
            }
            *collection = changed;
            self.uid += 1;
        }
        Ok(())
    }

    /// Removes a collection.
    pub fn remove_collection(&mut self, scope: &str, name: &str) -> Result<(), ManifestError> {
        let from = self.scope_mut(scope)?;
        if scope == DEFAULT && name == DEFAULT {
            return Err(ManifestError::Default);
        }
        if scope == SYSTEM {
            return Err(ManifestError::System);
        }
        let at = from.collections.iter().position(|collection| collection.name == name);
        let missing = || ManifestError::CollectionMissing(scope.to_owned(), name.to_owned());
        from.collections.remove(at.ok_or_else(missing)?);
        self.uid += 1;
        Ok(())
    }

    /// Adds, changes and removes what it takes to have exactly these scopes and collections; the default ones stay.
    /// Returns false if it takes another change: one change of a replicated bucket gives at most [`IDS_PER_CHANGE`]
    /// ids.
    pub fn become_like(&mut self, wanted: &[Wanted]) -> Result<bool, ManifestError> {
        let old_uid = self.uid;
        let (first_scope, first_collection) = (self.next_scope, self.next_collection);
        let is_wanted = |scope: &str, collection: Option<&str>| {
            wanted.iter().any(|one| {
                one.scope == scope
                    && collection.is_none_or(|name| {
                        one.collection.as_ref().is_some_and(|(wanted, _, _)| wanted == name)
                    })
            })
        };
        let stays = |scope: &str| [DEFAULT, SYSTEM].contains(&scope);
        self.scopes.retain(|scope| stays(&scope.name) || is_wanted(&scope.name, None));
        for scope in &mut self.scopes {
            let name = &scope.name;
            scope.collections.retain(|one| {
                let stays = name == DEFAULT && one.name == DEFAULT || system::is_name(name, Some(&one.name));
                stays || is_wanted(name, Some(&one.name))
            });
        }
        let mut is_whole = true;
        for Wanted { scope, collection } in wanted {
            let given = (self.next_scope - first_scope).max(self.next_collection - first_collection);
            if self.term > 0 && given >= IDS_PER_CHANGE {
                is_whole = false;
                break;
            }
            if self.scope(scope).is_none() {
                self.add_scope(scope)?;
            }
            let Some((name, max_ttl_s, history)) = collection else { continue };
            if self.collection(scope, name).is_none() {
                self.add_collection(scope, name, *max_ttl_s, *history)?;
            } else {
                self.set_collection(scope, name, Some(*max_ttl_s), Some(*history))?;
            }
        }
        self.uid = old_uid;
        Ok(is_whole)
    }

    /// Notes what distinguishes it from the manifest before it.
    fn note_changes(&mut self, old: &Self) {
        let uid = self.uid;
        for scope in &mut self.scopes {
            // They are there from the beginning.
            if scope.name == SYSTEM {
                continue;
            }
            if scope.since == 0 && scope.id != DEFAULT_ID {
                scope.since = uid;
            }
            for one in &mut scope.collections {
                if one.since == 0 && one.id != DEFAULT_ID {
                    one.since = uid;
                }
            }
        }
        for scope in &old.scopes {
            let is_there = self.scopes.iter().any(|one| one.id == scope.id);
            let gone = scope.collections.iter().filter(|one| self.of_id(one.id).is_none());
            let what = Change::DropCollection;
            let gone = gone.map(|one| Dropped {
                since: one.since,
                event: SystemEvent { uid, what, scope: scope.id, collection: one.id },
            });
            let gone: Vec<Dropped> = gone.collect();
            self.drops.extend(gone);
            if !is_there {
                let event = SystemEvent { uid, what: Change::DropScope, scope: scope.id, collection: 0 };
                self.drops.push(Dropped { since: scope.since, event });
            }
        }
        let too_many = self.drops.len().saturating_sub(DROPS_MOST);
        if let Some(last) = self.drops.drain(..too_many).next_back() {
            self.forgotten_uid = last.event.uid;
        }
    }

    /// Returns up to which uid drops may have been forgotten.
    pub(crate) fn forgotten_uid(&self) -> u64 {
        self.forgotten_uid
    }

    fn has_changes(&self) -> bool {
        self.forgotten_uid > 0 || !self.drops.is_empty() || !self.events_after(0).is_empty()
    }

    /// Returns what has changed since the manifest of a uid, in order. Only the last change of a manifest has its uid:
    /// before it not all of them are told.
    pub(crate) fn events_after(&self, uid: u64) -> Vec<SystemEvent> {
        let drops = self.drops.iter().filter(|one| one.event.uid > uid && one.since <= uid);
        let mut events: Vec<SystemEvent> = drops.map(|one| one.event).collect();
        for scope in &self.scopes {
            let of = |uid: u64, what: Change, collection: u32| SystemEvent {
                uid,
                what,
                scope: scope.id,
                collection,
            };
            events.extend((scope.since > uid).then(|| of(scope.since, Change::CreateScope, 0)));
            let new = scope.collections.iter().filter(|one| one.since > uid);
            events.extend(new.map(|one| of(one.since, Change::CreateCollection, one.id)));
        }
        events.sort_by_key(|event| (event.uid, event.what));
        let mut later = 0;
        for event in events.iter_mut().rev() {
            let is_last = std::mem::replace(&mut later, event.uid) != event.uid;
            event.uid -= u64::from(!is_last);
        }
        events
    }

    /// Returns the part that a user may know of.
    pub fn visible(&self, may_know: impl Fn(&[&str]) -> bool) -> Self {
        let mut visible = self.clone();
        visible.scopes.retain_mut(|scope| {
            scope.collections.retain(|one| may_know(&[&scope.name, &one.name]));
            !scope.collections.is_empty() || may_know(&[&scope.name])
        });
        visible
    }

    /// Returns it as clients read it: all numbers that identify something are hexadecimal text.
    pub fn to_json(&self) -> Value {
        let hex = |number: u64| format!("{number:x}");
        let collection = |one: &Collection| {
            json!({
                "name": one.name, "uid": hex(one.id.into()), "maxTTL": one.max_ttl_s, "history": one.history,
            })
        };
        let scope = |scope: &Scope| {
            let collections: Vec<Value> = scope.collections.iter().map(collection).collect();
            json!({ "name": scope.name, "uid": hex(scope.id.into()), "collections": collections })
        };
        let scopes: Vec<Value> = self.scopes.iter().map(scope).collect();
        json!({ "uid": hex(self.uid), "scopes": scopes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_raise_the_uid_and_ids_are_never_used_twice() {
        let collections = Collections::new(Manifest::default());
        let change =
            |f: &dyn Fn(&mut Manifest) -> Result<(), ManifestError>| collections.change(f, |_| Ok(()));
        assert_eq!(change(&|m| m.add_scope("s")), Ok((1, false)));
        assert_eq!(change(&|m| m.add_collection("s", "c", 0, false)), Ok((2, false)));
        assert!(collections.has(8) && !collections.has(9));
        assert_eq!(change(&|m| m.set_collection("s", "c", Some(0), Some(false))), Ok((2, false)));
        assert_eq!(change(&|m| m.set_collection("s", "c", Some(5), None)), Ok((3, false)));
        assert!(collections.has_limits());
        assert_eq!(change(&|m| m.remove_collection("s", "c")), Ok((4, true)));
        assert!(!collections.has(8) && !collections.has_limits());
        assert_eq!(change(&|m| m.add_collection("s", "c", 0, true)), Ok((5, false)));
        assert_eq!(collections.manifest().collection("s", "c").map(|one| one.id), Some(9));
        assert_eq!(change(&|m| m.remove_scope("s")), Ok((6, true)));
        assert!(!collections.has(9) && collections.has(0));
        assert_eq!(collections.uid(), 6);
    }

    #[test]
    fn changes_are_told_in_order_and_superseded() {
        let collections = Collections::new(Manifest::default());
        let change = |f: &dyn Fn(&mut Manifest) -> Result<(), ManifestError>| {
            collections.change(f, |_| Ok(())).unwrap();
        };
        let told = |uid: u64| {
            let events = collections.manifest().events_after(uid);
            events.iter().map(|one| (one.uid, one.what, one.scope, one.collection)).collect::<Vec<_>>()
        };
        change(&|m| m.add_scope("s").and_then(|()| m.add_collection("s", "c", 0, false)));
        change(&|m| m.add_collection(DEFAULT, "d", 0, false));
        let created = [
            (0, Change::CreateScope, 8, 0),
            (1, Change::CreateCollection, 8, 8),
            (2, Change::CreateCollection, 0, 9),
        ];
        assert_eq!(told(0), created);
        assert_eq!(told(1), created[2..]);
        change(&|m| m.remove_scope("s"));
        assert_eq!(told(2), [(2, Change::DropCollection, 8, 8), (3, Change::DropScope, 8, 0)]);
        // Who never heard of them does not hear that they are gone.
        assert_eq!(told(0), created[2..]);
        let events = collections.manifest().events_after(2);
        let created = SystemEvent { uid: 1, what: Change::CreateCollection, scope: 8, collection: 8 };
        assert!(events[0].supersedes(&created) && !events[1].supersedes(&created));
        change(&|m| m.set_collection(DEFAULT, DEFAULT, Some(7), None));
        assert_eq!(told(3), []);
    }

    #[test]
    fn only_so_many_drops_are_remembered() {
        let collections = Collections::new(Manifest::default());
        for number in 0..DROPS_MOST + 2 {
            let name = format!("c{number}");
            collections.change(|m| m.add_collection(DEFAULT, &name, 0, false), |_| Ok(())).unwrap();
            collections.change(|m| m.remove_collection(DEFAULT, &name), |_| Ok(())).unwrap();
        }
        let manifest = collections.manifest();
        assert_eq!((manifest.drops.len(), manifest.forgotten_uid()), (DROPS_MOST, 4));
    }

    #[test]
    fn what_is_not_allowed() {
        let mut manifest = Manifest::default();
        for name in ["", "_x", "%x", "a b", "ä", &"x".repeat(252)] {
            assert!(matches!(manifest.add_scope(name), Err(ManifestError::Name(_))), "{name}");
        }
        manifest.add_scope("s").unwrap();
        assert!(matches!(manifest.add_scope("s"), Err(ManifestError::ScopeExists(_))));
        assert!(matches!(manifest.add_collection("t", "c", 0, false), Err(ManifestError::ScopeMissing(_))));
        assert_eq!(manifest.add_collection("s", "c", -2, false), Err(ManifestError::MaxTtl));
        assert_eq!(manifest.add_collection("s", "c", 1 << 31, false), Err(ManifestError::MaxTtl));
        manifest.add_collection("s", "c", -1, false).unwrap();
        assert!(matches!(
            manifest.add_collection("s", "c", 0, false),
            Err(ManifestError::CollectionExists(..))
        ));
        assert!(matches!(manifest.remove_collection("s", "d"), Err(ManifestError::CollectionMissing(..))));
        assert_eq!(manifest.remove_scope(DEFAULT), Err(ManifestError::Default));
        assert_eq!(manifest.remove_collection(DEFAULT, DEFAULT), Err(ManifestError::Default));
        for number in 0..COUNT_MAX {
            let added = manifest.add_collection("s", &format!("c{number}"), 0, false);
            assert_eq!(added.is_ok(), number < COUNT_MAX - 2);
        }
    }

    #[test]
    fn a_scope_leaves_room_for_others() {
        let mut manifest = Manifest::default();
        let fill = |manifest: &mut Manifest, scope: &str| {
            manifest.add_scope(scope).unwrap();
            let mut added = 0;
            while manifest.check_part(scope).is_ok() {
                manifest.add_collection(scope, &format!("c{added}"), 0, false).unwrap();
                added += 1;
            }
            added
        };
        assert_eq!(["s", "t", "u"].map(|scope| fill(&mut manifest, scope)), [600, 300, 150]);
        assert_eq!(manifest.check_part("s"), Err(ManifestError::ScopeFull("s".into())));
        manifest.add_collection("s", "another", 0, false).unwrap();
    }

    #[test]
    fn expiries_are_limited_by_collection_and_bucket() {
        let collections = Collections::new(Manifest::default());
        for (name, ttl) in [("own", 10), ("never", -1), ("bucket", 0)] {
            collections.change(|m| m.add_collection(DEFAULT, name, ttl, false), |_| Ok(())).unwrap();
        }
        collections.set_max_ttl(100);
        for (id, requested, expected) in [
            (0, 0, 1100),
            (8, 0, 1010),
            (8, 1005, 1005),
            (8, 5000, 1010),
            (9, 0, 0),
            (9, 5000, 5000),
            (10, 0, 1100),
        ] {
            assert_eq!(collections.limited(id, requested, 1000), expected, "{id}");
        }
    }

    #[test]
    fn a_change_that_cannot_be_kept_is_not_made() {
        let collections = Collections::new(Manifest::default());
        let changed =
            collections.change(|m| m.add_scope("s"), |_| Err(std::io::ErrorKind::StorageFull.into()));
        assert!(matches!(changed, Err(ManifestError::Unkept(_))));
        assert_eq!(*collections.manifest(), Manifest::default());
    }
}
