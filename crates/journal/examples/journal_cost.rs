//! Measures what writing, replaying and finding records costs, and how close commits come to the disk's own sync rate:
//! `cargo run --release --example journal_cost -p journal -- DIRECTORY [RECORDS]`.
//!
//! The directory must not exist; it is removed at the end. On tmpfs it shows the CPU, on a disk the syncs.
#![allow(clippy::expect_used, clippy::print_stdout)]

use journal::log::{Buffer, Identity, Kind, Options, Record, Replayed, Shard};
use journal::{Disk, File, Open, RealDisk, write_all_at};
use std::path::Path;
use std::time::{Duration, Instant};

const VBUCKETS: u16 = 1024;
const KEY: &[u8; 24] = b"000000000000000000000000";
const COMMITS: u64 = 500;

fn record<'a>(seqno: u64, key: &'a [u8], value: &'a [u8]) -> Record<'a> {
    Record {
        kind: Kind::Document,
        seqno,
        cas: seqno,
        rev: 1,
        expiry: 0,
        flags: 0,
        datatype: 0,
        level: 0,
        committed: false,
        key,
        value,
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs it and prints how many per wall second and per CPU second.
fn measure(name: &str, count: u64, work: impl FnOnce()) {
    let (wall, used) = (Instant::now(), cpu());
    work();
    let (wall, used) = (wall.elapsed(), cpu() - used);
    let rate = |time: Duration| count as f64 / time.as_secs_f64();
    println!("{name:<44} {:>12.0} /s {:>12.0} /CPU s   {wall:.2?}", rate(wall), rate(used));
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory that does not exist");
    let records: u64 = arguments.next().map_or(2_000_000, |records| records.parse().expect("a number"));
    let directory = Path::new(&directory);
    std::fs::create_dir(directory).expect("created");
    let disk = RealDisk::default();
    let identity = Identity { bucket: [1; 16], shard: 0, vbuckets: VBUCKETS };
    let mut buffer = Buffer::default();
    for value_bytes in [1, 16, 256] {
        let path = directory.join(format!("value{value_bytes}"));
        let opened = Shard::open(disk.clone(), &path, identity, Options::default()).expect("opened");
        let (mut shard, value) = (opened.shard, vec![7; value_bytes]);
        let encoded = record(1, KEY, &value).encoded_bytes();
        measure(&format!("write records of {encoded} bytes, 10,000 a batch"), records, || {
            let mut seqno = 0;
            while seqno < records {
                let mut batch = shard.batch(&mut buffer).expect("begun");
                batch.begin((seqno / 10_000 % u64::from(VBUCKETS)) as u16);
                for _ in 0..10_000.min(records - seqno) {
                    seqno += 1;
                    if !batch.fits(encoded) {
                        batch.write_out().expect("written");
                    }
                    batch.push(&record(seqno, KEY, &value));
                }
                batch.commit(seqno).expect("committed");
            }
        });
        let bytes = shard.figures().bytes;
        println!("  {:.1} bytes of file per record", bytes as f64 / records as f64);
        drop(shard);
        let opened = Shard::open(disk.clone(), &path, identity, Options::default()).expect("opened");
        let mut seen = 0;
        measure("  replay", records, || {
            for segment in &opened.segments {
                let visit =
                    &mut |replayed: Replayed<'_>| seen += u64::from(matches!(replayed, Replayed::Record(..)));
                segment.replay(&mut buffer, visit).expect("replayed");
            }
        });
        assert_eq!(seen, records);
        let (reader, mut bytes) = (opened.shard.reader(), Vec::new());
        measure("  reads at random", 20_000, || {
            let mut random = 88_172_645_463_325_252_u64;
            for _ in 0..20_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let seqno = random % records + 1;
                let vbucket = ((seqno - 1) / 10_000 % u64::from(VBUCKETS)) as u16;
                reader.read(vbucket, seqno, &mut bytes).expect("read").expect("there");
            }
        });
    }
    compare_syncs(&disk, directory, identity, &mut buffer);
    std::fs::remove_dir_all(directory).expect("removed");
}

/// Commits of one record, alternating with the best that the disk can do, which changes from one second to the next.
fn compare_syncs(disk: &RealDisk, directory: &Path, identity: Identity, buffer: &mut Buffer) {
    let file = disk.open(&directory.join("plain"), Open::CreateNew).expect("created");
    let path = directory.join("commits");
    let mut shard = Shard::open(disk.clone(), &path, identity, Options::default()).expect("opened").shard;
    let value = [7; 220];
    let mut commit = |seqno: u64| {
        let mut batch = shard.batch(buffer).expect("begun");
        batch.begin((seqno % u64::from(VBUCKETS)) as u16);
        batch.push(&record(seqno, KEY, &value));
        batch.commit(seqno).expect("committed").bytes
    };
    let line = vec![7; commit(1) as usize];
    let (mut plain, mut committing) = (Duration::ZERO, Duration::ZERO);
    for index in 0..COMMITS {
        let start = Instant::now();
        write_all_at(&file, &line, index * line.len() as u64).expect("written");
        file.sync().expect("synced");
        plain += start.elapsed();
        let start = Instant::now();
        commit(index + 2);
        committing += start.elapsed();
    }
    let rate = |time: Duration| COMMITS as f64 / time.as_secs_f64();
    println!("append {} bytes and sync, nothing else {:>25.0} /s", line.len(), rate(plain));
    println!("commit one record as long {:>36.0} /s", rate(committing));
    println!("  share {:.2}", rate(committing) / rate(plain));
}
