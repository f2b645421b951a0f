//! A walk over everything a vBucket has that trusts nothing: for tests, and for operators who ask for it
//! (`bucket/audit.rs`).
//!
//! It checks that every item is reachable from exactly one index slot, or is a prepare or an abort; that the seqno
//! order names what it must and nothing else; that a slot of a slab says it is this vBucket's; and that every byte is
//! counted: items and index blocks, as the accounts count them.

use std::collections::{BTreeMap, HashSet};

use memory::{Location, large};

use super::item::{Header, Kind, mark};
use super::table::Hand;
use super::vbucket::Locked;

/// What a walk has found, in bytes as the accounts count them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Audit {
    /// Documents, without tombstones and shadows.
    pub documents: u64,
    /// Items of every kind, with the allocator's overhead.
    pub item_bytes: u64,
    /// Key and value bytes.
    pub payload_bytes: u64,
    /// Headers and optional words.
    pub metadata_bytes: u64,
    /// Index blocks, and the bookkeeping of slabs.
    pub index_bytes: u64,
    /// Of these, the bookkeeping of slabs.
    pub bookkeeping_bytes: u64,
    /// Items in slots of slabs.
    pub slots: u64,
    /// Bytes of these slots: a part of `item_bytes`.
    pub slot_bytes: u64,
    /// Slabs.
    pub slab_bytes: u64,
    /// Compressed values.
    pub compressed: u64,
    /// Their bytes, a part of the payload.
    pub compressed_bytes: u64,
    /// Length of the compressed values when inflated.
    pub inflated_bytes: u64,
}

/// The walk over one vBucket: what it has seen, and what is wrong.
struct Walk {
    audit: Audit,
    seen: HashSet<u64>,
    /// Items by seqno, with their locations.
    by_seqno: BTreeMap<u64, Location>,
}

impl Walk {
    fn enter(&mut self, location: Location, header: &Header) -> Result<(), String> {
        if !self.seen.insert(location.bits()) {
            return Err(format!("{location:?} is named twice"));
        }
        if let Some(other) = self.by_seqno.insert(header.seqno, location) {
            return Err(format!("seqno {} is that of {location:?} and {other:?}", header.seqno));
        }
        let size = header.item_size();
        let is_large = header.marks & mark::LARGE != 0;
        let bytes = if is_large { large::item_footprint(size) } else { location.footprint(size) } as u64;
        self.audit.item_bytes += bytes;
        if location.is_slab() {
            self.audit.slots += 1;
            self.audit.slot_bytes += bytes;
        }
        self.audit.payload_bytes += (header.key_len + header.resident_len()) as u64;
        self.audit.metadata_bytes += header.metadata() as u64;
        if header.is_compressed() {
            self.audit.compressed += 1;
            self.audit.compressed_bytes += header.value_len as u64;
            self.audit.inflated_bytes += header.inflated_len as u64;
        }
        Ok(())
    }
}

impl Audit {
    pub(crate) fn add(&mut self, other: &Self) {
        self.documents += other.documents;
        self.item_bytes += other.item_bytes;
        self.payload_bytes += other.payload_bytes;
        self.metadata_bytes += other.metadata_bytes;
        self.index_bytes += other.index_bytes;
        self.slots += other.slots;
        self.slot_bytes += other.slot_bytes;
        self.slab_bytes += other.slab_bytes;
        self.compressed += other.compressed;
        self.compressed_bytes += other.compressed_bytes;
        self.inflated_bytes += other.inflated_bytes;
    }
}

impl Locked<'_> {
    /// Walks over everything. The error says what is wrong.
    pub(crate) fn audit(&mut self) -> Result<Audit, String> {
        let mut walk = Walk { audit: Audit::default(), seen: HashSet::new(), by_seqno: BTreeMap::new() };
        self.audit_table(&mut walk)?;
        self.audit_prepares(&mut walk)?;
        self.audit_order(&mut walk)?;
        walk.audit.index_bytes = self.root.allocated_bytes(&self.state.table);
        if let Some(order) = &self.state.order {
            walk.audit.index_bytes += order.allocated_bytes();
        }
        if let Some(rare) = &self.state.rare {
            walk.audit.index_bytes += rare.wheel.allocated_bytes() + rare.locks.allocated_bytes();
            let deletions = rare.durable.as_ref().map(|durable| durable.deletions.allocated_bytes());
            walk.audit.index_bytes += deletions.unwrap_or_default();
        }
        Ok(walk.audit)
    }

    fn audit_table(&mut self, walk: &mut Walk) -> Result<(), String> {
        let (mut slots, mut tombstones, mut shadows) = (0, 0, 0);
        let mut hand = Some(Hand::default());
        while let Some(at) = hand {
            let mut group = Vec::new();
            hand = self.root.walk(at, |found, _| group.push(found));
            for found in group {
                slots += 1;
                let header = self.header_of(found.location)?;
                let hash = self.hash_of(found.location);
                let mut reached = 0;
                self.root.find(hash, |location| {
                    reached += u32::from(location == found.location);
                    false
                });
                if reached != 1 {
                    return Err(format!("{header:?} is reached by {reached} index slots"));
                }
                if header.kind.is_prepare() || header.kind == Kind::Abort {
                    return Err(format!("{header:?} has an index slot"));
                }
                tombstones += u32::from(header.kind == Kind::Tombstone);
                shadows += u32::from(header.kind == Kind::Shadow);
                walk.enter(found.location, &header)?;
            }
        }
        if slots != self.state.table.items {
            return Err(format!("{slots} slots of {} items", self.state.table.items));
        }
        let counted = self.state.rare.as_ref().map_or(0, |rare| rare.shadows);
        if shadows != counted {
            return Err(format!("{shadows} shadows of {counted}"));
        }
        walk.audit.documents = u64::from(slots - tombstones - shadows);
        Ok(())
    }

    fn audit_prepares(&mut self, walk: &mut Walk) -> Result<(), String> {
        for prepared in self.all_prepared() {
            let header = self.header_of(prepared.location)?;
            if !header.kind.is_prepare() || header.seqno != prepared.seqno {
                return Err(format!("{prepared:?} names {header:?}"));
            }
            if self.pending(self.hash_of(prepared.location)) != Some(prepared.seqno) {
                return Err(format!("{prepared:?} is not what its key waits for"));
            }
            walk.enter(prepared.location, &header)?;
        }
        Ok(())
    }

    fn audit_order(&mut self, walk: &mut Walk) -> Result<(), String> {
        let mut slots = BTreeMap::new();
        if let Some(order) = &self.state.order {
            order.iterate(|seqno, location| {
                slots.insert(seqno, location);
            });
        }
        for (seqno, location) in &slots {
            let header = self.header_of(*location)?;
            if header.kind == Kind::Abort {
                walk.enter(*location, &header)?;
            }
            if header.seqno != *seqno || walk.by_seqno.get(seqno) != Some(location) {
                return Err(format!("the slot of seqno {seqno} names {header:?}, at another place"));
            }
        }
        let Some(floor) = self.state.order.as_ref().map(|order| order.floor()) else { return Ok(()) };
        for seqno in walk.by_seqno.range(floor + 1..).map(|(seqno, _)| seqno) {
            if !slots.contains_key(seqno) {
                return Err(format!("the item of seqno {seqno} has no slot"));
            }
        }
        Ok(())
    }

    /// Returns the header of an item that is named. Its slot must name this vBucket, too.
    fn header_of(&self, location: Location) -> Result<Header, String> {
        let owner = self.memory.resources.tenant.owner_of_slot(location);
        if location.is_slab() && owner != Some(self.memory.owner) {
            return Err(format!("the slot at {location:?} is in use by {owner:?}"));
        }
        // SAFETY: an index slot, a seqno slot or a prepare names the item, and the lock is held.
        Ok(unsafe { self.item(location).header() })
    }
}
