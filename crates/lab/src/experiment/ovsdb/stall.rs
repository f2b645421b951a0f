//! How long a client waits while the database file is compacted.
//!
//! One client updates a random row every millisecond and waits for the answer; a latency counts from the time the
//! update was due, so a stall is charged to every update it delays. The first period is at rest; in the second the
//! server is told to compact.

use super::run::Sample;
use crate::machine::BusyReading;
use crate::os;
use crate::ovsdb::control::{self, Control};
use crate::ovsdb::subject::{Kind, Server, Subject};
use crate::ovsdb::template::{FIRST_ID, Template, UuidText};
use crate::random::Random;
use anyhow::{Context, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use std::thread;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(1);
/// The second period runs for the first one's length divided by this before the compaction, and as long after it.
const LEAD_PART: u32 = 4;

struct StallProbe<'a> {
    control: Control,
    template: Template,
    rows: &'a [UuidText],
    random: Random,
    request: Vec<u8>,
    sent: u64,
}

impl StallProbe<'_> {
    /// Updates rows until `is_over` returns true; returns latencies in microseconds.
    fn probe(&mut self, mut is_over: impl FnMut(Duration) -> bool) -> Result<Histogram<u64>> {
        let mut latencies = Histogram::new_with_bounds(1, 600_000_000, 3)?;
        let start = Instant::now();
        let mut due = start;
        while !is_over(start.elapsed()) {
            if let Some(early) = due.checked_duration_since(Instant::now()) {
                thread::sleep(early);
            }
            let chosen = Random::below(self.random.next(), self.rows.len() as u32) as usize;
            let row = self.rows.get(chosen).context("no rows")?;
            self.request.clear();
            self.template.write(FIRST_ID + self.sent, row, self.random.next(), &mut self.request);
            self.sent += 1;
            let reply = self.control.call(&self.request)?;
            let updated = memchr::memmem::find(&reply, br#"{"count":1}"#).is_some();
            ensure!(updated, "an update was answered by {}", String::from_utf8_lossy(&reply));
            latencies.saturating_record(u64::try_from(due.elapsed().as_micros())?);
            due += INTERVAL;
        }
        Ok(latencies)
    }
}

/// Measures a client's latencies at rest and during a compaction.
pub fn compaction(
    sample: &mut Sample,
    subject: &Subject,
    server: &mut Server,
    rows: &[UuidText],
    quiet_ms: u64,
) -> Result<()> {
    let quiet = Duration::from_millis(quiet_ms);
    let mut probe = StallProbe {
        control: Control::new(&server.socket)?,
        template: Template::update(),
        rows,
        random: Random::new(3),
        request: Vec::new(),
        sent: 0,
    };
    // If it is refused, the load keeps its ordinary priority, which affects both periods alike.
    let raised = os::set_realtime().is_ok();
    let measured = probe_both(sample, server, &mut probe, quiet);
    if raised {
        os::set_ordinary()?;
    }
    measured?;
    if subject.kind == Kind::Dormouse {
        // A server that does not report this misses the goal; the client's figures remain valid.
        let text = control::command(&server.control, "dormouse/figures").unwrap_or_default();
        if let Some(hold) = control::figure(&text, "compaction_longest_hold_us") {
            sample.figure("own longest hold us", hold);
        }
    }
    Ok(())
}

fn probe_both(
    sample: &mut Sample,
    server: &mut Server,
    probe: &mut StallProbe,
    quiet: Duration,
) -> Result<()> {
    let latencies = probe.probe(|elapsed| elapsed >= quiet)?;
    record(sample, "quiet", &latencies);

    let lead = quiet / LEAD_PART;
    let socket = server.control.clone();
    let busy = BusyReading::take();
    let cpu_before = os::process_cpu_ns(server.pid)?;
    let own_before = os::thread_cpu_ns()?;
    let start = Instant::now();
    let mut compaction = None;
    let mut over_at = None;
    let latencies = probe.probe(|elapsed| {
        if elapsed >= lead && compaction.is_none() {
            let socket = socket.clone();
            compaction = Some(thread::spawn(move || {
                let start = Instant::now();
                control::command(&socket, "ovsdb-server/compact").map(|_| start.elapsed())
            }));
        }
        if over_at.is_none() && compaction.as_ref().is_some_and(thread::JoinHandle::is_finished) {
            over_at = Some(elapsed + lead);
        }
        over_at.is_some_and(|over| elapsed >= over)
    })?;
    let taken = compaction
        .context("no compaction was asked for")?
        .join()
        .map_err(|_| anyhow!("the thread that asked for the compaction panicked"))?
        .context("compacting")?;
    record(sample, "beside", &latencies);
    sample.figure("compaction s", taken.as_secs_f64());
    sample.wall_ns = u64::try_from(start.elapsed().as_nanos())?;
    sample.cpu_ns = os::process_cpu_ns(server.pid)? - cpu_before;
    sample.driver_cpu_ns = os::thread_cpu_ns()? - own_before;
    sample.foreign_cores = busy.foreign_cores(sample.cpu_ns + sample.driver_cpu_ns);
    sample.units = latencies.len();
    Ok(())
}

fn record(sample: &mut Sample, when: &str, latencies: &Histogram<u64>) {
    sample.figure(format!("{when} median us"), latencies.value_at_quantile(0.5) as f64);
    sample.figure(format!("{when} p99.9 us"), latencies.value_at_quantile(0.999) as f64);
    sample.figure(format!("{when} worst us"), latencies.max() as f64);
}
