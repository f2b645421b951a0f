//! JSON-RPC 1.0 as OVSDB speaks it: messages are JSON objects one after another, with at most white space between them.

mod message;

pub use crate::json::SyntaxError;
pub use message::{Message, MessageError, Params};

use crate::json::{DEPTH_MAX, Scanner};

/// Bounds on what a peer may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest message in bytes.
    pub message_bytes: usize,
    /// Deepest nesting of arrays and objects.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message_bytes: 256 << 20, depth: DEPTH_MAX }
    }
}

/// Finds the ends of messages in a stream and checks their syntax in the same pass. Each byte is passed in once, in
/// pieces of any size. After an error the connection must be closed.
#[derive(Debug, Clone)]
pub struct Framer {
    scanner: Scanner,
    message_bytes_max: usize,
}

impl Framer {
    /// Creates a framer at the start of a stream.
    pub fn new(limits: Limits) -> Self {
        Self { scanner: Scanner::new(limits.depth), message_bytes_max: limits.message_bytes }
    }

    /// Takes the next bytes of the stream. Returns how many of them belong to the current message, once they complete
    /// it; the next call starts with the byte after them. Returns `None` if all of them belong to it and it is
    /// incomplete.
    ///
    /// A message is what was taken since the last one ended, possibly with white space before its value.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, SyntaxError> {
        let before = self.scanner.bytes();
        let end = self.scanner.advance(bytes)?;
        if before.saturating_add(end.unwrap_or(bytes.len())) > self.message_bytes_max {
            let text = format!("message exceeds maximum length of {} bytes", self.message_bytes_max);
            return Err(SyntaxError::new(text));
        }
        Ok(end)
    }

    /// Bytes of the current message so far.
    pub fn pending_bytes(&self) -> usize {
        self.scanner.bytes()
    }

    /// Returns true if more than white space of a message has arrived.
    pub fn is_inside(&self) -> bool {
        self.scanner.is_inside()
    }
}

#[cfg(test)]
mod tests;
