//! What the user of a session may do.
//!
//! Rights that a user has in all of a bucket are kept in the session, and compared with what a request needs: one
//! comparison. Those on single collections are looked up. Both are asked for again when users or collections have
//! changed, before the next requests are parsed.

use kv::collections::DEFAULT_ID;
use kv::users::roles::{DataAccess, Rights};
use kv::{Bucket, NodeContext};

use super::{Peer, Port};

/// Rights with which a bucket may be selected.
const SELECTS: Rights = Rights::DATA.and(Rights::BUCKET).and(Rights::COLLECTIONS);
/// Rights that a user of a memcached port must have.
const MEMCACHED: Rights = Rights::READ.and(Rights::WRITE);

/// The rights of a session's user in the bucket in use.
#[derive(Default)]
pub struct Access {
    everywhere: Rights,
    /// The version of the users that this is about; 0: of none.
    users: u64,
    /// Rights on collections, if there are any besides those everywhere.
    finer: Option<Box<DataAccess>>,
}

impl Access {
    /// Returns true if the user has these rights on a collection.
    #[inline]
    pub(super) fn allows(&self, rights: Rights, collection: u32) -> bool {
        self.everywhere.contain(rights) || self.allows_there(rights, collection)
    }

    #[cold]
    fn allows_there(&self, rights: Rights, collection: u32) -> bool {
        self.finer.as_ref().is_some_and(|finer| finer.on(collection).contain(rights))
    }
}

impl Peer {
    /// Asks for the user's rights again if users have changed.
    #[inline]
    pub(super) fn update_access(&mut self, cx: &NodeContext) {
        if self.access.users != cx.node.users().generation()
            || self.access.finer.is_some() && self.is_outdated()
        {
            self.renew_access(cx);
        }
    }

    /// Returns true if collections have changed since the rights on them were asked for.
    #[cold]
    fn is_outdated(&self) -> bool {
        let uid = self.bucket.as_ref().map(|bucket| bucket.collections().uid());
        self.access.finer.as_ref().is_some_and(|finer| uid.is_some_and(|uid| uid != finer.manifest_uid()))
    }

    /// Asks for the user's rights in the bucket in use. On a memcached port a user who may not use the bucket (any
    /// more) is logged out.
    #[cold]
    pub(super) fn renew_access(&mut self, cx: &NodeContext) {
        let users = cx.node.users();
        // First: what changes meanwhile is seen at the next request.
        let generation = users.generation();
        self.access = Access { users: generation, ..Access::default() };
        let (Some(user), Some(bucket)) = (&self.user, &self.bucket) else { return };
        let access = DataAccess::new(&users.roles(user), bucket.name(), &bucket.collections().manifest());
        self.access.everywhere = access.everywhere();
        if self.port == Port::Memcached && !access.on(DEFAULT_ID).contain(MEMCACHED) {
            self.user = None;
        }
        if !access.is_uniform() {
            self.access.finer = Some(Box::new(access));
        }
    }

    /// Logs in. Returns false if the user may not use this port.
    pub(super) fn log_in(&mut self, user: std::sync::Arc<str>, cx: &NodeContext) -> bool {
        self.user = Some(user);
        self.renew_access(cx);
        self.user.is_some()
    }

    /// Returns true if the user has these rights in all of the bucket in use.
    #[inline]
    pub(super) fn may_everywhere(&self, rights: Rights) -> bool {
        self.access.everywhere.contain(rights)
    }

    /// Returns true if the user has these rights on a collection of the bucket in use.
    #[inline]
    pub(super) fn may(&self, rights: Rights, collection: u32) -> bool {
        self.access.allows(rights, collection)
    }

    /// Returns true if the client may see the statistics of a collection. Memcached ports show all.
    pub(super) fn sees_statistics(&self, collection: u32) -> bool {
        self.port == Port::Memcached || self.may(Rights::STATISTICS, collection)
    }
}

/// Returns true if a user may select a bucket.
pub(super) fn may_select(user: &str, bucket: &Bucket, cx: &NodeContext) -> bool {
    cx.node.users().roles(user).somewhere_in(bucket.name()).meet(SELECTS)
}

/// Returns true if a user has rights in a place, a scope or a collection, or in a part of it. Others do not learn
/// whether it is there.
pub(super) fn may_know(user: &str, place: &[&str], cx: &NodeContext) -> bool {
    cx.node.users().roles(user).touch(place)
}
