//! A vBucket's records in the order of their seqnos, while they are written and compacted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::log::{Buffer, Kind, Options, Reader, Record, SHOWN_MOST, Step, Wanted};
use journal::{Disk, SimulatedDisk};
use log::model::{Random, VBUCKETS, change_some, recover};
use log::{OPTIONS, commit, document, open, tombstone};
use std::collections::BTreeMap;

const SMALL: Options = Options { segment_bytes: 3000, ..OPTIONS };

type Seen = Vec<(u64, Kind, Vec<u8>, Vec<u8>)>;

/// Everything above `after`, in pieces of about `room` bytes; `between` is called after each.
fn read_all<D: Disk>(
    reader: &Reader<D>,
    vb: u16,
    after: u64,
    end: u64,
    room: usize,
    between: &mut dyn FnMut(),
) -> Seen {
    let (mut seen, mut piece, mut reached) = (Seen::new(), Vec::new(), after);
    while reached < end {
        let before = reached;
        let mut last = before;
        let wanted = Wanted { vbucket: vb, after: before, end, which: &|_, _, _| true };
        reached = reader
            .read_in_order(&wanted, room, &mut piece, &mut |records: &[Record<'_>]| {
                assert!((1..=SHOWN_MOST).contains(&records.len()));
                for record in records {
                    assert!(last < record.seqno, "{} after {last}", record.seqno);
                    last = record.seqno;
                    seen.push((record.seqno, record.kind, record.key.to_vec(), record.value.to_vec()));
                }
            })
            .unwrap();
        assert!(before < reached && last <= reached && reached <= end, "{before} {last} {reached}");
        between();
    }
    seen
}

#[test]
fn records_come_in_order_whatever_the_pieces() {
    let disk = SimulatedDisk::new();
    let mut shard = open(&disk).shard;
    let mut buffer = Buffer::new(1 << 16);
    let long = vec![b'x'; 200_000];
    let mut expected = Vec::new();
    for seqno in (1..200).step_by(3) {
        let (one, two) = (seqno.to_string(), (seqno + 1).to_string());
        let value: &[u8] = if seqno % 7 == 0 { &long } else { b"value" };
        let records = [
            (3, document(seqno, one.as_bytes(), value)),
            (2, document(seqno, b"other", b"")),
            (3, tombstone(seqno + 1, two.as_bytes(), 9)),
        ];
        commit(&mut shard, &mut buffer, &records).unwrap();
        expected.push((seqno, Kind::Document, one.into_bytes(), value.to_vec()));
        expected.push((seqno + 1, Kind::Tombstone, two.into_bytes(), Vec::new()));
    }
    for room in [1, 100, 10_000, 1 << 20] {
        assert_eq!(read_all(&shard.reader(), 3, 0, 1000, room, &mut || {}), expected);
        let late: Seen = expected.iter().filter(|one| one.0 > 50 && one.0 <= 90).cloned().collect();
        assert_eq!(read_all(&shard.reader(), 3, 50, 90, room, &mut || {}), late);
    }
    assert_eq!(read_all(&shard.reader(), 4, 0, 1000, 100, &mut || {}), []);
    // Some of them only.
    let which = |kind: Kind, datatype: u8, seqno: u64| {
        assert_eq!(datatype, u8::from(kind == Kind::Document));
        kind == Kind::Tombstone || seqno == 7
    };
    let (mut seen, wanted) = (Vec::new(), Wanted { vbucket: 3, after: 0, end: 1000, which: &which });
    let mut note = |records: &[Record<'_>]| seen.extend(records.iter().map(|record| record.seqno));
    assert_eq!(shard.reader().read_in_order(&wanted, 1 << 30, &mut Vec::new(), &mut note).unwrap(), 1000);
    let of_these =
        |one: &&(u64, Kind, Vec<u8>, Vec<u8>)| which(one.1, u8::from(one.1 == Kind::Document), one.0);
    assert_eq!(seen, expected.iter().filter(of_these).map(|one| one.0).collect::<Vec<_>>());
}

/// The newest version of each key is among what is read, although compaction moves it between two pieces.
#[test]
fn compaction_hides_nothing() {
    for (seed, room) in (1..40).zip([1, 50, 200, 1000].into_iter().cycle()) {
        let disk = SimulatedDisk::new();
        let mut engine = recover(&disk, SMALL);
        let mut random = Random(seed);
        for round in 0..60 {
            change_some(&mut engine, &mut random, round);
        }
        let reader = engine.shard.reader();
        for vb in 0..VBUCKETS {
            let end = engine.next_seqno[usize::from(vb)] - 1;
            let mut seen: BTreeMap<Vec<u8>, (u64, Kind)> = BTreeMap::new();
            let wanted: Vec<_> = engine
                .durable
                .iter()
                .filter(|((of, _), _)| *of == vb)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let records = read_all(&reader, vb, 0, end, room, &mut || {
                for _ in 0..3 {
                    assert!(!matches!(engine.compact_step(200).unwrap(), Step::Damaged(_)));
                }
            });
            for (seqno, kind, key, _) in records {
                seen.insert(key, (seqno, kind));
            }
            for ((_, key), version) in wanted {
                assert_eq!(seen.get(&key), Some(&(version.seqno, Kind::Document)), "seed {seed}");
            }
        }
    }
}
