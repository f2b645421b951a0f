//! The last lines that were logged, kept in memory for `/log`.
//!
//! ```text
//!   event ── level in force? ── text, without the lock ──> | oldest line | ... | newest line |   numbered from 1
//!                                                            <- forgotten beyond a number of lines or bytes
//! ```
//! Nothing is allocated before there is a line, and nothing runs between two. Texts have no control characters: what
//! clients sent may be in them, and a terminal may show them.

use console::{LOG_LINES_MAX, LogLevel, LogLine, LogQuestion, LogTail};
use std::collections::VecDeque;
use std::fmt::{self, Debug, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Most bytes of all lines together, those of their numbers and times included.
const TAIL_BYTES_MAX: usize = 512 << 10;
/// A longer line is cut off.
const LINE_BYTES_MAX: usize = 4 << 10;

/// The lines, shared by the layer that adds to them and everybody who reads them.
#[derive(Debug, Clone, Default)]
pub struct Tail(Arc<Mutex<Ring>>);

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<LogLine>,
    bytes: usize,
    /// Number of the newest line.
    last: u64,
}

impl Tail {
    /// Returns the lines that are wanted.
    pub fn read(&self, question: &LogQuestion) -> LogTail {
        // A line is added as a whole, so the ring is consistent even after a panic.
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = |line: &&LogLine| line.number > question.after && line.level <= question.level;
        let mut lines: Vec<_> =
            ring.lines.iter().rev().filter(is_wanted).take(question.lines).cloned().collect();
        lines.reverse();
        LogTail { first: ring.lines.front().map_or(0, |line| line.number), last: ring.last, lines }
    }

    fn add(&self, level: LogLevel, target: &'static str, text: String) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(level, target, text.into(), at_ms);
    }
}

impl Ring {
    fn add(&mut self, level: LogLevel, target: &'static str, text: Arc<str>, at_ms: u64) {
        self.last += 1;
        let line = LogLine { number: self.last, at_ms, level, target, text };
        self.bytes += bytes_of(&line);
        self.lines.push_back(line);
        while self.lines.len() > LOG_LINES_MAX || self.bytes > TAIL_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= bytes_of(&oldest);
        }
    }
}

fn bytes_of(line: &LogLine) -> usize {
    size_of::<LogLine>() + line.text.len()
}

impl<S: Subscriber> Layer<S> for Tail {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *metadata.level() {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warn,
            Level::INFO => LogLevel::Info,
            Level::DEBUG => LogLevel::Debug,
            Level::TRACE => LogLevel::Trace,
        };
        self.add(level, metadata.target(), text.finish());
    }
}

/// Message and fields as they are read: `message name=value name=value`.
#[derive(Default)]
struct Text {
    message: Line,
    fields: Line,
}

impl Text {
    fn finish(self) -> String {
        let mut line = self.message;
        // The line bounds itself, and never fails.
        let _ = line.write_str(&self.fields.0);
        line.0
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

/// A text that has no control characters and a bounded length.
#[derive(Default)]
struct Line(String);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let needed =
                if character.is_control() { character.escape_default().len() } else { character.len_utf8() };
            if self.0.len() + needed + ELLIPSIS.len() > LINE_BYTES_MAX {
                if !self.0.ends_with(ELLIPSIS) {
                    self.0.push_str(ELLIPSIS);
                }
                break;
            }
            if character.is_control() {
                self.0.extend(character.escape_default());
            } else {
                self.0.push(character);
            }
        }
        Ok(())
    }
}

/// Marks the end of a line that was cut off.
const ELLIPSIS: &str = "…";

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt as _;

    const EVERYTHING: LogQuestion = LogQuestion { lines: LOG_LINES_MAX, level: LogLevel::Trace, after: 0 };

    fn logged(f: impl FnOnce()) -> Tail {
        let tail = Tail::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(tail.clone()), f);
        tail
    }

    #[test]
    fn a_line_has_message_and_fields_without_control_characters() {
        let tail = logged(|| {
            let file = "a\n\u{1b}[2J";
            tracing::warn!(user = "ann \"x\"", file = %file, count = 3, "it is {}", "so\r");
        });
        let lines = tail.read(&EVERYTHING).lines;
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!(&*line.text, r#"it is so\r user="ann \"x\"" file=a\n\u{1b}[2J count=3"#);
        assert_eq!((line.number, line.level), (1, LogLevel::Warn));
    }

    #[test]
    fn lines_and_bytes_are_bounded_and_numbers_go_on() {
        let tail = logged(|| (0..LOG_LINES_MAX + 10).for_each(|number| tracing::info!(number, "x")));
        let LogTail { first, last, lines } = tail.read(&EVERYTHING);
        assert_eq!((first, last, lines.len()), (11, 1010, LOG_LINES_MAX));
        let tail =
            logged(|| (0..LOG_LINES_MAX).for_each(|_| tracing::info!("{}", "é\u{7}".repeat(LINE_BYTES_MAX))));
        let LogTail { lines, .. } = tail.read(&EVERYTHING);
        let bytes: usize = lines.iter().map(bytes_of).sum();
        assert!(bytes <= TAIL_BYTES_MAX && bytes > TAIL_BYTES_MAX / 2, "{bytes}");
        assert!(lines.iter().all(|line| line.text.len() <= LINE_BYTES_MAX && line.text.ends_with(ELLIPSIS)));
    }

    #[test]
    fn a_question_selects_by_level_number_and_count() {
        let tail = logged(|| {
            tracing::error!("1");
            tracing::info!("2");
            tracing::warn!("3");
            tracing::info!("4");
        });
        let numbers = |question: LogQuestion| {
            let LogTail { first, last, lines } = tail.read(&question);
            assert_eq!((first, last), (1, 4));
            lines.iter().map(|line| line.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(EVERYTHING), [1, 2, 3, 4]);
        assert_eq!(numbers(LogQuestion { level: LogLevel::Warn, ..EVERYTHING }), [1, 3]);
        assert_eq!(numbers(LogQuestion { after: 2, ..EVERYTHING }), [3, 4]);
        assert_eq!(numbers(LogQuestion { lines: 1, level: LogLevel::Warn, ..EVERYTHING }), [3]);
        assert!(numbers(LogQuestion { after: 9, ..EVERYTHING }).is_empty());
        assert_eq!(Tail::default().read(&EVERYTHING), LogTail::default());
    }
}
