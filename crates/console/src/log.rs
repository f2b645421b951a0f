//! `/log`: the last lines that the node has logged, as JSON or text.
//!
//! The binary keeps them; see [`crate::Control::log_tail`]. Lines are numbered from 1, without gaps. Whoever follows
//! the log asks for the lines after the last one it has.

use crate::buckets::{invalid, refused};
use crate::work::Party;
use crate::{Console, Refusal};
use axum::Json;
use axum::extract::{Form, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use std::fmt::Write as _;
use std::sync::Arc;
use time::OffsetDateTime;

/// Most lines that are kept, and so asked for.
pub const LOG_LINES_MAX: usize = 1000;
const LINES_DEFAULT: usize = 100;

/// How severe a line is; the most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is unusual.
    Warn,
    /// Of interest to operators.
    Info,
    /// Of interest to developers.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// Its name in requests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// Its number, from 1.
    pub number: u64,
    /// When it was logged, milliseconds since 1970.
    pub at_ms: u64,
    /// How severe it is.
    pub level: LogLevel,
    /// The part of the program that logged it.
    pub target: &'static str,
    /// The message and its fields, without control characters.
    #[serde(serialize_with = "shared")]
    pub text: Arc<str>,
}

fn shared<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

/// Which lines are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogQuestion {
    /// The last so many of them.
    pub lines: usize,
    /// As severe as this, or more.
    pub level: LogLevel,
    /// With higher numbers than this.
    pub after: u64,
}

/// The lines that are wanted, and what there is besides them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LogTail {
    /// Number of the oldest line that is kept; 0 if there is none.
    pub first: u64,
    /// Number of the newest line, wanted or not; 0 if there is none.
    pub last: u64,
    /// In the order of their numbers.
    pub lines: Vec<LogLine>,
}

/// `GET /log?lines=N&level=LEVEL&after=NUMBER&format=json`.
pub async fn show(
    State(console): State<Console>,
    party: Party,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    let (question, is_text) = match wanted(&fields) {
        Ok(wanted) => wanted,
        Err(refusal) => return refused(refusal),
    };
    let show = move |console: Console| {
        let tail = console.control.log_tail(&question);
        if is_text {
            let text: String = tail.lines.iter().map(line).collect();
            return ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response();
        }
        Json(tail).into_response()
    };
    console.measure(&party, show).await.unwrap_or_else(refused)
}

/// A line as text.
fn line(line: &LogLine) -> String {
    let at_ns = i128::from(line.at_ms) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(at_ns).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, time) = (at.date(), at.time());
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {:>5} {}: {}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.millisecond(),
        line.level.name().to_uppercase(),
        line.target,
        line.text,
    );
    text
}

fn wanted(fields: &[(String, String)]) -> Result<(LogQuestion, bool), Refusal> {
    let mut question = LogQuestion { lines: LINES_DEFAULT, level: LogLevel::Trace, after: 0 };
    let mut is_text = false;
    for (field, value) in fields {
        match field.as_str() {
            "lines" => {
                let known = value.parse().ok().filter(|lines| (1..=LOG_LINES_MAX).contains(lines));
                question.lines = known.ok_or_else(|| {
                    invalid("lines", format!("Allowed: a number from 1 to {LOG_LINES_MAX}."))
                })?;
            }
            "level" => {
                let known = LogLevel::ALL.into_iter().find(|level| level.name() == value);
                question.level =
                    known.ok_or_else(|| invalid("level", "Allowed: error, warn, info, debug, trace."))?;
            }
            "after" => {
                question.after =
                    value.parse().map_err(|_| invalid("after", "Allowed: the number of a line."))?;
            }
            "format" => {
                is_text = match value.as_str() {
                    "text" => true,
                    "json" => false,
                    _ => return Err(invalid("format", "Allowed: json, text.")),
                };
            }
            other => {
                let reason = format!("Unknown field {other:?}. Allowed: lines, level, after, format.");
                return Err(invalid("_", reason));
            }
        }
    }
    Ok((question, is_text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_text_has_time_level_and_origin() {
        let shown = line(&LogLine {
            number: 1,
            at_ms: 1_795_743_878_397,
            level: LogLevel::Warn,
            target: "dormouse::serve",
            text: "the disk is full".into(),
        });
        assert_eq!(shown, "2026-11-27T01:44:38.397Z  WARN dormouse::serve: the disk is full\n");
    }

    #[test]
    fn a_question_is_bounded_and_its_mistakes_are_named() {
        let read = |name: &str, value: &str| wanted(&[(name.to_owned(), value.to_owned())]);
        let (question, is_text) = read("format", "text").expect("valid");
        assert_eq!(
            (question.lines, question.level, question.after, is_text),
            (100, LogLevel::Trace, 0, true)
        );
        assert_eq!(read("level", "warn").map(|(question, _)| question.level), Ok(LogLevel::Warn));
        for (name, value) in
            [("lines", "0"), ("lines", "1001"), ("level", "WARNING"), ("after", "-1"), ("format", "html")]
        {
            let Err(Refusal::Invalid { field, .. }) = read(name, value) else { panic!("{name}={value}") };
            assert_eq!(field, name);
        }
        assert!(matches!(read("colour", "red"), Err(Refusal::Invalid { field: "_", .. })));
    }
}
