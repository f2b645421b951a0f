//! The roles of vBuckets: whoever changes one, and what that changes.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use wire::couchbase::frame_info::DurabilityLevel;

use super::{Bucket, attention};
use crate::election::Lacks;
use crate::index::Locked;
use crate::mailbox::Outcome;
use crate::role::{Role, RoleChange, RoleError};
use crate::sync_writes::Notices;
use crate::topology::{Topology, VbState};
use crate::{Cookie, KvError, ThreadContext, VbId};

impl Locked<'_> {
    /// Tracks the prepares that nobody waits for: they are committed when the chains allow it, and never time out.
    fn adopt_prepares(&mut self, raise: impl FnOnce()) {
        if self.note_adopted() {
            raise();
        }
        for prepared in self.all_prepared() {
            let level = match prepared.level {
                2 => DurabilityLevel::MajorityAndPersistToActive,
                3 => DurabilityLevel::PersistToMajority,
                _ => DurabilityLevel::Majority,
            };
            self.sync_writes_mut().monitor.track(prepared.seqno, level, None, None);
        }
    }
}

impl Bucket {
    /// Restores the role as last written once the journal has been read, unless it has been set since; then tracks the
    /// prepares that were found.
    ///
    /// An active that may lack the end of its history stays pending if there are others in its chains: they may have
    /// what was acknowledged, and would have to forget it.
    pub(crate) fn restore_setting(&self, cx: &mut ThreadContext, vb: VbId) {
        let mut waits = false;
        let lacks = self
            .persistence()
            .map_or(Lacks::Nothing, |persistence| persistence.lacks_at_start(self.had_clean_end()));
        self.tend(cx, vb, |locked, _| {
            let may_lack = locked.durable().may_lack;
            if let Some(mut setting) = locked.durable().setting.take()
                && locked.sync_writes().is_none()
            {
                if may_lack && setting.role.state == VbState::Active && setting.role.topology.has_others() {
                    setting.role.state = VbState::Pending;
                    waits = true;
                    locked.note_state();
                }
                let counts = setting.role.term > 0 && setting.role.state != VbState::Active;
                if counts && lacks > setting.copied.lacks {
                    setting.copied.lacks = lacks;
                    locked.note_state();
                }
                let newest_term = locked.newest_term();
                let sync = locked.sync_writes_mut();
                sync.monitor.set_topology(&setting.role.topology);
                if let Some((_, began_at)) = newest_term {
                    sync.monitor.begin_term(began_at);
                }
                (sync.role, sync.copied) = (setting.role, setting.copied);
                self.count_role(&sync.role);
                self.inactive.set(vb, sync.role.state == VbState::Active);
            }
            if !locked.is_inactive() {
                locked.adopt_prepares(|| self.raise(attention::ADOPTED));
            }
        });
        if waits {
            self.undecided.fetch_add(1, Relaxed);
        }
        self.begin_term_of(vb);
    }

    /// Has a vBucket copied that can be used from now on.
    pub(crate) fn begin_to_copy(&self, cx: &mut ThreadContext, vb: VbId) {
        let mut is_missing = false;
        self.tend(cx, vb, |locked, notices| {
            let Some(source) = locked.sync_writes().and_then(|sync| sync.role.source.as_ref()) else {
                return;
            };
            let (calls, missing) = self.peers.change(vb.0, None, Some(source));
            notices.letters.extend(calls.into_iter().map(|cookie| (cookie, Outcome::Stirred)));
            is_missing = missing;
        });
        if is_missing {
            cx.hub.links.ring();
        }
    }

    /// Makes an active of this term dead and raises the term: whoever takes over is the active of the new one. Returns
    /// false if it is not active in this term.
    pub fn resign(&self, cx: &mut ThreadContext, vb: VbId, term: u64) -> bool {
        let is_it = |role: &Role| role.state == VbState::Active && role.term == term;
        let change = RoleChange { state: Some(VbState::Dead), term: Some(term + 1), ..RoleChange::default() };
        self.set_role_if(cx, vb, is_it, change).is_ok_and(|is_done| is_done)
    }

    /// Makes the active of one that is pending in this term, and to take over from this node: the one before is dead.
    /// Returns false if it is none.
    pub fn succeed(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        term: u64,
        source: &str,
    ) -> Result<bool, RoleError> {
        let is_it = |role: &Role| role.is_to_succeed(term, source);
        let change =
            RoleChange { state: Some(VbState::Active), term: Some(term + 1), ..RoleChange::default() };
        self.set_role_if(cx, vb, is_it, change)
    }

    /// Returns true if a vBucket is pending in this term, and to take over from this node.
    pub fn is_to_succeed(&self, cx: &mut ThreadContext, vb: VbId, term: u64, source: &str) -> bool {
        self.lock(cx, vb).sync_writes().is_some_and(|sync| sync.role.is_to_succeed(term, source))
    }

    /// Returns true if the role is on disk, if it is to be. If not, it soon is, and followers of a vBucket that is dead
    /// are called then.
    pub fn role_is_kept(&self, cx: &mut ThreadContext, vb: VbId) -> bool {
        let locked = self.lock(cx, vb);
        let is_kept = !locked.is_persistent() || locked.state_persisted() >= locked.state_version();
        drop(locked);
        if !is_kept {
            self.hurry(vb);
        }
        is_kept
    }

    /// Tracks the prepares of a vBucket as if it had just been read from disk.
    #[doc(hidden)]
    pub fn adopt_prepares(&self, cx: &mut ThreadContext, vb: VbId) {
        self.tend(cx, vb, |locked, _| locked.adopt_prepares(|| self.raise(attention::ADOPTED)));
    }

    /// Returns the role of a vBucket.
    pub fn role(&self, cx: &mut ThreadContext, vb: VbId) -> Role {
        self.lock(cx, vb).sync_writes().map_or_else(Role::default, |sync| sync.role.clone())
    }

    /// Returns true if every vBucket has the role that it has by itself, as far as is known without a look at each.
    pub(crate) fn has_default_roles(&self) -> bool {
        self.role_changes() == 0
    }

    /// Returns how often roles have been set, or were read from disk.
    pub(crate) fn role_changes(&self) -> u64 {
        // ORDERING: a role is counted under the lock of its vBucket, under which it is read then; its term was counted.
        self.role_changes.load(Acquire)
    }

    /// Returns the highest term of a role that was ever in force since the start.
    pub(crate) fn highest_term(&self) -> u64 {
        self.highest_term.load(Relaxed)
    }

    /// Counts a role that comes into force. The caller holds the lock of its vBucket.
    fn count_role(&self, role: &Role) {
        self.highest_term.fetch_max(role.term, Relaxed);
        // ORDERING: after the term, so that a map of this version has it.
        self.role_changes.fetch_add(1, Release);
    }

    /// Returns how many vBuckets were active before the start, and are pending now, since other nodes may have more.
    pub fn undecided(&self) -> u32 {
        self.undecided.load(Relaxed)
    }

    /// Returns the state and the chains of a vBucket.
    pub(crate) fn chains(&self, vb: VbId) -> (VbState, Topology) {
        let mut chains = (VbState::Active, Topology::default());
        self.with_sync_writes(vb, |sync| chains = (sync.role.state, sync.role.topology.clone()));
        chains
    }

    /// Returns the state and the term of a vBucket.
    pub fn standing(&self, vb: VbId) -> (VbState, u64) {
        let mut standing = (VbState::Active, 0);
        self.with_sync_writes(vb, |sync| standing = (sync.role.state, sync.role.term));
        standing
    }

    /// Returns the state of a vBucket.
    pub fn vbucket_state(&self, vb: VbId) -> VbState {
        self.standing(vb).0
    }

    /// Sets the state of a vBucket, and its chains if they are given.
    pub fn set_vbucket(&self, cx: &mut ThreadContext, vb: VbId, state: VbState, topology: Option<Topology>) {
        let change = RoleChange { state: Some(state), topology, ..RoleChange::default() };
        let changed = self.set_role(cx, vb, change);
        debug_assert!(changed.is_ok(), "neither term nor source: {changed:?}");
    }

    /// Changes the role of a vBucket. Durable writes that another node will end are answered "ambiguous".
    pub fn set_role(&self, cx: &mut ThreadContext, vb: VbId, change: RoleChange) -> Result<(), RoleError> {
        self.set_role_if(cx, vb, |_| true, change).map(drop)
    }

    /// Does so if the present role is as it must be for that. Returns whether it was.
    fn set_role_if(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        is_it: impl FnOnce(&Role) -> bool,
        change: RoleChange,
    ) -> Result<bool, RoleError> {
        let (mut changed, mut is_missing, now_ns) = (Ok(true), false, cx.now.unix_ns);
        self.tend(cx, vb, |locked, notices| {
            let before = locked.sync_writes().map_or_else(Role::default, |sync| sync.role.clone());
            if !is_it(&before) {
                changed = Ok(false);
                return;
            }
            if locked.is_refilling() {
                changed = Err(RoleError::Refilling);
                return;
            }
            let has_topology = change.topology.is_some();
            let promise = locked.sync_writes().map(|sync| sync.promise.clone()).unwrap_or_default();
            if let Err(error) = promise.check(&before, &change) {
                changed = Err(error);
                return;
            }
            let by = change.by.clone();
            match change.of(&before) {
                Ok(role) => {
                    locked.sync_writes_mut().promise = promise.after(&before, &role, by);
                    is_missing = self.take_role(locked, vb, (&before, role), has_topology, now_ns, notices);
                }
                Err(error) => changed = Err(error),
            }
        });
        let due_s = self.vbucket(vb).expiry_due_s();
        self.expiry_entered(due_s.unwrap_or(u32::MAX));
        if is_missing {
            cx.hub.links.ring();
        }
        self.begin_term_of(vb);
        changed
    }

    /// Puts a role into force. Returns true if a connection to its source is missing.
    fn take_role(
        &self,
        locked: &mut Locked<'_>,
        vb: VbId,
        (before, role): (&Role, Role),
        has_topology: bool,
        now_ns: u64,
        notices: &mut Notices,
    ) -> bool {
        locked.note_state();
        let version = locked.state_version();
        let (was_active, is_active) = (before.state == VbState::Active, role.state == VbState::Active);
        self.count_role(&role);
        self.drop_collected(locked);
        let sync = locked.sync_writes_mut();
        if has_topology {
            sync.monitor.set_topology(&role.topology);
        }
        if role.term > before.term {
            sync.term_version = version;
            // What was acknowledged in a lower one may be of another history.
            sync.monitor.forget_acknowledgements(|_| true);
        }
        let called = sync.link.take().and_then(|link| link.note(vb.0));
        let stir = |cookie: Cookie| (cookie, Outcome::Stirred);
        notices.letters.extend(called.map(stir));
        if was_active && !is_active {
            sync.abandon(notices);
            sync.monitor.clear();
        }
        let (calls, is_missing) = self.peers.change(vb.0, before.source.as_deref(), role.source.as_ref());
        notices.letters.extend(calls.into_iter().map(stir));
        let role_term = role.term;
        sync.role = role;
        self.inactive.set(vb, is_active);
        let began_at = if was_active { locked.high_seqno() } else { locked.complete_seqno() };
        if is_active && !was_active {
            self.take_charge(locked, vb, now_ns);
        }
        let (term, newest) = (role_term, locked.newest_term());
        if is_active && newest.map_or(term > 0, |(newest, _)| newest < term) {
            locked.begin_term(term, began_at);
        }
        if is_active && locked.is_followed() {
            locked.tell_changes();
        }
        locked.call_followers(None);
        is_missing
    }

    /// Makes an active of what was none. If it is a copy, a history begins, where the other one may have gone on.
    fn take_charge(&self, locked: &mut Locked<'_>, vb: VbId, now_ns: u64) {
        // Of a snapshot there is all, or nothing that others could go on from.
        let (high_seqno, began_at) = (locked.high_seqno(), locked.complete_seqno());
        let sync = locked.sync_writes_mut();
        sync.is_stale = false;
        let copied = std::mem::take(&mut sync.copied);
        if copied.is_any {
            let uuid = self.fresh_history(now_ns ^ high_seqno << 20, vb);
            locked.begin_history(uuid, began_at);
            self.set_vb_uuid(vb, uuid);
            locked.skip_seqno();
        }
        locked.adopt_prepares(|| self.raise(attention::ADOPTED));
    }

    /// Deletes a vBucket: its documents are gone, its durable writes are answered "ambiguous", and it is dead. After
    /// [`KvError::NoMemory`] it is dead, but some of its prepares could not be ended, and its documents are still
    /// there; the caller must try again.
    pub fn delete_vbucket(&self, cx: &mut ThreadContext, vb: VbId) -> Result<(), KvError> {
        self.end_refill(cx, vb);
        self.set_vbucket(cx, vb, VbState::Dead, Some(Topology::default()));
        let mut ended = Ok(());
        self.tend(cx, vb, |locked, notices| {
            // Sessions that came in between are notified, too.
            locked.sync_writes_mut().abandon(notices);
            for prepared in locked.all_prepared() {
                if let Err(error) = locked.abort(prepared.seqno) {
                    ended = Err(error);
                    break;
                }
                notices.aborted += 1;
            }
        });
        ended?;
        self.flush_vbucket(cx, vb);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync_writes::Setting;
    use crate::{
        BucketSettings, Expiry, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Store, StoreKind,
        Value,
    };

    const NOW_S: u32 = 1_700_000_000;

    /// A node that comes back has read a vBucket's documents before its role takes effect; a pager may be at work then.
    #[test]
    fn nothing_expires_before_the_role_is_known() {
        for (state, expires) in
            [(VbState::Replica, false), (VbState::Pending, false), (VbState::Active, true)]
        {
            let settings =
                NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
            let node = Node::new(settings, Limits::default());
            let settings = BucketSettings { vbuckets: 1, ..BucketSettings::default() };
            let bucket = node.create_bucket("b", settings).unwrap();
            let mut cx = NodeContext::new(node, 0);
            cx.now.unix_s = NOW_S;
            let key = Key::plain(b"key");
            let store = Store {
                flags: 0,
                expiry: Expiry::At(NOW_S + 1),
                datatype: 0,
                value: Value::Bytes(b"v"),
                new_cas: 0,
            };
            let at = bucket.locate(key);
            bucket.mutate(&mut cx, key, at, Mutation { kind: StoreKind::Set, cas: 0, store }).unwrap();
            let role = Role { state, ..Role::default() };
            let setting = Some(Setting { role, ..Setting::default() });
            bucket.lock(&mut cx, VbId(0)).durable().setting = setting;
            cx.now.unix_s += 3600;
            let items = |cx: &mut NodeContext| {
                bucket.reclaim_expired(cx);
                bucket.vbucket(VbId(0)).snapshot().items
            };
            assert_eq!(items(&mut cx), 1, "{state:?}: before the role");
            assert!(bucket.lock(&mut cx, VbId(0)).is_inactive());
            bucket.restore_setting(&mut cx, VbId(0));
            assert_eq!(items(&mut cx), u32::from(!expires), "{state:?}");
        }
    }
}
