//! The tables of the reports, each row beside the new figures, with a verdict.

use super::verdict::{less, more, reproduced};
use crate::reference::{
    ALLOCATOR_SETTINGS, DEPTHS, FLUSHES, FRAGMENTATION, IDLE, OVERHEAD, OVSDB, Ovsdb, PEERS_IDLE,
    PEERS_UNUSED, RATES, VALUES_BYTES,
};
use crate::report::{count, short};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// One table of a report.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// e1 to e6.
    pub experiment: &'static str,
    /// What it is about.
    pub title: String,
    /// Names of its columns.
    pub heads: Vec<&'static str>,
    /// Its rows; the last cell is the verdict.
    pub rows: Vec<Vec<String>>,
    /// How it is read.
    pub note: &'static str,
}

/// Results of the parts, by name.
pub type Found = BTreeMap<&'static str, Value>;

/// Those whose parts were run.
pub fn all(found: &Found) -> Vec<Comparison> {
    let tables = [
        ("throughput", rates as fn(&Value) -> Comparison),
        ("allocators", settings),
        ("fragmentation", fragmentation),
        ("idle", idle),
        ("flush", flush),
        ("ovsdb", ovsdb),
        ("overhead", overhead),
    ];
    tables.into_iter().filter_map(|(part, table)| Some(table(found.get(part)?))).collect()
}

fn entries<'a>(json: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + Clone + use<'a> {
    json.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// A number inside; the path's names are separated by slashes.
fn number(json: &Value, path: &str) -> Option<f64> {
    json.pointer(&format!("/{path}")).and_then(Value::as_f64)
}

fn is(json: &Value, path: &str, wanted: &str) -> bool {
    json.pointer(&format!("/{path}")).and_then(Value::as_str) == Some(wanted)
}

fn shown(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), short)
}

fn joined(figures: impl IntoIterator<Item = Option<f64>>) -> String {
    figures.into_iter().map(shown).collect::<Vec<_>>().join(" / ")
}

/// Verdicts on figures in order; one that is missing keeps its place.
fn verdicts<const N: usize>(
    here: [Option<f64>; N],
    against: [Option<f64>; N],
    judge: fn(f64, f64) -> String,
) -> String {
    let pairs = here.into_iter().zip(against);
    let one =
        |(here, other): (Option<f64>, Option<f64>)| here.zip(other).map(|(here, other)| judge(here, other));
    let all: Vec<Option<String>> = pairs.map(one).collect();
    if all.iter().all(Option::is_none) {
        return "was not measured".to_owned();
    }
    all.into_iter().map(|one| one.unwrap_or_else(|| "-".to_owned())).collect::<Vec<_>>().join(" / ")
}

/// The best of the figures that are there.
fn least(figures: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    figures.into_iter().flatten().min_by(f64::total_cmp)
}

fn rates(json: &Value) -> Comparison {
    let points = entries(json, "points");
    let rate = |subject: &str, depth: u64| {
        let is_it = |point: &&Value| {
            is(point, "subject", subject)
                && number(point, "depth") == Some(depth as f64)
                && number(point, "reads_percent") == Some(20.0)
        };
        Some(number(points.clone().find(is_it)?, "per_cpu_second/median")? / 1e3)
    };
    let own = DEPTHS.map(|depth| rate("dormouse", depth));
    let mut rows = Vec::new();
    for (peer, reference) in RATES {
        let here = DEPTHS.map(|depth| rate(peer, depth));
        let verdict = match here.iter().any(Option::is_some) {
            true => format!("Dormouse: {}", verdicts(own, here, more)),
            false => format!("{peer} was not measured"),
        };
        rows.push(vec![peer.to_owned(), joined(reference.map(Some)), joined(here), joined(own), verdict]);
    }
    Comparison {
        experiment: "e1",
        title: "Thousand operations per second of server CPU, 20 % reads, batches of 1 / 16 / 64".to_owned(),
        heads: vec!["server", "two-core machine of the reference", "here", "Dormouse here", "verdict"],
        rows,
        note: "The verdict compares figures of this run. The reference's machine is another one.",
    }
}

fn settings(json: &Value) -> Comparison {
    let [(_, plain), others @ ..] = &ALLOCATOR_SETTINGS;
    let mut rows = Vec::new();
    for (name, operations) in others {
        let key = match *name {
            "background threads" => "background_thread true over false",
            "metadata_thp auto" => "metadata_thp auto over disabled",
            _ => "metadata_thp always over disabled",
        };
        let reference = format!("{:+.2} %", (operations / plain - 1.0) * 100.0);
        let own = entries(json, "effects").filter_map(|effect| {
            let condition = effect.get("name").and_then(Value::as_str)?.strip_prefix(key)?;
            let [mean, low, high] =
                ["mean", "low", "high"].map(|end| number(effect, &format!("throughput/{end}")));
            Some((condition, mean?, low?, high?))
        });
        let before = rows.len();
        rows.extend(own.map(|(condition, mean, low, high)| {
            let verdict = match () {
                () if low > 0.0 => "a gain",
                () if high < 0.0 => "a LOSS",
                () => "not told apart from no effect",
            };
            let here = format!("{mean:+.1} % ({low:+.1} to {high:+.1})");
            vec![format!("{name}{condition}"), reference.clone(), here, verdict.to_owned()]
        }));
        if rows.len() == before {
            rows.push(vec![(*name).to_owned(), reference, "-".to_owned(), "was not measured".to_owned()]);
        }
    }
    Comparison {
        experiment: "e1",
        title: "Settings of jemalloc: change of the operations per second".to_owned(),
        heads: vec!["setting", "reference, one run each", "here, per second of server CPU", "verdict"],
        rows,
        note: "The interval is that of pairs of starts that differ in nothing else.",
    }
}

fn fragmentation(json: &Value) -> Comparison {
    let readings = entries(json, "readings").filter(|reading| is(reading, "case", "append"));
    // The last reading of each server is that after all rounds.
    let last = |name: &str, bucket: Option<&str>| {
        let is_it = |reading: &&Value| {
            reading.pointer("/contender/subject/name").and_then(Value::as_str).is_some_and(|it| it == name)
                && bucket.is_none_or(|bucket| is(reading, "contender/bucket", bucket))
        };
        readings.clone().filter(is_it).last()
    };
    let own = |bucket: &str| {
        let name =
            ["dormouse-slab", "dormouse"].into_iter().find(|name| last(name, Some(bucket)).is_some())?;
        let reading = last(name, Some(bucket))?;
        Some(100.0 - 100.0 * number(reading, "found/used_bytes")? / number(reading, "running_bytes")?)
    };
    let own = ["persistent", "ephemeral"].map(own);
    let mut rows = Vec::new();
    for (name, persistent, ephemeral) in FRAGMENTATION {
        let there = [persistent, ephemeral].map(Some);
        rows.push(vec![name.to_owned(), joined(there), joined(own), verdicts(own, there, less)]);
    }
    for (peer, reference) in PEERS_UNUSED {
        let reading = last(peer, None);
        let here = reading.and_then(|reading| {
            let payload = number(reading, "payload_bytes")?;
            Some(100.0 - 100.0 * payload / number(reading, "found/memory/resident_bytes")?)
        });
        rows.push(vec![
            format!("{peer}, without payload"),
            shown(Some(reference)),
            shown(here),
            reproduced(peer, &[here], &[reference]),
        ]);
    }
    Comparison {
        experiment: "e2",
        title: "Fragmentation in % of the resident size, persistent / ephemeral, after the append test"
            .to_owned(),
        heads: vec!["allocator of the reference, or peer", "reference", "here", "verdict"],
        rows,
        note: "The reference's server beside Dormouse, by the same definition; peers beside the same peers, by \
               100 x (1 - payload / RSS). A quick run has few documents, so that fixed costs weigh more.",
    }
}

fn idle(json: &Value) -> Comparison {
    let mut rows = Vec::new();
    let quiet = |polls: bool, buckets: f64| {
        entries(json, "persistent").find(move |quiet| {
            quiet.get("polls").and_then(Value::as_bool) == Some(polls)
                && number(quiet, "buckets") == Some(buckets)
        })
    };
    for reference in &IDLE {
        let here = quiet(reference.polls, 30.0).and_then(|quiet| number(quiet, "silence/cpu_percent"));
        let name = if reference.polls { "polls for timeouts" } else { "waits for timeouts" };
        rows.push(vec![
            format!("30 buckets, {name}, % of a core"),
            reference.cpu_percent.to_string(),
            here.map_or("-".to_owned(), |here| format!("{here:.4}")),
            here.map_or("-".to_owned(), |here| less(here, reference.cpu_percent)),
        ]);
    }
    let [polls, waits] =
        [true, false].map(|polls| quiet(polls, 30.0).and_then(|q| number(q, "silence/cpu_percent")));
    if let (Some(polls), Some(waits), [before, after]) = (polls, waits, &IDLE) {
        rows.push(vec![
            "what waiting saves".to_owned(),
            format!("{:.1}x", before.cpu_percent / after.cpu_percent),
            if waits > 0.0 { format!("{:.1}x", polls / waits) } else { "all of it".to_owned() },
            saved(polls / waits, before.cpu_percent / after.cpu_percent),
        ]);
    }
    if let (Some(quiet), [reference, ..]) = (quiet(false, 30.0), &IDLE) {
        let here = number(quiet, "empty_bytes");
        let there = reference.resident_bytes as f64;
        rows.push(vec![
            "resident MB of 30 empty buckets".to_owned(),
            short(there / 1e6),
            shown(here.map(|bytes| bytes / 1e6)),
            here.map_or("-".to_owned(), |here| less(here, there)),
        ]);
    }
    for (peer, reference) in PEERS_IDLE {
        let own = entries(json, "findings").find(|finding| is(finding, "subject", peer));
        let here = own.and_then(|finding| number(finding, "silences/0/cpu_percent"));
        rows.push(vec![
            format!("{peer}, % of a core"),
            reference.to_string(),
            here.map_or("-".to_owned(), |here| format!("{here:.4}")),
            reproduced(peer, &[here], &[reference]),
        ]);
    }
    Comparison {
        experiment: "e3",
        title: "A server with nothing to do".to_owned(),
        heads: vec!["figure", "reference", "here", "verdict"],
        rows,
        note: "Dormouse has both ways of finding timeouts, so the reference's change can be repeated on it.",
    }
}

/// What waiting saves here, compared with what it saved there; both as factors, infinite if nothing is left.
fn saved(here: f64, there: f64) -> String {
    match here {
        _ if here.is_nan() || here <= 1.0 => "NOTHING is saved here",
        _ if here >= there => "at least as much as there",
        _ => "LESS than there",
    }
    .to_owned()
}

fn flush(json: &Value) -> Comparison {
    let lines = entries(json, "lines").filter(|line| number(line, "value_bytes") == Some(1.0));
    let mut rows = Vec::new();
    for reference in &FLUSHES {
        let items = f64::from(reference.items);
        let line = |mode: &'static str| {
            lines.clone().find(move |line| is(line, "mode", mode) && number(line, "items") == Some(items))
        };
        let of = |path: &str, scale: f64| {
            ["insert", "replace"].map(|mode| number(line(mode)?, path).map(|figure| figure / scale))
        };
        let (peak, rate) = (of("memory/peak_bytes", items), of("per_cpu_second/median", 1.0));
        let name = count(reference.items);
        rows.push(vec![
            format!("{name}: peak bytes per item, before -> after"),
            format!("{} -> {}", joined(reference.before.map(Some)), joined(reference.after.map(Some))),
            joined(peak),
            verdicts(peak, reference.after.map(Some), less),
        ]);
        rows.push(vec![
            format!("{name}: items per CPU second"),
            joined(reference.rate.map(Some)),
            joined(rate),
            verdicts(rate, reference.rate.map(Some), more),
        ]);
    }
    Comparison {
        experiment: "e4",
        title: "One flush of items with one-byte values, insert / replace".to_owned(),
        heads: vec!["items", "reference", "here", "verdict"],
        rows,
        note: "Before and after the reference's own work; the verdict is on the latter. Bytes include the \
               flusher's buffer: 64 KiB, or 1 MiB for what does not fit. The insertion is a bucket's first flush, \
               which creates the segment and the manifest of its journal, too. The reference's CPUs are others: \
               rates tell an order of magnitude.",
    }
}

fn ovsdb(json: &Value) -> Comparison {
    const STOCK: [&str; 3] = ["stock", "stock-jemalloc", "stock-tcmalloc"];
    let all_cases = |workload: &Ovsdb, subject: &str, path: &str| {
        let of = |case: &&str| {
            let point = entries(json, "points")
                .find(|point| is(point, "case", case) && is(point, "subject", subject))?;
            number(point, path)
        };
        let figures: Vec<_> = workload.cases.iter().filter_map(of).collect();
        // One case after the other takes time; each has a server of its own.
        let sum_or_most = match path {
            "wall_s" => figures.iter().sum::<f64>(),
            _ => figures.iter().copied().fold(0.0, f64::max),
        };
        (figures.len() == workload.cases.len()).then_some(sum_or_most)
    };
    let apart = |figures: [Option<f64>; 3]| {
        let most = figures.into_iter().flatten().max_by(f64::total_cmp)?;
        Some(format!("{:.1}x apart", most / least(figures)?))
    };
    let mut rows = Vec::new();
    for workload in &OVSDB {
        let figures = [("seconds", "wall_s", 1.0), ("resident MB", "end_bytes", 1e6)];
        for ((what, path, scale), there) in figures.into_iter().zip([workload.seconds, workload.resident_mb])
        {
            let here = STOCK.map(|subject| Some(all_cases(workload, subject, path)? / scale));
            let own = all_cases(workload, "dormouse", path).map(|figure| figure / scale);
            let best = least(here);
            let verdict = own.zip(best).map_or("was not measured".to_owned(), |(own, best)| less(own, best));
            rows.push(vec![
                format!("{}, {what}", workload.name),
                format!("{} ({})", joined(there.map(Some)), apart(there.map(Some)).unwrap_or_default()),
                format!("{} ({})", joined(here), apart(here).unwrap_or_else(|| "-".to_owned())),
                shown(own),
                verdict,
            ]);
        }
    }
    Comparison {
        experiment: "e5",
        title: "An OVSDB server under glibc / jemalloc / tcmalloc".to_owned(),
        heads: vec![
            "workload",
            "reference",
            "stock ovsdb-server here",
            "Dormouse here",
            "against the best stock",
        ],
        rows,
        note: "Each worker keeps a replica, as in the reference. The load limits some of the times: the \
               experiment's own tables have the CPU time per transaction.",
    }
}

fn overhead(json: &Value) -> Comparison {
    let points = entries(json, "points");
    let of = |subject: &str, value_bytes: u64| {
        let is_it = |point: &&Value| {
            is(point, "subject", subject)
                && number(point, "shape/key_bytes") == Some(20.0)
                && number(point, "shape/value_bytes") == Some(value_bytes as f64)
                && number(point, "items") == Some(1e6)
                && point.get("persistent").and_then(Value::as_bool) != Some(true)
        };
        number(points.clone().find(is_it)?, "overhead_bytes")
    };
    let own = VALUES_BYTES.map(|bytes| of("dormouse", bytes));
    let mut rows = Vec::new();
    for (name, reference) in OVERHEAD {
        let here = VALUES_BYTES.map(|bytes| of(name, bytes));
        let is_there = here.iter().any(Option::is_some);
        // Where the server runs here its figures of this run count.
        let against: [Option<f64>; 4] =
            std::array::from_fn(|i| here.get(i).copied().flatten().or_else(|| reference.get(i).copied()));
        let verdict = format!("Dormouse: {}", verdicts(own, against, less));
        let verdict =
            if is_there { format!("{}; {verdict}", reproduced(name, &here, &reference)) } else { verdict };
        rows.push(vec![name.to_owned(), joined(reference.map(Some)), joined(here), joined(own), verdict]);
    }
    Comparison {
        experiment: "e6",
        title: "Bytes per item beyond key and value: keys of 20 bytes, values of 1 / 100 / 256 / 1024"
            .to_owned(),
        heads: vec!["server", "reference", "here", "Dormouse here", "verdict"],
        rows,
        note: "1M items. Dormouse is compared with a server's figures of this run where it has them.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row<'a>(table: &'a Comparison, name: &str) -> &'a [String] {
        table.rows.iter().find(|row| row.first().is_some_and(|cell| cell.starts_with(name))).unwrap()
    }

    #[test]
    fn what_was_not_measured_is_told() {
        for table in all(&["throughput", "allocators", "fragmentation", "idle", "flush", "ovsdb", "overhead"]
            .map(|part| (part, json!({})))
            .into_iter()
            .collect())
        {
            assert!(!table.rows.is_empty(), "{}", table.title);
            assert!(table.rows.iter().all(|row| row.len() == table.heads.len()), "{}", table.title);
        }
        assert!(all(&Found::new()).is_empty());
    }

    #[test]
    fn a_peer_and_this_server_stand_beside_the_reference() {
        let point = |subject: &str, overhead: f64| {
            json!({ "subject": subject, "items": 1_000_000, "persistent": false, "overhead_bytes": overhead,
                    "shape": { "key_bytes": 20, "value_bytes": 1 } })
        };
        let table = overhead(&json!({ "points": [point("dormouse", 42.0), point("memcached", 84.0)] }));
        assert_eq!(
            row(&table, "memcached"),
            [
                "memcached",
                "84.0 / 82.0 / 119 / 152",
                "84.0 / - / - / -",
                "42.0 / - / - / -",
                "memcached as there; Dormouse: 2.0x less / - / - / -"
            ]
        );
        assert_eq!(row(&table, "kv_engine").last().unwrap(), "Dormouse: 2.0x less / - / - / -");
    }

    #[test]
    fn cases_that_belong_together_are_added() {
        let point = |case: &str, subject: &str, wall_s: f64| {
            let end_bytes = 5e6;
            json!({ "case": case, "subject": subject, "wall_s": wall_s, "end_bytes": end_bytes })
        };
        let points = json!({ "points": [
            point("size-one", "stock", 1.0),
            point("size-each", "stock", 3.0),
            point("size-one", "stock-jemalloc", 1.0),
            point("size-one", "dormouse", 0.5),
            point("size-each", "dormouse", 0.5),
        ] });
        let table = ovsdb(&points);
        let memory = row(&table, "Size, resident MB");
        assert_eq!(memory.get(3).unwrap(), "5.00", "no server had both");
        let seconds = row(&table, "Size, seconds");
        assert_eq!(seconds.get(2..).unwrap(), ["4.00 / - / - (1.0x apart)", "1.00", "4.0x less"]);
    }

    #[test]
    fn what_waiting_saves_is_judged() {
        let quiet = |polls: bool, percent: f64| {
            let silence = json!({ "cpu_percent": percent });
            json!({ "polls": polls, "buckets": 30, "silence": silence })
        };
        for (waits, verdict) in [
            (4.0, "NOTHING is saved here"),
            (0.5, "LESS than there"),
            (0.1, "at least as much as there"),
            (0.0, "at least as much as there"),
        ] {
            let table = idle(&json!({ "persistent": [quiet(true, 1.0), quiet(false, waits)] }));
            assert_eq!(row(&table, "what waiting saves").last().unwrap(), verdict, "{waits}");
        }
    }
}
