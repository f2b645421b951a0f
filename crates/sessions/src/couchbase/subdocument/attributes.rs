//! Extended attributes in sub-document requests: paths into them, virtual attributes, macros, binary values.
//!
//! ```text
//!   path      key.rest            key: up to the first dot or bracket; a virtual one begins with `$`
//!   macros    "${Mutation.CAS}"   the whole operand, replaced by "0x0000..." of the same length until the change is made
//! ```

use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem;
use wire::binary::{Status, datatype};
use wire::couchbase::subdocument::{Spec, path_flags};
use wire::subdocument::{self, Change, Component, Path, Search};
use wire::xattrs;

use super::status_of;
use super::subject::{State, Subject};

/// What the text of a binary value begins with.
const BINARY_PREFIX: &[u8] = b"cb-content-base64-encoded:";
/// The virtual attributes.
const DOCUMENT: &[u8] = b"$document";
const VBUCKET: &[u8] = b"$vbucket";
const TABLE_OF_CONTENTS: &[u8] = b"$XTOC";
/// The member of [`DOCUMENT`] that requires reading the whole body.
const CHECKSUM: &[u8] = b"value_crc32c";

/// Returns the key of a path into the extended attributes.
fn key_of<'p>(path: &Path<'p>) -> Result<&'p [u8], Status> {
    match path.components() {
        [Component::Key { name, .. }, ..] if name.len() <= xattrs::KEY_MAX && !name.contains(&b'`') => {
            Ok(name)
        }
        _ => Err(Status::XATTR_EINVAL),
    }
}

const fn is_virtual(key: &[u8]) -> bool {
    matches!(key, [b'$', ..])
}

/// Returns true for an operation on a system attribute.
pub(super) fn is_system(spec: &Spec<'_>) -> bool {
    Path::parse(spec.path).is_ok_and(|path| key_of(&path).is_ok_and(xattrs::is_system))
}

/// Checks what is wrong with an operation on the extended attributes whatever the document is.
pub(super) fn check(spec: &Spec<'_>, is_mutation: bool) -> Result<(), Status> {
    let Ok(path) = Path::parse(spec.path) else { return Ok(()) };
    let key = key_of(&path)?;
    if is_virtual(key) {
        if is_mutation {
            return Err(Status::SUBDOC_XATTR_CANT_MODIFY_VATTR);
        }
        if ![DOCUMENT, VBUCKET, TABLE_OF_CONTENTS].contains(&key) {
            return Err(Status::SUBDOC_XATTR_UNKNOWN_VATTR);
        }
    }
    if spec.has(path_flags::EXPAND_MACROS) {
        Operand::parse(spec.operand)?;
    }
    Ok(())
}

/// Returns the text of a virtual attribute. `path` is the rest of the path.
fn virtual_text(key: &[u8], path: &[Component<'_>], subject: &Subject, now_s: u32) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match key {
        VBUCKET => write!(text, r#"{{"HLC":{{"now":"{now_s}","mode":"real"}}}}"#),
        TABLE_OF_CONTENTS => {
            let keys: Vec<_> = xattrs::pairs(&subject.xattrs)
                .filter(|(key, _)| subject.sees_system || !xattrs::is_system(key))
                .map(|(key, _)| format!("\"{}\"", String::from_utf8_lossy(key)))
                .collect();
            write!(text, "[{}]", keys.join(","))
        }
        _ => {
            let mut datatypes = Vec::new();
            for (bit, name) in [
                (datatype::SNAPPY, "\"snappy\""),
                (datatype::JSON, "\"json\""),
                (datatype::XATTR, "\"xattr\""),
            ] {
                let is_json = bit == datatype::JSON && subject.state == State::Live && subject.json().is_ok();
                if subject.datatype & bit != 0 && bit != datatype::JSON || is_json {
                    datatypes.push(name);
                }
            }
            if datatypes.is_empty() {
                datatypes.push("\"raw\"");
            }
            let wants_checksum = !matches!(path, [Component::Key { name, .. }, ..] if *name != CHECKSUM);
            let checksum = if wants_checksum { crc32c::crc32c(subject.body()) } else { 0 };
            write!(
                text,
                r#"{{"CAS":"0x{:016x}","datatype":[{}],"deleted":{},"exptime":{},"flags":{},"#,
                subject.visible_cas,
                datatypes.join(","),
                subject.state == State::Deleted,
                subject.expiry,
                subject.flags,
            )
            .and_then(|()| {
                write!(
                    text,
                    r#""last_modified":"{}","revid":"{}","seqno":"0x{:016x}","value_bytes":{},"#,
                    subject.cas / 1_000_000_000,
                    subject.rev,
                    subject.seqno,
                    subject.body().len(),
                )
            })
            .and_then(|()| {
                write!(
                    text,
                    r#""value_crc32c":"0x{checksum:08x}","vbucket_uuid":"0x{:016x}"}}"#,
                    subject.vb_uuid
                )
            })
        }
    };
    text
}

/// Calls `f` with the text that a path into the extended attributes leads into, and the rest of the path.
pub(super) fn with_attribute<R>(
    path: &Path<'_>,
    subject: &Subject,
    section: &[u8],
    now_s: u32,
    f: impl FnOnce(&[u8], &[Component<'_>]) -> Result<R, Status>,
) -> Result<R, Status> {
    let key = key_of(path)?;
    let rest = path.components().get(1..).unwrap_or_default();
    if is_virtual(key) {
        return f(virtual_text(key, rest, subject, now_s).as_bytes(), rest);
    }
    let found = xattrs::pairs(section).find(|(other, _)| *other == key);
    let (_, value) = found.ok_or(Status::SUBDOC_PATH_ENOENT)?;
    f(value, rest)
}

/// Returns the bytes behind a binary value's text.
pub(super) fn decode_binary(text: &[u8]) -> Result<Vec<u8>, Status> {
    let inside = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
    let encoded = inside.and_then(|text| text.strip_prefix(BINARY_PREFIX));
    encoded.and_then(|encoded| STANDARD.decode(encoded).ok()).ok_or(Status::XATTR_EINVAL)
}

fn encode_binary(bytes: &[u8]) -> Vec<u8> {
    [b"\"", BINARY_PREFIX, STANDARD.encode(bytes).as_bytes(), b"\""].concat()
}

/// What is only known when the change is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Macro {
    /// The CAS, byte for byte from the least significant one.
    Cas,
    Seqno,
    /// Checksum of the new body.
    Checksum,
}

impl Macro {
    const ALL: [(Self, &'static [u8]); 3] = [
        (Self::Cas, b"\"${Mutation.CAS}\""),
        (Self::Seqno, b"\"${Mutation.seqno}\""),
        (Self::Checksum, b"\"${Mutation.value_crc32c}\""),
    ];
}

/// An operand with a macro.
enum Operand<'a> {
    Macro(Macro),
    /// A path into [`DOCUMENT`].
    Virtual(&'a [u8]),
}

impl<'a> Operand<'a> {
    fn parse(text: &'a [u8]) -> Result<Self, Status> {
        if let Some((found, _)) = Macro::ALL.iter().find(|(_, name)| *name == text) {
            return Ok(Self::Macro(*found));
        }
        let inside = text.strip_prefix(b"\"${").and_then(|text| text.strip_suffix(b"}\""));
        match inside {
            Some(path @ [b'$', ..]) => Ok(Self::Virtual(path)),
            _ => Err(Status::SUBDOC_XATTR_UNKNOWN_MACRO),
        }
    }
}

/// Where the expansions of macros lie in a section.
#[derive(Default)]
pub(super) struct Placeholders {
    /// Random texts, each with what it stands for.
    texts: Vec<(Vec<u8>, Macro)>,
}

/// Digits to be written when the change is made.
pub(super) struct Patch {
    at: usize,
    what: Macro,
}

impl Placeholders {
    /// Returns a text of the expansion's length. Nobody can foresee it.
    fn take(&mut self, what: Macro) -> Vec<u8> {
        let random = RandomState::new().build_hasher().finish();
        let digits = match what {
            Macro::Checksum => format!("{:08x}", random >> 32),
            Macro::Cas | Macro::Seqno => format!("{random:016x}"),
        };
        self.texts.push((digits.as_bytes().to_vec(), what));
        format!("\"0x{digits}\"").into_bytes()
    }

    /// Finds them in the final section; `None` if one of them occurs twice.
    pub(super) fn patches(&self, section: &[u8]) -> Option<Vec<Patch>> {
        let mut patches = Vec::new();
        for (text, what) in &self.texts {
            let mut found = memmem::find_iter(section, text);
            patches.extend(found.next().map(|at| Patch { at, what: *what }));
            if found.next().is_some() {
                return None;
            }
        }
        Some(patches)
    }
}

impl Patch {
    /// Writes the digits. `section` begins where it did in [`Placeholders::patches`].
    pub(super) fn apply(&self, section: &mut [u8], cas: u64, seqno: u64, checksum: u32) {
        let digits = match self.what {
            Macro::Cas => format!("{:016x}", cas.swap_bytes()),
            Macro::Seqno => format!("{seqno:016x}"),
            Macro::Checksum => format!("{checksum:08x}"),
        };
        if let Some(room) = section.get_mut(self.at..self.at + digits.len()) {
            room.copy_from_slice(digits.as_bytes());
        }
    }
}

/// The extended attributes of a document while operations edit them.
pub(super) struct Attributes {
    pub(super) section: Vec<u8>,
    pub(super) placeholders: Placeholders,
    /// Keys that operations named.
    pub(super) named: Vec<Vec<u8>>,
}

impl Attributes {
    pub(super) fn of(subject: &Subject) -> Self {
        Self { section: subject.xattrs.clone(), placeholders: Placeholders::default(), named: Vec::new() }
    }

    /// Edits one attribute; returns a counter's new number.
    pub(super) fn edit(
        &mut self,
        change: Change,
        spec: &Spec<'_>,
        makes_parents: bool,
        subject: &Subject,
        now_s: u32,
    ) -> Result<Option<i64>, Status> {
        let path = Path::parse(spec.path).map_err(status_of)?;
        let key = key_of(&path)?;
        let operand = if spec.has(path_flags::BINARY) {
            encode_binary(spec.operand)
        } else if spec.has(path_flags::EXPAND_MACROS) {
            self.expand(spec, subject, now_s)?
        } else {
            spec.operand.to_vec()
        };
        // Edited as an object with this one member.
        let pairs = || xattrs::pairs(&self.section);
        let old = pairs().find(|(other, _)| *other == key);
        let mut object = match old {
            Some((_, value)) => [b"{\"", key, b"\":", value, b"}"].concat(),
            None => b"{}".to_vec(),
        };
        let splice = subdocument::edit(&object, change, &path, &operand, makes_parents);
        let splice = splice.map_err(status_of)?;
        object.splice(splice.at, splice.with);
        let component = path.components().get(..1).unwrap_or_default();
        let new = match subdocument::locate(&object, component).map_err(status_of)? {
            Search::Found(place) => Some(&object[place.value]),
            Search::Missing { .. } => None,
        };
        let mut section = xattrs::Builder::default();
        for (other, value) in pairs() {
            match new {
                Some(new) if other == key => section.push(key, new),
                None if other == key => {}
                _ => section.push(other, value),
            }
        }
        if let Some(new) = new.filter(|_| old.is_none()) {
            section.push(key, new);
        }
        let section = section.finish();
        if xattrs::is_system(key) && xattrs::retained(&section, xattrs::is_system).len() > xattrs::SYSTEM_MAX
        {
            return Err(Status::E2BIG);
        }
        self.section = section;
        self.named.push(key.to_vec());
        Ok(splice.number)
    }

    /// Returns what a macro stands for, or a placeholder for it.
    fn expand(&mut self, spec: &Spec<'_>, subject: &Subject, now_s: u32) -> Result<Vec<u8>, Status> {
        match Operand::parse(spec.operand)? {
            Operand::Macro(what) => Ok(self.placeholders.take(what)),
            Operand::Virtual(path) => {
                let unknown = Status::SUBDOC_XATTR_UNKNOWN_VATTR_MACRO;
                let path = Path::parse(path).map_err(|_| unknown)?;
                if key_of(&path) != Ok(DOCUMENT) {
                    return Err(unknown);
                }
                with_attribute(&path, subject, &self.section, now_s, |text, rest| {
                    match subdocument::locate(text, rest) {
                        Ok(Search::Found(place)) => Ok(text[place.value].to_vec()),
                        _ => Err(unknown),
                    }
                })
            }
        }
    }

    /// Returns the length of the user attributes, which count as a part of the document.
    pub(super) fn user_bytes(&self) -> usize {
        xattrs::pairs(&self.section)
            .filter(|(key, _)| !xattrs::is_system(key))
            .map(|(key, value)| key.len() + value.len())
            .sum()
    }

    /// Removes what does not outlive the document: user attributes that no operation named.
    pub(super) fn outlive(&mut self) {
        let is_kept = |key: &[u8]| xattrs::is_system(key) || self.named.iter().any(|named| named == key);
        self.section = xattrs::retained(&self.section, is_kept);
    }
}
