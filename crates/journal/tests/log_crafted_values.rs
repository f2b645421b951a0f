//! A client knows the format and chooses bytes that, where they end up, would be a run and a commit record. A torn
//! write may leave only those, and they must not count.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::log::{Buffer, Kind};
use journal::{Disk, File, Open, SimulatedDisk};
use log::{DIRECTORY, commit, document, open, replay};
use std::path::Path;

const HEADER: usize = 72;
const RUN: usize = 40;
const RECORD: usize = 40;
const COMMIT: usize = 64;

/// The start value of a checksum, if segment and offset are known; with a salt of 0, as in version 1 of the format.
fn seed(segment: u64, offset: usize, salt: u64) -> u32 {
    ((segment << 40 ^ salt ^ offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

fn sum(segment: u64, offset: usize, salt: u64, bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c_append(seed(segment, offset, salt), bytes).to_le_bytes()
}

fn put48(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes()[..6]);
}

/// A run of vBucket 0 with one document, made for this place of segment 1, and the commit record of a batch that begins
/// at `start`.
fn forged(offset: usize, start: usize, salt: u64) -> Vec<u8> {
    let batch = 2_u64;
    let (key, value) = (b"forged", b"by a client");
    let mut record = vec![0; 4];
    record.extend_from_slice(&(value.len() as u32).to_le_bytes());
    record.extend_from_slice(&[Kind::Document as u8, key.len() as u8, 1, 0]);
    record.extend_from_slice(&[0; 8]);
    record.extend_from_slice(&7_u64.to_le_bytes());
    put48(&mut record, 1_000_000);
    put48(&mut record, 1);
    assert_eq!(record.len(), RECORD);
    record.extend_from_slice(key);
    record.extend_from_slice(value);
    let checksum = sum(1, offset + RUN, salt, &record[4..]);
    record[..4].copy_from_slice(&checksum);

    let length = (RUN + record.len()) as u32;
    let mut run = b"RUN\x01\0\0\0\0".to_vec();
    run.extend_from_slice(&batch.to_le_bytes());
    put48(&mut run, 1_000_000);
    put48(&mut run, 1_000_000);
    run.extend_from_slice(&length.to_le_bytes());
    run.extend_from_slice(&1_u32.to_le_bytes());
    let checksum = sum(1, offset, salt, &run);
    run.extend_from_slice(&checksum);

    let mut entry = Vec::new();
    put48(&mut entry, offset as u64);
    entry.extend_from_slice(&0_u16.to_le_bytes());
    put48(&mut entry, 1_000_000);
    put48(&mut entry, 1_000_000);
    entry.extend_from_slice(&length.to_le_bytes());
    entry.extend_from_slice(&1_u32.to_le_bytes());

    let mut bytes = [run, record].concat();
    let at = offset + bytes.len();
    let mut head = b"CMT\x01\x01\0\0\0".to_vec();
    for number in [batch, start as u64, 7, 0, 0] {
        head.extend_from_slice(&number.to_le_bytes());
    }
    head.extend_from_slice(&[0; 8]);
    head.extend_from_slice(&sum(1, at, salt, &entry));
    let checksum = sum(1, at, salt, &head);
    head.extend_from_slice(&checksum);
    assert_eq!(head.len(), COMMIT);
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(&entry);
    bytes
}

/// Writes one honest batch and then one with a value that hides a forged one. The power fails before the end of that
/// write is on disk, and its first bytes are missing too. Returns what a start finds.
fn found_after_a_torn_write(salt_of: impl Fn(&SimulatedDisk) -> u64) -> Vec<Vec<u8>> {
    let disk = SimulatedDisk::new();
    let mut shard = open(&disk).shard;
    let mut buffer = Buffer::new(1 << 16);
    commit(&mut shard, &mut buffer, &[(0, document(1, b"honest", b"value"))]).unwrap();
    let (path, synced) =
        (Path::new(DIRECTORY).join("0000000001.segment"), Path::new(DIRECTORY).join("SYNCED"));
    let synced_before = disk.read(&synced).unwrap();
    let honest = HEADER + RUN + RECORD + b"honestvalue".len() + COMMIT + 28;
    let start = honest + RUN + RECORD + b"a client's".len();
    let value = forged(start, honest, salt_of(&disk));
    commit(&mut shard, &mut buffer, &[(0, document(2, b"a client's", &value))]).unwrap();
    drop(shard);
    assert_eq!(
        &disk.read(&path).unwrap()[start..start + value.len()],
        &value[..],
        "it lies where it was made for"
    );
    let file = disk.open(&path, Open::ReadWrite).unwrap();
    // The sector of the outer run's header never arrived, nor what follows the value.
    file.write_at(&vec![0; start - honest], honest as u64).unwrap();
    file.set_length((start + value.len()) as u64).unwrap();
    // The second batch was never acknowledged.
    disk.put(&synced, &synced_before);
    let (records, damage) = replay(&open(&disk));
    assert_eq!(damage, []);
    records.into_values().map(|record| record.key).collect()
}

#[test]
fn a_value_that_looks_like_a_batch_does_not_count_after_a_torn_write() {
    assert_eq!(found_after_a_torn_write(|_| 0), [b"honest".to_vec()]);
}

/// The forgery is a good one: with the salt, which is in the file alone, it would count.
#[test]
fn only_the_salt_stands_between_a_forged_batch_and_a_replay() {
    let salt_of = |disk: &SimulatedDisk| {
        let header = disk.read(&Path::new(DIRECTORY).join("0000000001.segment")).unwrap();
        u64::from_le_bytes(header[56..64].try_into().unwrap())
    };
    assert_eq!(found_after_a_torn_write(salt_of), [b"honest".to_vec(), b"forged".to_vec()]);
}
