//! Results: the tables, and the goals.

use super::case::Case;
use super::probe::Found;
use super::{BucketKind, Contender};
use crate::report::{Goal, Report, Table, bytes, count};
use crate::subject::Kind;
use anyhow::Result;
use serde::Serialize;

/// Most fragmentation of the append test in per cent, by heap.
const APPEND_SLAB: f64 = 6.0;
const APPEND_BLOCK: f64 = 12.0;
/// Most resident bytes per byte of key and value at its end, in slabs.
const APPEND_RATIO: f64 = 1.10;
/// Most fragmentation in per cent at the end of the other cases.
const SIBLING: f64 = 10.0;
/// Most resident bytes per live byte, half a minute after a random half was deleted.
const DELETED_RATIO: f64 = 1.15;

/// The original reference's results for its server with jemalloc 5.1, persistent and ephemeral.
const REFERENCE: &str = "reference (another engine and machine, 5M documents): 21.2 % persistent, 39 % ephemeral by \
resident \
                         size; 21.8 % and 39 % by what the allocator has mapped";

/// Memory of one server after one step.
#[derive(Clone, Debug, Serialize)]
pub struct Reading {
    /// The workload.
    pub case: Case,
    /// The step done last.
    pub step: &'static str,
    /// The server.
    pub contender: Contender,
    /// Number of items.
    pub items: u32,
    /// Bytes of their keys and values.
    pub payload_bytes: u64,
    /// 99th percentile of the resident size during the load, since the beginning of the case.
    pub running_bytes: u64,
    /// Memory after the rest.
    pub found: Found,
}

impl Reading {
    /// Unused part of `of_bytes` of memory, in per cent.
    fn unused_percent(&self, of_bytes: u64) -> f64 {
        100.0 - 100.0 * self.found.used_bytes as f64 / of_bytes.max(1) as f64
    }

    fn resident_bytes(&self) -> u64 {
        self.found.memory.resident_bytes
    }

    /// Fragmentation: for the append test by the experiment's definition, from the memory during the load; in other
    /// cases from the memory at the end, since the data's peak is long before it.
    fn fragmentation_percent(&self) -> f64 {
        let of_bytes = if self.case == Case::Append { self.running_bytes } else { self.resident_bytes() };
        self.unused_percent(of_bytes)
    }

    fn per_payload(&self) -> f64 {
        self.resident_bytes() as f64 / self.payload_bytes.max(1) as f64
    }

    fn per_used(&self) -> f64 {
        self.resident_bytes() as f64 / self.found.used_bytes.max(1) as f64
    }

    fn bucket(&self) -> &'static str {
        match self.contender.bucket {
            None => "",
            Some(BucketKind::Ephemeral) => "ephemeral",
            Some(BucketKind::Persistent) => "persistent",
        }
    }

    fn is_last_step(&self) -> bool {
        self.case.steps().last().is_some_and(|last| last.name == self.step)
    }
}

/// Fills tables, goals and data.
pub fn fill(report: &mut Report, readings: &[Reading]) -> Result<()> {
    for case in Case::ALL {
        let mut table = Table::new(
            case.name(),
            &[
                "server",
                "bucket",
                "after",
                "rest s",
                "items",
                "key+value",
                "used",
                "RSS",
                "RSS p99 while loaded",
                "fragmentation %",
                "of mapped %",
                "RSS / used",
                "RSS / key+value",
                "huge pages",
            ],
        );
        let mut of_case: Vec<&Reading> = readings.iter().filter(|reading| reading.case == case).collect();
        let order = |step: &str| case.steps().iter().position(|known| known.name == step);
        of_case.sort_by_key(|reading| order(reading.step));
        for reading in of_case {
            let rest = case.steps().iter().find(|step| step.name == reading.step).map(|step| step.rest);
            let found = &reading.found;
            let mapped = found.mapped_bytes.map(|mapped| format!("{:.1}", reading.unused_percent(mapped)));
            table.row(vec![
                reading.contender.subject.program.name.clone(),
                reading.bucket().to_owned(),
                reading.step.to_owned(),
                rest.unwrap_or_default().as_secs().to_string(),
                count(reading.items),
                bytes(reading.payload_bytes),
                bytes(found.used_bytes),
                bytes(reading.resident_bytes()),
                bytes(reading.running_bytes),
                format!("{:.1}", reading.fragmentation_percent()),
                mapped.unwrap_or_else(|| "-".to_owned()),
                format!("{:.2}", reading.per_used()),
                format!("{:.2}", reading.per_payload()),
                bytes(found.memory.huge_page_bytes),
            ]);
        }
        if !table.is_empty() {
            report.tables.push(table);
        }
    }
    report.notes.extend(
        [
            "used: requested for keys, values, metadata and index, by the server's own count (Redis and Valkey count \
            what the \
             allocator rounded that to)",
            "fragmentation: 1 - used / RSS; in the case append 1 - used / 99th percentile of RSS while loaded",
            REFERENCE,
        ]
        .map(str::to_owned),
    );
    for reading in readings.iter().filter(|reading| reading.contender.is_judged) {
        judge(report, reading);
    }
    report.data("readings", &readings)
}

fn judge(report: &mut Report, reading: &Reading) {
    let of = format!("{}, {}", reading.contender.subject.program.name, reading.bucket());
    let is_block = reading.contender.subject.kind == Kind::DormouseBlock;
    let mut at_most = |name: String, reached: f64, bound: f64, unit: &str| {
        report.goals.push(Goal::at_most(name, reached, bound, unit));
    };
    if reading.is_last_step() {
        let bound = match (reading.case, is_block) {
            (Case::Append, false) => APPEND_SLAB,
            (Case::Append, true) => APPEND_BLOCK,
            _ => SIBLING,
        };
        let name = format!("{}, fragmentation: {of}", reading.case.name());
        at_most(name, reading.fragmentation_percent(), bound, " %");
    }
    if reading.is_last_step() && reading.case == Case::Append && !is_block {
        at_most(format!("append, RSS / (key + value): {of}"), reading.per_payload(), APPEND_RATIO, "x");
    }
    if reading.step == "half deleted" {
        let name = format!("{}, RSS 30 s after half was deleted / used: {of}", reading.case.name());
        at_most(name, reading.per_used(), DELETED_RATIO, "x");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Memory;
    use crate::protocol::Protocol;
    use crate::subject::Subject;

    fn reading(case: Case, step: &'static str, used_bytes: u64, resident_bytes: u64) -> Reading {
        let this = std::env::current_exe().unwrap();
        let subject = Subject::dormouse(Some(&this), Protocol::MemcachedBinary, &[]).unwrap();
        let contender = Contender {
            subject: Subject { kind: Kind::DormouseSlab, ..subject },
            bucket: Some(BucketKind::Ephemeral),
            is_judged: true,
        };
        let memory = Memory { resident_bytes, peak_bytes: resident_bytes, ..Memory::default() };
        let found = Found { memory, used_bytes, mapped_bytes: None };
        let (items, payload_bytes, running_bytes) = (1, used_bytes, resident_bytes * 2);
        Reading { case, step, contender, items, payload_bytes, running_bytes, found }
    }

    #[test]
    fn goals_are_judged_by_their_own_formula() {
        let mut report = Report::default();
        let readings = [
            reading(Case::Append, "loaded", 50, 100),
            reading(Case::Append, "rewritten", 95, 100),
            reading(Case::Ladder, "climbed", 91, 100),
            reading(Case::Halves, "half deleted", 100, 116),
        ];
        fill(&mut report, &readings).unwrap();
        let goals: Vec<(&str, bool)> =
            report.goals.iter().map(|goal| (goal.reached.as_str(), goal.met)).collect();
        assert_eq!(goals, [("52.5 %", false), ("1.05x", true), ("9.00 %", true), ("1.16x", false)]);
    }
}
