//! What another node has made of the scopes and collections: a change of its own, or all of them.

use std::collections::HashSet;

use super::{
    COUNT_MAX, Change, Collection, Collections, DEFAULT, DEFAULT_ID, DROPS_MOST, Dropped, FIRST_ID, ID_MAX,
    Manifest, ManifestError, SYSTEM, Scope, SystemEvent, TTL_NEVER, check_name, system,
};

/// Terms are shorter than their type.
pub(crate) const TERM_BITS: u32 = 48;

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

    /// Returns all of it, as only other nodes read it: with what was dropped, and with the ids that come next.
    pub fn to_node_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns what another node has; `None` if that is none.
    pub fn from_node_json(text: &[u8]) -> Option<Self> {
        let manifest: Self = serde_json::from_slice(text).ok()?;
        manifest.is_sound().then_some(manifest)
    }

    /// Checks what was read from a file.
    pub fn check(&self) -> Result<(), String> {
        if self.is_sound() {
            Ok(())
        } else {
            Err("its scopes and collections contradict each other".to_owned())
        }
    }

    /// Returns true if everything else may rely on it.
    fn is_sound(&self) -> bool {
        let (mut scopes, mut collections) = (HashSet::new(), HashSet::new());
        let mut names = HashSet::new();
        let is_id = |id: u32, next: u32| id == DEFAULT_ID || (FIRST_ID..=ID_MAX).contains(&id) && id < next;
        let is_since = |since: u64, is_always: bool| since <= self.uid && (is_always == (since == 0));
        let are_scopes = self.scopes.iter().all(|scope| {
            let is_named = scope.id == DEFAULT_ID
                || system::is_name(&scope.name, None)
                || check_name(&scope.name).is_ok();
            is_named
                && is_id(scope.id, self.next_scope)
                && is_since(scope.since, scope.id == DEFAULT_ID || scope.name == SYSTEM)
                && scopes.insert(scope.id)
                && names.insert((&scope.name, None))
        });
        let are_collections = self.collections().all(|(scope, one)| {
            let is_named = one.id == DEFAULT_ID
                || match scope.name == SYSTEM {
                    true => system::is_name(SYSTEM, Some(&one.name)),
                    false => check_name(&one.name).is_ok(),
                };
            is_named
                && is_id(one.id, self.next_collection)
                && is_since(one.since, one.id == DEFAULT_ID || scope.name == SYSTEM)
                && i64::from(one.max_ttl_s) >= i64::from(TTL_NEVER)
                && collections.insert(one.id)
                && names.insert((&scope.name, Some(&one.name)))
        });
        let has_default = self.scopes.first().is_some_and(|scope| {
            scope.id == DEFAULT_ID
                && scope.name == DEFAULT
                && scope.collections.iter().all(|one| one.id != DEFAULT_ID || one.name == DEFAULT)
        });
        let nexts = [self.next_scope, self.next_collection];
        are_scopes
            && are_collections
            && has_default
            && scopes.len() <= COUNT_MAX + system::SCOPES
            && collections.len() <= COUNT_MAX + system::COLLECTIONS.len()
            && self.drops.len() <= DROPS_MOST
            && self.drops.iter().all(|drop| {
                let SystemEvent { uid, scope, collection, .. } = drop.event;
                drop.since <= uid
                    && uid <= self.uid
                    && scope < self.next_scope
                    && collection < self.next_collection
            })
            && self.term >> TERM_BITS == 0
            && nexts.into_iter().all(|next| (FIRST_ID..=ID_MAX + 1).contains(&next))
    }

    /// Returns true if it replaces what is here: it counts, or it is the same for clients, with another past.
    fn replaces(&self, here: &Self) -> bool {
        self.supersedes(here)
            || self.is_like(here) && (&self.drops, &self.scopes) != (&here.drops, &here.scopes)
    }

    /// Returns the collections that are here, and are not, or are others, in a manifest that this one replaces.
    fn returned(&self, old: &Self) -> Vec<u32> {
        let is_same = |scope: &Scope, one: &Collection| {
            old.of_id(one.id).is_some_and(|(s, old)| (s.id, &old.name) == (scope.id, &one.name))
        };
        let named = self.collections().filter(|(_, one)| one.id != DEFAULT_ID);
        named.filter(|(scope, one)| !is_same(scope, one)).map(|(_, one)| one.id).collect()
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
            // What led to an older one is in this one, or has been undone.
            if uid >= manifest.uid {
                manifest.follow(uid, change);
                manifest.uid = uid;
            }
            Ok(())
        };
        // A manifest whose changes are not all told yet has the uid of the one before.
        self.replace(|old| old.uid.max(uid), f, keep).map(|(_, drops)| drops)
    }

    /// Returns the collections that another node's manifest would bring back; `None` if it does not replace what is
    /// here.
    pub(crate) fn returned_by(&self, there: &Manifest) -> Option<Vec<u32>> {
        let here = self.manifest();
        there.replaces(&here).then(|| there.returned(&here))
    }

    /// Adopts another node's manifest if it is higher than the present one. Returns whether a collection is gone.
    pub(crate) fn adopt(
        &self,
        there: &Manifest,
        keep: impl FnOnce(&Manifest) -> std::io::Result<()>,
    ) -> Result<bool, ManifestError> {
        let f = |manifest: &mut Manifest| {
            if there.replaces(manifest) {
                let mut new = there.clone();
                // Ids that were given here, and are lost, are not given again.
                new.next_scope = new.next_scope.max(manifest.next_scope);
                new.next_collection = new.next_collection.max(manifest.next_collection);
                *manifest = new;
            }
            Ok(())
        };
        self.replace_as_is(f, keep).map(|(_, drops)| drops)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Create(u8),
        Drop(u8),
        CreateScope(u8),
        DropScope(u8),
        Set(i32),
        BeginTerm(u64),
        /// The next steps are those of the other node.
        Other,
        /// This node hears of what the other one has.
        Exchange,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4u8).prop_map(Step::Create),
            (0..4u8).prop_map(Step::Drop),
            (0..3u8).prop_map(Step::CreateScope),
            (0..3u8).prop_map(Step::DropScope),
            (0..3).prop_map(Step::Set),
            (0..6u64).prop_map(Step::BeginTerm),
            Just(Step::Other),
            Just(Step::Exchange),
        ]
    }

    /// What a connection does: the copying node takes what counts, and sends what it has if that counts.
    fn exchange(copy: &Collections, source: &Collections) {
        let there = |of: &Collections| Manifest::from_node_json(of.manifest().to_node_json().as_bytes());
        copy.adopt(&there(source).expect("a sound manifest"), |_| Ok(())).unwrap();
        if copy.manifest().supersedes(&source.manifest()) {
            source.adopt(&there(copy).expect("a sound manifest"), |_| Ok(())).unwrap();
        }
    }

    proptest! {
        /// Whatever two nodes have made of it, also without any rule about who may: there is always one that counts.
        #[test]
        fn one_exchange_makes_both_ends_equal(steps in proptest::collection::vec(step(), 1..60)) {
            let nodes = [0, 1].map(|_| Collections::new(Manifest::default()));
            let mut at = 0;
            for step in steps {
                let change = |manifest: &mut Manifest| match step {
                    Step::Create(name) => {
                        let scope = manifest.scopes.last().map(|scope| scope.name.clone()).unwrap_or_default();
                        manifest.add_collection(&scope, &format!("c{name}"), 0, false)
                    }
                    Step::Drop(name) => manifest.remove_collection(DEFAULT, &format!("c{name}")),
                    Step::CreateScope(name) => manifest.add_scope(&format!("s{name}")),
                    Step::DropScope(name) => manifest.remove_scope(&format!("s{name}")),
                    Step::Set(ttl) => manifest.set_collection(DEFAULT, DEFAULT, Some(ttl.into()), None),
                    Step::BeginTerm(_) | Step::Other | Step::Exchange => Ok(()),
                };
                let _what_is_there_or_not = nodes[at].change(change, |_| Ok(()));
                match step {
                    Step::BeginTerm(term) => nodes[at].begin_term(term),
                    Step::Other => at = 1 - at,
                    Step::Exchange => exchange(&nodes[at], &nodes[1 - at]),
                    _ => {}
                }
            }
            let higher = nodes.iter().map(|node| node.manifest().version()).max();
            exchange(&nodes[0], &nodes[1]);
            let [first, second] = nodes.each_ref().map(|node| node.manifest());
            prop_assert_eq!(first.to_json(), second.to_json());
            prop_assert_eq!(&first.drops, &second.drops);
            prop_assert_eq!((Some(first.version()), Some(second.version())), (higher, higher));
            // And there is nothing more to do.
            prop_assert!(nodes[0].returned_by(&second).is_none() && nodes[1].returned_by(&first).is_none());
            for (id, is_there) in (1..200).map(|id| (id, first.of_id(id).is_some())) {
                prop_assert_eq!((nodes[0].has(id), nodes[1].has(id)), (is_there, is_there));
            }
        }
    }

    #[test]
    fn what_is_no_manifest_is_not_taken() {
        let mut manifest = Manifest::default();
        manifest.add_scope("s").unwrap();
        manifest.add_collection("s", "c", 0, false).unwrap();
        let collections = Collections::new(manifest);
        let text = collections.manifest().to_node_json();
        assert!(Manifest::from_node_json(text.as_bytes()).is_some());
        for (part, other) in [
            (r#""id":8,"name":"c""#, r#""id":9,"name":"c""#),
            (r#""id":8,"name":"c""#, r#""id":1,"name":"c""#),
            (r#""id":8,"name":"c""#, r#""id":8,"name":"""#),
            (r#""id":8,"name":"s""#, r#""id":8,"name":"_default""#),
            (r#""next_collection":9"#, r#""next_collection":4194241"#),
            (r#""max_ttl_s":0"#, r#""max_ttl_s":-2"#),
            (r#""since":2"#, r#""since":3"#),
            (r#""uid":2"#, r#""uid":-1"#),
        ] {
            let changed = text.replacen(part, other, 1);
            assert_ne!(changed, text, "{part}");
            assert!(Manifest::from_node_json(changed.as_bytes()).is_none(), "{other}");
        }
    }
}
