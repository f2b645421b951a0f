//! Lines for the server's log, in the stock server's words.

/// The severity of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// INFO
    Info,
    /// WARN
    Warn,
    /// ERR
    Error,
}

/// A line for the server's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Its severity.
    pub level: Level,
    /// The stock server's module that logs it.
    pub module: &'static str,
    /// Its text.
    pub text: String,
}

impl Note {
    pub(super) fn new(level: Level, module: &'static str, text: impl Into<String>) -> Self {
        Self { level, module, text: text.into() }
    }
}
