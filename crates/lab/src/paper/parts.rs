//! The experiments of `lab paper`, with their options.

use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// One experiment, run in a process of its own.
pub struct Part {
    /// Which of the reports' experiments: e1 to e6.
    pub experiment: &'static str,
    /// Its name, of its files too.
    pub name: &'static str,
    /// What it measures.
    pub title: &'static str,
    /// Whether it takes another program with `--dormouse`.
    pub measures_dormouse: bool,
    full: &'static [&'static str],
    quick: &'static [&'static str],
    /// Seconds that it took on two cores, full and quick.
    took_s: [u64; 2],
}

/// All of them, in the order in which they run.
pub const ALL: &[Part] = &[
    Part {
        experiment: "e1",
        name: "throughput",
        title: "operations per second of server CPU",
        measures_dormouse: true,
        full: &["throughput"],
        quick: &["throughput", "--quick", "--reads", "20"],
        took_s: [1500, 85],
    },
    Part {
        experiment: "e1",
        name: "allocators",
        title: "the settings of jemalloc",
        measures_dormouse: true,
        full: &["allocators"],
        quick: &["allocators", "--quick", "--items", "200k", "--starts", "2", "--windows", "1"],
        took_s: [1480, 190],
    },
    Part {
        experiment: "e2",
        name: "fragmentation",
        title: "fragmentation by appending and rewriting",
        measures_dormouse: true,
        full: &["fragmentation", "--cases", "append"],
        quick: &["fragmentation", "--quick", "--cases", "append", "--heaps", "slab"],
        took_s: [1500, 110],
    },
    Part {
        experiment: "e3",
        name: "idle",
        title: "CPU of a server with nothing to do",
        measures_dormouse: true,
        full: &["idle"],
        quick: &["idle", "--quick", "--seconds", "8", "--parts", "ephemeral,persistent"],
        took_s: [500, 130],
    },
    Part {
        experiment: "e4",
        name: "flush",
        title: "memory and time of one flush",
        measures_dormouse: false,
        full: &["flush"],
        quick: &["flush", "--quick", "--items", "1,100,10k,1M"],
        took_s: [40, 15],
    },
    Part {
        experiment: "e5",
        name: "ovsdb",
        title: "OVSDB under three allocators",
        measures_dormouse: true,
        full: &["ovsdb", "--cases", "update1-mon,update2-mon,insert-mon,queue,size-one,size-each"],
        quick: &[
            "ovsdb",
            "--quick",
            "--cases",
            "update1-mon,update2-mon,insert-mon,queue,size-one,size-each",
        ],
        took_s: [1400, 130],
    },
    Part {
        experiment: "e6",
        name: "overhead",
        title: "bytes per item beyond key and value",
        measures_dormouse: true,
        full: &["overhead"],
        quick: &["overhead", "--quick", "--shapes", "20+1,20+100,20+256,20+1024"],
        took_s: [1380, 70],
    },
];

impl Part {
    /// Its command line.
    pub const fn arguments(&self, quick: bool) -> &'static [&'static str] {
        if quick { self.quick } else { self.full }
    }

    /// How long it takes on two cores.
    pub const fn seconds(&self, quick: bool) -> u64 {
        let [full, short] = self.took_s;
        if quick { short } else { full }
    }

    /// File of its results.
    pub fn json(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.json", self.name))
    }

    /// Its results, and what it printed.
    pub fn read(&self, directory: &Path) -> Result<(Value, String)> {
        let (json, text) = (self.json(directory), self.text(directory));
        let results = fs::read(&json).with_context(|| json.display().to_string())?;
        let results = serde_json::from_slice(&results).with_context(|| json.display().to_string())?;
        Ok((results, fs::read_to_string(&text).with_context(|| text.display().to_string())?))
    }

    /// File of what it prints.
    pub fn text(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.txt", self.name))
    }
}
