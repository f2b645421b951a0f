//! The load's scripts: transactions in a closed loop or with several in flight, replicas, and the end of a run.

use super::driver::Script;
use super::splitter::Message;
use super::template::{FIRST_ID, Template, UuidText, monitor};
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use memchr::memmem::{self, Finder};

/// Contained in the reply to an update of one row.
const UPDATED: &[u8] = br#"{"count":1}"#;
/// Text before the UUID of a new row in a reply.
pub const NEW_ROW: &[u8] = br#"["uuid",""#;

/// Workers that each change or insert one row per transaction.
pub struct Transactions<'a> {
    template: &'a Template,
    /// Rows to choose from; empty if the template inserts.
    rows: &'a [UuidText],
    expected: Finder<'static>,
    random: Random,
    /// Transactions that one worker has in flight.
    window: u64,
    /// Transactions of one worker.
    each: u64,
    workers: Vec<Worker>,
    unanswered: u64,
    /// Notifications received by all sessions.
    pub notifications: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    sent: u64,
    answered: u64,
}

impl<'a> Transactions<'a> {
    /// `each` transactions on each of the first `workers` sessions; the other sessions only listen.
    pub fn new(template: &'a Template, rows: &'a [UuidText], workers: usize, each: u64, window: u64) -> Self {
        Self {
            template,
            rows,
            expected: Finder::new(if rows.is_empty() { NEW_ROW } else { UPDATED }),
            random: Random::new(1),
            window,
            each,
            workers: vec![Worker::default(); workers],
            unanswered: workers as u64 * each,
            notifications: 0,
        }
    }

    fn send(&mut self, peer: usize, out: &mut Vec<u8>) {
        let Some(worker) = self.workers.get_mut(peer) else { return };
        if worker.sent == self.each {
            return;
        }
        let draw = self.random.next();
        let chosen = Random::below(draw, self.rows.len() as u32) as usize;
        let row = self.rows.get(chosen).unwrap_or(&[0; 36]);
        self.template.write(FIRST_ID + worker.sent, row, self.random.next(), out);
        worker.sent += 1;
    }
}

impl Script for Transactions<'_> {
    fn begin(&mut self, peer: usize, out: &mut Vec<u8>) -> Result<()> {
        (0..self.window).for_each(|_| self.send(peer, out));
        Ok(())
    }

    fn message(&mut self, peer: usize, message: &Message<'_>, out: &mut Vec<u8>) -> Result<()> {
        if message.is_notification() {
            self.notifications += 1;
            return Ok(());
        }
        let worker = self.workers.get_mut(peer).context("an unexpected reply")?;
        message.check_reply(FIRST_ID + worker.answered)?;
        let succeeded = self.expected.find(message.head).is_some();
        ensure!(succeeded, "a transaction was answered by {}", message.describe());
        worker.answered += 1;
        self.unanswered -= 1;
        self.send(peer, out);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.unanswered == 0
    }
}

/// Sessions that request a replica of the database, all at once.
pub struct Subscribe {
    sessions: std::ops::Range<usize>,
    /// Length of each reply.
    pub lengths: Vec<usize>,
}

impl Subscribe {
    /// `sessions` are those that get a replica.
    pub fn new(sessions: std::ops::Range<usize>) -> Self {
        Self { sessions, lengths: Vec::new() }
    }
}

impl Script for Subscribe {
    fn begin(&mut self, peer: usize, out: &mut Vec<u8>) -> Result<()> {
        if self.sessions.contains(&peer) {
            out.extend_from_slice(monitor(FIRST_ID).as_bytes());
        }
        Ok(())
    }

    fn message(&mut self, _peer: usize, message: &Message<'_>, _out: &mut Vec<u8>) -> Result<()> {
        if !message.is_notification() {
            message.check_reply(FIRST_ID).context("asking for a replica")?;
            self.lengths.push(message.length);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.lengths.len() == self.sessions.len()
    }
}

/// One request on the first session.
pub struct Single {
    request: Vec<u8>,
    /// Length of its reply, once received.
    pub reply_bytes: Option<usize>,
}

impl Single {
    /// A request with the first id.
    pub fn new(request: Vec<u8>) -> Self {
        Self { request, reply_bytes: None }
    }
}

impl Script for Single {
    fn begin(&mut self, peer: usize, out: &mut Vec<u8>) -> Result<()> {
        if peer == 0 {
            out.append(&mut self.request);
        }
        Ok(())
    }

    fn message(&mut self, _peer: usize, message: &Message<'_>, _out: &mut Vec<u8>) -> Result<()> {
        if !message.is_notification() {
            message.check_reply(FIRST_ID)?;
            self.reply_bytes = Some(message.length);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.reply_bytes.is_some()
    }
}

/// Text of the row that ends a run.
pub const MARKER: &str = "value-the-last-of-all";

/// The end of a run with replicas: inserts a marked row, and waits until every replica has been notified of it, and so
/// of everything before it.
pub struct Drain {
    sessions: std::ops::Range<usize>,
    finder: Finder<'static>,
    /// Last bytes of each session: the marker may be split across two reads.
    carried: Vec<Vec<u8>>,
    unmarked: usize,
    seen: Vec<bool>,
    replied: bool,
}

impl Drain {
    /// `sessions` are those that have a replica.
    pub fn new(sessions: std::ops::Range<usize>) -> Self {
        Self {
            carried: vec![Vec::new(); sessions.end],
            seen: vec![false; sessions.end],
            unmarked: sessions.len(),
            sessions,
            finder: Finder::new(MARKER),
            replied: false,
        }
    }
}

impl Script for Drain {
    fn begin(&mut self, peer: usize, out: &mut Vec<u8>) -> Result<()> {
        if peer == 0 {
            let insert = format!(
                r#"{{"op":"insert","table":"Test","row":{{"stringField":"{MARKER}","numericField":1,"enumField":"alpha"}}}}"#
            );
            Template::new(&super::template::transact(&insert)).write(FIRST_ID, &[0; 36], 0, out);
        }
        Ok(())
    }

    fn bytes(&mut self, peer: usize, bytes: &[u8]) {
        let (Some(carried), Some(seen)) = (self.carried.get_mut(peer), self.seen.get_mut(peer)) else {
            return;
        };
        if *seen || !self.sessions.contains(&peer) {
            return;
        }
        carried.extend_from_slice(bytes.get(..MARKER.len()).unwrap_or(bytes));
        *seen = self.finder.find(carried).is_some() || self.finder.find(bytes).is_some();
        self.unmarked -= usize::from(*seen);
        let last = bytes.get(bytes.len().saturating_sub(MARKER.len())..).unwrap_or_default();
        if last.len() == MARKER.len() {
            carried.clear();
            carried.extend_from_slice(last);
        } else {
            let spare = carried.len().saturating_sub(MARKER.len());
            carried.drain(..spare);
        }
    }

    fn message(&mut self, _peer: usize, message: &Message<'_>, _out: &mut Vec<u8>) -> Result<()> {
        if !message.is_notification() {
            message.check_reply(FIRST_ID)?;
            self.replied = true;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.replied && self.unmarked == 0
    }
}

/// UUIDs of the new rows in a reply, in order.
pub fn new_rows(reply: &[u8]) -> impl Iterator<Item = UuidText> + '_ {
    memmem::find_iter(reply, NEW_ROW)
        .filter_map(|at| reply.get(at + NEW_ROW.len()..at + NEW_ROW.len() + 36)?.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovsdb::splitter::Splitter;

    fn feed(script: &mut impl Script, peer: usize, text: &str) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        script.bytes(peer, text.as_bytes());
        Splitter::new(1000).feed(text.as_bytes(), |message| script.message(peer, message, &mut out))?;
        Ok(out)
    }

    fn reply(number: u64, result: &str) -> String {
        format!(r#"{{"id":{},"result":[{result}],"error":null}}"#, FIRST_ID + number)
    }

    #[test]
    fn a_reply_lets_one_more_transaction_leave() {
        let template = Template::update();
        let rows = [*b"831191a0-7526-4139-8017-6b48dd6d6822"];
        let mut script = Transactions::new(&template, &rows, 1, 3, 2);
        let mut first = Vec::new();
        script.begin(0, &mut first).unwrap();
        script.begin(1, &mut first).unwrap();
        let one = first.len() / 2;
        assert_eq!(feed(&mut script, 0, &reply(0, r#"{"count":1}"#)).unwrap().len(), one);
        let note = r#"{"id":null,"method":"update3","params":[]}"#;
        assert!(feed(&mut script, 0, &(note.to_owned() + &reply(1, r#"{"count":1}"#))).unwrap().is_empty());
        assert!(!script.is_done());
        assert!(feed(&mut script, 0, &reply(1, r#"{"count":1}"#)).is_err(), "an old id");
        assert!(feed(&mut script, 0, &reply(2, r#"{"count":0}"#)).is_err(), "a row that was not found");
    }

    #[test]
    fn the_mark_is_found_across_reads() {
        let text = format!(r#"{{"id":null,"method":"update3","params":["{MARKER}"]}}"#);
        for cut in 1..text.len() {
            let mut script = Drain::new(0..1);
            script.replied = true;
            let (one, other) = text.split_at(cut);
            script.bytes(0, one.as_bytes());
            script.bytes(0, other.as_bytes());
            assert!(script.is_done(), "{cut}");
        }
        let mut script = Drain::new(0..1);
        script.replied = true;
        text.bytes().for_each(|byte| script.bytes(0, &[byte]));
        assert!(script.is_done());
    }

    #[test]
    fn new_rows_of_a_reply() {
        let text = r#"{"uuid":["uuid","831191a0-7526-4139-8017-6b48dd6d6822"]},{"uuid":["uuid","e1d14296-cc78-4ac2-9948-f2e5cdb9c196"]}"#;
        assert_eq!(new_rows(text.as_bytes()).count(), 2);
        assert_eq!(new_rows(br#"["uuid","831191a0"#).count(), 0);
    }
}
