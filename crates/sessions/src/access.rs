//! What the user of a session may do.
//!
//! Rights that a user has in all of a bucket are kept in the session, and compared with what a request needs: one
//! comparison. Those on single collections are looked up. Both are asked for again when users or collections have
//! changed, before the next requests are parsed.

use std::sync::Arc;

use kv::users::roles::{DataAccess, Rights};
use kv::users::{LoggedIn, Standing};
use kv::{Bucket, NodeContext};

use super::{Peer, Port};

/// Rights with which a bucket may be selected.
const BUCKET_ACCESS: Rights = Rights::DATA.and(Rights::BUCKET).and(Rights::COLLECTIONS);
/// Rights that a user of a memcached port must have on its bucket: what the protocols can do.
const MEMCACHED: Rights = Rights::READ.and(Rights::WRITE).and(Rights::STATISTICS).and(Rights::FLUSH);

/// The rights of a session's user in the bucket in use.
#[derive(Default)]
pub struct Access {
    everywhere: Rights,
    /// The version of the users that this is about; 0: of none.
    users: u64,
    /// The user who logged in, with the roles that this is about.
    standing: Option<Arc<Standing>>,
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
    /// Asks for the user's rights again if users or, where it matters, collections have changed.
    #[inline]
    pub(super) fn update_access(&mut self, cx: &NodeContext) {
        if self.access.users != cx.node.users().generation()
            || self.access.finer.is_some() && self.is_outdated()
        {
            self.look_up(cx);
        }
    }

    /// Returns true if collections have changed since the rights on them were asked for.
    #[cold]
    fn is_outdated(&self) -> bool {
        let uid = self.bucket.as_ref().map(|bucket| bucket.collections().uid());
        self.access.finer.as_ref().is_some_and(|finer| uid.is_some_and(|uid| uid != finer.manifest_uid()))
    }

    /// Asks whether the user's roles have changed, and if so for the rights.
    #[cold]
    fn look_up(&mut self, cx: &NodeContext) {
        let users = cx.node.users();
        // First: what changes meanwhile is seen at the next request.
        let generation = users.generation();
        let before = self.access.standing.as_ref();
        let now = self.user.as_deref().and_then(|user| users.standing(user));
        // A user of the same name who was created later is another.
        let now = now.filter(|now| before.is_some_and(|before| before.id == now.id));
        let is_same = match (before, &now) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (None, None) => true,
            _ => false,
        };
        if !is_same || self.is_outdated() {
            // Who is gone stays whoever it was, with no rights.
            let gone = || before.map(|before| Arc::new(Standing { id: before.id, ..Standing::default() }));
            self.access.standing = now.or_else(gone);
            self.renew_access();
        }
        self.access.users = generation;
        self.login_required |= users.is_login_demanded();
    }

    /// Computes the user's rights in the bucket in use. On a memcached port a user who may not use the bucket (any
    /// more) is logged out.
    #[cold]
    pub(super) fn renew_access(&mut self) {
        (self.access.everywhere, self.access.finer) = (Rights::NONE, None);
        let (Some(standing), Some(bucket)) = (&self.access.standing, &self.bucket) else { return };
        let access = DataAccess::new(&standing.roles, bucket.name(), &bucket.collections().manifest());
        self.access.everywhere = access.everywhere();
        if self.port == Port::Memcached && !access.everywhere().contain(MEMCACHED) {
            self.user = None;
        }
        if !access.is_uniform() {
            self.access.finer = Some(Box::new(access));
        }
    }

    /// Logs in. Returns false if the user may not use this port.
    pub(super) fn log_in(&mut self, user: LoggedIn, cx: &NodeContext) -> bool {
        self.access = Access { standing: Some(user.standing), ..Access::default() };
        self.user = Some(user.name);
        self.renew_access();
        // The user may have changed since the password was compared.
        self.look_up(cx);
        self.user.is_some()
    }

    /// Returns true if the user who logged in still exists.
    pub(super) fn is_user(&self, cx: &NodeContext) -> bool {
        let now = self.user.as_deref().and_then(|user| cx.node.users().standing(user));
        now.zip(self.access.standing.as_ref()).is_some_and(|(now, own)| now.id == own.id)
    }

    /// Returns true if the user has some right in the bucket in use.
    pub(super) fn has_access(&self) -> bool {
        let place = self.bucket.as_ref().map(|bucket| bucket.name()).unwrap_or_default();
        self.access.everywhere.meet(BUCKET_ACCESS)
            || self.access.standing.as_ref().is_some_and(|standing| standing.roles.reach(&[place]))
    }

    /// Returns true if the user has rights in a place of the bucket in use, a scope or a collection, or in a part of
    /// it. Others do not learn whether it is there.
    pub(super) fn may_know(&self, place: &[&str]) -> bool {
        let Some(bucket) = &self.bucket else { return false };
        let place = [&[bucket.name()], place].concat();
        self.access.standing.as_ref().is_some_and(|standing| standing.roles.reach(&place))
    }

    /// Returns true if the user has these rights in all of the bucket in use.
    #[inline]
    pub(super) fn may_everywhere(&self, rights: Rights) -> bool {
        self.access.everywhere.contain(rights)
    }

    /// Returns true if the user has these rights on the node.
    pub(super) fn may_on_node(&self, rights: Rights) -> bool {
        self.access.standing.as_ref().is_some_and(|standing| standing.roles.on_node().contain(rights))
    }

    /// Returns true if the user has these rights in the bucket in use, or in parts of it.
    pub(super) fn may_somewhere(&self, rights: Rights) -> bool {
        let (Some(standing), Some(bucket)) = (&self.access.standing, &self.bucket) else { return false };
        standing.roles.somewhere_in(bucket.name()).contain(rights)
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

    /// Returns true if the client may see those of the whole bucket.
    pub(super) fn sees_all_statistics(&self) -> bool {
        self.port == Port::Memcached || self.may_everywhere(Rights::STATISTICS)
    }
}

/// Returns true if a user may select a bucket.
pub(super) fn may_select(peer: &Peer, bucket: &Bucket) -> bool {
    let standing = peer.access.standing.as_ref();
    standing.is_some_and(|standing| standing.roles.somewhere_in(bucket.name()).meet(BUCKET_ACCESS))
}
