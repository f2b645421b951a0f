//! Versions that were made elsewhere: they come with a CAS and a revision of their own.

use super::item::{Header, Kind, collection_of, mark};
use super::vbucket::{Locked, Present};
use crate::KvError;

impl Locked<'_> {
    /// Takes a document, a shadow or a tombstone in place of what the key has. The seqno of its header is above all
    /// others; its lengths and word marks are filled in here.
    pub(crate) fn take_version(
        &mut self,
        stored_key: &[u8],
        hash: u64,
        header: Header,
        value: &[u8],
    ) -> Result<(), KvError> {
        debug_assert!(header.seqno > self.state.high_seqno);
        self.check_space()?;
        let old = self.find_stored(stored_key, hash);
        let (seqno, is_end) = (header.seqno, header.kind == Kind::Tombstone);
        if is_end && !self.leaves_tombstones() {
            self.state.high_seqno = seqno;
            if let Some(old) = old {
                self.remove(old);
            }
            self.follow_cas(header.cas);
            return Ok(());
        }
        self.reserve_seqno(seqno)?;
        if old.is_none() {
            self.reserve_slot(hash)?;
        }
        let old_header = old.map(|old| self.header(old));
        let header = if is_end { header } else { self.queue_expiry(hash, old_header.as_ref(), header)? };
        let (location, header) = self.place_stored(stored_key, header, value)?;
        self.recount(&header);
        self.link(old, hash, collection_of(stored_key), location, &header);
        self.renumber(old_header.map(|old| old.seqno), seqno, location);
        self.follow_cas(header.cas);
        if is_end {
            self.note_end(seqno, location);
        }
        Ok(())
    }

    /// Puts an item into the table, which has room, in place of the key's old one.
    pub(super) fn link(
        &mut self,
        old: Option<Present>,
        hash: u64,
        collection: u32,
        location: memory::Location,
        header: &Header,
    ) {
        let Some(mut old) = old else {
            self.insert(hash, location);
            return self.added(collection, header);
        };
        let (old_header, old_location) = (self.header(old), old.found.location);
        self.root.relocate(&mut old.found, location);
        self.free(old_location, old.item, &old_header);
        self.exchange(collection, &old_header, header);
    }

    /// Returns the header of a tombstone that is left now, without CAS, seqno and revision.
    pub(crate) fn tombstone_header(&self, is_expiration: bool) -> Header {
        Header {
            kind: Kind::Tombstone,
            datatype: 0,
            marks: if is_expiration { mark::EXPIRED } else { mark::DELETED },
            expiry: self.now.unix_s.max(1),
            ..self.shadow_header()
        }
    }
}
