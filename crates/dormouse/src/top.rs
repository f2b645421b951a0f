//! `dormouse top`: a running node on the whole screen, live.
//!
//! ```text
//!   dm:poll    asks the node, and sleeps for the interval
//!   dm:keys    reads the terminal
//!   dm:signals waits for SIGTERM, SIGINT and SIGHUP
//!      └──────── one channel ────────> the main thread, which keeps the state and draws it
//! ```
//!
//! The node is asked nothing after the program has ended. While it does not answer, the last figures stay, with their
//! age.

mod app;
mod bar;
mod sample;
mod screen;
mod sheet;

use crate::config::Problem;
use crate::node_client::{NodeArgs, NodeClient};
use crate::signals::Signals;
use anyhow::Context as _;
use app::App;
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use sample::Reading;
use serde_json::Value;
use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Bounds of the interval, seconds.
const INTERVAL_S_MIN: f64 = 0.1;
const INTERVAL_S_MAX: f64 = 3600.0;
/// How long an answer may take until the connection counts as lost.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Reading memory walks the page tables of all buckets. It may keep the node busy for this part of the time.
const MEMORY_SHARE: u32 = 100;
/// The age of figures is drawn anew after this time without news.
const AGE_STEP: Duration = Duration::from_secs(1);

/// Options of `dormouse top`.
#[derive(Debug, Args)]
#[command(after_help = "Keys: ? shows all of them.
  1 2 3 4, Tab   node, buckets, threads, databases
  /              filter a table by name
  < >, r         sort by another column, turn the order round; so does the first letter of a column
  q, Ctrl-C      quit

Exit codes:
  0  it was quit
  1  the node could not be asked, or has refused: its reason is printed
  2  a mistake in the command line, or no terminal

Examples:
  dormouse top
  dormouse top --interval 0.5
  dormouse top --node https://db1:18091 --ca ca.pem --user ada --password-file password")]
pub struct Top {
    /// Seconds between two questions to the node
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval, allow_hyphen_values = true)]
    interval: Duration,
    #[command(flatten)]
    node: NodeArgs,
}

/// News for the main thread.
enum News {
    Key(KeyEvent),
    Resized,
    Answer(Result<Box<Reading>, String>),
    Stop,
}

fn interval(text: &str) -> Result<Duration, Problem> {
    let seconds = text.parse().ok().filter(|seconds| (INTERVAL_S_MIN..=INTERVAL_S_MAX).contains(seconds));
    let problem = || Problem::new(format!("allowed are {INTERVAL_S_MIN} to {INTERVAL_S_MAX} seconds"));
    seconds.map(Duration::from_secs_f64).ok_or_else(problem)
}

/// Shows the node until somebody quits.
pub fn run(arguments: &Top) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let reason = "top needs a terminal; for scripts there is: dormouse status --json";
        return Err(Problem::new(reason).into());
    }
    let mut poll = Poll::new(arguments.node.client()?.with_read_timeout(TIMEOUT));
    let mut app = App::new(poll.client.base());
    // A wrong address or login is told at once, and not on another screen.
    app.answered(Ok(Box::new(poll.ask()?)), Instant::now());

    let (sender, news) = channel();
    let mut signals = Signals::new()?;
    on_a_thread("dm:signals", &sender, move |sender| {
        signals.next();
        // Nobody listens if the main thread has ended.
        let _ = sender.send(News::Stop);
    })?;
    let interval = arguments.interval;
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let shown = on_a_thread("dm:keys", &sender, read_keys)
        .and_then(|()| on_a_thread("dm:poll", &sender, move |sender| poll.repeat(interval, &sender)))
        .and_then(|()| show(&mut terminal, &mut app, &news, interval));
    let restored = ratatui::try_restore().context("the terminal");
    // It would write to standard error, and panic if that was the terminal and is gone.
    let _ = terminal.show_cursor();
    std::mem::forget(terminal);
    shown.and(restored)
}

fn on_a_thread(
    name: &str,
    news: &Sender<News>,
    work: impl FnOnce(Sender<News>) + Send + 'static,
) -> anyhow::Result<()> {
    let news = news.clone();
    thread::Builder::new().name(name.to_owned()).spawn(move || work(news)).map(drop).context("a thread")
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut App,
    news: &Receiver<News>,
    interval: Duration,
) -> anyhow::Result<()> {
    loop {
        terminal.draw(|frame| screen::draw(frame, app, interval, Instant::now())).context("the terminal")?;
        let first = match news.recv_timeout(AGE_STEP) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        // A paste is many keys: it is drawn once.
        for one in std::iter::once(first).chain(news.try_iter()) {
            match one {
                News::Key(key) if app.pressed(key) => return Ok(()),
                News::Key(_) | News::Resized => {}
                News::Answer(answer) => app.answered(answer, Instant::now()),
                News::Stop => return Ok(()),
            }
        }
    }
}

fn read_keys(news: Sender<News>) {
    loop {
        let one = match event::read() {
            Ok(Event::Key(key)) => News::Key(key),
            Ok(Event::Resize(..)) => News::Resized,
            Ok(_) => continue,
            // The terminal is gone.
            Err(_) => News::Stop,
        };
        let is_last = matches!(one, News::Stop);
        if news.send(one).is_err() || is_last {
            return;
        }
    }
}

/// Asks the node.
struct Poll {
    client: NodeClient,
    memory: Option<Memory>,
}

/// An answer that costs the node more than the others.
struct Memory {
    document: Value,
    read_at: Instant,
    took: Duration,
}

impl Poll {
    fn new(client: NodeClient) -> Self {
        Self { client, memory: None }
    }

    fn ask(&mut self) -> anyhow::Result<Reading> {
        let (_, health) = self.client.health()?;
        let figures = self.client.json("/figures")?;
        let memory =
            match self.memory.take().filter(|memory| memory.read_at.elapsed() < memory.took * MEMORY_SHARE) {
                Some(memory) => memory,
                None => {
                    let started = Instant::now();
                    let document = self.client.json("/memory")?;
                    Memory { document, read_at: Instant::now(), took: started.elapsed() }
                }
            };
        let reading = Reading { health, figures, memory: memory.document.clone(), memory_at: memory.read_at };
        self.memory = Some(memory);
        Ok(reading)
    }

    fn repeat(mut self, interval: Duration, news: &Sender<News>) {
        loop {
            thread::sleep(interval);
            let answer = self.ask().map(Box::new).map_err(|error| format!("{error:#}"));
            if news.send(News::Answer(answer)).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "3601", "1s", ""] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
