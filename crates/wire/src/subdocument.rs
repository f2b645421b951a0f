//! Paths into JSON documents, and edits at them, over the text alone: no tree is built, and what is not edited stays
//! as it was written.
//!
//! ```text
//!   path   a.b[2].`x.y`[-1]       components: Key(a) Key(b) Index(2) Key(x.y) Last
//!   find   {"a": {"b": [1, 2, {"x.y": [3]}]}}
//!                                      └ value: its range, and with its name
//!   edit   one splice of the text: bytes in place of a range
//! ```
//! [`locate`] reads a document up to the end of the value at the path. It skips the other values: strings by their
//! quotes, containers by their brackets. It expects a valid document, which [`check`] tells; with any other it ends all
//! the same. Names are compared as they are written, escapes included.
//!
//! COMPAT: errors, limits and what each operation accepts are those of Couchbase's sub-document API.

mod blocks;
mod check;

use std::ops::Range;

pub use check::check;
use check::{check_list, check_string};

/// Maximum length of a path, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;
/// A document that goes on for this long after the start of an object is walked in blocks.
const LONG: usize = 512;
/// A container that is longer than this is walked in blocks.
const SHORT: usize = 192;
/// Maximum number of components of a path, and of levels of a document.
pub const DEPTH_MAX: usize = 32;

/// An error of a path, a document or a value. Each is a status of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// PATH_ENOENT: the document has nothing at the path.
    PathMissing,
    /// PATH_MISMATCH: something on the path is of another type than the path says.
    PathMismatch,
    /// PATH_EINVAL: not a path, or not one for the operation.
    PathInvalid,
    /// PATH_E2BIG: the path is too long, or has too many components.
    PathTooBig,
    /// DOC_E2DEEP: the document has too many levels.
    DocumentTooDeep,
    /// VALUE_CANTINSERT: not a JSON value, or not one for the operation.
    ValueInvalid,
    /// VALUE_ETOODEEP: the value would make the document too deep.
    ValueTooDeep,
    /// DOC_NOTJSON: not a JSON document.
    NotJson,
    /// NUM_ERANGE: the number at the path is outside of 64 bits.
    NumberRange,
    /// DELTA_EINVAL: the delta is not a 64-bit integer other than 0.
    DeltaInvalid,
    /// PATH_EEXISTS: there is something at the path.
    PathExists,
}

/// One step of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component<'a> {
    /// A member of an object.
    Key {
        /// The name as it stands in the path; without the backticks if they enclose all of it and it has no others.
        name: &'a [u8],
        /// Whether the name has backticks: see [`unquoted`].
        quoted: bool,
    },
    /// An element of an array.
    Index(u32),
    /// The last element of an array.
    Last,
}

/// A parsed path.
///
/// ```text
///   path    nothing | step { [ . ] index | . key } [ . ]       step: a key or an index
///   index   [ digits ] | [-1]
///   key     one or more of: any character but . [ ] ` | ` text `, in which two backticks are one | two backticks: one
/// ```
/// The name that a key stands for has no control character, and quotes only behind a backslash that is not escaped
/// itself: it is compared with names as they are written in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path<'a> {
    components: [Component<'a>; DEPTH_MAX],
    len: usize,
}

impl<'a> Path<'a> {
    /// Parses a path; the empty one names the document.
    pub fn parse(text: &'a [u8]) -> Result<Self, Error> {
        if text.len() > PATH_BYTES_MAX {
            return Err(Error::PathTooBig);
        }
        let mut this = Self { components: [Component::Last; DEPTH_MAX], len: 0 };
        let mut rest = text;
        while !rest.is_empty() {
            let (component, behind) = match rest {
                [b'[', inner @ ..] => index(inner)?,
                _ => key(rest)?,
            };
            *this.components.get_mut(this.len).ok_or(Error::PathTooBig)? = component;
            this.len += 1;
            rest = match behind {
                [] | [b'[', ..] => behind,
                [b'.', next @ ..] => next,
                _ => return Err(Error::PathInvalid),
            };
        }
        Ok(this)
    }

    /// The components.
    pub fn components(&self) -> &[Component<'a>] {
        &self.components[..self.len]
    }
}

/// `inner` is behind the bracket.
fn index(inner: &[u8]) -> Result<(Component<'_>, &[u8]), Error> {
    let end = inner.iter().position(|byte| *byte == b']').ok_or(Error::PathInvalid)?;
    let behind = &inner[end + 1..];
    match &inner[..end] {
        b"-1" => Ok((Component::Last, behind)),
        digits if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => {
            let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            Ok((Component::Index(number.ok_or(Error::PathInvalid)?), behind))
        }
        _ => Err(Error::PathInvalid),
    }
}

/// `text` begins with the name.
fn key(text: &[u8]) -> Result<(Component<'_>, &[u8]), Error> {
    let mut name = Unquoted { rest: text, is_inside: false };
    // Whether a backslash precedes the next byte that is not escaped itself.
    let mut is_escaped = false;
    let behind = loop {
        match name.next() {
            None if name.is_inside => return Err(Error::PathInvalid),
            None => break name.rest,
            Some(b'.' | b'[') if !name.is_inside => break &text[text.len() - name.rest.len() - 1..],
            Some(b']') if !name.is_inside => return Err(Error::PathInvalid),
            Some(b'"') if !is_escaped => return Err(Error::PathInvalid),
            Some(0..=0x1f) => return Err(Error::PathInvalid),
            Some(byte) => is_escaped = byte == b'\\' && !is_escaped,
        }
    };
    let name = &text[..text.len() - behind.len()];
    let component = match name {
        [] => return Err(Error::PathInvalid),
        [b'`', inside @ .., b'`'] if !inside.is_empty() && !inside.contains(&b'`') => {
            Component::Key { name: inside, quoted: false }
        }
        _ => Component::Key { name, quoted: name.contains(&b'`') },
    };
    Ok((component, behind))
}

/// The bytes of a name that has backticks, without those that quote.
pub fn unquoted(name: &[u8]) -> impl Iterator<Item = u8> {
    Unquoted { rest: name, is_inside: false }
}

struct Unquoted<'a> {
    rest: &'a [u8],
    is_inside: bool,
}

impl Iterator for Unquoted<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        loop {
            let (byte, rest) = match (self.is_inside, self.rest) {
                // Two are one, inside; outside, if there is nothing between them and they do not begin a name in
                // backticks that itself begins with one.
                (true, [b'`', b'`', rest @ ..]) => (b'`', rest),
                (false, [b'`', b'`', rest @ ..]) if rest.first() != Some(&b'`') => (b'`', rest),
                (_, [b'`', rest @ ..]) => {
                    (self.is_inside, self.rest) = (!self.is_inside, rest);
                    continue;
                }
                (_, [byte, rest @ ..]) => (*byte, rest),
                (_, []) => return None,
            };
            self.rest = rest;
            return Some(byte);
        }
    }
}

/// Where a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The value's text.
    pub value: Range<usize>,
    /// The same from its name on, if it is a member of an object.
    pub member: Range<usize>,
    /// Its position in its container; of a member of a long document, 1 for any but the first.
    pub position: u32,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// There is a value at the path.
    Found(Place),
    /// The path ends before its last component.
    Missing {
        /// Components that were found.
        found: usize,
        /// The last of them: a container of the right type, without the next component.
        container: Place,
        /// Number of its elements or members; of an object in a long document, 1 for any.
        elements: u32,
    },
}

/// The elements of an array, or members of an object, one by one.
struct Elements<'d> {
    document: &'d [u8],
    close: u8,
    /// The value that was given last, or the first element.
    at: usize,
    /// Elements given so far.
    count: u32,
}

/// An element or member.
struct Element {
    /// Its start: a member's name.
    start: usize,
    /// The name's text between its quotes; empty in an array.
    name: Range<usize>,
    value: usize,
    position: u32,
}

impl<'d> Elements<'d> {
    /// Of the container at `at`; `None` if there is none.
    fn of(document: &'d [u8], at: usize) -> Option<Self> {
        let close = match document.get(at)? {
            b'{' => b'}',
            b'[' => b']',
            _ => return None,
        };
        Some(Self { document, close, at: skip_blanks(document, at + 1), count: 0 })
    }

    fn is_object(&self) -> bool {
        self.close == b'}'
    }

    fn next(&mut self) -> Result<Option<Element>, Error> {
        let document = self.document;
        let mut start = self.at;
        if self.count > 0 {
            start = skip_blanks(document, skip_value(document, start)?);
            match document.get(start) {
                Some(b',') => start = skip_blanks(document, start + 1),
                Some(byte) if *byte == self.close => return Ok(None),
                _ => return Err(Error::NotJson),
            }
        } else if document.get(start) == Some(&self.close) {
            return Ok(None);
        }
        let (mut name, mut value) = (start..start, start);
        if self.is_object() {
            if document.get(start) != Some(&b'"') {
                return Err(Error::NotJson);
            }
            let end = skip_string(document, start)?;
            name = start + 1..end - 1;
            let colon = skip_blanks(document, end);
            if document.get(colon) != Some(&b':') {
                return Err(Error::NotJson);
            }
            value = skip_blanks(document, colon + 1);
        }
        self.at = value;
        self.count += 1;
        Ok(Some(Element { start, name, value, position: self.count - 1 }))
    }
}

/// Finds what a path names in a valid document.
pub fn locate(document: &[u8], path: &[Component<'_>]) -> Result<Search, Error> {
    locate_below(document, root(document), 0, path, &mut |_| {})
}

/// Finds what several paths name in one valid document. A part of the document that paths have in common is searched
/// once.
pub struct Locator<'d, 'p> {
    document: &'d [u8],
    /// The paths so far, and the starts of what each of their components names, as far as that was found.
    known: Vec<(Path<'p>, Vec<Place>)>,
}

impl<'d, 'p> Locator<'d, 'p> {
    /// Creates a locator without paths.
    pub fn new(document: &'d [u8]) -> Self {
        Self { document, known: Vec::new() }
    }

    /// As [`locate`].
    pub fn locate(&mut self, path: &Path<'p>) -> Result<Search, Error> {
        let common = |(known, places): &(Path<'_>, Vec<Place>)| {
            let pairs = known.components().iter().zip(path.components());
            pairs.take_while(|(known, wanted)| known == wanted).count().min(places.len())
        };
        let nearest = self.known.iter().max_by_key(|known| common(known));
        let mut places = nearest.map_or(Vec::new(), |known| known.1[..common(known)].to_vec());
        let from = places.last().cloned().unwrap_or_else(|| root(self.document));
        let found = places.len();
        let result = locate_below(self.document, from, found, path.components(), &mut |place| {
            places.push(place.clone())
        });
        self.known.push((*path, places));
        result
    }
}

fn root(document: &[u8]) -> Place {
    let start = skip_blanks(document, 0);
    Place { value: start..start, member: start..start, position: 0 }
}

/// Searches below the place of the first `found` components; `note` gets the place of each other one.
fn locate_below(
    document: &[u8],
    mut place: Place,
    found: usize,
    path: &[Component<'_>],
    note: &mut dyn FnMut(&Place),
) -> Result<Search, Error> {
    for (found, component) in path.iter().enumerate().skip(found) {
        let mut elements = Elements::of(document, place.value.start).ok_or(Error::PathMismatch)?;
        if matches!(component, Component::Key { .. }) != elements.is_object() {
            return Err(Error::PathMismatch);
        }
        let mut last = None;
        if let Component::Key { name, quoted } = component
            && document.len() - place.value.start >= LONG
            && let quoted_name = in_quotes(name, *quoted)
            && skip_string(&quoted_name, 0) == Ok(quoted_name.len())
        {
            let open = place.value.start;
            let Some(start) = blocks::Walk::new(document, open).member(&quoted_name)? else {
                let is_empty = document.get(skip_blanks(document, open + 1)) == Some(&b'}');
                let container = closed(document, place)?;
                return Ok(Search::Missing { found, container, elements: u32::from(!is_empty) });
            };
            let value = skip_blanks(document, skip_blanks(document, skip_string(document, start)?) + 1);
            let is_first = document[..start].trim_ascii_end().len() == open + 1;
            place = Place { value: value..value, member: start..start, position: u32::from(!is_first) };
            note(&place);
            continue;
        }
        let wanted = match component {
            Component::Key { .. } => None,
            Component::Index(index) => Some(*index),
            Component::Last => Some(u32::MAX),
        };
        if let Some(wanted) = wanted
            && document.len() - place.value.start >= LONG
        {
            let (start, position) = blocks::Walk::new(document, place.value.start).element(wanted)?;
            if start.is_none() || wanted != u32::MAX && position != wanted {
                let container = closed(document, place)?;
                let elements = start.map_or(0, |_| position + 1);
                return Ok(Search::Missing { found, container, elements });
            }
            let start = start.unwrap_or_default();
            place = Place { value: start..start, member: start..start, position };
            note(&place);
            continue;
        }
        let next = loop {
            let Some(element) = elements.next()? else { break last };
            let is_wanted = match component {
                Component::Key { name, quoted } => is_name(&document[element.name.clone()], name, *quoted),
                Component::Index(index) => *index == element.position,
                Component::Last => {
                    last = Some(element);
                    continue;
                }
            };
            if is_wanted {
                break Some(element);
            }
        };
        let Some(Element { start, value, position, .. }) = next else {
            let container = closed(document, place)?;
            return Ok(Search::Missing { found, container, elements: elements.count });
        };
        place = Place { value: value..value, member: start..start, position };
        note(&place);
    }
    Ok(Search::Found(closed(document, place)?))
}

/// The place with its end.
fn closed(document: &[u8], place: Place) -> Result<Place, Error> {
    let end = skip_value(document, place.value.start)?;
    Ok(Place { value: place.value.start..end, member: place.member.start..end, ..place })
}

fn skip_blanks(document: &[u8], at: usize) -> usize {
    let blanks = document.get(at..).unwrap_or_default().iter();
    at + blanks.take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count()
}

/// The end of the string that begins at `at`.
fn skip_string(document: &[u8], at: usize) -> Result<usize, Error> {
    let mut at = at + 1;
    loop {
        match document.get(at).ok_or(Error::NotJson)? {
            b'"' => return Ok(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The end of the value that begins at `at`.
fn skip_value(document: &[u8], at: usize) -> Result<usize, Error> {
    match document.get(at).ok_or(Error::NotJson)? {
        b'"' => skip_string(document, at),
        b'{' | b'[' => {
            let (start, mut at, mut depth) = (at, at, 0usize);
            loop {
                if at - start > SHORT {
                    return blocks::Walk::new(document, start).end();
                }
                match document.get(at).ok_or(Error::NotJson)? {
                    b'"' => at = skip_string(document, at)?,
                    b'{' | b'[' => (at, depth) = (at + 1, depth + 1),
                    b'}' | b']' => {
                        (at, depth) = (at + 1, depth - 1);
                        if depth == 0 {
                            return Ok(at);
                        }
                    }
                    _ => at += 1,
                }
            }
        }
        _ => {
            let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
            let rest = document.get(at..).unwrap_or_default();
            Ok(at + rest.iter().position(ends).unwrap_or(rest.len()))
        }
    }
}

/// A component's name as it stands in a document.
fn in_quotes(name: &[u8], quoted: bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(name.len() + 2);
    push_name(name, quoted, &mut text);
    text
}

fn push_name(name: &[u8], quoted: bool, text: &mut Vec<u8>) {
    text.push(b'"');
    match quoted {
        true => text.extend(unquoted(name)),
        false => text.extend_from_slice(name),
    }
    text.push(b'"');
}

/// Returns true if the text of a name in the document is what a component means.
fn is_name(inside: &[u8], name: &[u8], quoted: bool) -> bool {
    if quoted { unquoted(name).eq(inside.iter().copied()) } else { inside == name }
}

/// An operation that modifies a document at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// SUBDOC_DICT_ADD: a new member of an object.
    DictAdd,
    /// SUBDOC_DICT_UPSERT: a member of an object, new or not.
    DictUpsert,
    /// SUBDOC_DELETE.
    Delete,
    /// SUBDOC_REPLACE: another value in place of the present one.
    Replace,
    /// SUBDOC_ARRAY_PUSH_LAST: elements at the end of an array.
    ArrayPushLast,
    /// SUBDOC_ARRAY_PUSH_FIRST: elements at its start.
    ArrayPushFirst,
    /// SUBDOC_ARRAY_INSERT: elements before the one at the path, or at the end.
    ArrayInsert,
    /// SUBDOC_ARRAY_ADD_UNIQUE: an element, unless the array has it.
    ArrayAddUnique,
    /// SUBDOC_COUNTER: adds to an integer, or creates it.
    Counter,
}

impl Change {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::DictAdd,
        Self::DictUpsert,
        Self::Delete,
        Self::Replace,
        Self::ArrayPushLast,
        Self::ArrayPushFirst,
        Self::ArrayInsert,
        Self::ArrayAddUnique,
        Self::Counter,
    ];
}

/// An edit of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Splice {
    /// The bytes that are replaced.
    pub at: Range<usize>,
    /// Their replacement.
    pub with: Vec<u8>,
    /// A counter's new number.
    pub number: Option<i64>,
}

/// Returns the edit that a change of a valid document consists of. `create_parents` (MKDIR_P) creates missing objects
/// on the path.
pub fn edit(
    document: &[u8],
    change: Change,
    path: &Path<'_>,
    value: &[u8],
    create_parents: bool,
) -> Result<Splice, Error> {
    let components = path.components();
    let last = components.last().copied();
    match change {
        Change::DictAdd | Change::DictUpsert if !matches!(last, Some(Component::Key { .. })) => {
            return Err(Error::PathInvalid);
        }
        Change::ArrayInsert if !matches!(last, Some(Component::Index(_))) => return Err(Error::PathInvalid),
        Change::Delete | Change::Replace | Change::Counter if last.is_none() => {
            return Err(Error::PathInvalid);
        }
        _ => {}
    }
    let delta = if change == Change::Counter { Some(delta_of(value)?) } else { None };
    let levels = match change {
        Change::Delete | Change::Counter => 0,
        Change::ArrayPushLast | Change::ArrayPushFirst | Change::ArrayInsert => {
            check_list(value).map_err(value_error)?
        }
        Change::ArrayAddUnique if check(value).map_err(value_error)? > 0 => return Err(Error::ValueInvalid),
        Change::DictAdd | Change::DictUpsert | Change::Replace | Change::ArrayAddUnique => {
            check(value).map_err(value_error)?
        }
    };
    // Elements are a level below the array that the path names.
    let is_push = matches!(change, Change::ArrayPushLast | Change::ArrayPushFirst | Change::ArrayAddUnique);
    if components.len() + usize::from(is_push) + levels > DEPTH_MAX {
        return Err(Error::ValueTooDeep);
    }
    let splice = |at: Range<usize>, with: Vec<u8>| Ok(Splice { at, with, number: None });
    match locate(document, components)? {
        Search::Found(place) => match change {
            Change::DictAdd => Err(Error::PathExists),
            Change::DictUpsert | Change::Replace => splice(place.value, value.to_vec()),
            Change::Delete => splice(with_comma(document, &place), Vec::new()),
            Change::ArrayInsert => splice(place.value.start..place.value.start, [value, b","].concat()),
            Change::ArrayPushFirst | Change::ArrayPushLast | Change::ArrayAddUnique => {
                let text = &document[place.value.clone()];
                if text.first() != Some(&b'[') {
                    return Err(Error::PathMismatch);
                }
                if change == Change::ArrayAddUnique && has_element(text, trim(value))? {
                    return Err(Error::PathExists);
                }
                let is_empty = text[skip_blanks(text, 1)] == b']';
                let (at, with) = match (change, is_empty) {
                    (_, true) => (place.value.start + 1, value.to_vec()),
                    (Change::ArrayPushFirst, false) => (place.value.start + 1, [value, b","].concat()),
                    (_, false) => (place.value.end - 1, [b",", value].concat()),
                };
                splice(at..at, with)
            }
            Change::Counter => {
                let old = integer_of(&document[place.value.clone()])?;
                let number = old.checked_add(delta.unwrap_or_default()).ok_or(Error::ValueInvalid)?;
                Ok(Splice { at: place.value, with: number.to_string().into_bytes(), number: Some(number) })
            }
        },
        Search::Missing { found, container, elements } => {
            let missing = &components[found..];
            let may_create = missing.len() == 1 || create_parents;
            let text = match change {
                Change::Delete | Change::Replace => return Err(Error::PathMissing),
                Change::ArrayInsert => {
                    let is_end = missing.len() == 1 && missing[0] == Component::Index(elements);
                    if !is_end {
                        return Err(Error::PathMissing);
                    }
                    value.to_vec()
                }
                Change::ArrayPushFirst | Change::ArrayPushLast | Change::ArrayAddUnique
                    if !create_parents =>
                {
                    return Err(Error::PathMissing);
                }
                Change::ArrayPushFirst | Change::ArrayPushLast | Change::ArrayAddUnique => {
                    nested(missing, &[b"[", value, b"]"].concat())?
                }
                Change::DictAdd | Change::DictUpsert | Change::Counter if !may_create => {
                    return Err(Error::PathMissing);
                }
                Change::DictAdd | Change::DictUpsert => nested(missing, value)?,
                Change::Counter => nested(missing, delta.unwrap_or_default().to_string().as_bytes())?,
            };
            let end = container.value.end - 1;
            let with = if elements == 0 { text } else { [b",", &text[..]].concat() };
            Ok(Splice { at: end..end, with, number: delta })
        }
    }
}

fn value_error(error: Error) -> Error {
    if error == Error::DocumentTooDeep { Error::ValueTooDeep } else { Error::ValueInvalid }
}

/// `"a":{"b":value}`: the members that are missing on the way to a value. Arrays cannot be made so.
fn nested(missing: &[Component<'_>], value: &[u8]) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    for (index, component) in missing.iter().enumerate() {
        let Component::Key { name, quoted } = component else { return Err(Error::PathMissing) };
        if index > 0 {
            text.push(b'{');
        }
        let start = text.len();
        push_name(name, *quoted, &mut text);
        if check_string(&text, start) != Ok(text.len()) {
            return Err(Error::PathInvalid);
        }
        text.push(b':');
    }
    text.extend_from_slice(value);
    text.extend(std::iter::repeat_n(b'}', missing.len().saturating_sub(1)));
    Ok(text)
}

/// The range of a member or element and of one comma beside it.
fn with_comma(document: &[u8], place: &Place) -> Range<usize> {
    let behind = skip_blanks(document, place.member.end);
    if document.get(behind) == Some(&b',') {
        return place.member.start..skip_blanks(document, behind + 1);
    }
    if place.position == 0 {
        return place.member.clone();
    }
    let before = document[..place.member.start].iter().rposition(|byte| *byte == b',');
    before.unwrap_or(place.member.start)..place.member.end
}

/// Returns true if an array of strings, numbers and words has this one, as it is written.
fn has_element(array: &[u8], value: &[u8]) -> Result<bool, Error> {
    let mut elements = Elements::of(array, 0).ok_or(Error::PathMismatch)?;
    let mut has = false;
    while let Some(element) = elements.next()? {
        if matches!(array.get(element.value), Some(b'{' | b'[')) {
            return Err(Error::PathMismatch);
        }
        let end = skip_value(array, element.value)?;
        has |= &array[element.value..end] == value;
    }
    Ok(has)
}

/// Returns the number of elements or members of a container.
pub fn count(document: &[u8], path: &[Component<'_>]) -> Result<u32, Error> {
    let Search::Found(place) = locate(document, path)? else { return Err(Error::PathMissing) };
    elements_at(document, &place)
}

/// Returns the number of elements or members of the container at a place that was found.
pub fn elements_at(document: &[u8], place: &Place) -> Result<u32, Error> {
    let mut elements = Elements::of(document, place.value.start).ok_or(Error::PathMismatch)?;
    if document.len() - place.value.start >= LONG {
        // The commas of its own level are between its elements, or members.
        let (start, last) = blocks::Walk::new(document, place.value.start).element(u32::MAX)?;
        return Ok(start.map_or(0, |_| last + 1));
    }
    while elements.next()?.is_some() {}
    Ok(elements.count)
}

fn trim(value: &[u8]) -> &[u8] {
    let start = skip_blanks(value, 0);
    value[start..].trim_ascii_end()
}

/// A 64-bit integer as a delta.
fn delta_of(text: &[u8]) -> Result<i64, Error> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.trim_ascii().parse().ok());
    number.filter(|number| *number != 0).ok_or(Error::DeltaInvalid)
}

/// A number of the document as a 64-bit integer.
fn integer_of(text: &[u8]) -> Result<i64, Error> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Error::PathMismatch);
    }
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Error::NumberRange)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get<'d>(document: &'d str, path: &str) -> Result<&'d str, Error> {
        let path = Path::parse(path.as_bytes())?;
        match locate(document.as_bytes(), path.components())? {
            Search::Found(place) => Ok(&document[place.value]),
            Search::Missing { .. } => Err(Error::PathMissing),
        }
    }

    #[test]
    fn paths() {
        let document = r#" {"a": {"b" : [ 1 , "t]w,o" , { "x.y" : [true, null] , "`" : -1.5e3 } ] },
            "" : 0, "e\"q": {} } "#;
        for (path, value) in [
            ("a.b[0]", Ok("1")),
            ("a.b[1]", Ok(r#""t]w,o""#)),
            ("a.b[2].`x.y`[-1]", Ok("null")),
            ("a.b[-1].````", Ok("-1.5e3")),
            ("a.b[-1].`x.y`", Ok("[true, null]")),
            ("e\\\"q", Ok("{}")),
            ("a.c", Err(Error::PathMissing)),
            ("a.b[3]", Err(Error::PathMissing)),
            ("a[0]", Err(Error::PathMismatch)),
            ("a.b.c", Err(Error::PathMismatch)),
            ("a.b[0].x", Err(Error::PathMismatch)),
            ("e\\\"q.z", Err(Error::PathMissing)),
            ("a..b", Err(Error::PathInvalid)),
            (".", Err(Error::PathInvalid)),
            ("a..", Err(Error::PathInvalid)),
            (".a", Err(Error::PathInvalid)),
            (".[0]", Err(Error::PathInvalid)),
            ("a[", Err(Error::PathInvalid)),
            ("a[]", Err(Error::PathInvalid)),
            ("a[-2]", Err(Error::PathInvalid)),
            ("a[-01]", Err(Error::PathInvalid)),
            ("a[4294967296]", Err(Error::PathInvalid)),
            ("`a", Err(Error::PathInvalid)),
            ("a`b", Err(Error::PathInvalid)),
            ("```", Err(Error::PathInvalid)),
            ("e\"q", Err(Error::PathInvalid)),
            ("`e\"q`", Err(Error::PathInvalid)),
            ("e\\\\\"q", Err(Error::PathInvalid)),
            ("a\n", Err(Error::PathInvalid)),
            ("`\u{1f}`", Err(Error::PathInvalid)),
            ("a\u{7f}", Err(Error::PathMissing)),
            ("a.", Ok(r#"{"b" : [ 1 , "t]w,o" , { "x.y" : [true, null] , "`" : -1.5e3 } ] }"#)),
            ("a.b.[1]", Ok(r#""t]w,o""#)),
            ("a.b[01].", Ok(r#""t]w,o""#)),
            ("a.b.[-1].`x.y`.[-1]", Ok("null")),
            ("a.b[2].x`.`y[0]", Ok("true")),
            ("a.b[2].`x.y`", Ok("[true, null]")),
            ("a.b[2].`x`.`y`", Err(Error::PathMissing)),
            ("a.b[2].``", Ok("-1.5e3")),
            ("`e\\\"q`", Ok("{}")),
            ("a]b", Err(Error::PathInvalid)),
            ("a[0]b", Err(Error::PathInvalid)),
        ] {
            assert_eq!(get(document, path), value, "{path}");
        }
        assert_eq!(get(document, "").unwrap(), document.trim());
        assert_eq!(Path::parse(&vec![b'a'; 1025]), Err(Error::PathTooBig));
        assert_eq!(Path::parse("a.".repeat(33).trim_end_matches('.').as_bytes()), Err(Error::PathTooBig));
    }

    fn edited(
        document: &str,
        change: Change,
        path: &str,
        value: &str,
        create: bool,
    ) -> Result<String, Error> {
        let path = Path::parse(path.as_bytes())?;
        let splice = edit(document.as_bytes(), change, &path, value.as_bytes(), create)?;
        let mut bytes = document.as_bytes().to_vec();
        bytes.splice(splice.at, splice.with);
        check(&bytes).unwrap();
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn edits() {
        use Change::*;
        for (document, change, path, value, create, expected) in [
            ("{}", DictAdd, "a", "1", false, Ok(r#"{"a":1}"#)),
            (r#"{"a":1}"#, DictAdd, "a", "2", false, Err(Error::PathExists)),
            (r#"{"a":1}"#, DictUpsert, "a", "[2, 3]", false, Ok(r#"{"a":[2, 3]}"#)),
            (r#"{ "a": 1 }"#, DictUpsert, "b", "2", false, Ok(r#"{ "a": 1 ,"b":2}"#)),
            (r#"{"a":1}"#, DictUpsert, "b.c.d", "2", false, Err(Error::PathMissing)),
            (r#"{"a":1}"#, DictUpsert, "b.c.d", "2", true, Ok(r#"{"a":1,"b":{"c":{"d":2}}}"#)),
            (r#"{"a":1}"#, DictUpsert, "a.c", "2", true, Err(Error::PathMismatch)),
            (r#"{"a":[]}"#, DictUpsert, "a[0]", "2", true, Err(Error::PathInvalid)),
            (r#"{}"#, DictUpsert, "a[0].b", "2", true, Err(Error::PathMissing)),
            (r#"{}"#, DictUpsert, "````", "2", false, Ok(r#"{"`":2}"#)),
            (r#"{}"#, DictUpsert, "a\"b", "2", false, Err(Error::PathInvalid)),
            (r#"{}"#, DictUpsert, "a", "nope", false, Err(Error::ValueInvalid)),
            (r#"{}"#, DictUpsert, "a", "1,2", false, Err(Error::ValueInvalid)),
            (r#"{"a":1,"b":2, "c":3}"#, Delete, "a", "", false, Ok(r#"{"b":2, "c":3}"#)),
            (r#"{"a":1,"b":2, "c":3}"#, Delete, "b", "", false, Ok(r#"{"a":1,"c":3}"#)),
            (r#"{"a":1,"b":2, "c":3}"#, Delete, "c", "", false, Ok(r#"{"a":1,"b":2}"#)),
            (r#"{"a":1}"#, Delete, "a", "", false, Ok("{}")),
            ("[1,2,3]", Delete, "[-1]", "", false, Ok("[1,2]")),
            ("[1,2,3]", Delete, "[0]", "", false, Ok("[2,3]")),
            ("[1,2,3]", Replace, "[1]", "{}", false, Ok("[1,{},3]")),
            ("[1,2,3]", Replace, "[3]", "{}", false, Err(Error::PathMissing)),
            ("[]", ArrayPushLast, "", "1, 2", false, Ok("[1, 2]")),
            ("[0]", ArrayPushLast, "", "1,2", false, Ok("[0,1,2]")),
            ("[0]", ArrayPushFirst, "", "1,2", false, Ok("[1,2,0]")),
            (r#"{"a":1}"#, ArrayPushLast, "a", "1", true, Err(Error::PathMismatch)),
            (r#"{"a":1}"#, ArrayPushLast, "b", "1", false, Err(Error::PathMissing)),
            (r#"{"a":1}"#, ArrayPushLast, "b.c", "1,2", true, Ok(r#"{"a":1,"b":{"c":[1,2]}}"#)),
            ("[1,3]", ArrayInsert, "[1]", "2", false, Ok("[1,2,3]")),
            ("[1,3]", ArrayInsert, "[2]", "4", false, Ok("[1,3,4]")),
            ("[]", ArrayInsert, "[0]", "4", false, Ok("[4]")),
            ("[1,3]", ArrayInsert, "[3]", "4", false, Err(Error::PathMissing)),
            ("[1,3]", ArrayInsert, "[-1]", "4", false, Err(Error::PathInvalid)),
            (r#"["a",1]"#, ArrayAddUnique, "", r#""b""#, false, Ok(r#"["a",1,"b"]"#)),
            (r#"["a",1]"#, ArrayAddUnique, "", "1", false, Err(Error::PathExists)),
            (r#"["a",{}]"#, ArrayAddUnique, "", "1", false, Err(Error::PathMismatch)),
            ("[]", ArrayAddUnique, "", "[]", false, Err(Error::ValueInvalid)),
            (r#"{"n":41}"#, Counter, "n", "1", false, Ok(r#"{"n":42}"#)),
            (r#"{"n":-1}"#, Counter, "n", "-41", false, Ok(r#"{"n":-42}"#)),
            (r#"{}"#, Counter, "a.n", "5", true, Ok(r#"{"a":{"n":5}}"#)),
            (r#"{"n":1.5}"#, Counter, "n", "1", false, Err(Error::PathMismatch)),
            (r#"{"n":9223372036854775808}"#, Counter, "n", "1", false, Err(Error::NumberRange)),
            (r#"{"n":9223372036854775807}"#, Counter, "n", "1", false, Err(Error::ValueInvalid)),
            (r#"{"n":1}"#, Counter, "n", "0", false, Err(Error::DeltaInvalid)),
            (r#"{"n":1}"#, Counter, "n", "x", false, Err(Error::DeltaInvalid)),
        ] {
            let found = edited(document, change, path, value, create);
            assert_eq!(
                found.as_deref().map_err(|error| *error),
                expected,
                "{document} {change:?} {path} {value}"
            );
        }
    }

    #[test]
    fn documents_and_values_are_checked() {
        for text in ["1", "-0", "0.5e+10", r#""\u00e9\n""#, "[]", " { \"a\" : [ 1 , {} ] } ", "true", "null"]
        {
            assert!(check(text.as_bytes()).is_ok(), "{text}");
        }
        for text in [
            "",
            "01",
            "1.",
            ".5",
            "1e",
            "+1",
            "tru",
            "[1,]",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "[1 2]",
            "{} {}",
            "\"\u{1}\"",
            r#""\x""#,
            "[",
            "]",
            "{\"a\":1]",
        ] {
            assert!(check(text.as_bytes()).is_err(), "{text}");
        }
        assert!(check(b"\"\xff\"").is_err());
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(check(deep(32).as_bytes()), Ok(32));
        assert_eq!(check(deep(33).as_bytes()), Err(Error::DocumentTooDeep));
        assert_eq!(edited("{}", Change::DictAdd, "a", &deep(31), false).map(|_| ()), Ok(()));
        assert_eq!(edited("{}", Change::DictAdd, "a", &deep(32), false), Err(Error::ValueTooDeep));
        for (path, elements) in
            [("", Ok(2)), ("a", Ok(3)), ("b", Err(Error::PathMismatch)), ("c", Err(Error::PathMissing))]
        {
            let document = br#"{"a":[1,[2,3],{"x":1}], "b":5}"#;
            assert_eq!(
                count(document, Path::parse(path.as_bytes()).unwrap().components()),
                elements,
                "{path}"
            );
        }
    }
}
