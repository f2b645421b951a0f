//! The queue: workers send requests, one producer answers them, and all sessions keep a full replica.
//!
//! ```text
//! worker    inserts a request row ──> every replica is notified
//! producer  updates all counter rows and answers the row, in one transaction ──> every replica is notified
//! worker    sees its row answered ──> inserts the next
//! ```

use super::driver::Script;
use super::script::new_rows;
use super::splitter::Message;
use super::template::{FIRST_ID, Template, UuidText, counters, digits, transact};
use anyhow::{Context, Result, bail, ensure};
use memchr::memmem::{self, Finder};
use std::collections::VecDeque;
use std::fmt::Write as _;

/// The answer to a request is within this many bytes after its row's UUID in a notification.
const ANSWER_WITHIN_BYTES: usize = 200;
const ANSWERED: &[u8] = b"\"responseTimestamp\":";
/// Text after the UUID of a new row in a notification. Counter rows are only modified, never inserted.
const INSERTED: &[u8] = b"\":{\"insert\":";

struct Worker {
    sent: u64,
    /// Row of the request in flight, known once its reply has arrived.
    row: Option<UuidText>,
}

/// The load of the queue case: the sessions are the workers, then the producer.
pub struct Queue {
    workers: Vec<Worker>,
    each: u64,
    unanswered: u64,
    request: Template,
    /// The producer's transaction with two alternating sets of counters, so that every counter changes every time.
    answers: [Template; 2],
    asked: VecDeque<UuidText>,
    produced: u64,
    producing: bool,
    inserted: Finder<'static>,
    count: usize,
}

impl Queue {
    /// A queue over existing counter rows, with `each` requests per worker.
    pub fn new(rows: &[UuidText], workers: usize, each: u64) -> Self {
        let request = transact(
            r#"{"op":"insert","table":"TestCountersRequests","row":{"requestTimestamp":^^^^^^^^^}}"#,
        );
        Self {
            workers: (0..workers).map(|_| Worker { sent: 0, row: None }).collect(),
            each,
            unanswered: workers as u64 * each,
            request: Template::new(&request),
            answers: [1, 2].map(|generation| answer(rows, generation)),
            asked: VecDeque::new(),
            produced: 0,
            producing: false,
            inserted: Finder::new(INSERTED),
            count: rows.len() + 1,
        }
    }

    /// Generation of the counters after the last answer.
    pub fn last_generation(&self) -> u64 {
        (self.produced + 1) % 2 + 1
    }

    fn ask(&mut self, worker: usize, out: &mut Vec<u8>) {
        let Some(state) = self.workers.get_mut(worker) else { return };
        state.row = None;
        if state.sent < self.each {
            self.request.write(FIRST_ID + state.sent, &[0; 36], state.sent << 40, out);
            state.sent += 1;
        }
    }

    fn worker_message(&mut self, worker: usize, message: &Message<'_>, out: &mut Vec<u8>) -> Result<()> {
        let state = self.workers.get_mut(worker).context("no such worker")?;
        if !message.is_notification() {
            message.check_reply(FIRST_ID + state.sent - 1)?;
            state.row = new_rows(message.head).next();
            ensure!(state.row.is_some(), "a request was answered by {}", message.describe());
            return Ok(());
        }
        let Some(row) = &state.row else { return Ok(()) };
        let Some(at) = memmem::find(message.head, row) else { return Ok(()) };
        let rest = message.head.get(at..).unwrap_or_default();
        let near = rest.get(..ANSWER_WITHIN_BYTES).unwrap_or(rest);
        if memmem::find(near, ANSWERED).is_some() {
            self.unanswered -= 1;
            self.ask(worker, out);
        }
        Ok(())
    }

    fn producer_message(&mut self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<()> {
        if message.is_notification() {
            for at in self.inserted.find_iter(message.head) {
                let row = at.checked_sub(36).and_then(|from| message.head.get(from..at));
                match row.and_then(|row| row.try_into().ok()) {
                    Some(row) => self.asked.push_back(row),
                    None => bail!("a new row without a UUID: {}", message.describe()),
                }
            }
        } else {
            message.check_reply(FIRST_ID + self.produced - 1)?;
            let changed = memmem::find_iter(message.head, br#"{"count":1}"#).count();
            ensure!(changed == self.count, "{changed} rows changed: {}", message.describe());
            self.producing = false;
        }
        if !self.producing
            && let Some(row) = self.asked.pop_front()
        {
            let answer = if self.produced.is_multiple_of(2) { &self.answers[0] } else { &self.answers[1] };
            answer.write(FIRST_ID + self.produced, &row, self.produced << 40, out);
            self.produced += 1;
            self.producing = true;
        }
        Ok(())
    }
}

/// The producer's transaction: it updates all counter rows and the row of a request.
fn answer(rows: &[UuidText], generation: u64) -> Template {
    let map = counters(generation);
    let mut operations = String::with_capacity(rows.len() * (map.len() + 150));
    for row in rows {
        let row = String::from_utf8_lossy(row);
        // Writing to a String cannot fail.
        let _ = write!(
            operations,
            r#"{{"op":"update","table":"TestCounters","where":[["_uuid","==",["uuid","{row}"]]],"row":{{"countersField":{map}}}}},"#
        );
    }
    let uuid = "~".repeat(36);
    operations.push_str(&format!(
        r#"{{"op":"update","table":"TestCountersRequests","where":[["_uuid","==",["uuid","{uuid}"]]],"row":{{"responseTimestamp":^^^^^^^^^}}}}"#
    ));
    Template::new(&transact(&operations))
}

impl Script for Queue {
    fn begin(&mut self, peer: usize, out: &mut Vec<u8>) -> Result<()> {
        self.ask(peer, out);
        Ok(())
    }

    fn message(&mut self, peer: usize, message: &Message<'_>, out: &mut Vec<u8>) -> Result<()> {
        if peer < self.workers.len() {
            self.worker_message(peer, message, out)
        } else {
            self.producer_message(message, out)
        }
    }

    fn is_done(&self) -> bool {
        self.unanswered == 0 && !self.producing
    }
}

/// A transaction that inserts `rows` counter rows.
pub fn insert_counters(rows: usize) -> Vec<u8> {
    let map = counters(0);
    let insert = format!(r#"{{"op":"insert","table":"TestCounters","row":{{"countersField":{map}}}}}"#);
    let mut text = transact(&vec![insert; rows].join(",")).into_bytes();
    if let Some(at) = memchr::memchr(b'@', &text)
        && let Some(hole) = text.get_mut(at..at + 10)
    {
        digits(FIRST_ID, hole);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovsdb::splitter::Splitter;

    const ROW: &str = "831191a0-7526-4139-8017-6b48dd6d6822";

    fn feed(queue: &mut Queue, peer: usize, text: &str) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        Splitter::new(usize::MAX).feed(text.as_bytes(), |message| queue.message(peer, message, &mut out))?;
        Ok(out)
    }

    #[test]
    fn a_request_goes_round() {
        let mut queue = Queue::new(&[[b'a'; 36]], 1, 1);
        let mut out = Vec::new();
        queue.begin(0, &mut out).unwrap();
        queue.begin(1, &mut out).unwrap();
        let request: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(request["params"][1]["table"], "TestCountersRequests");

        let asked = format!(
            r#"{{"id":null,"method":"update3","params":["m","0",{{"TestCountersRequests":{{"{ROW}":{{"insert":{{"requestTimestamp":100000000}}}}}}}}]}}"#
        );
        let reply = format!(r#"{{"id":{FIRST_ID},"result":[{{"uuid":["uuid","{ROW}"]}}],"error":null}}"#);
        assert!(feed(&mut queue, 0, &(asked.clone() + &reply)).unwrap().is_empty());
        let answer = feed(&mut queue, 1, &asked).unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        let operations = answer["params"].as_array().unwrap();
        assert_eq!(operations[1]["row"]["countersField"][1].as_array().unwrap().len(), 256);
        assert_eq!(operations[2]["where"][0][2][1], ROW);

        let answered = format!(
            r#"{{"id":null,"method":"update3","params":["m","0",{{"TestCountersRequests":{{"{ROW}":{{"modify":{{"responseTimestamp":100000000}}}}}}}}]}}"#
        );
        feed(&mut queue, 0, &answered).unwrap();
        assert!(!queue.is_done(), "the producer still waits");
        let reply = format!(r#"{{"id":{FIRST_ID},"result":[{{"count":1}},{{"count":1}}],"error":null}}"#);
        feed(&mut queue, 1, &(answered + &reply)).unwrap();
        assert!(queue.is_done());
        assert_eq!(queue.last_generation(), 1);
    }

    #[test]
    fn a_row_that_did_not_change_ends_the_run() {
        let mut queue = Queue::new(&[[b'a'; 36]], 1, 1);
        (queue.produced, queue.producing) = (1, true);
        let reply = format!(r#"{{"id":{FIRST_ID},"result":[{{"count":0}},{{"count":1}}],"error":null}}"#);
        assert!(feed(&mut queue, 1, &reply).is_err());
    }
}
