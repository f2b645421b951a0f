//! The answers to malformed lines.

/// Why a line was rejected. The answers are memcached's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// Malformed, and the client asked for no answer.
    Silent,
    /// No such command.
    Unknown,
    /// Too few words, a key too long, or an argument that is not a number.
    BadFormat,
    /// A key of a retrieval is too long.
    RetrievedKeyTooLong,
    /// An expiration time that is not a number.
    BadExptime,
    /// The amount of `incr` or `decr` is not a number.
    BadDelta,
    /// A line longer than the limit that is not a retrieval.
    LineTooLong,
    /// A retrieval line longer than the limit with a bad argument in it.
    LongLineMalformed,
    /// An HTTP request line: a web page or a misdirected client.
    Http,
    /// `stats cachedump` without its two numbers.
    BadCommandLine,
    /// `stats cachedump` of an impossible class.
    IllegalClass,
    /// `lru_crawler` with anything but classes.
    BadClass,
    /// A login is required, and this was not one.
    Unauthenticated,
    /// Meta: a flag given twice.
    DuplicateFlag,
    /// Meta: a flag that is neither a letter nor a digit.
    NoFlag,
    /// Meta: no such flag.
    InvalidFlag,
    /// Meta `ma`: anything wrong with the key or the flags.
    InvalidOrDuplicateFlag,
    /// Meta: more flags than there can be.
    FlagsTooLong,
    /// Meta: a flag's token is not a number.
    BadToken,
    /// Meta `ms`: no such mode.
    BadSetMode,
    /// Meta `ma`: no such mode.
    BadArithmeticMode,
    /// Meta: `J` without a number.
    BadInitial,
    /// Meta: `D` without a number.
    BadDeltaFlag,
    /// Meta: an opaque of more than 31 bytes.
    OpaqueTooLong,
    /// Meta: a key with the `b` flag that is not base64.
    BadKeyEncoding,
}

impl Error {
    /// Returns true if the connection is unusable: the end of the line is not known, or it is not this protocol.
    pub const fn is_fatal(self) -> bool {
        matches!(self, Self::LineTooLong | Self::LongLineMalformed | Self::Http)
    }

    /// The line to answer, with its `\r\n`; empty for no answer.
    pub const fn answer(self) -> &'static [u8] {
        match self {
            Self::Silent | Self::Http => b"",
            Self::Unknown => b"ERROR\r\n",
            Self::BadFormat | Self::NoFlag | Self::LongLineMalformed => {
                b"CLIENT_ERROR bad command line format\r\n"
            }
            // COMPAT: with an empty line behind it.
            Self::RetrievedKeyTooLong => b"CLIENT_ERROR bad command line format\r\n\r\n",
            Self::BadExptime => b"CLIENT_ERROR invalid exptime argument\r\n",
            Self::BadDelta => b"CLIENT_ERROR invalid numeric delta argument\r\n",
            Self::LineTooLong => b"CLIENT_ERROR line too long\r\n",
            Self::BadCommandLine => b"CLIENT_ERROR bad command line\r\n",
            Self::IllegalClass => b"CLIENT_ERROR Illegal slab id\r\n",
            Self::BadClass => b"BADCLASS invalid class id\r\n",
            Self::Unauthenticated => b"CLIENT_ERROR unauthenticated\r\n",
            Self::DuplicateFlag => b"CLIENT_ERROR duplicate flag\r\n",
            Self::InvalidFlag => b"CLIENT_ERROR invalid flag\r\n",
            Self::InvalidOrDuplicateFlag => b"CLIENT_ERROR invalid or duplicate flag\r\n",
            Self::FlagsTooLong => b"CLIENT_ERROR options flags are too long\r\n",
            Self::BadToken => b"CLIENT_ERROR bad token in command line format\r\n",
            Self::BadSetMode => b"CLIENT_ERROR invalid mode for ms M token\r\n",
            Self::BadArithmeticMode => b"CLIENT_ERROR invalid mode for ma M token\r\n",
            Self::BadInitial => b"CLIENT_ERROR invalid numeric initial value\r\n",
            Self::BadDeltaFlag => b"CLIENT_ERROR invalid numeric delta value\r\n",
            Self::OpaqueTooLong => b"CLIENT_ERROR opaque token too long\r\n",
            Self::BadKeyEncoding => b"CLIENT_ERROR error decoding key\r\n",
        }
    }
}
