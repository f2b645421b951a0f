//! The scope `_system`, which every new bucket has: collections where Sync Gateway and query services keep their own
//! documents.
//!
//! ```text
//!   _system 8    _mobile 8    _query 9      ids as in Couchbase since 7.6
//! ```
//! Users neither make, change nor drop scopes and collections whose names begin like these; documents in them are like
//! any others. They are there from the beginning, like the default collection, so no stream tells of them. Most buckets
//! never have a document there: what requests have to know of them is allocated with the first that asks.

use super::live::SEGMENT_IDS;
use super::{Collection, Collections, FIRST_ID, Manifest, Scope};

/// Its name.
pub const SYSTEM: &str = "_system";
/// How many scopes it is.
pub(super) const SCOPES: usize = 1;
/// The names of its collections, in the order of their ids.
pub(super) const COLLECTIONS: [&str; 2] = ["_mobile", "_query"];

/// Returns true if it is a name that the server alone gives.
pub(super) fn is_name(scope: &str, collection: Option<&str>) -> bool {
    scope == SYSTEM && collection.is_none_or(|name| COLLECTIONS.contains(&name))
}

impl Manifest {
    /// The manifest of a bucket that is made now.
    pub fn of_new_bucket() -> Self {
        let mut manifest = Self::default();
        let ids = FIRST_ID..;
        let collection = |(id, name): (u32, &str)| {
            let name = name.to_owned();
            Collection { id, name, max_ttl_s: 0, history: false, since: 0 }
        };
        let collections: Vec<Collection> = ids.zip(COLLECTIONS).map(collection).collect();
        manifest.uid = 1;
        manifest.next_scope += 1;
        manifest.next_collection += COLLECTIONS.len() as u32;
        manifest.scopes.push(Scope { id: FIRST_ID, name: SYSTEM.to_owned(), collections, since: 0 });
        manifest
    }
}

impl Collections {
    /// Returns true if an id that is not entered is that of one of these collections, which are with it.
    #[cold]
    pub(super) fn has_unused(&self, id: u32) -> bool {
        if id as usize >= SEGMENT_IDS {
            return false;
        }
        let manifest = self.manifest.lock();
        if !manifest.of_id(id).is_some_and(|(scope, one)| is_name(&scope.name, Some(&one.name))) {
            return false;
        }
        // ORDERING: who finds one of them not entered yet comes here, and waits for the lock.
        for (_, one) in manifest.collections().filter(|(scope, _)| scope.name == SYSTEM) {
            if let Some(entry) = self.known.get_or_make(one.id) {
                entry.enter(one);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collections::{DEFAULT, ManifestError};

    fn of_new_bucket() -> Collections {
        Collections::new(Manifest::of_new_bucket())
    }

    #[test]
    fn it_is_there_and_takes_no_memory_until_it_is_used() {
        let collections = of_new_bucket();
        assert!(collections.known.get(8).is_none());
        assert!(
            !collections.has(7) && !collections.has(10) && !collections.has(64) && !collections.has(u32::MAX)
        );
        assert!(collections.known.get(8).is_none());
        assert!(collections.has(9) && collections.known.get(8).is_some() && collections.has(8));
        assert!(!collections.has(10));
        // Documents that are read before anybody has asked count.
        let collections = of_new_bucket();
        collections.count(8, 2);
        assert_eq!((collections.documents(8), collections.documents(9)), (2, 0));
        assert!(collections.has(8) && collections.has(9));
    }

    #[test]
    fn it_is_there_beside_others() {
        let collections = of_new_bucket();
        collections.change(|m| m.add_collection(DEFAULT, "c", 0, false), |_| Ok(())).unwrap();
        assert_eq!(collections.manifest().collection(DEFAULT, "c").map(|one| one.id), Some(10));
        assert!(collections.has(8) && collections.has(9) && collections.has(10) && !collections.has(11));
        assert_eq!(collections.uid(), 2);
    }

    #[test]
    fn nothing_is_told_of_it() {
        let collections = of_new_bucket();
        assert_eq!((collections.uid(), collections.manifest().events_after(0)), (1, vec![]));
        assert!(!collections.has_changes());
        collections.change(|m| m.add_scope("s"), |_| Ok(())).unwrap();
        assert!(collections.has_changes());
        let events = collections.manifest().events_after(0);
        assert_eq!(events.iter().map(|event| (event.uid, event.scope)).collect::<Vec<_>>(), [(2, 9)]);
        collections.change(|m| m.remove_scope("s"), |_| Ok(())).unwrap();
        assert!(collections.has_changes(), "streams that know the scope report its end");
    }

    #[test]
    fn it_stays_as_it_is() {
        let mut manifest = Manifest::of_new_bucket();
        assert_eq!(manifest.remove_scope(SYSTEM), Err(ManifestError::System));
        assert_eq!(manifest.remove_collection(SYSTEM, "_mobile"), Err(ManifestError::System));
        assert_eq!(manifest.add_collection(SYSTEM, "mine", 0, false), Err(ManifestError::System));
        assert_eq!(manifest.set_collection(SYSTEM, "_query", Some(5), None), Err(ManifestError::System));
        assert_eq!(manifest.set_collection(SYSTEM, "_query", Some(0), Some(false)), Ok(()));
        assert_eq!(manifest.become_like(&[]), Ok(true));
        assert_eq!(manifest, Manifest::of_new_bucket());
    }

    #[test]
    fn other_nodes_take_it() {
        let collections = of_new_bucket();
        collections.change(|m| m.add_collection(DEFAULT, "c", 0, false), |_| Ok(())).unwrap();
        let text = collections.manifest().to_node_json();
        assert_eq!(Manifest::from_node_json(text.as_bytes()).as_ref(), Some(&*collections.manifest()));
        for (part, other) in [
            ("_system", "_other"),
            ("_mobile", "_other"),
            ("\"id\":9,\"name\":\"_query\"", "\"id\":8,\"name\":\"_query\""),
        ] {
            assert_eq!(Manifest::from_node_json(text.replace(part, other).as_bytes()), None, "{part}");
        }
    }
}
