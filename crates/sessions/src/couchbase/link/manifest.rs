//! The scopes and collections of the other node, and what becomes of them here.
//!
//! ```text
//!   fetched: when the connection is made; before a stream, if the two nodes differ, or it is that of vBucket 0 in a
//!            higher term; when a stream tells of a change
//!     theirs counts ──> taken as a whole        ours counts ──> sent to them
//! ```
//! So both ends come to have the same, whichever of the two counts (`kv/src/collections/version.rs`). A document of a
//! collection that they have, and this node has not, ends its stream until then.

use kv::collections::{ForeignChange, Manifest, Version};
use kv::copying::Foreign;
use kv::{Adopted, NodeContext};
use std::collections::BTreeSet;
use wire::binary::{Asked, Opcode};
use wire::couchbase::collection_id;

use super::super::dcp::NEWER_MANIFEST;
use super::{Link, Stop};

/// What the other node has, as far as it has told.
#[derive(Default)]
pub(super) struct There {
    collections: BTreeSet<u32>,
    version: Version,
    /// It has been asked, and has not answered yet.
    is_asked: bool,
}

impl There {
    /// Returns true if the source sent it before it was promoted to the active of vBucket 0 in this term.
    pub(super) fn is_older_than(&self, vb: u16, term: u64) -> bool {
        vb == 0 && self.version.term < term
    }
}

impl Link {
    pub(super) fn ask_manifest(&mut self) {
        if !std::mem::replace(&mut self.there.is_asked, true) {
            self.ask(Opcode::COLLECTIONS_GET_MANIFEST, &Asked::default());
        }
    }

    /// Asks for the manifest if what the other node has told is older than the stream of a vBucket that is wanted, or
    /// not what is here.
    pub(super) fn ask_manifest_for(&mut self, vb: u16, term: u64) {
        let here = self.copier.bucket().collections().manifest().version();
        if self.there.is_older_than(vb, term) || self.there.version != here {
            self.ask_manifest();
        }
    }

    /// Takes the scopes and collections of the other node, or sends it those that are here, if they count.
    pub(super) fn take_manifest(&mut self, text: &[u8], cx: &mut NodeContext) -> Result<(), Stop> {
        let there = Manifest::from_node_json(text).ok_or_else(|| "its manifest is none".to_owned())?;
        let bucket = self.copier.bucket();
        match bucket.adopt_collections(cx, &there) {
            Ok(Adopted::Taken) => cx.node.note_map_change(),
            Ok(Adopted::Kept) => {}
            // Nothing is copied before it is kept.
            Ok(Adopted::Waits) => return Err(Stop::Later),
            Err(error) => {
                self.complaint = Some(error.to_string());
                return Err(Stop::Later);
            }
        }
        let here = bucket.collections().manifest();
        if here.supersedes(&there) {
            let (key, value) = (NEWER_MANIFEST, here.to_node_json());
            self.ask(Opcode::DCP_CONTROL, &Asked { key, value: value.as_bytes(), ..Asked::default() });
        }
        let collections = there.collections().map(|(_, one)| one.id).collect();
        self.there = There { collections, version: there.version(), is_asked: false };
        Ok(())
    }

    /// Keeps account of the collections that the other node has. While this node's scopes and collections count, it
    /// takes neither changes of others nor documents in collections that are gone here.
    pub(super) fn check_collection(&mut self, foreign: &Foreign<'_>) -> Result<(), Stop> {
        let is_older = self.there.version.term < self.copier.bucket().collections().manifest().version().term;
        match foreign {
            Foreign::System { uid, .. } if *uid > self.there.version.uid && is_older => {
                Err(Stop::Broken("its scopes and collections are of a lower term than those here".to_owned()))
            }
            Foreign::System { uid, change, .. } if *uid > self.there.version.uid => {
                self.there.version.uid = *uid;
                match change {
                    ForeignChange::CreateCollection { id, .. } => drop(self.there.collections.insert(*id)),
                    ForeignChange::DropCollection { id, .. } => drop(self.there.collections.remove(id)),
                    ForeignChange::CreateScope { .. } | ForeignChange::DropScope { .. } => {}
                }
                // A stream tells a change; the manifest has all of it.
                self.ask_manifest();
                Ok(())
            }
            Foreign::Version(version) => {
                let id = collection_id::split(version.stored_key).map_or(0, |(id, _)| id);
                if id == 0 || self.copier.bucket().has_collection(id) || !self.there.collections.contains(&id)
                {
                    return Ok(());
                }
                let why = "is gone here, and not yet there";
                Err(Stop::Broken(format!("collection {id:#x} {why}")))
            }
            _ => Ok(()),
        }
    }
}
