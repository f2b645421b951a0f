//! Errors of OVSDB, as replies and logs show them.

use std::borrow::Cow;
use std::fmt;
use wire::json::{Value, write};

/// An error: a tag for programs, and details for people. One pointer in size, as it is rare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Content>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Content {
    tag: Cow<'static, str>,
    details: Option<String>,
    syntax: Option<String>,
    io: Option<i32>,
}

impl Error {
    /// An error with this tag and these details.
    pub fn new(tag: impl Into<Cow<'static, str>>, details: impl Into<String>) -> Self {
        Self(Box::new(Content { tag: tag.into(), details: Some(details.into()), syntax: None, io: None }))
    }

    /// An error that is only a tag.
    pub fn bare(tag: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Content { tag: tag.into(), details: None, syntax: None, io: None }))
    }

    /// The tag: the member `error`.
    pub fn tag(&self) -> &str {
        &self.0.tag
    }

    /// The member `details`.
    pub fn details(&self) -> Option<&str> {
        self.0.details.as_deref()
    }

    /// The member `syntax`: the offending JSON text.
    pub fn syntax(&self) -> Option<&str> {
        self.0.syntax.as_deref()
    }

    /// The system's error number, whose text is the member `io-error`.
    pub fn io_error(&self) -> Option<i32> {
        self.0.io
    }

    /// Adds the offending JSON value.
    #[must_use]
    pub fn with_syntax(mut self, value: Value<'_>) -> Self {
        let mut text = Vec::new();
        write::sorted(&mut text, value);
        self.0.syntax = Some(into_text(text));
        self
    }

    /// Puts `prefix: ` before the details (or `prefix` alone if there are none).
    #[must_use]
    pub fn wrap(mut self, prefix: &str) -> Self {
        self.0.details = Some(match self.0.details.take() {
            Some(details) => format!("{prefix}: {details}"),
            None => prefix.to_owned(),
        });
        self
    }

    /// `syntax error` about a value.
    pub fn syntax_error(value: Value<'_>, details: impl Into<String>) -> Self {
        Self::tagged_syntax_error(value, "syntax error", details)
    }

    /// An error of another tag about a value, e.g. `unknown column`.
    pub fn tagged_syntax_error(
        value: Value<'_>,
        tag: impl Into<Cow<'static, str>>,
        details: impl Into<String>,
    ) -> Self {
        Self::new(tag, details).with_syntax(value)
    }

    /// `syntax error` that names no value.
    pub fn syntax_error_anywhere(details: impl Into<String>) -> Self {
        Self::new("syntax error", details)
    }

    /// `constraint violation`
    pub fn constraint_violation(details: impl Into<String>) -> Self {
        Self::new("constraint violation", details)
    }

    /// `referential integrity violation`
    pub fn referential_integrity(details: impl Into<String>) -> Self {
        Self::new("referential integrity violation", details)
    }

    /// `not found`
    pub fn not_found(details: impl Into<String>) -> Self {
        Self::new("not found", details)
    }

    /// `resources exhausted`
    pub fn resources_exhausted(details: impl Into<String>) -> Self {
        Self::new("resources exhausted", details)
    }

    /// Returns true if it is [`Self::resources_exhausted`].
    pub fn is_resources_exhausted(&self) -> bool {
        self.tag() == "resources exhausted"
    }

    /// `range error`
    pub fn range_error(details: impl Into<String>) -> Self {
        Self::new("range error", details)
    }

    /// `domain error`
    pub fn domain_error(details: impl Into<String>) -> Self {
        Self::new("domain error", details)
    }

    /// `unknown database`
    pub fn unknown_database(value: Value<'_>, details: impl Into<String>) -> Self {
        Self::tagged_syntax_error(value, "unknown database", details)
    }

    /// `permission error`
    pub fn permission(details: impl Into<String>) -> Self {
        Self::new("permission error", details)
    }

    /// `internal error`
    pub fn internal(details: impl Into<String>) -> Self {
        Self::new("internal error", details)
    }

    /// `I/O error` with the system's error number.
    pub fn io(errno: i32, details: impl Into<String>) -> Self {
        let mut error = Self::new("I/O error", details);
        error.0.io = Some(errno);
        error
    }

    /// Appends the error as the JSON object of a reply, members in the order in which the stock server prints them.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        let mut member = |name: &str, text: &str| {
            if out.last() != Some(&b'{') {
                out.push(b',');
            }
            write::string(out, name);
            out.push(b':');
            write::string(out, text);
        };
        if let Some(syntax) = &self.0.syntax {
            member("syntax", syntax);
        }
        if let Some(details) = &self.0.details {
            member("details", details);
        }
        if let Some(errno) = self.0.io {
            member("io-error", &system_text(errno));
        }
        member("error", &self.0.tag);
        out.push(b'}');
    }
}

/// The form in logs and on command lines.
impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Content { tag, details, syntax, io } = self.0.as_ref();
        if let Some(syntax) = syntax {
            write!(formatter, "syntax \"{syntax}\": ")?;
        }
        formatter.write_str(tag)?;
        if let Some(details) = details {
            write!(formatter, ": {details}")?;
        }
        match io {
            Some(errno) => write!(formatter, " ({})", system_text(*errno)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// The C library's text of an error number, or the stock server's text for its own "end of file" (-1).
pub fn system_text(errno: i32) -> String {
    if errno == -1 {
        return "End of file".to_owned();
    }
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    match text.rfind(" (os error ") {
        Some(end) => text.get(..end).unwrap_or_default().to_owned(),
        None => text,
    }
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::Error;
    use wire::json::Value;

    fn json(error: &Error) -> String {
        let mut out = Vec::new();
        error.write_json(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn errors_show_as_in_the_stock_server() {
        let error = Error::syntax_error(Value::of_checked(b"{\"b\": 1,\"a\":\"x\"}"), "expected integer");
        assert_eq!(
            json(&error),
            r#"{"syntax":"{\"a\":\"x\",\"b\":1}","details":"expected integer","error":"syntax error"}"#
        );
        assert_eq!(error.to_string(), r#"syntax "{"a":"x","b":1}": syntax error: expected integer"#);
        let error = Error::io(27, "d: write failed");
        assert_eq!(
            json(&error),
            r#"{"details":"d: write failed","io-error":"File too large","error":"I/O error"}"#
        );
        assert_eq!(error.to_string(), "I/O error: d: write failed (File too large)");
        assert_eq!(json(&Error::bare("aborted")), r#"{"error":"aborted"}"#);
        assert_eq!(Error::bare("x").wrap("a").wrap("b").details(), Some("b: a"));
        assert_eq!(Error::io(-1, "x").to_string(), "I/O error: x (End of file)");
    }
}
