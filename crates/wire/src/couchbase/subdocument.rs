//! Frames of sub-document requests, 0xc5 to 0xd3.
//!
//! ```text
//!   one path     extras | path length 2 | flags 1 | [expiry 4] | [document flags 1] |    value | path | operand |
//!   lookups      extras | [document flags 1] |                value | opcode 1 | flags 1 | path length 2 | path |   ...
//!   mutations    extras | [expiry 4 | [user flags 4]] | [document flags 1] |
//!                value  | opcode 1 | flags 1 | path length 2 | operand length 4 | path | operand |   ...
//! ```
//! A request that is malformed as a whole is refused here; what is wrong with a path or an operand is its operation's
//! own error.
//!
//! COMPAT: limits, flags and which of them go together are those of Couchbase's sub-document API.

use arrayvec::ArrayVec;

use crate::binary::{self, Opcode, Status};
use crate::subdocument::Change;

/// Maximum number of operations of a request.
pub const SPECS_MAX: usize = 16;

/// Flags of an operation.
pub mod path_flags {
    /// Create the missing objects on the path.
    pub const MKDIR_P: u8 = 0x01;
    /// The path is one of the extended attributes.
    pub const XATTR: u8 = 0x04;
    /// The operand has macros.
    pub const EXPAND_MACROS: u8 = 0x10;
    /// The attribute's value is binary: it is stored as base64.
    pub const BINARY: u8 = 0x20;
}

/// Flags of a request.
pub mod document_flags {
    /// Create the document if it is missing, and missing objects on all paths.
    pub const MKDOC: u8 = 0x01;
    /// Create the document, which must be missing, and the objects on all paths.
    pub const ADD: u8 = 0x02;
    /// See deleted documents, too.
    pub const ACCESS_DELETED: u8 = 0x04;
    /// Create the document as a deleted one, with extended attributes only.
    pub const CREATE_AS_DELETED: u8 = 0x08;
    /// Make a deleted document a live one.
    pub const REVIVE: u8 = 0x10;
    /// Read from a replica.
    pub const REPLICA_READ: u8 = 0x20;
    /// Those that a lookup may have.
    pub(super) const OF_LOOKUPS: u8 = ACCESS_DELETED | REPLICA_READ;
    /// Those that a mutation may have.
    pub(super) const OF_MUTATIONS: u8 = MKDOC | ADD | ACCESS_DELETED | CREATE_AS_DELETED | REVIVE;
}

/// What is to be done at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// SUBDOC_GET.
    Get,
    /// SUBDOC_EXISTS.
    Exists,
    /// SUBDOC_GET_COUNT.
    GetCount,
    /// GET: the document.
    GetDocument,
    /// An edit.
    Change(Change),
    /// SET: another document.
    SetDocument,
    /// DELETE: the document.
    DeleteDocument,
    /// SUBDOC_REPLACE_BODY_WITH_XATTR.
    ReplaceBodyWithXattr,
}

impl Operation {
    /// Returns the lookup of an opcode.
    fn lookup(opcode: Opcode) -> Option<Self> {
        Some(match opcode {
            Opcode::SUBDOC_GET => Self::Get,
            Opcode::SUBDOC_EXISTS => Self::Exists,
            Opcode::SUBDOC_GET_COUNT => Self::GetCount,
            Opcode::GET => Self::GetDocument,
            _ => return None,
        })
    }

    /// Returns the mutation of an opcode.
    fn mutation(opcode: Opcode) -> Option<Self> {
        Some(match opcode {
            Opcode::SUBDOC_DICT_ADD => Self::Change(Change::DictAdd),
            Opcode::SUBDOC_DICT_UPSERT => Self::Change(Change::DictUpsert),
            Opcode::SUBDOC_DELETE => Self::Change(Change::Delete),
            Opcode::SUBDOC_REPLACE => Self::Change(Change::Replace),
            Opcode::SUBDOC_ARRAY_PUSH_LAST => Self::Change(Change::ArrayPushLast),
            Opcode::SUBDOC_ARRAY_PUSH_FIRST => Self::Change(Change::ArrayPushFirst),
            Opcode::SUBDOC_ARRAY_INSERT => Self::Change(Change::ArrayInsert),
            Opcode::SUBDOC_ARRAY_ADD_UNIQUE => Self::Change(Change::ArrayAddUnique),
            Opcode::SUBDOC_COUNTER => Self::Change(Change::Counter),
            Opcode::SET => Self::SetDocument,
            Opcode::DELETE => Self::DeleteDocument,
            Opcode::SUBDOC_REPLACE_BODY_WITH_XATTR => Self::ReplaceBodyWithXattr,
            _ => return None,
        })
    }

    const fn is_whole(self) -> bool {
        matches!(self, Self::GetDocument | Self::SetDocument | Self::DeleteDocument)
    }

    /// Returns true if the operation has an operand.
    const fn has_operand(self) -> bool {
        match self {
            Self::Change(change) => !matches!(change, Change::Delete),
            Self::SetDocument => true,
            _ => false,
        }
    }

    /// Returns the path flags that the operation takes. Some of them exclude each other.
    const fn path_flags(self) -> u8 {
        use Change::{ArrayAddUnique, ArrayPushFirst, ArrayPushLast, Counter, DictAdd, DictUpsert};
        use path_flags::{BINARY, EXPAND_MACROS, MKDIR_P, XATTR};
        match self {
            Self::Change(DictAdd | DictUpsert) => MKDIR_P | XATTR | EXPAND_MACROS | BINARY,
            Self::Change(ArrayPushLast | ArrayPushFirst | ArrayAddUnique | Counter) => {
                MKDIR_P | XATTR | BINARY
            }
            Self::GetDocument | Self::SetDocument | Self::DeleteDocument => 0,
            _ => XATTR | BINARY,
        }
    }

    /// Returns true if the path may be that of the document itself.
    const fn may_be_root(self) -> bool {
        use Change::{ArrayAddUnique, ArrayPushFirst, ArrayPushLast};
        matches!(self, Self::GetCount | Self::Change(ArrayPushLast | ArrayPushFirst | ArrayAddUnique))
    }
}

/// One operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec<'a> {
    /// What to do.
    pub operation: Operation,
    /// [`path_flags`].
    pub flags: u8,
    /// Where; for an extended attribute it begins with its key.
    pub path: &'a [u8],
    /// What with; empty for lookups and deletions.
    pub operand: &'a [u8],
}

impl Spec<'_> {
    /// Returns true if it has this flag.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns true if it concerns the extended attributes.
    pub const fn is_xattr(&self) -> bool {
        self.has(path_flags::XATTR)
    }
}

/// A sub-document request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// One path, with an answer of its own form.
    pub is_single: bool,
    /// Its operations: at least one.
    pub specs: ArrayVec<Spec<'a>, SPECS_MAX>,
    /// The new expiry, as in other requests; `None`: none is given.
    pub expiry: Option<u32>,
    /// The client's flags for the document; `None` if it keeps its own.
    pub user_flags: Option<u32>,
    /// [`document_flags`].
    pub flags: u8,
}

impl Request<'_> {
    /// Returns true if it has this flag.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The answer's status.
    pub status: Status,
    /// A sentence about it.
    pub why: &'static str,
}

const fn invalid(why: &'static str) -> Refused {
    Refused { status: Status::EINVAL, why }
}

/// Returns true for the opcodes that change documents.
pub const fn is_mutation(opcode: Opcode) -> bool {
    !matches!(
        opcode,
        Opcode::SUBDOC_GET | Opcode::SUBDOC_EXISTS | Opcode::SUBDOC_GET_COUNT | Opcode::SUBDOC_MULTI_LOOKUP
    )
}

/// Returns true if a request is a lookup that is to be read from a replica.
pub fn reads_replica(request: &binary::Request<'_>) -> bool {
    let flags = match (request.header.opcode, request.extras) {
        (Opcode::SUBDOC_MULTI_LOOKUP, [flags]) => *flags,
        (Opcode::SUBDOC_GET | Opcode::SUBDOC_EXISTS | Opcode::SUBDOC_GET_COUNT, [_, _, _, flags]) => *flags,
        _ => 0,
    };
    flags & document_flags::REPLICA_READ != 0
}

/// Parses the extras and the value of a sub-document request.
pub fn parse<'a>(opcode: Opcode, extras: &[u8], value: &'a [u8]) -> Result<Request<'a>, Refused> {
    let request = match opcode {
        Opcode::SUBDOC_MULTI_LOOKUP => parse_lookups(extras, value)?,
        Opcode::SUBDOC_MULTI_MUTATION => parse_mutations(extras, value)?,
        _ => parse_single(opcode, extras, value)?,
    };
    // COMPAT: before anything else about any of the operations.
    if request.specs.iter().any(|spec| spec.flags & !spec.operation.path_flags() != 0) {
        return Err(invalid("The operation does not take these path flags"));
    }
    let of = if is_mutation(opcode) { document_flags::OF_MUTATIONS } else { document_flags::OF_LOOKUPS };
    if request.flags & !of != 0 {
        return Err(invalid("The operation does not take these document flags"));
    }
    check_document_flags(&request)?;
    let mut is_in_body = false;
    for spec in &request.specs {
        check_spec(spec)?;
        if spec.is_xattr() && is_in_body {
            let why = "Operations on extended attributes must come first";
            return Err(Refused { status: Status::SUBDOC_INVALID_XATTR_ORDER, why });
        }
        is_in_body = !spec.is_xattr();
    }
    Ok(request)
}

fn check_document_flags(request: &Request<'_>) -> Result<(), Refused> {
    use document_flags::{ACCESS_DELETED, ADD, CREATE_AS_DELETED, MKDOC, REVIVE};
    if request.has(ADD) && request.has(MKDOC) {
        return Err(invalid("ADD and MKDOC exclude each other"));
    }
    if request.is_single && request.has(CREATE_AS_DELETED) && !request.has(ADD | MKDOC) {
        return Err(invalid("CREATE_AS_DELETED needs ADD or MKDOC"));
    }
    if request.has(REVIVE) && (request.has(CREATE_AS_DELETED) || !request.has(ACCESS_DELETED)) {
        return Err(invalid("REVIVE needs ACCESS_DELETED, and excludes CREATE_AS_DELETED"));
    }
    Ok(())
}

fn check_spec(spec: &Spec<'_>) -> Result<(), Refused> {
    use path_flags::{BINARY, EXPAND_MACROS};
    let operation = spec.operation;
    if spec.has(EXPAND_MACROS | BINARY) && !spec.is_xattr() {
        let why = "Macros and binary values belong to extended attributes";
        return Err(Refused { status: Status::SUBDOC_XATTR_INVALID_FLAG_COMBO, why });
    }
    if spec.has(EXPAND_MACROS) && spec.has(BINARY) {
        let why = "Only values that are not binary have macros";
        return Err(Refused { status: Status::SUBDOC_XATTR_INVALID_FLAG_COMBO, why });
    }
    if operation.is_whole() {
        if !spec.path.is_empty() {
            return Err(invalid("An operation on the document must not have a path"));
        }
    } else if spec.path.is_empty() && (spec.is_xattr() || !operation.may_be_root()) {
        return Err(invalid("The path must not be empty"));
    }
    if operation == Operation::ReplaceBodyWithXattr && !spec.is_xattr() {
        return Err(invalid("The new document must be an extended attribute"));
    }
    match (operation.has_operand(), spec.operand.is_empty()) {
        (true, true) if operation != Operation::SetDocument => {
            Err(invalid("The operation must have a value"))
        }
        (false, false) => Err(invalid("The operation must not have a value")),
        _ => Ok(()),
    }
}

fn parse_single<'a>(opcode: Opcode, extras: &[u8], value: &'a [u8]) -> Result<Request<'a>, Refused> {
    let is_mutation = is_mutation(opcode);
    let operation = if is_mutation { Operation::mutation(opcode) } else { Operation::lookup(opcode) };
    let Some(operation) = operation else { return Err(invalid("Not a sub-document operation")) };
    let (&[p0, p1, flags], rest) = extras.split_first_chunk().ok_or_else(bad_single_extras)?;
    let (expiry, flags_of_document) = match *rest {
        [] => (None, 0),
        [document] => (None, document),
        [e0, e1, e2, e3] if is_mutation => (Some(u32::from_be_bytes([e0, e1, e2, e3])), 0),
        [e0, e1, e2, e3, document] if is_mutation => (Some(u32::from_be_bytes([e0, e1, e2, e3])), document),
        _ => return Err(bad_single_extras()),
    };
    let path_len = usize::from(u16::from_be_bytes([p0, p1]));
    let Some((path, operand)) = value.split_at_checked(path_len) else {
        return Err(invalid("The path is longer than the value"));
    };
    let mut specs = ArrayVec::new();
    specs.push(Spec { operation, flags, path, operand });
    Ok(Request { is_single: true, specs, expiry, user_flags: None, flags: flags_of_document })
}

fn bad_single_extras() -> Refused {
    invalid(
        "The extras must be path length, flags, for a mutation expiry or nothing, and document flags or nothing",
    )
}

fn parse_lookups<'a>(extras: &[u8], value: &'a [u8]) -> Result<Request<'a>, Refused> {
    let flags = match *extras {
        [] => 0,
        [flags] => flags,
        _ => return Err(invalid("The extras must be document flags, 1 byte, or nothing")),
    };
    let specs = parse_specs(value, |rest| {
        let (&[opcode, flags, p0, p1], behind) = rest.split_first_chunk().ok_or(SpecError::CutOff)?;
        let operation = Operation::lookup(Opcode(opcode)).ok_or(SpecError::Combination)?;
        let path_len = usize::from(u16::from_be_bytes([p0, p1]));
        let (path, behind) = behind.split_at_checked(path_len).ok_or(SpecError::CutOff)?;
        Ok((Spec { operation, flags, path, operand: &[] }, behind))
    })?;
    Ok(Request { is_single: false, specs, expiry: None, user_flags: None, flags })
}

fn parse_mutations<'a>(extras: &[u8], value: &'a [u8]) -> Result<Request<'a>, Refused> {
    let (words, flags) = if extras.len() % 4 == 1 {
        extras.split_last().map_or((extras, 0), |(flags, words)| (words, *flags))
    } else {
        (extras, 0)
    };
    let (expiry, user_flags) = match *words {
        [] => (None, None),
        [e0, e1, e2, e3] => (Some(u32::from_be_bytes([e0, e1, e2, e3])), None),
        [e0, e1, e2, e3, u0, u1, u2, u3] => {
            (Some(u32::from_be_bytes([e0, e1, e2, e3])), Some(u32::from_be_bytes([u0, u1, u2, u3])))
        }
        _ => {
            return Err(invalid(
                "The extras must be expiry and user flags, 4 bytes each, and document flags, or nothing",
            ));
        }
    };
    let specs = parse_specs(value, |rest| {
        let (&[opcode, flags, p0, p1, o0, o1, o2, o3], behind) =
            rest.split_first_chunk().ok_or(SpecError::CutOff)?;
        let operation = Operation::mutation(Opcode(opcode)).ok_or(SpecError::Combination)?;
        let path_len = usize::from(u16::from_be_bytes([p0, p1]));
        let operand_len = u32::from_be_bytes([o0, o1, o2, o3]) as usize;
        let (path, behind) = behind.split_at_checked(path_len).ok_or(SpecError::CutOff)?;
        let (operand, behind) = behind.split_at_checked(operand_len).ok_or(SpecError::CutOff)?;
        Ok((Spec { operation, flags, path, operand }, behind))
    })?;
    Ok(Request { is_single: false, specs, expiry, user_flags, flags })
}

enum SpecError {
    CutOff,
    Combination,
}

fn parse_specs<'a>(
    mut rest: &'a [u8],
    mut next: impl FnMut(&'a [u8]) -> Result<(Spec<'a>, &'a [u8]), SpecError>,
) -> Result<ArrayVec<Spec<'a>, SPECS_MAX>, Refused> {
    let mut specs = ArrayVec::new();
    let combination = |why| Refused { status: Status::SUBDOC_INVALID_COMBO, why };
    while !rest.is_empty() {
        let (spec, behind) = next(rest).map_err(|error| match error {
            SpecError::CutOff => invalid("The last operation is incomplete"),
            SpecError::Combination => combination("One of the operations does not go with the others"),
        })?;
        if specs.try_push(spec).is_err() {
            return Err(combination("There are more than 16 operations"));
        }
        rest = behind;
    }
    if specs.is_empty() {
        return Err(combination("There are no operations"));
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookups(list: &[(u8, u8, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (opcode, flags, path) in list {
            bytes.extend([*opcode, *flags]);
            bytes.extend((path.len() as u16).to_be_bytes());
            bytes.extend(path.as_bytes());
        }
        bytes
    }

    fn mutations(list: &[(u8, u8, &str, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (opcode, flags, path, operand) in list {
            bytes.extend([*opcode, *flags]);
            bytes.extend((path.len() as u16).to_be_bytes());
            bytes.extend((operand.len() as u32).to_be_bytes());
            bytes.extend(path.as_bytes());
            bytes.extend(operand.as_bytes());
        }
        bytes
    }

    #[test]
    fn one_path() {
        let request = parse(Opcode::SUBDOC_DICT_ADD, b"\0\x03\x01\0\0\0\x07\x01", b"a.b5").unwrap();
        let spec =
            Spec { operation: Operation::Change(Change::DictAdd), flags: 1, path: b"a.b", operand: b"5" };
        assert_eq!((&request.specs[..], request.is_single), (&[spec][..], true));
        assert_eq!((request.expiry, request.flags), (Some(7), document_flags::MKDOC));
        let request = parse(Opcode::SUBDOC_GET, b"\0\x01\0\x04", b"a").unwrap();
        assert_eq!((request.specs[0].path, request.flags), (&b"a"[..], document_flags::ACCESS_DELETED));
    }

    #[test]
    fn many_paths() {
        let value = lookups(&[(0xc5, 4, "$document"), (0xc6, 0, "a"), (0xd2, 0, ""), (0, 0, "")]);
        let request = parse(Opcode::SUBDOC_MULTI_LOOKUP, b"", &value).unwrap();
        let operations: Vec<_> = request.specs.iter().map(|spec| spec.operation).collect();
        assert_eq!(
            operations,
            [Operation::Get, Operation::Exists, Operation::GetCount, Operation::GetDocument]
        );
        let value = mutations(&[(0xc8, 0x15, "txn.id", "\"${Mutation.CAS}\""), (1, 0, "", "{}")]);
        let request = parse(Opcode::SUBDOC_MULTI_MUTATION, b"\0\0\0\x09\x01", &value).unwrap();
        assert_eq!((request.expiry, request.flags, request.specs.len()), (Some(9), 1, 2));
        let request = parse(Opcode::SUBDOC_MULTI_MUTATION, b"\0\0\0\0\0\0\0\x05\x01", &value).unwrap();
        assert_eq!((request.expiry, request.user_flags, request.flags), (Some(0), Some(5), 1));
    }

    #[test]
    fn refusals() {
        let single = |opcode, extras: &[u8], value: &[u8]| parse(opcode, extras, value).unwrap_err().status;
        let lookup = |list: &[(u8, u8, &str)]| {
            parse(Opcode::SUBDOC_MULTI_LOOKUP, b"", &lookups(list)).unwrap_err().status
        };
        let mutation = |extras: &[u8], list: &[(u8, u8, &str, &str)]| {
            parse(Opcode::SUBDOC_MULTI_MUTATION, extras, &mutations(list)).unwrap_err().status
        };
        for (status, expected) in [
            (single(Opcode::SUBDOC_GET, b"\0\x01", b"a"), Status::EINVAL),
            (single(Opcode::SUBDOC_GET, b"\0\x02\0", b"a"), Status::EINVAL),
            (single(Opcode::SUBDOC_GET, b"\0\0\0", b""), Status::EINVAL),
            (single(Opcode::SUBDOC_GET, b"\0\x01\0", b"ab"), Status::EINVAL),
            (single(Opcode::SUBDOC_GET, b"\0\x01\0\0\0\0\0", b"a"), Status::EINVAL),
            (single(Opcode::SUBDOC_GET, b"\0\x01\x01", b"a"), Status::EINVAL),
            (single(Opcode::SUBDOC_GET, b"\0\x01\0\x01", b"a"), Status::EINVAL),
            (single(Opcode::SUBDOC_DELETE, b"\0\x01\0", b"ab"), Status::EINVAL),
            (single(Opcode::SUBDOC_DICT_ADD, b"\0\x01\0", b"a"), Status::EINVAL),
            (single(Opcode::SUBDOC_DICT_ADD, b"\0\x01\x10", b"a1"), Status::SUBDOC_XATTR_INVALID_FLAG_COMBO),
            (single(Opcode::SUBDOC_REPLACE_BODY_WITH_XATTR, b"\0\x01\0", b"a"), Status::EINVAL),
            (lookup(&[]), Status::SUBDOC_INVALID_COMBO),
            (lookup(&[(0xc7, 0, "a")]), Status::SUBDOC_INVALID_COMBO),
            (lookup(&[(0xc5, 0, "a"); 17]), Status::SUBDOC_INVALID_COMBO),
            (lookup(&[(0xc5, 0, "a"), (0xc5, 4, "b")]), Status::SUBDOC_INVALID_XATTR_ORDER),
            (lookup(&[(0, 4, "")]), Status::EINVAL),
            // Macros belong to DICT_ADD and DICT_UPSERT; flags that nothing takes are refused before all else.
            (mutation(b"", &[(0xca, 0x14, "a", "1")]), Status::EINVAL),
            (mutation(b"", &[(0xcb, 0x14, "a", "1")]), Status::EINVAL),
            (mutation(b"", &[(0xc9, 0x14, "a", "")]), Status::EINVAL),
            (mutation(b"", &[(0xc8, 0x34, "a", "1")]), Status::SUBDOC_XATTR_INVALID_FLAG_COMBO),
            (mutation(b"", &[(0xc8, 0x10, "a", "1"), (0xcb, 0x10, "a", "1")]), Status::EINVAL),
            (
                mutation(b"", &[(0xc8, 0, "a", "1"), (0xc8, 4, "a", "1"), (0xc8, 0x40, "a", "1")]),
                Status::EINVAL,
            ),
            (lookup(&[(0xc5, 0, "a"), (0xc5, 4, "b"), (0xc6, 0x10, "a")]), Status::EINVAL),
            (lookup(&[(0xc5, 1, "a")]), Status::EINVAL),
            (lookup(&[(0xd2, 4, "")]), Status::EINVAL),
            (mutation(b"", &[(0xc5, 0, "a", "")]), Status::SUBDOC_INVALID_COMBO),
            (mutation(b"\x03", &[(0xc8, 0, "a", "1")]), Status::EINVAL),
            (single(Opcode::SUBDOC_DICT_ADD, b"\0\x01\x04\x08", b"a1"), Status::EINVAL),
            (mutation(b"\x10", &[(0xc8, 4, "a", "1")]), Status::EINVAL),
            (mutation(b"\x20", &[(0xc8, 4, "a", "1")]), Status::EINVAL),
            (mutation(b"\0\0", &[(0xc8, 0, "a", "1")]), Status::EINVAL),
            (mutation(b"", &[(4, 0, "", "x")]), Status::EINVAL),
        ] {
            assert_eq!(status, expected);
        }
        let cut = &lookups(&[(0xc5, 0, "abc")])[..6];
        assert_eq!(parse(Opcode::SUBDOC_MULTI_LOOKUP, b"", cut).unwrap_err().status, Status::EINVAL);
    }
}
