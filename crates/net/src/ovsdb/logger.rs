//! Where log lines go. Their modules, levels and texts are the stock server's; the form is the process's.

use std::io;

/// How severe a line is, the most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The process cannot go on.
    Emergency,
    /// Something failed.
    Error,
    /// Something is odd.
    Warning,
    /// What an administrator wants to know.
    Information,
    /// What a developer wants to know.
    Debug,
}

/// Takes log lines, from any thread.
pub trait Logger: Send + Sync {
    /// One line, without its end.
    fn log(&self, module: &'static str, level: Level, text: &str);
}

/// An error as the stock server names it: the system's text alone.
pub(super) fn text_of(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => ovsdb::error::system_text(number),
        None => error.to_string(),
    }
}
