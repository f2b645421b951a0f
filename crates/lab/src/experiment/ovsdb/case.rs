//! The cases of the experiment and their sizes.

use crate::ovsdb::subject::Kind;
use anyhow::{Result, bail};
use serde::Serialize;
use std::fmt;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Ten workers update random rows of 1,000.
    Update1,
    /// The same, each with a replica.
    Update1Mon,
    /// The same, several transactions in flight.
    Update1Pipe,
    /// Ten workers update random rows of 200,000.
    Update2,
    /// The same, each with a replica.
    Update2Mon,
    /// The same, several transactions in flight.
    Update2Pipe,
    /// Ten workers insert rows.
    Insert,
    /// The same, each with a replica.
    InsertMon,
    /// The same, several transactions in flight.
    InsertPipe,
    /// A producer answers ten workers; all have a replica.
    Queue,
    /// Tables of growing size, each inserted in one transaction.
    SizeOne,
    /// The same with ten replicas.
    SizeOneMon,
    /// Tables of growing size, one row per transaction.
    SizeEach,
    /// The same with ten replicas.
    SizeEachMon,
    /// A hundred clients request a large table at once.
    Dump100,
    /// A hundred replicas are notified of one client's updates.
    Monitors100,
    /// Updates while the file is compacted.
    Compaction,
    /// A restart on a large file.
    Startup,
    /// Everything is deleted.
    DeleteAll,
}

impl Case {
    /// All cases in the order they are run and printed.
    pub const ALL: [Self; 19] = [
        Self::Update1,
        Self::Update1Mon,
        Self::Update1Pipe,
        Self::Update2,
        Self::Update2Mon,
        Self::Update2Pipe,
        Self::Insert,
        Self::InsertMon,
        Self::InsertPipe,
        Self::Queue,
        Self::SizeOne,
        Self::SizeOneMon,
        Self::SizeEach,
        Self::SizeEachMon,
        Self::Dump100,
        Self::Monitors100,
        Self::Compaction,
        Self::Startup,
        Self::DeleteAll,
    ];

    /// Its name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Update1 => "update1",
            Self::Update1Mon => "update1-mon",
            Self::Update1Pipe => "update1-pipe",
            Self::Update2 => "update2",
            Self::Update2Mon => "update2-mon",
            Self::Update2Pipe => "update2-pipe",
            Self::Insert => "insert",
            Self::InsertMon => "insert-mon",
            Self::InsertPipe => "insert-pipe",
            Self::Queue => "queue",
            Self::SizeOne => "size-one",
            Self::SizeOneMon => "size-one-mon",
            Self::SizeEach => "size-each",
            Self::SizeEachMon => "size-each-mon",
            Self::Dump100 => "dump100",
            Self::Monitors100 => "monitors100",
            Self::Compaction => "compaction",
            Self::Startup => "startup",
            Self::DeleteAll => "delete-all",
        }
    }

    /// The cases that match the names, in the order of `ALL`.
    pub fn choose(names: &[String], quick: bool) -> Result<Vec<Self>> {
        let mut chosen = Vec::new();
        for name in names {
            let matching = |case: &&Self| match name.strip_suffix('*') {
                Some(beginning) => case.name().starts_with(beginning),
                None => case.name() == name,
            };
            let before = chosen.len();
            chosen.extend(Self::ALL.iter().filter(matching));
            if chosen.len() == before {
                let all: Vec<_> = Self::ALL.iter().map(|case| case.name()).collect();
                bail!("there is no case `{name}`; there are {}", all.join(", "));
            }
        }
        let long = [Self::SizeOneMon, Self::SizeEachMon];
        Ok(Self::ALL
            .into_iter()
            .filter(
                |case| {
                    if names.is_empty() { !(quick && long.contains(case)) } else { chosen.contains(case) }
                },
            )
            .collect())
    }

    /// Returns true if it makes sense for such a server: the floor keeps no rows.
    pub fn is_for(self, kind: Kind) -> bool {
        kind != Kind::Floor || self.transactions().is_some() || self == Self::Monitors100
    }

    /// The workload, for cases in which each transaction updates or inserts one row.
    pub fn transactions(self) -> Option<Transactions> {
        let (table, replicas, pipelined) = match self {
            Self::Update1 => (Table::Small, false, false),
            Self::Update1Mon => (Table::Small, true, false),
            Self::Update1Pipe => (Table::Small, false, true),
            Self::Update2 => (Table::Large, false, false),
            Self::Update2Mon => (Table::Large, true, false),
            Self::Update2Pipe => (Table::Large, false, true),
            Self::Insert => (Table::Empty, false, false),
            Self::InsertMon => (Table::Empty, true, false),
            Self::InsertPipe => (Table::Empty, false, true),
            _ => return None,
        };
        Some(Transactions { table, replicas, pipelined })
    }

    /// Returns true if its resident size at the end is a goal.
    pub fn judges_memory_at_rest(self) -> bool {
        matches!(self, Self::Update2 | Self::Insert | Self::Startup | Self::DeleteAll)
    }
}

/// The rows that transactions use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// 1,000 rows that are updated.
    Small,
    /// 200,000 rows that are updated.
    Large,
    /// None at first: rows are inserted.
    Empty,
}

/// A case of one-row transactions.
#[derive(Clone, Copy, Debug)]
pub struct Transactions {
    /// Rows that they use.
    pub table: Table,
    /// Whether each worker keeps a replica.
    pub replicas: bool,
    /// Whether several are in flight.
    pub pipelined: bool,
}

/// Sizes of all cases.
#[derive(Clone, Debug, Serialize)]
pub struct Sizes {
    /// Sessions that write.
    pub workers: usize,
    /// Transactions per worker.
    pub transactions_each: u64,
    /// Transactions that a worker has in flight in the pipelined cases.
    pub in_flight: u64,
    /// Rows of `update1`.
    pub small_rows: usize,
    /// Rows of `update2`.
    pub large_rows: usize,
    /// Counter rows of `queue`.
    pub counters_rows: usize,
    /// Requests per worker in `queue`.
    pub requests_each: u64,
    /// Table sizes of `size`, in rows.
    pub tables: Vec<usize>,
    /// Sessions of `dump100` and `monitors100`.
    pub fan_out: usize,
    /// Rows of `dump100`.
    pub dump_rows: usize,
    /// Updates of `monitors100`.
    pub fan_out_updates: u64,
    /// Rows of `compaction`, `startup` and `delete-all`.
    pub huge_rows: usize,
    /// Length of the period before a compaction, in milliseconds.
    pub quiet_ms: u64,
}

impl Sizes {
    /// The sizes of E5, or smaller ones of the same shapes.
    pub fn new(quick: bool, scale: f64) -> Self {
        let scaled = |full: usize, quick_count: usize| {
            let count = if quick { quick_count } else { full };
            ((count as f64 * scale) as usize).max(1)
        };
        let tables: &[usize] =
            if quick { &[100, 1000, 10_000, 50_000] } else { &[100, 1000, 10_000, 100_000, 500_000] };
        Self {
            workers: 10,
            transactions_each: scaled(25_000, 5_000) as u64,
            in_flight: 16,
            small_rows: 1000,
            large_rows: scaled(200_000, 50_000),
            counters_rows: 512,
            requests_each: scaled(4, 1) as u64,
            tables: tables.iter().map(|&rows| scaled(rows, rows)).collect(),
            fan_out: 100,
            dump_rows: scaled(100_000, 10_000),
            fan_out_updates: scaled(5_000, 1_000) as u64,
            huge_rows: scaled(500_000, 50_000),
            quiet_ms: scaled(10_000, 2_000) as u64,
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} workers x {} transactions, {} in flight in -pipe; rows: update1 {}, update2 {}, dump100 {}, compaction \
             and others {}; queue {} requests x {} rows of 256 counters; size {:?}",
            self.workers,
            self.transactions_each,
            self.in_flight,
            self.small_rows,
            self.large_rows,
            self.dump_rows,
            self.huge_rows,
            self.requests_each * self.workers as u64,
            self.counters_rows,
            self.tables
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(names: &[&str]) -> Result<Vec<Case>> {
        Case::choose(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), false)
    }

    #[test]
    fn cases_by_name_and_by_beginning() {
        assert_eq!(choose(&["update1"]).unwrap(), [Case::Update1]);
        assert_eq!(
            choose(&["queue", "update1*"]).unwrap(),
            [Case::Update1, Case::Update1Mon, Case::Update1Pipe, Case::Queue]
        );
        assert!(choose(&["update"]).is_err() && choose(&["nothing*"]).is_err());
        assert_eq!(choose(&[]).unwrap().len(), Case::ALL.len());
        assert_eq!(Case::choose(&[], true).unwrap().len(), Case::ALL.len() - 2);
    }

    #[test]
    fn every_name_is_its_own() {
        for case in Case::ALL {
            assert_eq!(choose(&[case.name()]).unwrap(), [case]);
        }
    }

    #[test]
    fn full_sizes_are_those_of_the_experiment() {
        let sizes = Sizes::new(false, 1.0);
        assert_eq!((sizes.workers, sizes.transactions_each), (10, 25_000));
        assert_eq!((sizes.small_rows, sizes.large_rows, sizes.huge_rows), (1_000, 200_000, 500_000));
        assert_eq!(sizes.tables, [100, 1_000, 10_000, 100_000, 500_000]);
        let tiny = Sizes::new(true, 0.000_1);
        assert_eq!((tiny.counters_rows, tiny.fan_out_updates, tiny.in_flight), (512, 1, 16));
    }
}
