//! Where log lines go. Their modules, levels and texts are the stock server's; the process chooses the format.

use std::io;

/// The severity of a line, the most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The process cannot continue.
    Emergency,
    /// Something failed.
    Error,
    /// Something is unusual.
    Warning,
    /// Of interest to administrators.
    Information,
    /// Of interest to developers.
    Debug,
}

/// Accepts log lines, from any thread.
pub trait Logger: Send + Sync {
    /// One line, without a newline.
    fn log(&self, module: &'static str, level: Level, text: &str);
}

/// An error in the stock server's form: the system's text alone.
pub(super) fn text_of(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => ovsdb::error::system_text(number),
        None => error.to_string(),
    }
}
