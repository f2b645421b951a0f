//! What is committed is replayed and found again, on both disks.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::log::{
    Buffer, Identity, Kind, OpenError, Options, ReadError, Record, Shard, WHOLE_RUN_BYTES, verify,
};
use journal::{Disk, RealDisk, SimulatedDisk, Survival};
use log::{DIRECTORY, IDENTITY, OPTIONS, Owned, commit, document, open, open_with, replay, tombstone};
use std::path::{Path, PathBuf};

#[test]
fn an_empty_shard_has_no_file_and_is_clean() {
    let disk = SimulatedDisk::new();
    let mut opened = open(&disk);
    assert!(opened.clean);
    opened.shard.close().unwrap();
    let mut buffer = Buffer::default();
    opened.shard.batch(&mut buffer).unwrap().commit(5).unwrap();
    assert_eq!(disk.names(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn records_come_back_as_they_were_written() {
    let disk = SimulatedDisk::new();
    let mut shard = open(&disk).shard;
    let mut buffer = Buffer::new(1 << 16);
    let long = vec![b'x'; 200_000];
    let state = Record { kind: Kind::State, ..document(9, b"", b"{}") };
    let prepare = Record {
        kind: Kind::Prepare,
        level: 3,
        committed: true,
        rev: (1 << 48) - 1,
        ..document(4, b"p", b"")
    };
    let records = [
        (3, document(1, b"a", b"1")),
        (3, document(2, b"b", &long)),
        (3, tombstone(7, b"c", 77)),
        (0, prepare),
        (15, state),
        (3, document(8, &[0xff; 255], b"after another vBucket")),
    ];
    commit(&mut shard, &mut buffer, &records).unwrap();
    let reader = shard.reader();
    for life in 0..3 {
        let opened = open(&disk);
        assert_eq!(opened.clean, life == 2);
        assert_eq!(opened.max_cas, 27);
        let (found, damage) = replay(&opened);
        assert_eq!(damage, []);
        let expected =
            records.iter().map(|(vbucket, record)| ((*vbucket, record.seqno), Owned::from(record)));
        assert_eq!(found, expected.collect());
        let mut bytes = Vec::new();
        for (vbucket, record) in &records {
            let expected = (record.kind != Kind::State).then_some(*record);
            assert_eq!(opened.shard.reader().read(*vbucket, record.seqno, &mut bytes).unwrap(), expected);
            assert_eq!(reader.read(*vbucket, record.seqno, &mut bytes).unwrap(), expected);
        }
        assert_eq!(reader.read(3, 3, &mut bytes).unwrap(), None);
        assert_eq!(reader.read(4, 1, &mut bytes).unwrap(), None);
        if life == 1 {
            let mut shard = opened.shard;
            shard.close().unwrap();
        }
    }
}

/// A record in a long run is found by the headers before it, and its value is read to where it is wanted: the buffer
/// never has more than a short run.
#[test]
fn a_long_value_is_read_to_where_it_is_wanted() {
    let disk = SimulatedDisk::new();
    let mut shard = open(&disk).shard;
    let (mut buffer, mut bytes) = (Buffer::new(1 << 16), Vec::new());
    let values =
        [3 << 20, 5, 1 << 20, 300_000, 40_000, 0].map(|length| vec![b'a' + (length % 23) as u8; length]);
    let records: Vec<_> =
        values.iter().enumerate().map(|(at, value)| (3, document(1 + at as u64, b"key", value))).collect();
    commit(&mut shard, &mut buffer, &records).unwrap();
    let reader = shard.reader();
    for (_, record) in &records {
        let found = reader.find(3, record.seqno, &mut bytes).unwrap().unwrap();
        assert_eq!(found.value_bytes(), record.value.len());
        let mut value = vec![0; found.value_bytes()];
        let apart = found.read_apart(&mut bytes, &mut value).unwrap();
        assert_eq!(Record { value: &value, ..apart }, *record);
        assert!(bytes.capacity() <= WHOLE_RUN_BYTES, "{} bytes", bytes.capacity());
    }
    assert!(reader.find(3, 7, &mut bytes).unwrap().is_none());
    assert!(bytes.capacity() <= WHOLE_RUN_BYTES, "{} bytes", bytes.capacity());
    for (_, record) in &records {
        assert_eq!(reader.read(3, record.seqno, &mut bytes).unwrap(), Some(*record));
    }
}

/// The value is compared with its checksum wherever it was read to.
#[test]
fn damage_in_a_long_value_is_noticed() {
    let disk = SimulatedDisk::new();
    let mut shard = open(&disk).shard;
    let value = vec![7; 400_000];
    let records = [1, 3, 5].map(|seqno| (3, document(seqno, b"key", &value)));
    commit(&mut shard, &mut Buffer::new(1 << 16), &records).unwrap();
    let (reader, mut bytes, mut into) = (shard.reader(), Vec::new(), vec![0; value.len()]);
    let is_long = |path: &PathBuf| disk.read(path).is_some_and(|bytes| bytes.len() > 1_000_000);
    let path = disk.names().into_iter().find(is_long).unwrap();
    assert!(disk.flip(&path, 50_000, 3));
    let damaged = reader.find(3, 1, &mut bytes).unwrap().unwrap();
    assert!(matches!(damaged.read_apart(&mut bytes, &mut into), Err(ReadError::Damaged(_))));
    assert!(matches!(reader.read(3, 1, &mut bytes), Err(ReadError::Damaged(_))));
    let whole = reader.find(3, 5, &mut bytes).unwrap().unwrap();
    assert_eq!(whole.read_apart(&mut bytes, &mut into).unwrap().key, b"key");
    assert_eq!(into, value);
    assert!(reader.find(3, 4, &mut bytes).unwrap().is_none());
}

#[test]
fn opening_takes_the_mark_of_a_clean_end_away() {
    let disk = SimulatedDisk::new();
    let mut buffer = Buffer::default();
    let mut shard = open(&disk).shard;
    commit(&mut shard, &mut buffer, &[(0, document(1, b"a", b"1"))]).unwrap();
    shard.close().unwrap();
    disk.crash(Survival::Synced);
    assert!(open(&disk).clean);
    disk.crash(Survival::Synced);
    assert!(!open(&disk).clean);
    open(&disk).shard.close().unwrap();
    let opened = open(&disk);
    assert!(opened.clean);
    assert_eq!(replay(&opened).0.len(), 1);
}

/// What is written little needs little memory; a batch that fills the buffer makes it grow, once.
#[test]
fn a_buffer_grows_when_it_was_full() {
    let disk = SimulatedDisk::new();
    let (mut shard, mut buffer) = (open(&disk).shard, Buffer::default());
    assert_eq!(buffer.held_bytes(), 0);
    let value = [7; 1000];
    for seqno in 1..=5 {
        commit(&mut shard, &mut buffer, &[(0, document(seqno, b"few", &value))]).unwrap();
        assert_eq!(buffer.held_bytes(), 64 << 10);
    }
    let large = vec![8; 500_000];
    let mut many: Vec<_> = (6..=205).map(|seqno| (1, document(seqno, b"many", &value))).collect();
    many.extend([(2, document(300, b"large", &large)), (2, document(301, b"larger", &large))]);
    commit(&mut shard, &mut buffer, &many).unwrap();
    assert_eq!((buffer.held_bytes(), buffer.capacity()), (1 << 20, 1 << 20));
    let (found, damage) = replay(&open(&disk));
    assert_eq!((found.len(), damage.len()), (5 + 200 + 2, 0));
    assert!(found.values().all(|record| [1000, 500_000].contains(&record.value.len())));
}

#[test]
fn full_segments_are_sealed_and_still_found() {
    let disk = SimulatedDisk::new();
    let options = Options { segment_bytes: 2000, ..OPTIONS };
    let mut buffer = Buffer::new(4096);
    let mut shard = open_with(&disk, options).shard;
    let value = [7; 100];
    let key = |seqno: u64| format!("key{}", seqno % 50).into_bytes();
    for seqno in (1..=200).step_by(2) {
        let keys = [key(seqno), key(seqno + 1)];
        let [a, b] = [document(seqno, &keys[0], &value), document(seqno + 1, &keys[1], &value)];
        commit(&mut shard, &mut buffer, &[(1, a), (2, b)]).unwrap();
    }
    let figures = shard.figures();
    assert!(figures.segments > 10, "{figures:?}");
    assert!(figures.runs_in_memory < 20, "{figures:?}");
    let opened = open_with(&disk, options);
    let (found, damage) = replay(&opened);
    assert_eq!(damage, []);
    assert_eq!(found.len(), 200);
    let mut bytes = Vec::new();
    for ((vbucket, seqno), owned) in &found {
        for reader in [shard.reader(), opened.shard.reader()] {
            let record = reader.read(*vbucket, *seqno, &mut bytes).unwrap().expect("there");
            assert_eq!((Owned::from(&record), record.seqno), (owned.clone(), *seqno));
        }
    }
    assert_eq!(opened.shard.figures().bytes, figures.bytes);
}

#[test]
fn a_batch_that_is_dropped_was_never_there() {
    let disk = SimulatedDisk::new();
    let mut buffer = Buffer::new(4096);
    let mut shard = open(&disk).shard;
    let value = [7; 3000];
    for _ in 0..2 {
        let mut batch = shard.batch(&mut buffer).unwrap();
        batch.push(&document(1, b"a", &value));
        batch.write_out().unwrap();
        batch.push(&document(2, b"b", &value));
    }
    commit(&mut shard, &mut buffer, &[(0, document(1, b"c", b"1"))]).unwrap();
    let mut batch = shard.batch(&mut buffer).unwrap();
    batch.push(&document(5, b"e", &value));
    batch.write_out().unwrap();
    commit(&mut shard, &mut buffer, &[(0, document(3, b"d", b"2"))]).unwrap();
    let (found, damage) = replay(&open(&disk));
    assert_eq!(damage, []);
    let keys: Vec<_> = found.into_iter().map(|((_, seqno), owned)| (seqno, owned.key)).collect();
    assert_eq!(keys, [(1, b"c".to_vec()), (3, b"d".to_vec())]);
}

#[test]
fn segments_of_others_are_refused() {
    let disk = SimulatedDisk::new();
    let mut shard = open(&disk).shard;
    commit(&mut shard, &mut Buffer::default(), &[(0, document(1, b"a", b"1"))]).unwrap();
    let other = Identity { shard: 1, ..IDENTITY };
    let result = Shard::open(disk.clone(), Path::new(DIRECTORY), other, OPTIONS);
    assert!(matches!(result, Err(OpenError::Foreign { .. })));
    let path = Path::new(DIRECTORY).join("0000000001.segment");
    assert!(disk.flip(&path, 8, 1), "the version, without the checksum");
    let opened = open(&disk);
    assert_eq!(opened.damage.len(), 1, "{:?}", opened.damage);
}

#[test]
fn a_real_directory_works_the_same() {
    let directory = std::env::temp_dir().join(format!("journal-log-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let disk = RealDisk::default();
    let open = || {
        Shard::open(disk.clone(), &directory, IDENTITY, Options { segment_bytes: 3000, ..OPTIONS }).unwrap()
    };
    let mut buffer = Buffer::new(1 << 16);
    let mut shard = open().shard;
    for seqno in 1..=100 {
        commit(&mut shard, &mut buffer, &[(seqno as u16 % 3, document(seqno, b"key", b"value"))]).unwrap();
    }
    drop(shard);
    let opened = open();
    let (found, damage) = replay(&opened);
    assert_eq!((found.len(), damage), (100, vec![]));
    let mut bytes = Vec::new();
    assert!(opened.shard.reader().read(1, 100, &mut bytes).unwrap().is_some());
    assert!(disk.list(&directory).unwrap().len() > 2);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// After short batches the file has zeros, so that the next ones need not lengthen it. They are not a torn tail, and
/// are removed at the end.
#[test]
fn short_batches_are_written_into_zeros() {
    let disk = SimulatedDisk::new();
    let mut shard = open(&disk).shard;
    let mut buffer = Buffer::new(1 << 16);
    let path = Path::new(DIRECTORY).join("0000000001.segment");
    let length = || disk.read(&path).unwrap().len();
    let mut lengths = Vec::new();
    for seqno in 1..=100 {
        commit(&mut shard, &mut buffer, &[(3, document(seqno, b"key", b"value"))]).unwrap();
        lengths.push(length());
        assert_eq!(shard.figures().bytes, length() as u64);
    }
    let all = lengths.clone();
    lengths.dedup();
    assert!((2..=6).contains(&lengths.len()), "{all:?}");
    let torn = || verify(&disk, Path::new(DIRECTORY), &mut Buffer::default()).unwrap().torn_bytes;
    assert_eq!(torn(), 0);
    disk.crash(Survival::Synced);
    let opened = open(&disk);
    assert_eq!((replay(&opened).0.len(), replay(&opened).1, opened.clean), (100, Vec::new(), false));
    drop(opened);
    let mut shard = open(&disk).shard;
    commit(&mut shard, &mut buffer, &[(3, document(101, b"key", b"value"))]).unwrap();
    let last = length() - 1;
    disk.flip(&path, last, 0);
    assert!(torn() > 0, "what is no zero was not written ahead");
    disk.flip(&path, last, 0);
    shard.close().unwrap();
    assert!(length() < last);
    let opened = open(&disk);
    assert!(opened.clean);
    assert_eq!(replay(&opened).0.len(), 101);
}

/// A full disk does not hinder a batch that itself has room.
#[test]
fn zeros_that_find_no_room_are_left_out() {
    let disk = SimulatedDisk::new();
    let mut shard = open(&disk).shard;
    let mut buffer = Buffer::new(1 << 16);
    disk.limit_space(Some(800));
    commit(&mut shard, &mut buffer, &[(3, document(1, b"key", b"value"))]).unwrap();
    let bytes = shard.figures().bytes;
    assert!(bytes < 400, "{bytes}");
    assert_eq!(disk.read(&Path::new(DIRECTORY).join("0000000001.segment")).unwrap().len() as u64, bytes);
    disk.crash(Survival::Synced);
    assert_eq!(replay(&open(&disk)).0.len(), 1);
}
