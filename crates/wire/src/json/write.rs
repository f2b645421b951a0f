//! Writing JSON as the stock server prints it, appended to a buffer.

use super::{Cursor, Kind, Number, Value};
use std::fmt::Write as _;

/// Longest decimal form of an integer of 64 bits.
const INTEGER_MAX: usize = 20;

/// Appends a string with its quotes and escapes.
#[inline]
pub fn string(out: &mut Vec<u8>, text: &str) {
    string_bytes(out, text.as_bytes());
}

/// Appends a string of bytes that need not be UTF-8: they are written unchanged.
pub fn string_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    let mut rest = bytes;
    while let Some(place) = super::string::special(rest) {
        let (plain, at) = rest.split_at_checked(place).unwrap_or((rest, &[]));
        out.extend_from_slice(plain);
        let Some((byte, after)) = at.split_first() else { break };
        escape(out, *byte);
        rest = after;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

#[cold]
fn escape(out: &mut Vec<u8>, byte: u8) {
    let letter = match byte {
        b'"' => b'"',
        b'\\' => b'\\',
        0x08 => b'b',
        0x0c => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        control => {
            out.extend_from_slice(b"\\u00");
            out.extend(hex(control));
            return;
        }
    };
    out.extend_from_slice(&[b'\\', letter]);
}

#[inline]
fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| DIGITS.get(usize::from(value & 15)).copied().unwrap_or_default();
    [digit(byte >> 4), digit(byte)]
}

/// Appends a decimal integer.
#[inline]
pub fn integer(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    unsigned(out, value.unsigned_abs());
}

/// Appends a decimal integer without a sign.
pub fn unsigned(out: &mut Vec<u8>, value: u64) {
    let mut digits = [b'0'; INTEGER_MAX];
    let mut rest = value;
    let mut start = INTEGER_MAX;
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        start = place;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(start..).unwrap_or_default());
}

/// Appends a real as C prints it with `%.15g`.
pub fn real(out: &mut Vec<u8>, value: f64) {
    if value.trunc() == value && value.abs() < 1e15 {
        return integer(out, value as i64);
    }
    if !value.is_finite() {
        let text: &[u8] = if value.is_nan() { b"nan" } else { b"inf" };
        if value.is_sign_negative() {
            out.push(b'-');
        }
        out.extend_from_slice(text);
        return;
    }
    let mut scientific = String::with_capacity(32);
    if write!(scientific, "{value:.14e}").is_err() {
        return;
    }
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_end_matches('0');
    out.extend_from_slice(sign.as_bytes());
    match usize::try_from(exponent) {
        Ok(whole) if whole < 15 => {
            let (before, after) = digits.split_at_checked(whole + 1).unwrap_or((digits, ""));
            out.extend_from_slice(before.as_bytes());
            out.extend(std::iter::repeat_n(b'0', (whole + 1).saturating_sub(digits.len())));
            fraction(out, after);
        }
        Err(_) if exponent >= -4 => {
            out.extend_from_slice(b"0.");
            out.extend(std::iter::repeat_n(b'0', (-1 - exponent).unsigned_abs() as usize));
            out.extend_from_slice(digits.as_bytes());
        }
        _ => {
            let (before, after) = digits.split_at_checked(1).unwrap_or((digits, ""));
            out.extend_from_slice(before.as_bytes());
            fraction(out, after);
            out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
            if exponent.abs() < 10 {
                out.push(b'0');
            }
            unsigned(out, exponent.unsigned_abs().into());
        }
    }
}

fn fraction(out: &mut Vec<u8>, digits: &str) {
    if !digits.is_empty() {
        out.push(b'.');
        out.extend_from_slice(digits.as_bytes());
    }
}

/// Appends a UUID's 36 characters, without quotes.
#[inline]
pub fn uuid(out: &mut Vec<u8>, uuid: &[u8; 16]) {
    const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
    let mut text = [b'-'; 36];
    for (byte, place) in uuid.iter().zip(PLACES) {
        if let Some(pair) = text.get_mut(place..place + 2) {
            pair.copy_from_slice(&hex(*byte));
        }
    }
    out.extend_from_slice(&text);
}

/// Appends a boolean.
#[inline]
pub fn boolean(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// Appends a value as the stock server prints it when it sorts members: no white space, numbers and strings in their
/// one form, members by name, of equal names the last. The server prints the `syntax` of errors this way.
///
/// The cost is linear in the length of the text, however deeply it is nested: the ends of containers are found once
/// ([`Spans`]), not once per level.
pub fn sorted(out: &mut Vec<u8>, value: Value<'_>) {
    let mut cursor = value.cursor();
    let spans =
        if matches!(cursor.peek(), b'[' | b'{') { Spans::of(cursor.rest()) } else { Spans::default() };
    next_sorted(out, &mut cursor, &spans, &mut 0);
}

/// Where containers that are values of members end, in the order in which they begin.
#[derive(Default)]
struct Spans {
    spans: Vec<Span>,
}

struct Span {
    /// Its length.
    bytes: usize,
    /// The index in the list of the first such container that begins after its end.
    next: usize,
}

impl Spans {
    fn of(text: &[u8]) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        // For each open container, its index in the list, if it has one.
        let mut open: Vec<Option<usize>> = Vec::new();
        let (mut at, mut is_member) = (0, false);
        while let Some(byte) = text.get(at) {
            match byte {
                b'"' => {
                    at += super::string::end_of_checked(text.get(at + 1..).unwrap_or_default()).0 + 1;
                    is_member = false;
                }
                b':' => is_member = true,
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b'[' | b'{' => {
                    open.push(is_member.then_some(spans.len()));
                    if is_member {
                        spans.push(Span { bytes: at, next: 0 });
                    }
                    is_member = false;
                }
                b']' | b'}' => {
                    let next = spans.len();
                    if let Some(span) = open.pop().flatten().and_then(|place| spans.get_mut(place)) {
                        *span = Span { bytes: at + 1 - span.bytes, next };
                    }
                    if open.is_empty() {
                        break;
                    }
                    is_member = false;
                }
                _ => is_member = false,
            }
            at += 1;
        }
        Self { spans }
    }

    /// Takes the value of a member. If it is a container, `place` is its index.
    fn skip<'a>(&self, cursor: &mut Cursor<'a>, place: &mut usize) -> Value<'a> {
        if matches!(cursor.peek(), b'[' | b'{')
            && let Some(span) = self.spans.get(*place)
        {
            *place = span.next;
            return cursor.take(span.bytes);
        }
        cursor.skip()
    }
}

fn next_sorted(out: &mut Vec<u8>, cursor: &mut Cursor<'_>, spans: &Spans, place: &mut usize) {
    match cursor.kind() {
        Kind::Null => {
            cursor.null();
            out.extend_from_slice(b"null");
        }
        Kind::Boolean => boolean(out, cursor.boolean()),
        Kind::Integer | Kind::Real => match cursor.number() {
            Number::Integer(value) => integer(out, value),
            Number::Real(value) => real(out, value),
        },
        Kind::String => string_bytes(out, &cursor.string_bytes()),
        Kind::Array => {
            out.push(b'[');
            let start = out.len();
            cursor.enter_array();
            while cursor.next_element() {
                if out.len() > start {
                    out.push(b',');
                }
                next_sorted(out, cursor, spans, place);
            }
            out.push(b']');
        }
        Kind::Object => {
            let mut members = Vec::new();
            cursor.enter_object();
            while let Some(name) = cursor.next_member() {
                let inside = *place + 1;
                members.push((name, spans.skip(cursor, place), inside));
            }
            // Stable, so that among equal names the last one stays last.
            members.sort_by(|one, other| one.0.as_bytes().cmp(other.0.as_bytes()));
            out.push(b'{');
            let start = out.len();
            for (number, (name, value, inside)) in members.iter().enumerate() {
                if members.get(number + 1).is_some_and(|next| next.0 == *name) {
                    continue;
                }
                if out.len() > start {
                    out.push(b',');
                }
                string(out, name);
                out.push(b':');
                next_sorted(out, &mut value.cursor(), spans, &mut { *inside });
            }
            out.push(b'}');
        }
    }
}
