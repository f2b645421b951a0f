//! The recovery of a log's segments: no file makes it panic or loop, and a shard that was opened can be written to,
//! closed, and reopened with the same records.
//!
//! An input describes two segments, piece by piece; the checksums are computed here, because a fuzzer does not find
//! them. Each piece is a byte for its kind, followed by the fields that are interesting to get wrong. A 0xff begins the
//! second segment.
#![no_main]

use journal::SimulatedDisk;
use journal::log::{Aim, Buffer, Identity, Kind, Options, Record, Replayed, Shard, Step, Verdict, verify};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;
use std::path::Path;

const IDENTITY: Identity = Identity { bucket: [1; 16], shard: 0, vbuckets: 4 };
const DIRECTORY: &str = "/shard";

fn seed(segment: u64, offset: u64) -> u32 {
    ((segment << 40 ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Appends the checksum of the bytes from `start` on.
fn sign(file: &mut Vec<u8>, segment: u64, start: usize) {
    let sum = crc32c::crc32c_append(seed(segment, start as u64), &file[start..]);
    file.extend_from_slice(&sum.to_le_bytes());
}

fn header(segment: u64, previous: u64, committed: u64, first_batch: u64) -> Vec<u8> {
    let mut file = b"DORMOUSE\x01\0\0\0\0\0\x04\0".to_vec();
    file.extend_from_slice(&IDENTITY.bucket);
    for number in [segment, previous, committed, first_batch] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    file.extend_from_slice(&[u8::from(committed % 2 == 1), 0, 0, 0]);
    sign(&mut file, segment, 0);
    file
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A small or a very large number; not the largest one, after which nothing can be written.
    fn number(&mut self) -> Option<u64> {
        let byte = self.byte()?;
        Some(if byte >= 0xf0 { u64::MAX / 3 >> (4 * (byte & 15)) } else { u64::from(byte) })
    }
}

fn put48(file: &mut Vec<u8>, number: u64) {
    file.extend_from_slice(&number.to_le_bytes()[..6]);
}

/// Appends one piece; returns `None` at the end of the input.
fn piece(input: &mut Input<'_>, kind: u8, file: &mut Vec<u8>, segment: u64) -> Option<()> {
    let start = file.len();
    match kind % 6 {
        0 => {
            // The header of a run; its length counts from here.
            let (vbucket, batch, first, last) =
                (input.byte()?, input.number()?, input.byte()?, input.byte()?);
            let (length, records) = (input.number()?, input.byte()?);
            file.extend_from_slice(b"RUN\x01");
            file.extend_from_slice(&[vbucket, 0, 0, 0]);
            file.extend_from_slice(&batch.to_le_bytes());
            put48(file, first.into());
            put48(file, last.into());
            file.extend_from_slice(&(length as u32).to_le_bytes());
            file.extend_from_slice(&u32::from(records).to_le_bytes());
            sign(file, segment, start);
        }
        1 => {
            // A record.
            let (kind, key, value, seqno) =
                (input.byte()?, input.byte()? % 8, input.number()?, input.byte()?);
            file.extend_from_slice(&[0; 4]);
            file.extend_from_slice(&(value as u32).to_le_bytes());
            file.extend_from_slice(&[kind, key, 0, 0]);
            file.extend_from_slice(&[7; 16]);
            put48(file, seqno.into());
            put48(file, 1);
            file.resize(file.len() + usize::from(key) + value.min(64) as usize, b'k');
            let sum = crc32c::crc32c_append(seed(segment, start as u64), &file[start + 4..]);
            file[start..start + 4].copy_from_slice(&sum.to_le_bytes());
        }
        2 => {
            // A commit record and its list of runs.
            let (runs, batch, begins) = (input.byte()? % 4, input.number()?, input.number()?);
            let (synced, flags) = (input.number()?, input.byte()? % 2);
            let mut list = Vec::new();
            for _ in 0..runs {
                put48(&mut list, input.number()?);
                list.extend_from_slice(&[input.byte()?, 0]);
                put48(&mut list, input.byte()?.into());
                put48(&mut list, input.byte()?.into());
                list.extend_from_slice(&(input.number()? as u32).to_le_bytes());
                list.extend_from_slice(&[input.byte()?, 0, 0, 0]);
            }
            file.extend_from_slice(b"CMT\x01");
            file.extend_from_slice(&[runs, 0, 0, 0]);
            // No copies: a claim that records were copied cannot be checked.
            for number in [batch, begins, 5, synced, 0] {
                file.extend_from_slice(&number.to_le_bytes());
            }
            file.extend_from_slice(&[0, 0, 0, 0, flags, 0, 0, 0]);
            let sum = crc32c::crc32c_append(seed(segment, start as u64), &list);
            file.extend_from_slice(&sum.to_le_bytes());
            sign(file, segment, start);
            file.extend_from_slice(&list);
        }
        3 => {
            // A trailer; the pieces before it serve as its summary and table, which are valid only by luck.
            let (back, entries, lines) = (input.number()?, input.number()?, input.byte()? % 4);
            file.extend_from_slice(b"DORMSEAL");
            file.extend_from_slice(&(start as u64).wrapping_sub(back).to_le_bytes());
            file.extend_from_slice(&(entries as u32).to_le_bytes());
            file.extend_from_slice(&[lines, 0, 0, 0]);
            file.extend_from_slice(&[3; 28]);
            let summary = start.saturating_sub(usize::from(lines) * 28);
            let sum = crc32c::crc32c_append(seed(segment, summary as u64), &file[summary..start]);
            file.extend_from_slice(&sum.to_le_bytes());
            file.extend_from_slice(&[0; 4]);
            sign(file, segment, start);
        }
        4 => file.resize(start + usize::from(input.byte()?), 0),
        _ => file.push(input.byte()?),
    }
    Some(())
}

fn files(input: &[u8]) -> Option<[Vec<u8>; 2]> {
    let mut input = Input(input);
    let mut first = header(1, 0, 0, 1);
    let mut second = None;
    while let Some(kind) = input.byte() {
        match &mut second {
            None if kind == 0xff => {
                second = Some(header(2, input.byte()?.into(), input.number()?, input.number()?));
            }
            None => piece(&mut input, kind, &mut first, 1)?,
            Some(second) => piece(&mut input, kind, second, 2)?,
        }
    }
    Some([first, second.unwrap_or_default()])
}

/// vBucket, seqno, key and value. Aborts are left out: compaction drops an abort that supersedes nothing.
type Records = BTreeSet<(u16, u64, Vec<u8>, Vec<u8>)>;

fn open(disk: &SimulatedDisk) -> (Shard<SimulatedDisk>, Records) {
    let options = Options { segment_bytes: 300, sync: true };
    let opened = Shard::open(disk.clone(), Path::new(DIRECTORY), IDENTITY, options).expect("opened");
    let mut records = Records::new();
    for segment in &opened.segments {
        let visit = &mut |replayed: Replayed<'_>| {
            if let Replayed::Record(vbucket, record) = replayed
                && record.kind != Kind::Abort
            {
                records.insert((vbucket, record.seqno, record.key.to_vec(), record.value.to_vec()));
            }
        };
        segment.replay(&mut Buffer::new(0), visit).expect("the disk works");
    }
    (opened.shard, records)
}

fuzz_target!(|input: &[u8]| {
    let Some(files) = files(input) else { return };
    let disk = SimulatedDisk::new();
    for (number, file) in files.iter().enumerate().filter(|(_, file)| !file.is_empty()) {
        disk.put(&Path::new(DIRECTORY).join(format!("{:010}.segment", number + 1)), file);
    }
    let mut buffer = Buffer::new(0);
    verify(&disk, Path::new(DIRECTORY), &mut buffer).expect("the disk works");
    let (mut shard, mut records) = open(&disk);
    let mut bytes = Vec::new();
    for (vbucket, seqno, ..) in &records {
        let _ = shard.reader().read(*vbucket, *seqno, &mut bytes);
    }
    if shard.begin().is_err() {
        // It is unknown which part is intact: the shard is read-only.
        return;
    }
    for seqno in 1000..1003 {
        let record = Record {
            kind: Kind::Document,
            seqno,
            cas: 1,
            rev: 1,
            expiry: 0,
            flags: 0,
            datatype: 0,
            level: 0,
            committed: false,
            key: b"new",
            value: &[1; 200],
        };
        let mut batch = shard.batch(&mut buffer).expect("the disk works");
        batch.begin(2);
        batch.push(&record);
        batch.commit(1).expect("the disk works");
        records.insert((2, seqno, b"new".to_vec(), vec![1; 200]));
        let found = shard.reader().read(2, seqno, &mut bytes);
        assert!(found.is_err() || found.is_ok_and(|found| found == Some(record)));
    }
    for _ in 0..1000 {
        let judge = &mut |_: u16, _: &Record<'_>| Verdict::Live;
        if shard
            .compact_step(&mut buffer, 100, judge, Aim { live_bytes: 0, at_rest: true }, 0)
            .expect("the disk works")
            == Step::Idle
        {
            break;
        }
    }
    shard.close().expect("the disk works");
    drop(shard);
    let (_, again) = open(&disk);
    assert!(again.is_superset(&records), "{records:?} became {again:?}");
    // With two headers that no writer would have put side by side, a compaction may change which tail is torn.
    assert!(!files[1].is_empty() || again == records, "{records:?} became {again:?}");
    other_manifest(&disk, input);
});

/// Modifies the manifest according to the input, with valid checksums, and opens the shard once more.
fn other_manifest(disk: &SimulatedDisk, input: &[u8]) {
    let path = Path::new(DIRECTORY).join("MANIFEST");
    let Some(file) = disk.read(&path) else { return };
    let mut copy = file[..file.len() / 2 - 4].to_vec();
    for change in input.chunks_exact(2).take(8) {
        let at = usize::from(change[0]) % copy.len();
        copy[at] ^= change[1];
    }
    sign(&mut copy, 0, 0);
    disk.put(&path, &[copy.as_slice(), &copy].concat());
    let _ = verify(disk, Path::new(DIRECTORY), &mut Buffer::new(0));
    let options = Options { segment_bytes: 300, sync: true };
    let _ = Shard::open(disk.clone(), Path::new(DIRECTORY), IDENTITY, options);
}
