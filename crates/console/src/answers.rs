//! Outcomes of durable writes that were asked for over HTTP.
//!
//! ```text
//!   dm:document ──prepare, ticket──> vBucket ──letter──> mailbox of this thread ──bell──> who waits for the ticket
//! ```
//! The console's thread has no loop that reads its letters: whoever waits reads them for all. Its alarms are kept by
//! a task that lives while there is one: at most until the deadline of the last durable write.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kv::{NodeContext, Outcome};
use tokio::sync::Notify;

use crate::Console;
use crate::vbuckets::execute;

/// The outcomes that have come, and who waits for some.
#[derive(Default)]
pub struct Answers {
    news: Notify,
    come: Mutex<HashMap<u64, Outcome>>,
    keeps_alarms: AtomicBool,
}

impl Answers {
    /// Makes letters for the thread of this context wake those who wait.
    pub fn connect(self: &Arc<Self>, cx: &mut NodeContext) {
        cx.keeps_alarms = true;
        let answers = Arc::clone(self);
        if let Some(mailbox) = cx.node.mailbox(cx.thread) {
            mailbox.connect(Box::new(move || answers.wake()));
        }
    }

    /// Wakes those who wait, to read the letters.
    pub fn wake(&self) {
        self.news.notify_waiters();
    }

    /// Waits for the outcome of the durable write with this ticket. Whoever has a ticket must wait for it: otherwise
    /// its outcome is kept.
    pub async fn outcome(console: &Console, ticket: u64) -> Outcome {
        keep_alarms(console);
        let answers = &console.answers;
        loop {
            let news = answers.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if let Some(outcome) = answers.look(console, ticket) {
                return outcome;
            }
            news.await;
        }
    }

    /// Reads the letters, for everybody, and takes the outcome of this ticket if it has come.
    fn look(&self, console: &Console, ticket: u64) -> Option<Outcome> {
        let mut letters = Vec::new();
        execute(console, |cx| cx.take_letters(true, &mut letters));
        let mut come = self.come.lock().unwrap_or_else(PoisonError::into_inner);
        if !letters.is_empty() {
            come.extend(letters.into_iter().map(|(cookie, outcome)| (cookie.ticket, outcome)));
            self.wake();
        }
        come.remove(&ticket)
    }
}

/// Sees to it that overdue writes end, until there are none.
fn keep_alarms(console: &Console) {
    if console.answers.keeps_alarms.swap(true, SeqCst) {
        return;
    }
    let console = console.clone();
    tokio::spawn(async move {
        loop {
            let (next_us, now_us) = execute(&console, |cx| (cx.next_alarm_us(), cx.now.mono_us));
            if let Some(next_us) = next_us {
                tokio::time::sleep(Duration::from_micros(next_us.saturating_sub(now_us))).await;
                execute(&console, |cx| cx.ring_alarms());
                continue;
            }
            console.answers.keeps_alarms.store(false, SeqCst);
            // One that was set before the flag fell.
            let has_more = execute(&console, |cx| cx.next_alarm_us()).is_some();
            if !has_more || console.answers.keeps_alarms.swap(true, SeqCst) {
                break;
            }
        }
    });
}
