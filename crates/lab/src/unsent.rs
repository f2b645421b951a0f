//! Bytes that a socket has not accepted yet, for loads and floors.

use std::io::{ErrorKind, Result, Write};

/// Bytes to send.
#[derive(Debug, Default)]
pub struct Unsent {
    bytes: Vec<u8>,
    /// How many of them have been sent.
    at: usize,
}

impl Unsent {
    /// Returns true if everything is sent.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Sends bytes after those still unsent, until the socket accepts no more, and keeps the rest.
    pub fn send(&mut self, socket: &mut impl Write, bytes: &[u8]) -> Result<()> {
        if self.is_empty() {
            let sent = write(socket, bytes)?;
            self.bytes.extend_from_slice(bytes.get(sent..).unwrap_or_default());
            return Ok(());
        }
        self.bytes.extend_from_slice(bytes);
        self.at += write(socket, self.bytes.get(self.at..).unwrap_or_default())?;
        if self.at == self.bytes.len() {
            (self.bytes, self.at) = (Vec::new(), 0);
        }
        Ok(())
    }
}

/// Writes until the socket accepts no more; returns how much it accepted.
fn write(socket: &mut impl Write, bytes: &[u8]) -> Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(bytes.get(sent..).unwrap_or_default()) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes three bytes, then is full once.
    #[derive(Default)]
    struct Narrow(Vec<u8>, bool);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.1 = !self.1;
            if !self.1 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let taken = bytes.len().min(3);
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_full_socket_leaves_is_sent_later_and_in_order() {
        let (mut socket, mut unsent) = (Narrow::default(), Unsent::default());
        unsent.send(&mut socket, b"hello ").unwrap();
        unsent.send(&mut socket, b"world").unwrap();
        assert!(!unsent.is_empty());
        while !unsent.is_empty() {
            unsent.send(&mut socket, b"").unwrap();
        }
        assert_eq!(socket.0, b"hello world");
    }
}
