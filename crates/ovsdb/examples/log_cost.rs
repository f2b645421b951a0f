//! What reading, appending and compacting a log cost: `cargo run --release --example log_cost -p ovsdb -- FILE`.
#![allow(clippy::expect_used, clippy::print_stdout)]

use journal::RealDisk;
use ovsdb::database::{Database, Options};
use ovsdb::file::{Log, Step};
use ovsdb::transaction::{Context, Outcome, execute};
use ovsdb::uuid::Uuid;
use std::path::Path;
use std::time::Instant;
use wire::json::{Value, validate};

fn resident_kib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = status.lines().filter(|line| line.starts_with("VmHWM") || line.starts_with("VmRSS"));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}

fn main() {
    let path = std::env::args().nth(1).expect("a file");
    let start = Instant::now();
    let make = &mut |schema| Database::new(schema, Options { budget_bytes: u64::MAX, seed: 1 });
    let opened = match Log::open(RealDisk::default(), Path::new(&path), 1, make) {
        Ok(opened) => opened,
        Err(error) => panic!("{}", error.error),
    };
    println!("open      {:?}; {}", start.elapsed(), resident_kib());
    let (mut database, mut log) = (opened.database, opened.log);

    let operations = std::env::args().nth(2);
    if operations.as_deref() == Some("open") {
        return;
    }
    if let Some(operations) = operations {
        let value = validate(operations.as_bytes()).expect("JSON");
        let operations: Vec<Value<'_>> = value.elements().collect();
        let context = Context { owns_lock: &|_| true, ..Context::own() };
        let mut counter = 0_u128;
        let mut random = || {
            counter += 1;
            Uuid(counter.to_le_bytes())
        };
        let (mut executing, mut appending, mut writing) = (0, 0, 0);
        const ROUNDS: u32 = 20_000;
        for round in 0..ROUNDS {
            let mut reply = Vec::new();
            let before = Instant::now();
            let outcome = execute(&mut database, &operations, &context, &mut random, &mut reply);
            let executed = Instant::now();
            if round == 0 {
                println!("{}", String::from_utf8_lossy(&reply));
            }
            let Outcome::Finished { committed: Some(commit), .. } = outcome else { continue };
            log.append(&mut database, commit, 1_700_000_000_000);
            let appended = Instant::now();
            log.write(false).expect("written");
            executing += (executed - before).as_nanos();
            appending += (appended - executed).as_nanos();
            writing += appended.elapsed().as_nanos();
        }
        let each = |total: u128| total / u128::from(ROUNDS);
        println!(
            "each      execute {} ns, append {} ns, write {} ns",
            each(executing),
            each(appending),
            each(writing)
        );
    }

    log.start_compaction(&database, 1, 1).expect("started");
    let (mut slices, mut longest) = (0, std::time::Duration::ZERO);
    let start = Instant::now();
    loop {
        let before = Instant::now();
        let step = log.step(&database).expect("a slice");
        longest = longest.max(before.elapsed());
        match step {
            Step::Finished(figures) => {
                println!(
                    "compact   {:?}, {slices} slices, the longest {longest:?}, {figures:?}",
                    start.elapsed()
                );
                break;
            }
            Step::Waiting => std::thread::yield_now(),
            _ => slices += 1,
        }
    }
    println!("end       {}", resident_kib());
}
