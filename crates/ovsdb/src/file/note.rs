//! What is to be told in the server's log, in the stock server's words.

/// How important a note is.
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
    /// How important it is.
    pub level: Level,
    /// The stock server's module that says it.
    pub module: &'static str,
    /// What it says.
    pub text: String,
}

impl Note {
    pub(super) fn new(level: Level, module: &'static str, text: impl Into<String>) -> Self {
        Self { level, module, text: text.into() }
    }
}
