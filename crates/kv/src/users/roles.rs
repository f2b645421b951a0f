//! What users may do: roles, named as in Couchbase, and the rights they give.
//!
//! ```text
//!   admin                       a role for the whole node
//!   bucket_admin[orders]        for a bucket, or [*]
//!   scope_admin[orders:eu]      for a scope, or all of a bucket
//!   data_reader[orders:eu:new]  for a collection, or a scope, or a bucket
//! ```
//! A role without rights belongs to a service that does not exist here: it is stored and shown, and allows nothing.
//! Roles name what they are for: a bucket, scope or collection that is dropped and made again is meant as well.

use std::collections::HashMap;
use std::fmt;
use std::ops::{BitOr, BitOrAssign};
use std::sync::Arc;

use crate::collections::{Collection, Manifest, Scope};

/// Names any bucket, scope or collection.
pub const ANY: &str = "*";

/// What may be done, a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Rights(u16);

impl Rights {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Reading documents and user attributes.
    pub const READ: Self = Self(1);
    /// Storing and deleting documents and user attributes.
    pub const WRITE: Self = Self(1 << 1);
    /// System attributes, whose names begin with `_`, as documents: to read, to write.
    pub const SYSTEM_ATTRIBUTES: Self = Self(1 << 2);
    /// Reading statistics.
    pub const STATISTICS: Self = Self(1 << 3);
    /// Creating, changing and dropping collections, and whole scopes if it is for a bucket.
    pub const COLLECTIONS: Self = Self(1 << 4);
    /// Changing a bucket's settings and vBuckets; deleting, copying and auditing it.
    pub const BUCKET: Self = Self(1 << 5);
    /// Emptying a bucket.
    pub const FLUSH: Self = Self(1 << 6);
    /// Seeing the settings of node and buckets.
    pub const SEE: Self = Self(1 << 7);
    /// Creating buckets; settings of the node and its allocator.
    pub const NODE: Self = Self(1 << 8);
    /// Seeing users and groups.
    pub const SEE_USERS: Self = Self(1 << 9);
    /// Creating, changing and deleting users and groups that have no rights over others.
    pub const USERS: Self = Self(1 << 10);
    /// The same with all users and groups.
    pub const SECURITY: Self = Self(1 << 11);
    /// Reading the metrics of the node.
    pub const METRICS: Self = Self(1 << 12);
    /// Creating, changing and deleting users of other systems, who cannot log in.
    pub const EXTERNAL_USERS: Self = Self(1 << 13);
    /// Everything.
    pub const ALL: Self = Self((1 << 14) - 1);

    /// Rights that concern documents, and so apply to collections.
    pub const DATA: Self =
        Self(Self::READ.0 | Self::WRITE.0 | Self::SYSTEM_ATTRIBUTES.0 | Self::STATISTICS.0);
    /// Those of whom only [`Rights::SECURITY`] may make.
    pub const OVER_OTHERS: Self =
        Self(Self::USERS.0 | Self::EXTERNAL_USERS.0 | Self::SECURITY.0 | Self::NODE.0);

    /// Returns true if all of `other` are among these.
    #[inline]
    pub const fn contain(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if any of `other` is among these.
    pub const fn meet(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns both together.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for Rights {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl BitOrAssign for Rights {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.and(other);
    }
}

/// What a role may be limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Depth {
    /// Nothing: it is for the whole node.
    Node,
    /// A bucket.
    Bucket,
    /// A scope.
    Scope,
    /// A collection.
    Collection,
}

/// A kind of role.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct RoleKind {
    /// Its name in requests.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What it allows.
    pub about: &'static str,
    /// How far it can be limited.
    pub depth: Depth,
    /// Its rights, where it applies.
    pub rights: Rights,
}

const SEE_AND_STATISTICS: Rights = Rights::SEE.and(Rights::STATISTICS);
const APPLICATION: Rights = Rights::DATA.and(Rights::FLUSH).and(Rights::SEE);
const SEES_ALL: Rights = SEE_AND_STATISTICS.and(Rights::SEE_USERS);
const MANAGES: Rights = SEE_AND_STATISTICS
    .and(Rights::NODE)
    .and(Rights::BUCKET)
    .and(Rights::FLUSH)
    .and(Rights::COLLECTIONS)
    .and(Rights::METRICS);

const fn kind(
    name: &'static str,
    title: &'static str,
    depth: Depth,
    rights: Rights,
    about: &'static str,
) -> RoleKind {
    RoleKind { name, title, about, depth, rights }
}

/// A role of a service that does not exist here.
const fn absent(name: &'static str, title: &'static str, depth: Depth, about: &'static str) -> RoleKind {
    kind(name, title, depth, Rights::NONE, about)
}

const QUERY: &str = "For the query service, which this server does not have: it allows nothing.";
const FUNCTIONS: &str =
    "For functions of the query service, which this server does not have: it allows nothing.";
const SEQUENCES: &str =
    "For sequences of the query service, which this server does not have: it allows nothing.";
const SEARCH: &str = "For the search service, which this server does not have: it allows nothing.";
const ANALYTICS: &str = "For the analytics service, which this server does not have: it allows nothing.";
const EVENTING: &str = "For the eventing service, which this server does not have: it allows nothing.";
const GATEWAY: &str = "For what Sync Gateway shows its own clients. Of this server it allows nothing.";

/// All kinds of roles.
pub const ROLES: &[RoleKind] = &[
    kind("admin", "Full Admin", Depth::Node, Rights::ALL, "May do everything."),
    kind(
        "ro_admin",
        "Read-Only Admin",
        Depth::Node,
        SEES_ALL.and(Rights::METRICS),
        "May see all settings, users and statistics, and no document.",
    ),
    kind(
        "cluster_admin",
        "Cluster Admin",
        Depth::Node,
        MANAGES,
        "May manage the node, buckets and collections; neither users nor documents.",
    ),
    kind(
        "security_admin",
        "Security Admin",
        Depth::Node,
        SEES_ALL.and(Rights::USERS).and(Rights::EXTERNAL_USERS).and(Rights::SECURITY),
        "May manage all users and groups.",
    ),
    kind(
        "ro_security_admin",
        "Read-Only Security Admin",
        Depth::Node,
        SEES_ALL,
        "May see users, groups and settings of security, and statistics.",
    ),
    kind(
        "user_admin_local",
        "Local User Admin",
        Depth::Node,
        SEES_ALL.and(Rights::USERS),
        "May manage users and groups, except those who manage the node or other users.",
    ),
    kind(
        "security_admin_local",
        "Local User Security Admin",
        Depth::Node,
        SEES_ALL.and(Rights::USERS),
        "May manage users and groups, except those who manage the node or other users.",
    ),
    kind(
        "user_admin_external",
        "External User Admin",
        Depth::Node,
        SEES_ALL.and(Rights::EXTERNAL_USERS),
        "May manage external users, who cannot log in, except those who manage the node or other users.",
    ),
    kind(
        "security_admin_external",
        "External User Security Admin",
        Depth::Node,
        SEES_ALL.and(Rights::EXTERNAL_USERS),
        "May manage external users, who cannot log in, except those who manage the node or other users.",
    ),
    kind(
        "replication_admin",
        "XDCR Admin",
        Depth::Node,
        SEE_AND_STATISTICS,
        "For replications to other clusters, which this server does not make: may see settings and statistics.",
    ),
    kind(
        "backup_admin",
        "Backup Full Admin",
        Depth::Node,
        MANAGES.and(Rights::DATA),
        "May manage the node, buckets and collections, and read and write all documents; no users.",
    ),
    kind(
        "eventing_admin",
        "Eventing Full Admin",
        Depth::Node,
        SEE_AND_STATISTICS,
        "For the eventing service, which this server does not have: may see settings and statistics.",
    ),
    kind(
        "external_stats_reader",
        "External Stats Reader",
        Depth::Node,
        Rights::METRICS,
        "May read /metrics, and where it is.",
    ),
    kind(
        "bucket_admin",
        "Bucket Admin",
        Depth::Bucket,
        SEE_AND_STATISTICS.and(Rights::BUCKET).and(Rights::FLUSH).and(Rights::COLLECTIONS),
        "May manage a bucket and its collections; not its documents.",
    ),
    kind(
        "bucket_full_access",
        "Application Access",
        Depth::Bucket,
        APPLICATION,
        "May read and write all of a bucket's documents, read its statistics, and empty it.",
    ),
    kind(
        "mobile_sync_gateway",
        "Sync Gateway",
        Depth::Bucket,
        APPLICATION.and(Rights::COLLECTIONS),
        "May read and write all of a bucket's documents and manage its collections.",
    ),
    kind(
        "data_backup",
        "Data Backup & Restore",
        Depth::Bucket,
        APPLICATION.and(Rights::COLLECTIONS),
        "May read and write all of a bucket's documents and manage its collections.",
    ),
    kind(
        "replication_target",
        "XDCR Inbound",
        Depth::Collection,
        Rights::DATA.and(Rights::SEE),
        "May write versions of documents that were made in another cluster, and read what there is, and statistics.",
    ),
    kind(
        "scope_admin",
        "Manage Scopes",
        Depth::Scope,
        Rights::COLLECTIONS.and(Rights::SEE),
        "May manage the collections of a scope.",
    ),
    kind(
        "data_reader",
        "Data Reader",
        Depth::Collection,
        Rights::READ.and(Rights::SEE),
        "May read documents and their user attributes.",
    ),
    kind(
        "data_writer",
        "Data Writer",
        Depth::Collection,
        Rights::WRITE.and(Rights::SEE),
        "May store and delete documents, and not read them.",
    ),
    kind(
        "data_dcp_reader",
        "Data DCP Reader",
        Depth::Collection,
        Rights::READ.and(Rights::SYSTEM_ATTRIBUTES).and(Rights::SEE),
        "May read documents with all attributes.",
    ),
    kind("data_monitoring", "Data Monitor", Depth::Collection, SEE_AND_STATISTICS, "May read statistics."),
    kind(
        "views_admin",
        "Views Admin",
        Depth::Bucket,
        SEE_AND_STATISTICS.and(Rights::READ),
        "For views, which this server does not have: may read a bucket's documents and statistics.",
    ),
    kind(
        "views_reader",
        "Views Reader",
        Depth::Bucket,
        Rights::READ.and(Rights::SEE),
        "For views, which this server does not have: may read a bucket's documents.",
    ),
    absent("query_select", "Query Select", Depth::Collection, QUERY),
    absent("query_insert", "Query Insert", Depth::Collection, QUERY),
    absent("query_update", "Query Update", Depth::Collection, QUERY),
    absent("query_delete", "Query Delete", Depth::Collection, QUERY),
    absent("query_use_sequential_scans", "Query Use Sequential Scans", Depth::Collection, QUERY),
    absent("query_manage_index", "Query Manage Index", Depth::Collection, QUERY),
    absent("query_system_catalog", "Query System Catalog", Depth::Node, QUERY),
    absent("query_external_access", "Query CURL Access", Depth::Node, QUERY),
    absent("query_manage_global_functions", "Manage Global Functions", Depth::Node, FUNCTIONS),
    absent("query_execute_global_functions", "Execute Global Functions", Depth::Node, FUNCTIONS),
    absent("query_manage_functions", "Manage Scope Functions", Depth::Scope, FUNCTIONS),
    absent("query_execute_functions", "Execute Scope Functions", Depth::Scope, FUNCTIONS),
    absent(
        "query_manage_global_external_functions",
        "Manage Global External Functions",
        Depth::Node,
        FUNCTIONS,
    ),
    absent(
        "query_execute_global_external_functions",
        "Execute Global External Functions",
        Depth::Node,
        FUNCTIONS,
    ),
    absent("query_manage_external_functions", "Manage Scope External Functions", Depth::Scope, FUNCTIONS),
    absent("query_execute_external_functions", "Execute Scope External Functions", Depth::Scope, FUNCTIONS),
    absent("query_manage_sequences", "Manage Sequences", Depth::Scope, SEQUENCES),
    absent("query_use_sequences", "Use Sequences", Depth::Scope, SEQUENCES),
    absent("fts_admin", "Search Admin", Depth::Bucket, SEARCH),
    absent("fts_searcher", "Search Reader", Depth::Collection, SEARCH),
    absent("analytics_admin", "Analytics Admin", Depth::Node, ANALYTICS),
    absent("analytics_reader", "Analytics Reader", Depth::Node, ANALYTICS),
    absent("analytics_manager", "Analytics Manager", Depth::Bucket, ANALYTICS),
    absent("analytics_select", "Analytics Select", Depth::Collection, ANALYTICS),
    absent("eventing_manage_functions", "Eventing Manage Scope Functions", Depth::Scope, EVENTING),
    absent("sync_gateway_configurator", "Sync Gateway Architect", Depth::Collection, GATEWAY),
    absent("sync_gateway_app", "Sync Gateway Application", Depth::Collection, GATEWAY),
    absent("sync_gateway_app_ro", "Sync Gateway Application Read Only", Depth::Collection, GATEWAY),
    absent("sync_gateway_replicator", "Sync Gateway Replicator", Depth::Collection, GATEWAY),
    absent("sync_gateway_dev_ops", "Sync Gateway Dev Ops", Depth::Node, GATEWAY),
];

/// A role as a user has it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Role {
    kind: &'static RoleKind,
    /// The bucket, scope and collection it is limited to.
    parts: Vec<Box<str>>,
}

impl Role {
    /// The role that may do everything.
    pub fn admin() -> Self {
        Self { kind: &ROLES[0], parts: Vec::new() }
    }

    /// Parses `name`, or `name[bucket:scope:collection]`; `*` and missing parts stand for all.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, parts) = match text.split_once('[') {
            None => (text, None),
            Some((name, parts)) => (name, Some(parts.strip_suffix(']')?)),
        };
        let kind = ROLES.iter().find(|kind| kind.name == name)?;
        let parts: Vec<&str> = parts.map_or(Vec::new(), |parts| parts.split(':').collect());
        if parts.is_empty() != (kind.depth == Depth::Node) || parts.len() > kind.depth as usize {
            return None;
        }
        let limited = parts.iter().rposition(|part| *part != ANY).map_or(0, |last| last + 1);
        let parts = parts.get(..limited)?;
        // All scopes of this name in all buckets cannot be meant.
        if parts.iter().any(|part| part.is_empty() || *part == ANY || part.contains(['[', ']', ','])) {
            return None;
        }
        Some(Self { kind, parts: parts.iter().map(|part| (*part).into()).collect() })
    }

    /// Parses a list separated by commas; an error has the texts that are no roles.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, Vec<String>> {
        let (mut roles, mut wrong) = (Vec::new(), Vec::new());
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match Self::parse(part) {
                Some(role) if roles.contains(&role) => {}
                Some(role) => roles.push(role),
                None => wrong.push(part.to_owned()),
            }
        }
        if wrong.is_empty() { Ok(roles) } else { Err(wrong) }
    }

    /// Returns its kind.
    pub fn kind(&self) -> &'static RoleKind {
        self.kind
    }

    /// Returns the bucket it is limited to.
    pub fn bucket(&self) -> Option<&str> {
        self.part(0)
    }

    /// Returns the scope it is limited to.
    pub fn scope(&self) -> Option<&str> {
        self.part(1)
    }

    /// Returns the collection it is limited to.
    pub fn collection(&self) -> Option<&str> {
        self.part(2)
    }

    fn part(&self, at: usize) -> Option<&str> {
        self.parts.get(at).map(|part| &**part)
    }

    /// Returns true if it applies to all of what these names stand for: a bucket, a scope, a collection.
    fn covers(&self, names: &[&str]) -> bool {
        self.parts.len() <= names.len() && self.parts.iter().zip(names).all(|(part, name)| **part == **name)
    }

    /// Returns true if it applies to a bucket, or to something in it.
    fn is_within(&self, bucket: &str) -> bool {
        self.bucket().is_none_or(|of| of == bucket)
    }
}

/// As it is parsed.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name)?;
        match (self.kind.depth, &self.parts[..]) {
            (Depth::Node, _) => Ok(()),
            (_, []) => write!(f, "[{ANY}]"),
            (_, parts) => write!(f, "[{}]", parts.join(":")),
        }
    }
}

impl fmt::Debug for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// All roles of a user: its own, and those of each of its groups, which members share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roles(Vec<Arc<[Role]>>);

impl Roles {
    /// Roles in parts.
    pub fn new(parts: impl IntoIterator<Item = Arc<[Role]>>) -> Self {
        Self(parts.into_iter().collect())
    }

    /// Returns all roles; one that a user has several times is among them several times.
    pub fn iter(&self) -> impl Iterator<Item = &Role> {
        self.0.iter().flat_map(|part| part.iter())
    }

    fn of(&self, applies: impl Fn(&Role) -> bool) -> Rights {
        self.iter().filter(|role| applies(role)).fold(Rights::NONE, |sum, role| sum | role.kind.rights)
    }

    /// Returns the rights on the node. What is for all buckets is not for the node.
    pub fn on_node(&self) -> Rights {
        self.of(|role| role.kind.depth == Depth::Node)
    }

    /// Returns the rights on all of a bucket, of a scope in it, or a collection in that.
    pub fn on(&self, names: &[&str]) -> Rights {
        self.of(|role| role.covers(names))
    }

    /// Returns the rights on anything in a bucket.
    pub fn somewhere_in(&self, bucket: &str) -> Rights {
        self.of(|role| role.is_within(bucket))
    }

    /// Returns true if a role gives rights on a place, or on something in it.
    pub fn reach(&self, place: &[&str]) -> bool {
        let is_there = |role: &Role| role.parts.iter().zip(place).all(|(part, name)| **part == **name);
        self.iter().any(|role| role.kind.rights != Rights::NONE && is_there(role))
    }
}

/// What a user may do with the documents of a bucket, by the ids that requests have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DataAccess {
    everywhere: Rights,
    /// Whether there are further rights on parts of the bucket.
    is_uniform: bool,
    /// The rights on collections on which there are more than everywhere, by id.
    collections: Vec<(u32, Rights)>,
    manifest_uid: u64,
}

impl DataAccess {
    /// The access that roles give to a bucket with these collections.
    pub fn new(roles: &Roles, bucket: &str, manifest: &Manifest) -> Self {
        let everywhere = roles.on(&[bucket]);
        let mut further: HashMap<(&str, Option<&str>), Rights> = HashMap::new();
        for role in
            roles.iter().filter(|role| role.is_within(bucket) && !everywhere.contain(role.kind.rights))
        {
            let Some(scope) = role.scope() else { continue };
            *further.entry((scope, role.collection())).or_default() |= role.kind.rights;
        }
        let of = |(scope, collection): (&Scope, &Collection)| {
            let parts = [(scope.name.as_str(), None), (scope.name.as_str(), Some(collection.name.as_str()))];
            let there = parts.iter().filter_map(|part| further.get(part));
            (collection.id, there.fold(everywhere, |sum, rights| sum | *rights))
        };
        let is_uniform = further.is_empty();
        let mut collections: Vec<_> = match is_uniform {
            true => Vec::new(),
            false => manifest.collections().map(of).filter(|(_, rights)| *rights != everywhere).collect(),
        };
        collections.sort_unstable_by_key(|(id, _)| *id);
        Self { everywhere, is_uniform, collections, manifest_uid: manifest.uid }
    }

    /// Returns the rights everywhere in the bucket.
    pub fn everywhere(&self) -> Rights {
        self.everywhere
    }

    /// Returns true if there are no further rights on parts of the bucket.
    pub fn is_uniform(&self) -> bool {
        self.is_uniform
    }

    /// Returns the rights on a collection.
    pub fn on(&self, collection: u32) -> Rights {
        match self.collections.binary_search_by_key(&collection, |(id, _)| *id) {
            Ok(at) => self.collections[at].1,
            Err(_) => self.everywhere,
        }
    }

    /// Returns the version of the manifest whose ids it has.
    pub fn manifest_uid(&self) -> u64 {
        self.manifest_uid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(list: &str) -> Roles {
        Roles::new([Role::parse_list(list).unwrap().into()])
    }

    #[test]
    fn roles_are_shown_as_they_are_parsed() {
        for text in [
            "admin",
            "bucket_admin[*]",
            "bucket_admin[orders]",
            "scope_admin[orders:eu]",
            "data_reader[orders]",
            "data_reader[orders:eu]",
            "data_reader[orders:eu:new]",
            "data_writer[*]",
        ] {
            assert_eq!(Role::parse(text).map(|role| role.to_string()).as_deref(), Some(text));
        }
        for (text, same) in [
            ("data_reader[b:*:*]", "data_reader[b]"),
            ("data_reader[*:*:*]", "data_reader[*]"),
            ("data_reader[b:s:*]", "data_reader[b:s]"),
        ] {
            assert_eq!(Role::parse(text).unwrap().to_string(), same);
        }
    }

    #[test]
    fn what_is_no_role_is_named() {
        for text in [
            "superman",
            "admin[*]",
            "admin[]",
            "bucket_admin",
            "bucket_admin[]",
            "bucket_admin[a:b]",
            "scope_admin[a:b:c]",
            "data_reader[a:b:c:d]",
            "data_reader[*:s]",
            "data_reader[a:*:c]",
            "data_reader[a::c]",
            "data_reader[a",
            "data_reader a]",
            "data_reader[a]]",
        ] {
            assert_eq!(Role::parse(text), None, "{text}");
        }
        assert_eq!(Role::parse_list("admin, x[a:b],y"), Err(vec!["x[a:b]".to_owned(), "y".to_owned()]));
        assert_eq!(roles("admin,admin , data_reader[a:b]").iter().count(), 2);
        assert_eq!(roles("").iter().count(), 0);
    }

    #[test]
    fn a_role_covers_what_is_in_its_place_and_nothing_beside_it() {
        let roles = roles("data_reader[b:s],data_writer[b:s:c],bucket_admin[d]");
        assert_eq!(roles.on_node(), Rights::NONE);
        assert_eq!(Roles::new([[Role::parse("bucket_admin[*]").unwrap()].into()]).on_node(), Rights::NONE);
        assert_eq!(roles.on(&["b"]), Rights::NONE);
        assert!(roles.on(&["b", "s"]).contain(Rights::READ) && !roles.on(&["b", "s"]).meet(Rights::WRITE));
        assert!(roles.on(&["b", "s", "c"]).contain(Rights::READ | Rights::WRITE));
        assert!(!roles.on(&["b", "t", "c"]).meet(Rights::READ | Rights::WRITE));
        assert!(!roles.on(&["d", "s", "c"]).meet(Rights::READ | Rights::WRITE));
        assert!(roles.on(&["d"]).contain(Rights::BUCKET) && !roles.on(&["e"]).meet(Rights::ALL));
        assert!(roles.somewhere_in("b").contain(Rights::READ | Rights::WRITE));
        assert_eq!(roles.somewhere_in("x"), Rights::NONE);
    }

    #[test]
    fn access_is_by_the_ids_of_the_manifest() {
        let mut manifest = Manifest::default();
        manifest.add_scope("s").unwrap();
        manifest.add_collection("s", "c", 0, false).unwrap();
        manifest.add_collection("s", "d", 0, false).unwrap();
        let id = |name| manifest.collection("s", name).unwrap().id;
        let access = DataAccess::new(&roles("data_reader[b],data_writer[b:s:c]"), "b", &manifest);
        assert!(access.everywhere().contain(Rights::READ) && !access.everywhere().contain(Rights::WRITE));
        assert!(access.on(id("c")).contain(Rights::READ | Rights::WRITE) && !access.is_uniform());
        assert!(access.on(id("d")).contain(Rights::READ) && !access.on(id("d")).meet(Rights::WRITE));
        assert!(access.on(0).contain(Rights::READ));
        let elsewhere = DataAccess::new(&roles("data_reader[x],data_writer[x:s:c]"), "b", &manifest);
        assert!(elsewhere.is_uniform() && elsewhere.on(id("c")) == Rights::NONE);
        let all = DataAccess::new(&roles("admin,data_reader[b:s]"), "b", &manifest);
        assert!(all.everywhere() == Rights::ALL && all.is_uniform());
    }

    #[test]
    fn only_admin_has_every_right() {
        for kind in ROLES {
            assert_eq!(kind.rights == Rights::ALL, kind.name == "admin", "{}", kind.name);
            assert!(kind.depth == Depth::Node || !kind.rights.meet(Rights::OVER_OTHERS), "{}", kind.name);
            let names: Vec<_> = ROLES.iter().filter(|other| other.name == kind.name).collect();
            assert_eq!(names.len(), 1, "{}", kind.name);
        }
    }
}
