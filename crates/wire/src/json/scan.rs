//! Finds the end of a JSON value in text that arrives in pieces, checking all of its syntax on the way, once.
//!
//! ```text
//!   between tokens --'"'--> in a string (escaped?) --'"'--.
//!         ^  |--digit----> in a number  ----other byte----|   what is incomplete at a piece's end waits in `pending`
//!         |  `--letter---> in a keyword ----other byte----|   (of a string: its last, incomplete escape)
//!         `-- grammar: TABLE[place][token] --------------'
//! ```
//!
//! The wording and positions of errors are the stock server's: it counts lines, columns and bytes from 0, up to the
//! byte that ended the wrong token.

use super::cursor::is_number_byte;
use super::{number, string};
use std::fmt;

/// Deepest nesting of arrays and objects, as in the stock server.
pub const DEPTH_MAX: usize = 1000;

/// Why text is not JSON, in the stock server's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    text: String,
}

impl SyntaxError {
    /// Creates an error that has no position in the text.
    pub(crate) fn new(text: String) -> Self {
        Self { text }
    }
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for SyntaxError {}

/// The scanner's position in the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Place {
    Start,
    ObjectInitial,
    ObjectName,
    ObjectColon,
    ObjectValue,
    ObjectNext,
    ArrayInitial,
    ArrayValue,
    ArrayNext,
    /// After the only value of a text.
    End,
    Wrong,
}

/// What the grammar sees of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Token {
    String,
    Scalar,
    Comma,
    Colon,
    OpenArray,
    OpenObject,
    CloseArray,
    CloseObject,
}

const PLACES: usize = 11;
const TOKENS: usize = 8;

/// The place after a token. After brackets the stack decides; the entry only says whether they are allowed there.
const TABLE: [[Place; TOKENS]; PLACES] = {
    use Place::{
        ArrayNext, ArrayValue, ObjectColon, ObjectInitial, ObjectName, ObjectNext, ObjectValue, Start, Wrong,
    };
    let open = ObjectInitial;
    let close = Start;
    [
        // String       Scalar      Comma       Colon        [      {      ]      }
        [Wrong, Wrong, Wrong, Wrong, open, open, Wrong, Wrong], // Start
        [ObjectColon, Wrong, Wrong, Wrong, Wrong, Wrong, Wrong, close], // ObjectInitial
        [ObjectColon, Wrong, Wrong, Wrong, Wrong, Wrong, Wrong, Wrong], // ObjectName
        [Wrong, Wrong, Wrong, ObjectValue, Wrong, Wrong, Wrong, Wrong], // ObjectColon
        [ObjectNext, ObjectNext, Wrong, Wrong, open, open, Wrong, Wrong], // ObjectValue
        [Wrong, Wrong, ObjectName, Wrong, Wrong, Wrong, Wrong, close], // ObjectNext
        [ArrayNext, ArrayNext, Wrong, Wrong, open, open, close, Wrong], // ArrayInitial
        [ArrayNext, ArrayNext, Wrong, Wrong, open, open, Wrong, Wrong], // ArrayValue
        [Wrong, Wrong, ArrayValue, Wrong, Wrong, Wrong, close, Wrong], // ArrayNext
        [Wrong; TOKENS],                                        // End
        [Wrong; TOKENS],
    ]
};

impl Place {
    fn error_text(self) -> &'static str {
        match self {
            Self::Start => "syntax error at beginning of input",
            Self::ObjectInitial | Self::ObjectName => "syntax error parsing object expecting string",
            Self::ObjectColon => "syntax error parsing object expecting ':'",
            Self::ObjectValue | Self::ArrayInitial | Self::ArrayValue => "syntax error expecting value",
            Self::ObjectNext => "syntax error expecting '}' or ','",
            Self::End => "trailing garbage at end of input",
            Self::ArrayNext | Self::Wrong => "syntax error expecting ']' or ','",
        }
    }
}

/// What a piece of text may end within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Nothing,
    String { escaped: bool },
    Number,
    Keyword,
}

/// Why the fast loop stopped.
enum Stop {
    /// The value ended before this position.
    End(usize),
    /// The piece ended between two tokens.
    Exhausted,
    /// At this position there is a token in a less usual form.
    Other(usize),
}

/// Numbers of up to this many digits are 64-bit integers.
const PLAIN_DIGITS_MAX: usize = 18;

/// The scanner. After an error it must not be used again.
#[derive(Debug, Clone)]
pub struct Scanner {
    place: Place,
    within: Within,
    depth: usize,
    depth_max: usize,
    /// One bit per level, set for an object.
    objects: Vec<u64>,
    /// The beginning of a number or keyword, or an incomplete escape, from earlier pieces.
    pending: Vec<u8>,
    /// An invalid escape, to be reported at the string's end.
    wrong_escape: Option<String>,
    /// Bytes of this value in earlier pieces.
    bytes: usize,
    /// Line feeds so far in this value, and the offset after the last of them.
    lines: usize,
    line_start: usize,
}

impl Scanner {
    /// Creates a scanner at the start of a value, which may be `depth_max` deep.
    pub fn new(depth_max: usize) -> Self {
        Self {
            place: Place::Start,
            within: Within::Nothing,
            depth: 0,
            depth_max,
            objects: vec![0; depth_max / 64 + 1],
            pending: Vec::new(),
            wrong_escape: None,
            bytes: 0,
            lines: 0,
            line_start: 0,
        }
    }

    /// Bytes of the current value that earlier calls have taken; 0 between values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if a value has begun (more than white space was seen since the last one).
    pub fn is_inside(&self) -> bool {
        self.place != Place::Start || self.within != Within::Nothing
    }

    /// Takes the next piece of the text. Returns where in it the value ends; the scanner is then at the start of the
    /// next value. Returns `None` if the whole piece belongs to the value, which continues.
    pub fn advance(&mut self, piece: &[u8]) -> Result<Option<usize>, SyntaxError> {
        let mut at = match self.within {
            Within::Nothing => 0,
            Within::String { .. } => match self.string(piece, 0)? {
                Some(after) => after,
                None => return Ok(self.all_taken(piece)),
            },
            Within::Number => match self.number(piece, 0)? {
                Some(after) => after,
                None => return Ok(self.all_taken(piece)),
            },
            Within::Keyword => match self.keyword(piece, 0)? {
                Some(after) => after,
                None => return Ok(self.all_taken(piece)),
            },
        };
        loop {
            match self.run(piece, at)? {
                Stop::End(end) => {
                    self.finish();
                    return Ok(Some(end));
                }
                Stop::Exhausted => return Ok(self.all_taken(piece)),
                Stop::Other(place) => match self.rare(piece, place)? {
                    Some(after) => at = after,
                    None => return Ok(self.all_taken(piece)),
                },
            }
        }
    }

    /// Takes tokens in their usual forms, as fast as possible: the state is in registers.
    #[inline]
    fn run(&mut self, piece: &[u8], start: usize) -> Result<Stop, SyntaxError> {
        let mut at = start;
        let mut place = self.place;
        let stop = loop {
            let Some(byte) = piece.get(at) else { break Stop::Exhausted };
            let (token, after) = match byte {
                b'"' => {
                    let inside = piece.get(at + 1..).unwrap_or_default();
                    match string::special(inside) {
                        Some(found) if inside.get(found) == Some(&b'"') => (Token::String, at + found + 2),
                        _ => break Stop::Other(at),
                    }
                }
                b',' => (Token::Comma, at + 1),
                b':' => (Token::Colon, at + 1),
                b'1'..=b'9' => {
                    let digits = piece.get(at..).unwrap_or_default();
                    match digits.iter().take(PLAIN_DIGITS_MAX + 1).position(|byte| !byte.is_ascii_digit()) {
                        Some(length) if !digits.get(length).is_some_and(|byte| is_number_byte(*byte)) => {
                            (Token::Scalar, at + length)
                        }
                        _ => break Stop::Other(at),
                    }
                }
                b'[' | b'{' => {
                    self.place = place;
                    self.open(*byte == b'{', at)?;
                    place = self.place;
                    at += 1;
                    continue;
                }
                b']' | b'}' => {
                    self.place = place;
                    if self.close(*byte == b'}', at)? {
                        return Ok(Stop::End(at + 1));
                    }
                    place = self.place;
                    at += 1;
                    continue;
                }
                b' ' => {
                    at += 1;
                    continue;
                }
                _ => break Stop::Other(at),
            };
            let next = next_place(place, token);
            if next == Place::Wrong {
                // The reported position is the token's last byte, or the one after a number.
                let end = if token == Token::Scalar { after } else { after - 1 };
                return Err(self.error(end, place.error_text()));
            }
            place = next;
            at = after;
        };
        self.place = place;
        Ok(stop)
    }

    /// Takes one token, or some white space, in any form. Returns `None` if the piece ends within it.
    fn rare(&mut self, piece: &[u8], at: usize) -> Result<Option<usize>, SyntaxError> {
        match piece.get(at) {
            None => Ok(None),
            Some(b'"') => {
                self.within = Within::String { escaped: false };
                self.string(piece, at + 1)
            }
            Some(b'-' | b'0'..=b'9') => {
                self.within = Within::Number;
                self.number(piece, at)
            }
            Some(b'a'..=b'z') => {
                self.within = Within::Keyword;
                self.keyword(piece, at)
            }
            Some(b' ' | b'\t' | b'\r') => Ok(Some(at + 1)),
            Some(b'\n') => {
                self.line_feed(at);
                Ok(Some(at + 1))
            }
            Some(other) => Err(self.unexpected(*other, at)),
        }
    }

    fn all_taken(&mut self, piece: &[u8]) -> Option<usize> {
        self.bytes += piece.len();
        None
    }

    fn finish(&mut self) {
        self.depth = 0;
        self.place = Place::Start;
        self.bytes = 0;
        self.lines = 0;
        self.line_start = 0;
    }

    #[inline]
    fn token(&mut self, token: Token, at: usize) -> Result<(), SyntaxError> {
        let next = next_place(self.place, token);
        if next == Place::Wrong {
            return Err(self.error(at, self.place.error_text()));
        }
        self.place = next;
        Ok(())
    }

    #[inline]
    fn open(&mut self, object: bool, at: usize) -> Result<(), SyntaxError> {
        let token = if object { Token::OpenObject } else { Token::OpenArray };
        if next_place(self.place, token) == Place::Wrong {
            return Err(self.error(at, self.place.error_text()));
        }
        if self.depth >= self.depth_max {
            return Err(self.error(at, &format!("input exceeds maximum nesting depth {}", self.depth_max)));
        }
        let bit = 1 << (self.depth % 64);
        if let Some(word) = self.objects.get_mut(self.depth / 64) {
            *word = if object { *word | bit } else { *word & !bit };
        }
        self.depth += 1;
        self.place = if object { Place::ObjectInitial } else { Place::ArrayInitial };
        Ok(())
    }

    /// Returns true if that was the value's end.
    #[inline]
    fn close(&mut self, object: bool, at: usize) -> Result<bool, SyntaxError> {
        let token = if object { Token::CloseObject } else { Token::CloseArray };
        if next_place(self.place, token) == Place::Wrong {
            return Err(self.error(at, self.place.error_text()));
        }
        self.depth = self.depth.saturating_sub(1);
        let Some(level) = self.depth.checked_sub(1) else { return Ok(true) };
        let word = self.objects.get(level / 64).copied().unwrap_or_default();
        self.place = if word >> (level % 64) & 1 == 1 { Place::ObjectNext } else { Place::ArrayNext };
        Ok(false)
    }

    /// Continues a string whose opening quote is before `start`. Returns the position after the closing one.
    #[inline]
    fn string(&mut self, piece: &[u8], start: usize) -> Result<Option<usize>, SyntaxError> {
        let mut at = start;
        let mut escapes = !self.pending.is_empty();
        if let Within::String { escaped: true } = self.within {
            // The previous piece ended in a backslash, which is in `pending` unless the string is wrong anyway.
            match piece.first() {
                None => return Ok(None),
                Some(byte) => {
                    if *byte == b'\n' {
                        self.line_feed(0);
                    }
                    at += 1;
                }
            }
        }
        loop {
            let Some(found) = string::special(piece.get(at..).unwrap_or_default()) else {
                return Ok(self.string_goes_on(piece, start, escapes, false));
            };
            at += found;
            match piece.get(at) {
                Some(b'"') => {
                    if escapes || self.wrong_escape.is_some() {
                        self.check_escapes(piece.get(start..at).unwrap_or_default(), true);
                        if let Some(text) = self.wrong_escape.take() {
                            return Err(self.error(at, &text));
                        }
                    }
                    self.within = Within::Nothing;
                    self.token(Token::String, at)?;
                    return Ok(Some(at + 1));
                }
                Some(b'\\') => {
                    escapes = true;
                    match piece.get(at + 1) {
                        None => return Ok(self.string_goes_on(piece, start, true, true)),
                        Some(b'\n') => self.line_feed(at + 1),
                        Some(_) => {}
                    }
                    at += 2;
                }
                Some(control) => {
                    let text = format!("U+{control:04X} must be escaped in quoted string");
                    return Err(self.error(at, &text));
                }
                None => return Ok(None),
            }
        }
    }

    #[cold]
    fn string_goes_on(&mut self, piece: &[u8], start: usize, escapes: bool, escaped: bool) -> Option<usize> {
        self.within = Within::String { escaped };
        if escapes {
            self.check_escapes(piece.get(start..).unwrap_or_default(), false);
        }
        None
    }

    /// Checks the escapes in the pending bytes and the next part of a string.
    fn check_escapes(&mut self, part: &[u8], last: bool) {
        if self.wrong_escape.is_some() {
            return;
        }
        let mut pending = std::mem::take(&mut self.pending);
        let checked = if pending.is_empty() {
            string::check_escapes(part, last).map(|decided| part.get(decided..).unwrap_or_default().to_vec())
        } else {
            pending.extend_from_slice(part);
            string::check_escapes(&pending, last)
                .map(|decided| pending.get(decided..).unwrap_or_default().to_vec())
        };
        match checked {
            Ok(rest) => self.pending = rest,
            Err(text) => self.wrong_escape = Some(text),
        }
    }

    /// Continues a number. Returns the position after it, once the byte there is known.
    #[inline]
    fn number(&mut self, piece: &[u8], start: usize) -> Result<Option<usize>, SyntaxError> {
        let mut at = start;
        let mut plain = true;
        while let Some(byte) = piece.get(at) {
            if !byte.is_ascii_digit() {
                if !is_number_byte(*byte) {
                    break;
                }
                plain &= *byte == b'-' && at == start;
            }
            at += 1;
        }
        let part = piece.get(start..at).unwrap_or_default();
        if at == piece.len() {
            self.pending.extend_from_slice(part);
            return Ok(None);
        }
        let is_plain = plain
            && self.pending.is_empty()
            && match part {
                [b'0'] | [b'-', b'0'] => true,
                [b'-', b'1'..=b'9', ..] | [b'1'..=b'9', ..] => part.len() <= PLAIN_DIGITS_MAX,
                _ => false,
            };
        if !is_plain {
            let checked = if self.pending.is_empty() {
                number::parse(part)
            } else {
                self.pending.extend_from_slice(part);
                number::parse(&self.pending)
            };
            self.pending.clear();
            if let Err(text) = checked {
                return Err(self.error(at, text));
            }
        }
        self.within = Within::Nothing;
        self.token(Token::Scalar, at)?;
        Ok(Some(at))
    }

    /// Continues a keyword. Returns the position after it, once the byte there is known.
    fn keyword(&mut self, piece: &[u8], start: usize) -> Result<Option<usize>, SyntaxError> {
        let rest = piece.get(start..).unwrap_or_default();
        let length = rest.iter().position(|byte| !byte.is_ascii_alphabetic());
        let part = rest.get(..length.unwrap_or(rest.len())).unwrap_or_default();
        let Some(length) = length else {
            self.pending.extend_from_slice(part);
            return Ok(None);
        };
        let at = start + length;
        let known = |word: &[u8]| matches!(word, b"true" | b"false" | b"null");
        if !(self.pending.is_empty() && known(part)) {
            self.pending.extend_from_slice(part);
            let word = std::mem::take(&mut self.pending);
            if !known(&word) {
                return Err(self.error(at, &format!("invalid keyword '{}'", String::from_utf8_lossy(&word))));
            }
        }
        self.within = Within::Nothing;
        self.token(Token::Scalar, at)?;
        Ok(Some(at))
    }

    fn line_feed(&mut self, at: usize) {
        self.lines += 1;
        self.line_start = self.bytes + at + 1;
    }

    #[cold]
    fn unexpected(&self, byte: u8, at: usize) -> SyntaxError {
        match byte {
            0x20..0x7f => self.error(at, &format!("invalid character '{}'", char::from(byte))),
            _ => self.error(at, &format!("invalid character U+{byte:04x}")),
        }
    }

    #[cold]
    fn error(&self, at: usize, text: &str) -> SyntaxError {
        let byte = self.bytes + at;
        let (line, column) = (self.lines, byte.saturating_sub(self.line_start));
        SyntaxError { text: format!("line {line}, column {column}, byte {byte}: {text}") }
    }

    /// Checks that `text` is one value with optional white space around it. Returns where the value ends.
    pub(super) fn only(mut self, text: &[u8]) -> Result<usize, SyntaxError> {
        let Some(end) = self.advance(text)? else { return Err(self.unexpected_end()) };
        let (value, rest) = text.split_at_checked(end).unwrap_or((text, &[]));
        self.place = Place::End;
        self.bytes = value.len();
        for (place, byte) in value.iter().enumerate() {
            if *byte == b'\n' {
                self.lines += 1;
                self.line_start = place + 1;
            }
        }
        self.advance(rest)?;
        match self.within {
            Within::Nothing => Ok(end),
            _ => Err(self.unexpected_end()),
        }
    }

    /// The error for text that ends here, before the value does.
    fn unexpected_end(mut self) -> SyntaxError {
        match self.within {
            Within::String { .. } => return self.error(0, "unexpected end of input in quoted string"),
            // The end of the text ends the token as a space would.
            Within::Number | Within::Keyword => {
                if let Err(error) = self.advance(b" ") {
                    return error;
                }
            }
            Within::Nothing => {}
        }
        match self.place {
            Place::Start => self.error(0, "empty input stream"),
            _ => self.error(0, "unexpected end of input"),
        }
    }
}

#[inline]
fn next_place(place: Place, token: Token) -> Place {
    TABLE.get(place as usize).and_then(|row| row.get(token as usize)).copied().unwrap_or(Place::Wrong)
}
