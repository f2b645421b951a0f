//! What the tests of the log share: self-describing records, and what a shard replays.
#![allow(dead_code)]

pub mod model;

use journal::Disk;
use journal::log::{Buffer, Damage, Identity, Kind, Opened, Options, Record, Replayed, Shard, WriteError};
use std::collections::BTreeMap;
use std::path::Path;

pub const IDENTITY: Identity = Identity { bucket: *b"bucket of a test", shard: 0, vbuckets: 16 };
pub const DIRECTORY: &str = "/bucket/shard";
pub const OPTIONS: Options = Options { segment_bytes: 64 << 20, sync: true };

pub fn document<'a>(seqno: u64, key: &'a [u8], value: &'a [u8]) -> Record<'a> {
    Record {
        kind: Kind::Document,
        seqno,
        cas: seqno * 3,
        rev: 1,
        expiry: 0,
        flags: 7,
        datatype: 1,
        level: 0,
        committed: false,
        key,
        value,
    }
}

pub fn tombstone(seqno: u64, key: &[u8], deleted_at: u32) -> Record<'_> {
    Record { kind: Kind::Tombstone, expiry: deleted_at, datatype: 0, flags: 0, ..document(seqno, key, b"") }
}

pub fn open<D: Disk>(disk: &D) -> Opened<D> {
    open_with(disk, OPTIONS)
}

pub fn open_with<D: Disk>(disk: &D, options: Options) -> Opened<D> {
    Shard::open(disk.clone(), Path::new(DIRECTORY), IDENTITY, options).expect("opened")
}

/// Commits these records as one batch; records that do not fit the buffer are written long.
pub fn commit<D: Disk>(
    shard: &mut Shard<D>,
    buffer: &mut Buffer,
    records: &[(u16, Record<'_>)],
) -> Result<(), WriteError> {
    let mut batch = shard.batch(buffer)?;
    let mut max_cas = 0;
    for (vbucket, record) in records {
        batch.begin(*vbucket);
        let bytes = record.encoded_bytes();
        if !batch.fits_buffer(bytes) {
            batch.push_long(record)?;
            continue;
        }
        if !batch.fits(bytes) {
            batch.write_out()?;
        }
        batch.push(record);
        max_cas = max_cas.max(record.cas);
    }
    batch.commit(max_cas).map(drop)
}

/// An owned record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    pub kind: Kind,
    pub cas: u64,
    pub expiry: u32,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl From<&Record<'_>> for Owned {
    fn from(record: &Record<'_>) -> Self {
        let (kind, cas, expiry) = (record.kind, record.cas, record.expiry);
        Self { kind, cas, expiry, key: record.key.to_vec(), value: record.value.to_vec() }
    }
}

/// All records of a shard, by vBucket and seqno; and the damage that was found.
pub fn replay<D: Disk>(opened: &Opened<D>) -> (BTreeMap<(u16, u64), Owned>, Vec<Damage>) {
    let (mut records, mut damage) = (BTreeMap::new(), opened.damage.clone());
    let mut runs = [0; 16];
    let mut buffer = Buffer::new(1 << 16);
    for segment in &opened.segments {
        let visit = &mut |replayed: Replayed<'_>| match replayed {
            Replayed::Record(vbucket, record) => {
                records.insert((vbucket, record.seqno), Owned::from(record));
            }
            Replayed::RunDone(vbucket) => runs[usize::from(vbucket)] += 1,
            Replayed::Damage(found) => damage.push(found.clone()),
        };
        segment.replay(&mut buffer, visit).expect("replayed");
    }
    for (vbucket, runs) in runs.into_iter().enumerate() {
        assert_eq!(opened.runs(vbucket as u16), runs, "runs of vBucket {vbucket}");
    }
    (records, damage)
}
