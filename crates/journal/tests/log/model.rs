//! A small engine over a log: keys, dirty items, flushes, compaction; and what must be there after a crash.

use super::{DIRECTORY, IDENTITY, document, tombstone};
use journal::log::{Aim, Buffer, Kind, Opened, Options, Record, Replayed, Shard, Step, Verdict, WriteError};
use journal::{Disk, SimulatedDisk};
use std::collections::BTreeMap;
use std::path::Path;

pub type Key = (u16, Vec<u8>);

/// The newest version of a key: its seqno, and its value unless it was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub seqno: u64,
    pub value: Option<Vec<u8>>,
}

/// What a reader of all keys sees.
pub type Documents = BTreeMap<Key, Vec<u8>>;

pub const VBUCKETS: u16 = 4;
/// When tombstones are made, and before when they are purged.
pub const NOW: u32 = 1000;

pub struct Engine {
    pub shard: Shard<SimulatedDisk>,
    pub buffer: Buffer,
    /// As of the last acknowledged commit. Tombstones are forgotten, as in a real engine.
    pub durable: BTreeMap<Key, Version>,
    /// Newer than that.
    pub dirty: BTreeMap<Key, Version>,
    pub next_seqno: [u64; 16],
    /// Compaction aims low, as when nothing has been written for a while.
    pub at_rest: bool,
    pub purge_before: u32,
}

fn apply(versions: &mut BTreeMap<Key, Version>, key: Key, version: Version) {
    match versions.get(&key) {
        Some(newer) if newer.seqno > version.seqno => {}
        _ => {
            versions.insert(key, version);
        }
    }
}

/// Opens and replays; panics on damage.
pub fn recover(disk: &SimulatedDisk, options: Options) -> Engine {
    let opened = Shard::open(disk.clone(), Path::new(DIRECTORY), IDENTITY, options).expect("opened");
    assert_eq!(opened.damage, []);
    let versions = replay(&opened, &mut |damage| panic!("{damage}"));
    let mut next_seqno = [1; 16];
    for ((vbucket, _), version) in &versions {
        let next = &mut next_seqno[usize::from(*vbucket)];
        *next = (*next).max(version.seqno + 1);
    }
    let durable = versions.into_iter().filter(|(_, version)| version.value.is_some()).collect();
    Engine {
        shard: opened.shard,
        buffer: Buffer::new(4096),
        durable,
        dirty: BTreeMap::new(),
        next_seqno,
        at_rest: false,
        purge_before: NOW + 1,
    }
}

/// The newest version of each key that a replay finds.
pub fn replay<D: Disk>(
    opened: &Opened<D>,
    damaged: &mut dyn FnMut(&journal::log::Damage),
) -> BTreeMap<Key, Version> {
    let mut versions = BTreeMap::new();
    let mut buffer = Buffer::new(4096);
    for segment in &opened.segments {
        let visit = &mut |replayed: Replayed<'_>| match replayed {
            Replayed::Record(vbucket, record) => {
                let value = (record.kind == Kind::Document).then(|| record.value.to_vec());
                apply(&mut versions, (vbucket, record.key.to_vec()), Version { seqno: record.seqno, value });
            }
            Replayed::Damage(damage) => damaged(damage),
            Replayed::RunDone(_) => {}
        };
        segment.replay(&mut buffer, visit).expect("replayed");
    }
    versions
}

impl Engine {
    pub fn set(&mut self, vbucket: u16, key: &[u8], value: Option<&[u8]>) {
        let seqno = self.next_seqno[usize::from(vbucket)];
        self.next_seqno[usize::from(vbucket)] += 1;
        let version = Version { seqno, value: value.map(<[u8]>::to_vec) };
        self.dirty.insert((vbucket, key.to_vec()), version);
    }

    /// The documents once everything dirty is committed.
    pub fn wanted(&self) -> Documents {
        let mut versions = self.durable.clone();
        versions.extend(self.dirty.clone());
        documents(&versions)
    }

    pub fn flush(&mut self) -> Result<(), WriteError> {
        let mut records: Vec<(u16, Record<'_>)> = Vec::new();
        for ((vbucket, key), version) in &self.dirty {
            records.push((
                *vbucket,
                match &version.value {
                    Some(value) => document(version.seqno, key, value),
                    None => tombstone(version.seqno, key, NOW),
                },
            ));
        }
        records.sort_by_key(|(vbucket, record)| (*vbucket, record.seqno));
        super::commit(&mut self.shard, &mut self.buffer, &records)?;
        let dirty = std::mem::take(&mut self.dirty);
        for (key, version) in dirty {
            match version.value {
                Some(_) => self.durable.insert(key, version),
                None => self.durable.remove(&key),
            };
        }
        Ok(())
    }

    pub fn live_bytes(&self) -> u64 {
        let of =
            |(key, version): (&Key, &Version)| 40 + key.1.len() + version.value.as_ref().map_or(0, Vec::len);
        self.durable.iter().map(of).sum::<usize>() as u64
    }

    pub fn compact_step(&mut self, budget_bytes: usize) -> Result<Step, WriteError> {
        let aim = Aim { live_bytes: self.live_bytes(), at_rest: self.at_rest };
        let (durable, dirty) = (&self.durable, &self.dirty);
        let judge = &mut |vbucket: u16, record: &Record<'_>| {
            let key = (vbucket, record.key.to_vec());
            // If a key is dirty, a real engine does not know what it was when it was clean.
            if dirty.contains_key(&key) {
                return Verdict::LiveIfNewest;
            }
            let newest = durable.get(&key);
            let is_live = match record.kind {
                Kind::Document => newest.is_some_and(|newest| newest.seqno == record.seqno),
                _ => newest.is_none_or(|newest| newest.seqno < record.seqno),
            };
            if is_live { Verdict::Live } else { Verdict::Dead }
        };
        self.shard.compact_step(&mut self.buffer, budget_bytes, judge, aim, self.purge_before)
    }

    /// Everything durable is found by its seqno.
    pub fn check_reads(&self) {
        let (reader, mut buffer) = (self.shard.reader(), Vec::new());
        for ((vbucket, key), version) in &self.durable {
            let found = reader.read(*vbucket, version.seqno, &mut buffer).expect("read").expect("there");
            assert_eq!((found.key, Some(found.value)), (&key[..], version.value.as_deref()));
        }
    }
}

/// Sets and deletes five of forty keys, and flushes.
pub fn change_some(engine: &mut Engine, random: &mut Random, round: u64) {
    for _ in 0..5 {
        let key = format!("key{}", random.below(40)).into_bytes();
        let value = vec![round as u8; random.below(200) as usize];
        let value = (random.below(4) > 0).then_some(&value[..]);
        engine.set(random.below(u64::from(VBUCKETS)) as u16, &key, value);
    }
    engine.flush().unwrap();
}

pub fn documents(versions: &BTreeMap<Key, Version>) -> Documents {
    versions.iter().filter_map(|(key, version)| Some((key.clone(), version.value.clone()?))).collect()
}

/// Pseudo-random numbers, the same ones for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
