//! Parses JSON into a cell in one pass, with the stock server's errors.

use super::sort::Builder;
use crate::atom::{self, Atom, AtomType};
use crate::base_type::{BaseType, Constraint};
use crate::column_type::ColumnType;
use crate::error::Error;
use crate::members::is_id;
use crate::uuid::Uuid;
use std::borrow::Cow;
use wire::json::{Cursor, Number, Value};

/// What is checked of a value besides its form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// The constraints of its atoms, and their number.
    All,
    /// Nothing: the value has been checked before.
    Nothing,
}

/// For [`parse`] where named UUIDs are not allowed.
pub fn no_names(_: &str) -> Option<Uuid> {
    None
}

/// Reads a `<value>` and appends its cell to `out`, which is unchanged after an error.
///
/// `names` returns the UUID of a `["named-uuid", ...]`, or `None` where those are not allowed (the same for all names).
pub fn parse(
    kind: &ColumnType,
    value: Value<'_>,
    names: &mut dyn FnMut(&str) -> Option<Uuid>,
    checks: Checks,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let start = out.len();
    let result = match &kind.value {
        Some(base) => parse_map(kind, base, value, names, checks, out),
        None => match inner_of(value, b"set") {
            Inner::Array(cursor) => parse_set(kind, value, cursor, names, checks, out),
            Inner::Malformed => Err(expected(value, "set", "array")),
            Inner::Other => parse_atom(&kind.key, &mut value.cursor(), names, checks, out)
                .map(|()| super::seal(kind, 1, start, out)),
        },
    };
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// How a value relates to `["class", [...]]`.
enum Inner<'a> {
    /// It has that form, or more elements; the cursor is at the inner array.
    Array(Cursor<'a>),
    /// An array that starts with the class, but does not have that form.
    Malformed,
    /// Something else.
    Other,
}

#[inline]
fn inner_of<'a>(value: Value<'a>, class: &[u8]) -> Inner<'a> {
    let mut cursor = value.cursor();
    if cursor.peek() != b'[' {
        return Inner::Other;
    }
    cursor.enter_array();
    if !cursor.next_element() || cursor.peek() != b'"' || cursor.string_bytes().as_ref() != class {
        return Inner::Other;
    }
    if !cursor.next_element() || cursor.peek() != b'[' {
        return Inner::Malformed;
    }
    Inner::Array(cursor)
}

/// Returns true if something follows the inner array at the cursor.
fn is_followed(mut array: Cursor<'_>) -> bool {
    array.skip();
    array.next_element()
}

#[cold]
fn expected(value: Value<'_>, class: &str, kind: &str) -> Error {
    Error::syntax_error(value, format!("expected [\"{class}\", <{kind}>]"))
}

fn parse_set(
    kind: &ColumnType,
    value: Value<'_>,
    mut cursor: Cursor<'_>,
    names: &mut dyn FnMut(&str) -> Option<Uuid>,
    checks: Checks,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let array = cursor;
    let mut builder = Builder::new(kind, out);
    cursor.enter_array();
    while cursor.next_element() {
        if let Err(error) = parse_atom(&kind.key, &mut cursor, names, checks, out) {
            return Err(array_or(kind, value, array, "set", checks, error));
        }
        builder.end_of_key(out);
        builder.end_of_element(out);
    }
    if cursor.next_element() {
        return Err(expected(value, "set", "array"));
    }
    check_count(kind, value, "set", builder.len(), checks)?;
    builder.finish(out).map_err(|_| Error::new("ovsdb error", "set contains duplicate"))
}

fn parse_map(
    kind: &ColumnType,
    base: &BaseType,
    value: Value<'_>,
    names: &mut dyn FnMut(&str) -> Option<Uuid>,
    checks: Checks,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let Inner::Array(mut cursor) = inner_of(value, b"map") else {
        return Err(expected(value, "map", "array"));
    };
    let array = cursor;
    let mut builder = Builder::new(kind, out);
    cursor.enter_array();
    while cursor.next_element() {
        if let Err(error) = parse_pair(kind, base, &mut cursor, &mut builder, names, checks, out) {
            return Err(array_or(kind, value, array, "map", checks, error));
        }
        builder.end_of_element(out);
    }
    if cursor.next_element() {
        return Err(expected(value, "map", "array"));
    }
    check_count(kind, value, "map", builder.len(), checks)?;
    builder.finish(out).map_err(|_| Error::new("ovsdb error", "map contains duplicate key"))
}

/// Errors in the array as a whole take precedence over errors in an element.
#[cold]
fn array_or(
    kind: &ColumnType,
    value: Value<'_>,
    array: Cursor<'_>,
    class: &str,
    checks: Checks,
    error: Error,
) -> Error {
    if is_followed(array) {
        return expected(value, class, "array");
    }
    check_count(kind, value, class, count(array), checks).err().unwrap_or(error)
}

#[inline]
fn parse_pair(
    kind: &ColumnType,
    base: &BaseType,
    cursor: &mut Cursor<'_>,
    builder: &mut Builder<'_>,
    names: &mut dyn FnMut(&str) -> Option<Uuid>,
    checks: Checks,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let pair = *cursor;
    if cursor.peek() != b'[' {
        return Err(not_a_pair(pair));
    }
    cursor.enter_array();
    if !cursor.next_element() {
        return Err(not_a_pair(pair));
    }
    // A pair of the wrong length is reported before an atom of the wrong type.
    parse_atom(&kind.key, cursor, names, checks, out).map_err(|error| pair_or(pair, error))?;
    builder.end_of_key(out);
    if !cursor.next_element() {
        return Err(not_a_pair(pair));
    }
    parse_atom(base, cursor, names, checks, out).map_err(|error| pair_or(pair, error))?;
    if cursor.next_element() {
        return Err(not_a_pair(pair));
    }
    Ok(())
}

#[cold]
fn not_a_pair(mut pair: Cursor<'_>) -> Error {
    Error::syntax_error(pair.skip(), "expected 2-element array")
}

#[cold]
fn pair_or(pair: Cursor<'_>, error: Error) -> Error {
    if count(pair) == 2 { error } else { not_a_pair(pair) }
}

/// Number of elements of the array at the cursor.
#[cold]
fn count(mut array: Cursor<'_>) -> usize {
    array.skip().elements().count()
}

fn check_count(
    kind: &ColumnType,
    value: Value<'_>,
    class: &str,
    count: usize,
    checks: Checks,
) -> Result<(), Error> {
    let allowed = count >= kind.n_min as usize && count <= kind.n_max as usize;
    if allowed || checks == Checks::Nothing && !kind.is_scalar() {
        return Ok(());
    }
    let (n_min, n_max) = (kind.n_min, kind.n_max);
    let details = match (n_min, n_max) {
        (1, 1) => format!("{class} must have exactly one member but {count} are present"),
        _ => format!("{class} must have {n_min} to {n_max} members but {count} are present"),
    };
    Err(Error::syntax_error(value, details))
}

/// Reads one atom and appends its packed form.
#[inline]
fn parse_atom(
    base: &BaseType,
    cursor: &mut Cursor<'_>,
    names: &mut dyn FnMut(&str) -> Option<Uuid>,
    checks: Checks,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let first = cursor.peek();
    let atom = match (base.kind, first) {
        (AtomType::String, b'"') => return parse_string(base, cursor, checks, out),
        (AtomType::Integer, b'-' | b'0'..=b'9') => {
            let here = *cursor;
            match cursor.number() {
                Number::Integer(value) => Atom::Integer(value),
                Number::Real(_) => return Err(mismatch(base, here)),
            }
        }
        (AtomType::Real, b'-' | b'0'..=b'9') => Atom::Real(match cursor.number() {
            Number::Integer(value) => value as f64,
            Number::Real(value) => value,
        }),
        (AtomType::Boolean, b't' | b'f') => Atom::Boolean(cursor.boolean()),
        (AtomType::Uuid, _) => Atom::Uuid(parse_uuid(cursor, names)?),
        _ => return Err(mismatch(base, *cursor)),
    };
    put_checked(base, atom, checks, out)
}

/// Appends an atom unless it is checked and not allowed.
#[inline]
pub(crate) fn put_checked(
    base: &BaseType,
    atom: Atom<'_>,
    checks: Checks,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let start = out.len();
    atom::put(out, atom);
    if checks == Checks::All
        && base.constraint != Constraint::None
        && let Err(error) = base.check_packed(out.get(start..).unwrap_or_default())
    {
        out.truncate(start);
        return Err(error);
    }
    Ok(())
}

#[cold]
fn mismatch(base: &BaseType, mut at: Cursor<'_>) -> Error {
    Error::syntax_error(at.skip(), format!("expected {}", base.kind.name()))
}

#[inline]
fn parse_string(
    base: &BaseType,
    cursor: &mut Cursor<'_>,
    checks: Checks,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let bytes = cursor.string_bytes();
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) if checks == Checks::Nothing => String::from_utf8_lossy(&bytes),
        Err(_) => return Err(not_utf8(&bytes)),
    };
    put_checked(base, Atom::String(&text), checks, out)
}

/// The error about bytes that are not UTF-8. Shows the wrong sequence, up to the byte that cannot continue it; 0 stands
/// for the end of the string.
#[cold]
fn not_utf8(bytes: &[u8]) -> Error {
    let start = std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
    let wrong = bytes.get(start..).unwrap_or_default();
    let mut shown = String::from("not a valid UTF-8 string: invalid UTF-8 sequence");
    for length in 1..=4 {
        shown.push_str(&format!(" 0x{:02x}", wrong.get(length - 1).copied().unwrap_or_default()));
        let piece = wrong.get(..length).unwrap_or_default();
        let may_go_on = std::str::from_utf8(piece).is_err_and(|error| error.error_len().is_none());
        if !may_go_on {
            break;
        }
    }
    Error::constraint_violation(shown)
}

#[inline]
fn parse_uuid(cursor: &mut Cursor<'_>, names: &mut dyn FnMut(&str) -> Option<Uuid>) -> Result<Uuid, Error> {
    const BEFORE: &[u8] = b"[\"uuid\",\"";
    const AFTER: &[u8] = b"\"]";
    if let Some(rest) = cursor.rest().strip_prefix(BEFORE)
        && let Some((text, rest)) = rest.split_at_checked(36)
        && let Some(rest) = rest.strip_prefix(AFTER)
        && let Some(uuid) = Uuid::parse_bytes(text)
    {
        *cursor = Cursor::new(rest);
        return Ok(uuid);
    }
    parse_any_uuid(cursor.skip(), names)
}

/// Parses a UUID in any notation; the error states what is wrong with it.
fn parse_any_uuid(value: Value<'_>, names: &mut dyn FnMut(&str) -> Option<Uuid>) -> Result<Uuid, Error> {
    let mut elements = value.elements();
    let pair = match (elements.next(), elements.next(), elements.next()) {
        (Some(class), Some(text), None) => class.as_string().zip(text.as_string()),
        _ => None,
    };
    match pair {
        Some((class, text)) if class == "uuid" => Uuid::parse(&text)
            .ok_or_else(|| Error::syntax_error(value, format!("\"{text}\" is not a valid UUID"))),
        // Any name shows whether names are allowed here.
        Some((class, name)) if class == "named-uuid" => {
            if !is_id(&name) {
                return Err(match names("_") {
                    Some(_) => Error::syntax_error(value, "named-uuid string is not a valid <id>"),
                    None => expected(value, "uuid", "string"),
                });
            }
            names(&name).ok_or_else(|| expected(value, "uuid", "string"))
        }
        _ => Err(expected(value, "uuid", "string")),
    }
}
