//! TLS over a socket, as a stream that reads and writes like any other.
//!
//! ```text
//!   socket ──ciphertext──> [incoming] ──rustls──> the reader's room, [plain] what did not fit
//!   slices ──rustls──> ciphertext ──> socket, [outgoing] what it did not take
//! ```
//! The buffers in brackets hold data only between two calls, and memory only while they do. rustls keeps no buffers of
//! its own here ([`rustls::unbuffered`]), so an idle connection is only its keys.
//!
//! * A read that does not fill its buffer means that the socket is empty, as with a plain one. [`Tls::has_more`] tells
//!   whether there is more outside the socket.
//! * A write takes what it has encrypted, whether the socket has taken it or not. If the socket takes no more, and
//!   everything was encrypted, the last byte is not reported as taken: a caller that waits for the socket offers it
//!   again, and it is known to be sent ([`Tls::owed`]).

pub mod certificate;
pub mod client;
pub mod config;
pub mod peer;
pub(crate) mod session;
mod verifiers;
pub(crate) mod words;

use std::cell::RefCell;
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;

use session::{Session, Taken};

/// Ciphertext read at once.
const READ_BYTES: usize = 128 << 10;
/// Plaintext encrypted at once: a few records.
const WRITE_BYTES: usize = 64 << 10;
/// What a record adds, and a record at least, whatever the cipher.
const RECORD_OVERHEAD: usize = 256;
const RECORD_BYTES: usize = 16 << 10;

/// Bytes that a connection takes for its whole life: keys and session state, as measured with 2000 idle ones.
pub(crate) const OWN_BYTES: usize = 3600;

/// Shared by a thread's connections while one of them reads or writes.
struct Scratch {
    ciphertext: Vec<u8>,
    plaintext: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { ciphertext: Vec::new(), plaintext: Vec::new() }) };
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) socket: TcpStream,
    session: Session,
    /// The hash of the certificate that the client is shown; `None` if this side is the client.
    shown: Option<Arc<[u8]>>,
    /// The beginning of an incomplete record.
    incoming: Vec<u8>,
    /// Decrypted data that has not been taken yet, from `plain_start` on.
    plain: Vec<u8>,
    plain_start: usize,
    /// Encrypted data that has not been sent yet, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    /// The next byte that is offered has already been encrypted.
    owed: bool,
    /// The peer sends nothing more.
    is_ended: bool,
    /// The end has not been reported to the reader yet.
    end_is_news: bool,
    /// The session is unusable.
    is_failed: bool,
    /// The reason, until it has been read.
    failure: Option<TlsError>,
}

impl Tls {
    /// `shown`: the hash of the certificate that the client is shown.
    pub(crate) fn new(socket: TcpStream, session: Session, shown: Option<Arc<[u8]>>) -> Self {
        let mut this = Self {
            socket,
            session,
            shown,
            incoming: Vec::new(),
            plain: Vec::new(),
            plain_start: 0,
            outgoing: Vec::new(),
            sent: 0,
            owed: false,
            is_ended: false,
            end_is_news: false,
            is_failed: false,
            failure: None,
        };
        // A client speaks first.
        let (mut ignored, outgoing) = (0, &mut this.outgoing);
        let mut taken = Taken { room: &mut [], filled: &mut ignored, plain: &mut this.plain, outgoing };
        let _ = this.session.receive(&mut [], &mut taken);
        this
    }

    /// Continues the handshake. Returns true if it is over. The peer has been told of any error.
    pub(crate) fn shake_hands(&mut self) -> io::Result<bool> {
        if !self.outgoing.is_empty() && !self.flush()? {
            return Ok(false);
        }
        if self.session.is_handshaking() {
            match self.read(&mut []) {
                Ok(_) if self.is_ended => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        let is_over = !self.session.is_handshaking() && self.outgoing.is_empty();
        if is_over {
            // Nothing is sent now that would carry the acknowledgement, and a peer may wait for it before its first
            // request. This saves 40 ms; correctness does not depend on it.
            let _ = rustix::net::sockopt::set_tcp_quickack(&self.socket, true);
        }
        Ok(is_over)
    }

    /// Returns true if a read would return something (data, the end or an error) although the socket is empty.
    pub(crate) fn has_more(&self) -> bool {
        self.plain_start < self.plain.len() || self.end_is_news || self.failure.is_some()
    }

    /// The certificate of the peer, and its chain.
    pub(crate) fn peer_certificates(&self) -> &[rustls::pki_types::CertificateDer<'static>] {
        self.session.peer_certificates()
    }

    /// The hash of the server's certificate.
    pub(crate) fn end_point(&self) -> Option<Arc<[u8]>> {
        let presented = || self.peer_certificates().first().map(|der| certificate::end_point(der));
        self.shown.clone().or_else(presented)
    }

    /// Size of its buffers in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.incoming.capacity() + self.plain.capacity() + self.outgoing.capacity()
    }

    /// Sends what is encrypted. Returns false if the socket takes no more.
    fn flush(&mut self) -> io::Result<bool> {
        while let Some(rest @ [_, ..]) = self.outgoing.get(self.sent..) {
            match self.socket.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        (self.outgoing, self.sent) = (Vec::new(), 0);
        Ok(true)
    }

    /// Moves data that was decrypted before into `room`. Returns how many bytes.
    fn take_plain(&mut self, room: &mut [u8]) -> usize {
        let rest = self.plain.get(self.plain_start..).unwrap_or_default();
        let count = rest.len().min(room.len());
        if let (Some(into), Some(from)) = (room.get_mut(..count), rest.get(..count)) {
            into.copy_from_slice(from);
        }
        self.plain_start += count;
        if self.plain_start == self.plain.len() {
            (self.plain, self.plain_start) = (Vec::new(), 0);
        }
        count
    }

    /// Reads once from the socket and decrypts complete records. Returns true if the socket may have more.
    fn read_socket(
        &mut self,
        ciphertext: &mut Vec<u8>,
        room: &mut [u8],
        filled: &mut usize,
    ) -> io::Result<bool> {
        let kept = self.incoming.len();
        // No more is decrypted than there is room for, except for the record at the end.
        let wanted = (room.len() - *filled + RECORD_BYTES + RECORD_OVERHEAD).min(READ_BYTES);
        if ciphertext.len() < kept + wanted {
            ciphertext.resize(kept + wanted, 0);
        }
        let (head, rest) = ciphertext.split_at_mut(kept);
        head.copy_from_slice(&self.incoming);
        let (count, more) = loop {
            match self.socket.read(&mut rest[..wanted]) {
                Ok(0) => {
                    // A peer that only closes its socket is treated the same: all protocols here say where a message
                    // ends.
                    self.end();
                    break (0, false);
                }
                Ok(count) => break (count, count == wanted),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break (0, false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        if count == 0 {
            return Ok(false);
        }
        let mut taken = Taken { room, filled, plain: &mut self.plain, outgoing: &mut self.outgoing };
        let bytes = &mut ciphertext[..kept + count];
        let (used, result) = self.session.receive(bytes, &mut taken);
        self.incoming = bytes.get(used..).unwrap_or_default().to_vec();
        let may_have_more = match result {
            Ok(true) => {
                self.end();
                false
            }
            Ok(false) => more,
            // ORDERING: recorded before anything can fail, so that the session is not asked again.
            Err(error) => {
                (self.is_failed, self.failure) =
                    (true, Some(TlsError { error, begins_with: bytes.get(used).copied() }));
                false
            }
        };
        if !self.outgoing.is_empty() {
            // What the socket does not take is sent before anything else.
            self.flush()?;
        }
        Ok(may_have_more)
    }

    fn end(&mut self) {
        self.end_is_news |= !self.is_ended;
        self.is_ended = true;
        self.incoming = Vec::new();
    }

    /// Encrypts these bytes and sends as many as the socket takes. Returns false if it did not take all.
    fn send(&mut self, bytes: &[u8], ciphertext: &mut Vec<u8>) -> io::Result<bool> {
        let most = bytes.len() + (bytes.len() / RECORD_BYTES + 2) * RECORD_OVERHEAD;
        if ciphertext.len() < most {
            ciphertext.resize(most, 0);
        }
        let mut ignored = 0;
        let mut taken = Taken {
            room: &mut [],
            filled: &mut ignored,
            plain: &mut self.plain,
            outgoing: &mut self.outgoing,
        };
        let written = self.session.encrypt(&mut self.incoming, bytes, ciphertext, &mut taken);
        let count = written.map_err(io::Error::other)?;
        // Records of the session itself go first, as they were made first.
        let mut rest = &ciphertext[..count];
        if self.flush()? {
            while let [_, ..] = rest {
                match self.socket.write(rest) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => rest = &rest[count..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.outgoing.extend_from_slice(rest);
        Ok(self.outgoing.is_empty())
    }

    /// Tells the peer that no more data follows.
    pub(crate) fn finish_writing(&mut self) {
        // Best effort: nothing waits for it.
        if !self.is_failed && self.session.close(&mut self.incoming, &mut self.outgoing) {
            let _ = self.flush();
        }
    }
}

/// Why a session failed: the payload of an [`io::Error`] of kind `InvalidData`.
#[derive(Debug)]
pub struct TlsError {
    /// What is wrong.
    pub error: rustls::Error,
    /// The first byte of the input that was not understood.
    pub begins_with: Option<u8>,
}

impl TlsError {
    /// Returns the one inside an error, if there is one.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref().and_then(|inner| inner.downcast_ref())
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl std::error::Error for TlsError {}

/// Why a handshake failed, in words for a log.
pub fn explain(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::TimedOut {
        return "it took too long".to_owned();
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "the peer closed the connection".to_owned();
    }
    match TlsError::of(error).map(|failure| &failure.error) {
        Some(rustls::Error::InvalidMessage(_)) => "the peer does not speak TLS".to_owned(),
        _ => error.to_string(),
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        if !self.session.is_handshaking() {
            self.finish_writing();
        }
    }
}

impl Read for Tls {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = self.take_plain(room);
        if !self.plain.is_empty() {
            return Ok(filled);
        }
        let mut may_have_more = !self.is_ended && !self.is_failed;
        SCRATCH.with_borrow_mut(|scratch| {
            while may_have_more && (filled < room.len() || room.is_empty()) {
                may_have_more = self.read_socket(&mut scratch.ciphertext, room, &mut filled)?;
                if room.is_empty() && !self.session.is_handshaking() {
                    break;
                }
            }
            io::Result::Ok(())
        })?;
        if filled > 0 {
            return Ok(filled);
        }
        if let Some(error) = self.failure.take() {
            self.end();
            self.end_is_news = false;
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        if self.is_ended {
            self.end_is_news = false;
            return Ok(0);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Write for Tls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        if offered == 0 {
            return Ok(0);
        }
        if self.is_failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !self.flush()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut taken = usize::from(std::mem::take(&mut self.owed));
        let mut skip = taken;
        SCRATCH.with_borrow_mut(|Scratch { ciphertext, plaintext }| {
            let mut pieces = slices.iter().map(|slice| &**slice).peekable();
            while taken < offered {
                let Some(piece) = pieces.peek_mut() else { break };
                if skip >= piece.len() {
                    skip -= piece.len();
                    pieces.next();
                    continue;
                }
                let rest = &piece[skip..];
                skip = 0;
                // A long piece is encrypted in place, short ones together.
                let (chunk, count): (&[u8], usize) = if rest.len() >= RECORD_BYTES {
                    let (chunk, rest) = rest.split_at(rest.len().min(WRITE_BYTES));
                    *piece = rest;
                    (chunk, chunk.len())
                } else {
                    plaintext.clear();
                    plaintext.extend_from_slice(rest);
                    pieces.next();
                    while let Some(next) = pieces.next_if(|next| plaintext.len() + next.len() <= RECORD_BYTES)
                    {
                        plaintext.extend_from_slice(next);
                    }
                    (plaintext, plaintext.len())
                };
                taken += count;
                if !self.send(chunk, ciphertext)? {
                    break;
                }
            }
            io::Result::Ok(())
        })?;
        if taken == offered && !self.outgoing.is_empty() {
            self.owed = true;
            taken -= 1;
        }
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
