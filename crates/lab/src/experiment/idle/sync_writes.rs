//! Durable writes that no replica ever acknowledges: each is answered once, as ambiguous, at its timeout and not
//! before.
//!
//! ```text
//!   SET_VBUCKET x 1024    chain [this node, one that is absent]
//!   10 connections        1000 SETs each, over all vBuckets, with timeouts in no order; answers in any order (0x0e)
//!   server's clock        stats durability-monitor: how late each deadline was noticed
//!   client's clock        answer - request - timeout: that and the way there and back
//! ```
//! The client's clock starts before the server's, so an answer that is early by the client's clock is early.

use super::IdleArgs;
use crate::client::{exchange, figure, statistics};
use crate::experiment::{Bench, progress_bar};
use crate::protocol::MAGIC_WITH_FRAMING;
use crate::random::Random;
use crate::report::{Goal, Report, Table, short};
use crate::subject::{Server, Start, Subject};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

const MEMORY_BYTES: u64 = 1 << 30;
const VBUCKETS: u16 = 1024;
const CONNECTIONS: u32 = 10;
const WRITES: u32 = 10_000;
/// Shortest timeout: all requests are sent long before the first answer is due.
const TIMEOUT_MIN_MS: u64 = 2_000;
const TIMEOUT_MAX_MS: u64 = 30_000;
const TIMEOUT_MAX_QUICK_MS: u64 = 6_000;
/// How long to listen on a connection after its last answer, for duplicate answers.
const AFTERWARDS: Duration = Duration::from_millis(500);
/// Highest lateness by the server's clock that 99 of 100 answers must keep.
const LATE_US_MAX: u64 = 2_000;
const LATE_SHARE: f64 = 0.99;

const HEADER: usize = 24;
const OPCODE_SET: u8 = 0x01;
const OPCODE_SET_VBUCKET: u8 = 0x3d;
const FEATURE_ALT_REQUEST: u16 = 0x10;
const FEATURE_SYNC_REPLICATION: u16 = 0x11;
const FEATURE_UNORDERED: u16 = 0x0e;
const STATUS_AMBIGUOUS: u16 = 0xa3;
const STATE_ACTIVE: u8 = 1;
const TOPOLOGY: &[u8] = br#"{"topology":[["lab-active","lab-absent"]]}"#;
/// Framing extra of durability with a timeout: id 1, three bytes.
const DURABILITY_FRAME: u8 = 0x13;

/// How well a server kept the deadlines of one run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Deadlines {
    polls: bool,
    writes: u32,
    answered_once: u32,
    answered_again: u32,
    /// Other answers than "ambiguous".
    other_answers: u32,
    /// By the client's clock.
    early: u32,
    /// By the client's clock, microseconds.
    late_p50_us: u64,
    late_p99_us: u64,
    late_max_us: u64,
    /// By the server's clock: (bound in microseconds, answers within it); the last has no bound.
    server_late: Vec<(Option<u64>, u64)>,
    server_late_max_us: u64,
    aborted: u64,
}

impl Deadlines {
    fn server_total(&self) -> u64 {
        self.server_late.iter().map(|(_, count)| count).sum()
    }

    /// Fraction of the answers within this many microseconds.
    fn server_share(&self, within_us: u64) -> f64 {
        let kept = |(bound, _): &&(Option<u64>, u64)| bound.is_some_and(|bound| bound <= within_us);
        let within: u64 = self.server_late.iter().filter(kept).map(|(_, count)| count).sum();
        within as f64 / self.server_total().max(1) as f64
    }

    /// The bound that this fraction of the answers kept, as text.
    fn server_quantile(&self, share: f64) -> String {
        let mut seen = 0;
        for (bound, count) in &self.server_late {
            seen += count;
            if seen as f64 >= share * self.server_total() as f64 {
                return bound.map_or("more".to_owned(), |us| format!("<= {}", short(us as f64 / 1e3)));
            }
        }
        "-".to_owned()
    }
}

/// Runs both modes.
pub(super) fn examine(bench: &Bench, subject: &Subject, arguments: &IdleArgs) -> Result<Vec<Deadlines>> {
    let timeout_max_ms = if arguments.common.quick { TIMEOUT_MAX_QUICK_MS } else { TIMEOUT_MAX_MS };
    let bar = progress_bar(2);
    let mut found = Vec::new();
    for polls in [false, true] {
        bar.set_message(format!("{WRITES} pending durable writes, polling {polls}"));
        let mut start = Start::new(bench.placement, MEMORY_BYTES);
        start.durable = true;
        start.polls = polls;
        start.parent.clone_from(&arguments.directory);
        let server = subject.start(&start)?;
        found.push(keep_waiting(&server, polls, timeout_max_ms)?);
        server.stop()?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(found)
}

/// Request time and timeout of each write, by its opaque.
type Asked = BTreeMap<u32, (Instant, Duration)>;

fn keep_waiting(server: &Server, polls: bool, timeout_max_ms: u64) -> Result<Deadlines> {
    let couchbase = server.couchbase.as_ref().context("a server without a Couchbase port")?;
    let address = server.memcached.context("a server without a memcached port")?;
    let mut admin = couchbase.connect()?;
    for vbucket in 0..VBUCKETS {
        exchange(&mut admin, &frame(OPCODE_SET_VBUCKET, vbucket, 0, &[], &[STATE_ACTIVE], &[], TOPOLOGY))
            .with_context(|| format!("giving vBucket {vbucket} a chain"))?;
    }
    let features = [FEATURE_ALT_REQUEST, FEATURE_SYNC_REPLICATION, FEATURE_UNORDERED];
    let streams: Vec<TcpStream> =
        (0..CONNECTIONS).map(|_| couchbase.connect_with(&features)).collect::<Result<_>>()?;
    let heard = thread::scope(|scope| {
        let listeners: Vec<_> = (0..CONNECTIONS)
            .zip(streams)
            .map(|(number, stream)| scope.spawn(move || converse(stream, number, timeout_max_ms)))
            .collect();
        let joined = listeners.into_iter().map(|listener| listener.join());
        joined
            .map(|heard| heard.unwrap_or_else(|_| anyhow::bail!("a connection's thread panicked")))
            .collect::<Result<Vec<_>>>()
    })?;
    let figures = statistics(address, "durability-monitor")?;
    let mut late: Histogram<u64> = Histogram::new_with_bounds(1, TIMEOUT_MAX_MS * 1000, 3)?;
    let mut sum = Heard::default();
    for one in &heard {
        sum.once += one.once;
        sum.again += one.again;
        sum.other += one.other;
        sum.early += one.early;
        one.late_us.iter().for_each(|&us| late.saturating_record(us));
    }
    ensure!(figure(&figures, "num_tracked")? == 0, "writes are still pending after their answers");
    Ok(Deadlines {
        polls,
        writes: WRITES,
        answered_once: sum.once,
        answered_again: sum.again,
        other_answers: sum.other,
        early: sum.early,
        late_p50_us: late.value_at_quantile(0.5),
        late_p99_us: late.value_at_quantile(0.99),
        late_max_us: late.max(),
        server_late: lateness(&figures)?,
        server_late_max_us: figure(&figures, "timeout_late_us_max")?,
        aborted: figure(&figures, "sync_writes_aborted")?,
    })
}

fn lateness(figures: &BTreeMap<String, String>) -> Result<Vec<(Option<u64>, u64)>> {
    let mut found = Vec::new();
    for name in figures.keys() {
        if let Some(bound) = name.strip_prefix("timeout_late_us_le_") {
            found.push((Some(bound.parse()?), figure(figures, name)?));
        }
    }
    found.sort_unstable();
    found.push((None, figure(figures, "timeout_late_us_more")?));
    Ok(found)
}

/// What a connection received.
#[derive(Clone, Debug, Default)]
struct Heard {
    once: u32,
    again: u32,
    other: u32,
    early: u32,
    late_us: Vec<u64>,
}

impl Heard {
    fn hear(&mut self, asked: &mut Asked, opaque: u32, status: u16, at: Instant) {
        let Some((sent, timeout)) = asked.remove(&opaque) else {
            self.again += 1;
            return;
        };
        self.once += 1;
        self.other += u32::from(status != STATUS_AMBIGUOUS);
        let waited = at - sent;
        match waited.checked_sub(timeout) {
            Some(late) => self.late_us.push(u64::try_from(late.as_micros()).unwrap_or(u64::MAX)),
            None => self.early += 1,
        }
    }
}

/// Sends this connection's share of the writes, then listens until all are answered, and a little longer.
fn converse(mut stream: TcpStream, number: u32, timeout_max_ms: u64) -> Result<Heard> {
    let mut random = Random::new(u64::from(number));
    let (mut asked, start) = (Asked::new(), Instant::now());
    for write in (number..WRITES).step_by(CONNECTIONS as usize) {
        let span = u32::try_from(timeout_max_ms - TIMEOUT_MIN_MS)?;
        let timeout_ms = TIMEOUT_MIN_MS + u64::from(Random::below(random.next(), span));
        let [high, low] = u16::try_from(timeout_ms)?.to_be_bytes();
        let level = (write % 3 + 1) as u8;
        // The first byte is the collection id.
        let key = format!("\0pending-{write}");
        let vbucket = (write % u32::from(VBUCKETS)) as u16;
        let framing = [DURABILITY_FRAME, level, high, low];
        let request = frame(OPCODE_SET, vbucket, write, &framing, &[0; 8], key.as_bytes(), b"value");
        asked.insert(write, (Instant::now(), Duration::from_millis(timeout_ms)));
        stream.write_all(&request)?;
    }
    ensure!(
        start.elapsed() < Duration::from_millis(TIMEOUT_MIN_MS),
        "sending took {:?}, longer than the least timeout: the machine is too busy for this",
        start.elapsed()
    );
    let mut heard = Heard::default();
    stream.set_read_timeout(Some(Duration::from_millis(timeout_max_ms) + Duration::from_secs(10)))?;
    while !asked.is_empty() {
        let Some((opaque, status)) = answer(&mut stream)? else {
            anyhow::bail!("{} writes were never answered", asked.len())
        };
        heard.hear(&mut asked, opaque, status, Instant::now());
    }
    stream.set_read_timeout(Some(AFTERWARDS))?;
    while let Some((opaque, status)) = answer(&mut stream)? {
        heard.hear(&mut asked, opaque, status, Instant::now());
    }
    Ok(heard)
}

/// The next answer's opaque and status; `None` if none arrives in time.
fn answer(stream: &mut TcpStream) -> Result<Option<(u32, u16)>> {
    let mut header = [0; HEADER];
    if let Err(error) = stream.read_exact(&mut header) {
        let timed_out = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        return if timed_out { Ok(None) } else { Err(error).context("reading an answer") };
    }
    let [_, _, _, _, _, _, high, low, a, b, c, d, e, f, g, h, ..] = header;
    let mut body = vec![0; u32::from_be_bytes([a, b, c, d]).min(1 << 20) as usize];
    stream.read_exact(&mut body)?;
    Ok(Some((u32::from_be_bytes([e, f, g, h]), u16::from_be_bytes([high, low]))))
}

fn frame(
    opcode: u8,
    vbucket: u16,
    opaque: u32,
    framing: &[u8],
    extras: &[u8],
    key: &[u8],
    value: &[u8],
) -> Vec<u8> {
    let body = framing.len() + extras.len() + key.len() + value.len();
    let mut frame =
        vec![MAGIC_WITH_FRAMING, opcode, framing.len() as u8, key.len() as u8, extras.len() as u8, 0];
    frame.extend_from_slice(&vbucket.to_be_bytes());
    frame.extend_from_slice(&(body as u32).to_be_bytes());
    frame.extend_from_slice(&opaque.to_be_bytes());
    frame.extend_from_slice(&[0; 8]);
    for part in [framing, extras, key, value] {
        frame.extend_from_slice(part);
    }
    frame
}

/// Tables and goals.
pub(super) fn fill(report: &mut Report, found: &[Deadlines]) {
    let mut table = Table::new(
        "Durable writes over all vBuckets whose replica is absent: lateness of their ambiguous answers",
        &[
            "mode",
            "writes",
            "once",
            "again",
            "other",
            "early",
            "server p50 ms",
            "p99 ms",
            "max ms",
            "client p50 ms",
            "p99 ms",
            "max ms",
            "aborted",
        ],
    );
    for one in found {
        let ms = |us: u64| short(us as f64 / 1e3);
        table.row(vec![
            if one.polls { "polling" } else { "event-driven" }.to_owned(),
            one.writes.to_string(),
            one.answered_once.to_string(),
            one.answered_again.to_string(),
            one.other_answers.to_string(),
            one.early.to_string(),
            one.server_quantile(0.5),
            one.server_quantile(0.99),
            ms(one.server_late_max_us),
            ms(one.late_p50_us),
            ms(one.late_p99_us),
            ms(one.late_max_us),
            one.aborted.to_string(),
        ]);
        judge(&mut report.goals, one);
    }
    report.tables.push(table);
}

fn judge(goals: &mut Vec<Goal>, one: &Deadlines) {
    let what = if one.polls { "pending writes, polling" } else { "pending writes, event-driven" };
    goals.push(Goal::at_most(format!("{what}: answers before their time"), f64::from(one.early), 0.0, ""));
    let wrong = one.writes.abs_diff(one.answered_once) + one.answered_again + one.other_answers;
    goals.push(Goal::at_most(
        format!("{what}: not answered exactly once as ambiguous"),
        f64::from(wrong),
        0.0,
        "",
    ));
    if !one.polls {
        let unknown = u64::from(one.writes).abs_diff(one.server_total()) as f64;
        goals.push(Goal::at_most(format!("{what}: unknown to the server's clock"), unknown, 0.0, ""));
        let name = format!("{what}: at most {} ms late by the server's clock", LATE_US_MAX / 1000);
        goals.push(Goal::at_least(name, one.server_share(LATE_US_MAX), LATE_SHARE, "x"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_answers_and_second_ones_are_told_apart() {
        let start = Instant::now();
        let timeout = Duration::from_millis(100);
        let mut asked: Asked = [(1, (start, timeout)), (2, (start, timeout)), (3, (start, timeout))].into();
        let mut heard = Heard::default();
        heard.hear(&mut asked, 1, STATUS_AMBIGUOUS, start + Duration::from_micros(99_999));
        heard.hear(&mut asked, 2, STATUS_AMBIGUOUS, start + Duration::from_micros(100_700));
        heard.hear(&mut asked, 2, STATUS_AMBIGUOUS, start + Duration::from_micros(100_800));
        heard.hear(&mut asked, 3, 0, start + timeout);
        assert_eq!((heard.once, heard.again, heard.other, heard.early), (3, 1, 1, 1));
        assert_eq!(heard.late_us, [700, 0]);
        assert!(asked.is_empty());
    }

    #[test]
    fn quantiles_are_the_bounds_that_were_kept() {
        let figures: BTreeMap<String, String> = [
            ("timeout_late_us_le_250", "980"),
            ("timeout_late_us_le_2000", "9"),
            ("timeout_late_us_le_10000", "10"),
            ("timeout_late_us_more", "1"),
            ("other", "x"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        let found = Deadlines {
            polls: false,
            writes: 1000,
            answered_once: 1000,
            answered_again: 0,
            other_answers: 0,
            early: 0,
            late_p50_us: 0,
            late_p99_us: 0,
            late_max_us: 0,
            server_late: lateness(&figures).unwrap(),
            server_late_max_us: 20_000,
            aborted: 1000,
        };
        assert_eq!(
            (found.server_quantile(0.5), found.server_quantile(0.99)),
            ("<= 0.250".into(), "<= 10.0".into())
        );
        assert_eq!(found.server_quantile(1.0), "more");
        let mut report = Report::default();
        fill(&mut report, &[found]);
        let verdicts: Vec<bool> = report.goals.iter().map(|goal| goal.met).collect();
        assert_eq!(verdicts, [true, true, true, false], "989 of 1000 kept 2 ms");
    }

    #[test]
    fn frames_hold_their_parts_in_order() {
        let frame = frame(1, 0x0102, 7, &[9, 9], &[1; 8], b"key", b"value");
        assert_eq!(frame[..8], [0x08, 1, 2, 3, 8, 0, 1, 2]);
        assert_eq!(frame[8..16], [0, 0, 0, 18, 0, 0, 0, 7]);
        assert_eq!(&frame[34..], b"keyvalue");
        assert_eq!(frame.len(), 24 + 18);
    }
}
