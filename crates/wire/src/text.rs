//! The memcached text protocol: one line per command, storage commands followed by a data block.
//!
//! ```text
//!   set <key> <flags> <exptime> <length> [noreply]\r\n  <length bytes>\r\n
//!   `------------------- head --------------------'  `--- body ---'`trailer`
//! ```
//!
//! [`parse`] looks at the start of the input and needs the whole line; it borrows everything and allocates nothing. Its
//! answers to malformed lines are those of memcached 1.6.45, byte for byte. Deliberate differences are listed in
//! `docs/memcached-protocol.md`.
//!
//! A retrieval line may be longer than [`Limits::line_bytes`]: it is then handed out in pieces. A piece whose
//! [`Get::last`] is false must be followed by [`parse_get_rest`], not [`parse`].
//!
//! The meta commands (`mg`, `ms`, ...) share the line and come out as [`Command::Meta`].

mod control;
mod error;
mod login;
mod number;
mod retrieval;
mod storage;
mod tokens;

pub use control::{Dump, DumpForm, ShutdownMode, Watched};
pub use error::Error;
pub use login::{LOGIN_MAX, credentials, parse_login};
pub use retrieval::{Get, Keys, parse_get_rest};
pub use storage::{Store, StoreVerb};

pub use number::unsigned;
pub(crate) use number::{digits, digits_32, signed_32};
pub(crate) use storage::block_length;
pub(crate) use tokens::Tokens;

use crate::{Parsed, meta};

/// Longest key in bytes.
pub const KEY_MAX: usize = 250;

/// COMPAT: a line shorter than this, with its end, is no command in memcached.
pub(crate) const LINE_LEAST: usize = 4;

/// Longest data block a line may announce (memcached's `INT_MAX - 2`).
pub const LENGTH_MAX: usize = i32::MAX as usize - 2;

/// Bytes after a data block.
pub const TRAILER: &[u8] = b"\r\n";

/// Bounds on what a client may send, enforced before anything is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest line in bytes with its newline, at least [`LINE_BYTES_MIN`]. Longer retrieval lines are handed out in
    /// pieces of at most this length, any other longer line is fatal.
    pub line_bytes: usize,
}

/// Minimum of [`Limits::line_bytes`]: each piece of a retrieval line holds a whole key.
pub const LINE_BYTES_MIN: usize = 512;

impl Limits {
    /// The part of `input` in which a line must end.
    #[inline]
    fn window<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        first(input, self.line_bytes.max(LINE_BYTES_MIN))
    }

    /// Returns true if `window` is as long as a line may be.
    #[inline]
    fn is_full(&self, window: &[u8]) -> bool {
        window.len() >= self.line_bytes.max(LINE_BYTES_MIN)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { line_bytes: 64 << 10 }
    }
}

/// One request of the text or meta protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get(Get<'a>),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`; a data block follows.
    Store(Store<'a>),
    /// `delete`.
    Delete {
        /// The key.
        key: &'a [u8],
        /// No answer wanted.
        noreply: bool,
    },
    /// `incr`, `decr`.
    Arithmetic {
        /// The key.
        key: &'a [u8],
        /// Amount.
        delta: u64,
        /// `decr`.
        decrement: bool,
        /// No answer wanted.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'a [u8],
        /// Expiration time: 0 never, negative expired, up to 30 days relative, else absolute seconds.
        exptime: i32,
        /// No answer wanted.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// When: 0 or negative is now, else as an expiration time.
        delay: i32,
        /// No answer wanted.
        noreply: bool,
    },
    /// `verbosity`.
    Verbosity {
        /// No answer wanted.
        noreply: bool,
    },
    /// `cache_memlimit`.
    CacheMemlimit {
        /// New limit in MiB.
        mebibytes: u64,
        /// No answer wanted.
        noreply: bool,
    },
    /// `stats`.
    Stats {
        /// What follows the command: empty for the general statistics, else e.g. `items`.
        arguments: &'a [u8],
    },
    /// A list of keys.
    Dump(Dump),
    /// `watch`: from now on the connection receives events.
    Watch(Watched),
    /// `version`.
    Version,
    /// `quit`.
    Quit,
    /// `shutdown`.
    Shutdown(ShutdownMode),
    /// A `set` sent to log in (from [`parse_login`]); its data block holds the [`credentials`].
    Login,
    /// A meta command.
    Meta(meta::Command<'a>),
}

impl Command<'_> {
    /// Returns true if the client asked for no answer (meta commands have their own rules, see [`meta::Command`]).
    pub fn is_noreply(&self) -> bool {
        match *self {
            Self::Store(Store { noreply, .. })
            | Self::Delete { noreply, .. }
            | Self::Arithmetic { noreply, .. }
            | Self::Touch { noreply, .. }
            | Self::FlushAll { noreply, .. }
            | Self::Verbosity { noreply }
            | Self::CacheMemlimit { noreply, .. } => noreply,
            Self::Get(_)
            | Self::Stats { .. }
            | Self::Dump(_)
            | Self::Watch(_)
            | Self::Version
            | Self::Quit
            | Self::Shutdown(_)
            | Self::Login
            | Self::Meta(_) => false,
        }
    }
}

/// The result of parsing a line.
pub(crate) enum Line<'a> {
    /// A command without a data block.
    Command(Command<'a>),
    /// A command and the length of its data block.
    Storage(Command<'a>, usize),
    /// A malformed line.
    Malformed(Error),
    /// A malformed line whose data block's length is known: it is skipped too.
    MalformedStorage(Error, usize),
}

impl Line<'_> {
    /// A malformed line; silent if the client wanted no answer.
    fn malformed(error: Error, noreply: bool) -> Self {
        Self::Malformed(if noreply { Error::Silent } else { error })
    }
}

/// Parses one request at the start of `input`.
#[inline]
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Parsed<Command<'a>, Error> {
    let window = limits.window(input);
    let Some(end) = memchr::memchr(b'\n', window) else {
        if !limits.is_full(window) {
            return Parsed::Incomplete { need: 0 };
        }
        return retrieval::parse_piece(window);
    };
    let head = end + 1;
    match parse_line(trim_return(first(window, end)), head) {
        Line::Command(command) => Parsed::Request { head, body: 0, trailer: 0, command },
        Line::Storage(command, body) => Parsed::Request { head, body, trailer: TRAILER.len(), command },
        Line::Malformed(error) if error.is_fatal() => Parsed::Fatal { error },
        Line::Malformed(error) => Parsed::Malformed { skip: head, error },
        Line::MalformedStorage(error, body) => Parsed::Malformed { skip: head + body + TRAILER.len(), error },
    }
}

/// `head`: length of the line with its end.
#[inline]
fn parse_line(line: &[u8], head: usize) -> Line<'_> {
    if let Some(keys) = line.strip_prefix(b"get ") {
        return retrieval::get(keys, false);
    }
    // COMPAT: behind leading blanks there is no command.
    let (name, rest) = line.split_at(memchr::memchr(b' ', line).unwrap_or(line.len()));
    let tokens = Tokens::new(rest);
    match name {
        b"set" => storage::store(StoreVerb::Set, tokens),
        b"get" => retrieval::get(tokens.rest(), false),
        b"gets" => retrieval::get(tokens.rest(), true),
        b"gat" => retrieval::get_and_touch(tokens, false),
        b"gats" => retrieval::get_and_touch(tokens, true),
        b"add" => storage::store(StoreVerb::Add, tokens),
        b"replace" => storage::store(StoreVerb::Replace, tokens),
        b"append" => storage::store(StoreVerb::Append, tokens),
        b"prepend" => storage::store(StoreVerb::Prepend, tokens),
        b"cas" => storage::store(StoreVerb::Cas, tokens),
        b"delete" => control::delete(tokens),
        b"incr" => control::arithmetic(tokens, false),
        b"decr" => control::arithmetic(tokens, true),
        b"touch" => control::touch(tokens),
        b"flush_all" => control::flush_all(tokens),
        b"verbosity" => control::verbosity(tokens),
        b"cache_memlimit" => control::cache_memlimit(tokens),
        b"shutdown" => control::shutdown(tokens),
        b"stats" => control::stats(tokens),
        b"lru_crawler" => control::lru_crawler(tokens),
        b"watch" => control::watch(tokens),
        b"version" => Line::Command(Command::Version),
        b"quit" => Line::Command(Command::Quit),
        [b'm', verb] => meta::parse_line(*verb, tokens, head),
        _ if is_http(line) => Line::Malformed(Error::Http),
        _ if head < LINE_LEAST => Line::Malformed(Error::BadFormat),
        _ => Line::Malformed(Error::Unknown),
    }
}

/// Returns true if an unknown command is an HTTP request line, by its last word as in memcached, or the header that
/// every HTTP request has: a browser can be made to send a method that is a command, but no request without `Host`.
fn is_http(line: &[u8]) -> bool {
    let mut words = Tokens::new(line);
    words.next().is_some_and(|word| word.eq_ignore_ascii_case(b"Host:"))
        || words.last().is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// The first `length` bytes, or all there are.
#[inline]
fn first(bytes: &[u8], length: usize) -> &[u8] {
    bytes.get(..length).unwrap_or(bytes)
}

/// The line without the carriage return that may precede the newline.
#[inline]
fn trim_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests;
