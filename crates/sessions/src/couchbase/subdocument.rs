//! Sub-document requests (0xc5 to 0xd3): lookups and edits at paths in a document and its extended attributes.
//!
//! ```text
//!   lookup     read under the lock ─> look up each path in the copy ─> answer
//!   mutation   read under the lock ─> edit the copy, path after path ─> lock, compare, store
//!                 ^                                                       │ changed meanwhile
//!                 └───────────────────────────────────────────────────────┘
//! ```
//! Nothing is looked up or edited under a vBucket's lock. A long value is read where it lies, and its parts are sent
//! from there; what a long one is edited to lies in the bucket's memory, within its budget (see [`body`]). All
//! operations of a request are done, or none.
//!
//! * [`subject`]: the document as it was read; [`body`]: its body while it is edited; [`attributes`]: extended
//!   attributes, virtual ones, and macros.

mod attributes;
mod body;
mod subject;

use std::borrow::Cow;

use attributes::Attributes;
use body::Edit;
use kv::users::roles::Rights;
use kv::{Expiry, KvError, Meter, NodeContext, Store, Value};
use subject::{State, Subject};
use wire::binary::{Status, datatype};
use wire::couchbase::subdocument::{
    Operation as Verb, Request, Spec, document_flags, is_mutation, path_flags,
};
use wire::subdocument::{self, Error, Locator, Path, Search};

use super::super::{Body, Output};
use super::documents::{self, Executed, Operation, Waiting};
use super::json;
use crate::LARGE_VALUE;

/// A mutation is answered "temporary failure" if the document was changed by others this many times meanwhile.
const ATTEMPTS_MAX: u32 = 100;
/// The same where an attempt takes long: after this time, but not before the third, unless even one takes longer.
const ATTEMPTS_US: u64 = 100_000;
const ATTEMPTS_LEAST: u32 = 3;
const ATTEMPTS_MOST_US: u64 = 1_000_000;
/// The values of a lookup are together at most this many times as long as the longest value.
const ANSWER_VALUES_MAX: usize = 2;
/// A mutation's answer, per value: index 1, status 2, length 4.
const MUTATION_RESULT_HEAD: usize = 7;

/// The status of an error at a path.
fn status_of(error: Error) -> Status {
    match error {
        Error::PathMissing => Status::SUBDOC_PATH_ENOENT,
        Error::PathMismatch => Status::SUBDOC_PATH_MISMATCH,
        Error::PathInvalid => Status::SUBDOC_PATH_EINVAL,
        Error::PathTooBig => Status::SUBDOC_PATH_E2BIG,
        Error::DocumentTooDeep => Status::SUBDOC_DOC_E2DEEP,
        Error::ValueInvalid => Status::SUBDOC_VALUE_CANTINSERT,
        Error::ValueTooDeep => Status::SUBDOC_VALUE_ETOODEEP,
        Error::NotJson => Status::SUBDOC_DOC_NOTJSON,
        Error::NumberRange => Status::SUBDOC_NUM_ERANGE,
        Error::DeltaInvalid => Status::SUBDOC_DELTA_EINVAL,
        Error::PathExists => Status::SUBDOC_PATH_EEXISTS,
    }
}

/// Why a request as a whole failed.
enum Failure {
    Kv(KvError),
    /// The answer to the request.
    Status(Status),
    /// One of its operations.
    At(usize, Status),
}

impl From<KvError> for Failure {
    fn from(error: KvError) -> Self {
        Self::Kv(error)
    }
}

/// Returns true for an edit that fails, or answers, by what is below the document or an attribute. To a user who may
/// not read, that would tell what is there: beside a second edit, or with a CAS, that never fits, it leaves no trace.
fn tells(spec: &Spec<'_>) -> bool {
    use subdocument::Change::{ArrayPushFirst, ArrayPushLast, DictUpsert};
    let depth = Path::parse(spec.path).map_or(0, |path| path.components().len());
    match spec.operation {
        Verb::Change(DictUpsert) => depth > 1,
        Verb::Change(ArrayPushFirst | ArrayPushLast) => depth > 0,
        Verb::Change(_) | Verb::ReplaceBodyWithXattr => true,
        Verb::SetDocument | Verb::DeleteDocument => false,
        // These are refused in a mutation.
        Verb::Get | Verb::Exists | Verb::GetCount | Verb::GetDocument => false,
    }
}

/// Executes a sub-document request.
pub(super) fn execute(
    operation: &Operation<'_>,
    body: Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<Executed, KvError> {
    let answer = operation.answer;
    let opcode = operation.request.header.opcode;
    let value = body.into_value();
    let is_mutation = is_mutation(opcode);
    let parsed = wire::couchbase::subdocument::parse(opcode, operation.request.extras, value.bytes());
    let request = match parsed {
        Ok(request) => request,
        Err(refused) => {
            answer.error(refused.status, refused.why, out);
            return Ok(Executed::Answered);
        }
    };
    for spec in request.specs.iter().filter(|spec| spec.is_xattr()) {
        if let Err(status) = attributes::check(spec, is_mutation) {
            answer.status(status, out);
            return Ok(Executed::Answered);
        }
        if attributes::is_system(spec) && !operation.may(Rights::SYSTEM_ATTRIBUTES) {
            super::denied(answer, out);
            return Ok(Executed::Answered);
        }
    }
    if is_mutation && !operation.may(Rights::READ) && request.specs.iter().any(tells) {
        super::denied(answer, out);
        return Ok(Executed::Answered);
    }
    if operation.request.header.datatype != datatype::RAW {
        answer.error(Status::EINVAL, "The request must not have a datatype", out);
        return Ok(Executed::Answered);
    }
    let executed = match is_mutation {
        true => mutate(operation, &request, cx, out),
        false => look_up(operation, &request, cx, out),
    };
    if !matches!(executed, Err(KvError::TakesLong)) {
        let meter = if is_mutation { Meter::CmdSubdocMutation } else { Meter::CmdSubdocLookup };
        operation.bucket.count(cx, meter, 1);
    }
    executed
}

// ---- lookups ------------------------------------------------------------------------------------------------------

fn look_up(
    operation: &Operation<'_>,
    request: &Request<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<Executed, KvError> {
    let answer = operation.answer;
    let subject = Subject::read(operation, request, cx)?;
    operation.count_retrieval(cx, subject.state != State::Missing);
    if subject.state == State::Missing {
        answer.status(Status::KEY_ENOENT, out);
        return Ok(Executed::Answered);
    }
    let is_deleted = subject.state == State::Deleted;
    let success = if is_deleted { Status::SUBDOC_SUCCESS_DELETED } else { Status::SUCCESS };
    let cas = subject.visible_cas;
    // What paths have in common is worth keeping where a search takes long.
    let is_shared = request.specs.len() > 1 && subject.body().len() > LARGE_VALUE;
    let mut locator = is_shared.then(|| Locator::new(subject.body()));
    if let ([spec], true) = (&request.specs[..], request.is_single) {
        match look_up_one(spec, &subject, &mut locator, cx.now.unix_s) {
            Ok(found) => {
                answer.fragment(success, cas, found.len(), out);
                subject.send(&found, out);
            }
            Err(status) => answer.status(status, out),
        }
    } else {
        let (mark, before, mut has_failed) = (out.mark(), out.len(), false);
        let most = operation.value_limit.saturating_mul(ANSWER_VALUES_MAX);
        let head = answer.open(cas, &[], out);
        for spec in &request.specs {
            let found = look_up_one(spec, &subject, &mut locator, cx.now.unix_s);
            let (status, found) = match &found {
                Ok(found) => (Status::SUCCESS, &found[..]),
                Err(status) => (*status, &[][..]),
            };
            has_failed |= status != Status::SUCCESS;
            if out.len() - before + found.len() > most {
                out.truncate(mark);
                answer.error(Status::E2BIG, "The answer would be too long", out);
                return Ok(Executed::Answered);
            }
            out.bytes(&status.0.to_be_bytes());
            out.bytes(&u32::try_from(found.len()).unwrap_or(u32::MAX).to_be_bytes());
            subject.send(found, out);
        }
        let status = match (has_failed, is_deleted) {
            (false, _) => success,
            (true, false) => Status::SUBDOC_MULTI_PATH_FAILURE,
            (true, true) => Status::SUBDOC_MULTI_PATH_FAILURE_DELETED,
        };
        answer.close(&head, status, out);
    }
    subject.note_json(operation, cx);
    Ok(Executed::Answered)
}

fn look_up_one<'s, 'p>(
    spec: &Spec<'p>,
    subject: &'s Subject,
    locator: &mut Option<Locator<'s, 'p>>,
    now_s: u32,
) -> Result<Cow<'s, [u8]>, Status> {
    let path = Path::parse(spec.path).map_err(status_of)?;
    if spec.is_xattr() {
        return attributes::with_attribute(&path, subject, &subject.xattrs, now_s, |text, rest| {
            // The rest of a path is one of the text's.
            let found = find(spec.operation, text, rest)?.into_owned();
            if spec.has(path_flags::BINARY) && spec.operation == Verb::Get {
                return attributes::decode_binary(&found).map(Cow::Owned);
            }
            Ok(Cow::Owned(found))
        });
    }
    if spec.operation == Verb::GetDocument {
        if subject.state == State::Deleted {
            return Err(Status::SUBDOC_PATH_ENOENT);
        }
        return Ok(Cow::Borrowed(subject.body()));
    }
    if subject.state == State::Deleted {
        return Err(Status::SUBDOC_PATH_ENOENT);
    }
    let text = subject.json()?;
    let search = match locator {
        Some(locator) => locator.locate(&path),
        None => subdocument::locate(text, path.components()),
    };
    found(spec.operation, text, search)
}

fn find<'t>(
    verb: Verb,
    text: &'t [u8],
    path: &[subdocument::Component<'_>],
) -> Result<Cow<'t, [u8]>, Status> {
    found(verb, text, subdocument::locate(text, path))
}

/// What a look-up says about the result of a search.
fn found(verb: Verb, text: &[u8], search: Result<Search, Error>) -> Result<Cow<'_, [u8]>, Status> {
    match search.map_err(status_of)? {
        Search::Missing { .. } => Err(Status::SUBDOC_PATH_ENOENT),
        Search::Found(place) if verb == Verb::GetCount => {
            let count = subdocument::elements_at(text, &place).map_err(status_of)?;
            Ok(Cow::Owned(count.to_string().into_bytes()))
        }
        Search::Found(_) if verb == Verb::Exists => Ok(Cow::Borrowed(&[])),
        Search::Found(place) => Ok(Cow::Borrowed(&text[place.value])),
    }
}

// ---- mutations ----------------------------------------------------------------------------------------------------

/// What a mutation makes of a document.
struct Edited<'s> {
    attributes: Attributes,
    body: Edit<'s>,
    datatype: u8,
    is_deleted: bool,
    /// Results of counters: operation, number.
    numbers: Vec<(usize, i64)>,
}

fn mutate(
    operation: &Operation<'_>,
    request: &Request<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<Executed, KvError> {
    let answer = operation.answer;
    let header = &operation.request.header;
    if request.has(document_flags::ADD) && header.cas != 0 {
        answer.error(Status::EINVAL, "ADD must not have a CAS", out);
        return Ok(Executed::Answered);
    }
    let began_us = cx.fresh_us();
    for number in 0..ATTEMPTS_MAX {
        let most_us = if number < ATTEMPTS_LEAST { ATTEMPTS_MOST_US } else { ATTEMPTS_US };
        if number > 0 && cx.fresh_us() >= began_us + most_us {
            break;
        }
        let failure = match attempt(operation, request, cx, out) {
            Ok(Some(executed)) => return Ok(executed),
            Ok(None) => continue,
            Err(failure) => failure,
        };
        match failure {
            Failure::Kv(error) => {
                if let Err(error) = KvError::set_apart(Err::<(), _>(error))? {
                    documents::refuse(answer, error, out);
                }
            }
            Failure::Status(status) => answer.status(status, out),
            Failure::At(_, status) if request.is_single => answer.status(status, out),
            Failure::At(index, status) => {
                let [s0, s1] = status.0.to_be_bytes();
                let result = [u8::try_from(index).unwrap_or(u8::MAX), s0, s1];
                answer.status_value(Status::SUBDOC_MULTI_PATH_FAILURE, &result, out);
            }
        }
        return Ok(Executed::Answered);
    }
    answer.error(Status::ETMPFAIL, "The document is changed all the time", out);
    Ok(Executed::Answered)
}

/// One attempt at a mutation; `None`: the document was changed meanwhile.
fn attempt(
    operation: &Operation<'_>,
    request: &Request<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<Option<Executed>, Failure> {
    let cas = operation.request.header.cas;
    let subject = Subject::read(operation, request, cx)?;
    match subject.state {
        State::Missing if cas != 0 || !request.has(document_flags::MKDOC | document_flags::ADD) => {
            return Err(Failure::Kv(KvError::NotFound));
        }
        State::Missing => {}
        _ if request.has(document_flags::ADD) => return Err(Failure::Kv(KvError::Exists)),
        State::Live if request.has(document_flags::REVIVE) && (cas == 0 || cas == subject.cas) => {
            return Err(Failure::Status(Status::SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS));
        }
        State::Live if request.has(document_flags::REVIVE) => return Err(Failure::Kv(KvError::Exists)),
        State::Deleted if cas != 0 && cas != subject.cas => return Err(Failure::Kv(KvError::Exists)),
        _ => {}
    }
    let edited = edit(operation, request, &subject, cx)?;
    let status = if edited.is_deleted { Status::SUBDOC_SUCCESS_DELETED } else { Status::SUCCESS };
    let mut result = Vec::new();
    for (index, number) in &edited.numbers {
        let text = number.to_string();
        if !request.is_single {
            result.push(u8::try_from(*index).unwrap_or(u8::MAX));
            result.extend(Status::SUCCESS.0.to_be_bytes());
            result.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        }
        result.extend(text.as_bytes());
    }
    debug_assert!(request.is_single || result.len() >= edited.numbers.len() * MUTATION_RESULT_HEAD);
    let Some(written) = store(operation, request, &subject, edited, cx)? else { return Ok(None) };
    Ok(Some(operation.conclude_as(Ok(written), Waiting { status, value: result.into() }, out)?))
}

/// Edits a copy of the document.
fn edit<'s>(
    operation: &Operation<'_>,
    request: &'s Request<'_>,
    subject: &'s Subject,
    cx: &mut NodeContext,
) -> Result<Edited<'s>, Failure> {
    let now_s = cx.now.unix_s;
    let creates = subject.state == State::Missing;
    let makes_parents = request.has(document_flags::MKDOC | document_flags::ADD);
    let is_deleted = match subject.state {
        State::Live => false,
        State::Missing => request.has(document_flags::CREATE_AS_DELETED),
        State::Deleted => !request.has(document_flags::REVIVE),
    };
    let mut edited = Edited {
        attributes: Attributes::of(subject),
        body: Edit::Unchanged(subject.body()),
        datatype: subject.kept_datatype(),
        is_deleted,
        numbers: Vec::new(),
    };
    let mut has_body = subject.state == State::Live;
    for (index, spec) in request.specs.iter().enumerate() {
        let at = |status| Failure::At(index, status);
        if let (true, Verb::Change(change)) = (spec.is_xattr(), spec.operation) {
            let makes_parents = makes_parents || spec.has(path_flags::MKDIR_P);
            let number = edited.attributes.edit(change, spec, makes_parents, subject, now_s);
            edited.numbers.extend(number.map_err(at)?.map(|number| (index, number)));
            continue;
        }
        if edited.is_deleted {
            return Err(Failure::Status(Status::SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE));
        }
        match spec.operation {
            Verb::Change(change) => {
                if !has_body {
                    let is_array = matches!(spec.path, [] | [b'[', ..]);
                    edited.body = Edit::Unchanged(if is_array { b"[]" } else { b"{}" });
                } else if matches!(edited.body, Edit::Unchanged(_)) {
                    edited.body = Edit::Unchanged(subject.json().map_err(at)?);
                } else if edited.datatype & datatype::JSON == 0 {
                    subdocument::check(&edited.body).map_err(|error| at(status_of(error)))?;
                }
                let path = Path::parse(spec.path).map_err(|error| at(status_of(error)))?;
                let makes_parents = makes_parents || spec.has(path_flags::MKDIR_P);
                // The replacement is a copy of the operand.
                let _copy = body::reserve_copy(operation, spec.operand.len(), cx)?;
                let splice = subdocument::edit(&edited.body, change, &path, spec.operand, makes_parents);
                let splice = splice.map_err(|error| at(status_of(error)))?;
                edited.numbers.extend(splice.number.map(|number| (index, number)));
                edited.body.splice(&splice, operation, cx)?;
                (edited.datatype, has_body) = (datatype::JSON, true);
            }
            Verb::SetDocument => {
                edited.body = Edit::Replaced(spec.operand);
                (edited.datatype, has_body) = (json::of_long(&edited.body), true);
            }
            Verb::ReplaceBodyWithXattr => {
                let path = Path::parse(spec.path).map_err(|error| at(status_of(error)))?;
                let section = &edited.attributes.section;
                let found = attributes::with_attribute(&path, subject, section, now_s, |text, rest| {
                    find(Verb::Get, text, rest).map(Cow::into_owned)
                });
                let found = found.map_err(at)?;
                let is_binary = spec.has(path_flags::BINARY);
                let body = if is_binary { attributes::decode_binary(&found).map_err(at)? } else { found };
                edited.body = Edit::Short(body);
                edited.datatype = if is_binary { json::of_long(&edited.body) } else { datatype::JSON };
                has_body = true;
            }
            Verb::DeleteDocument => {
                edited.body = Edit::Replaced(&[]);
                edited.is_deleted = true;
            }
            Verb::Get | Verb::Exists | Verb::GetCount | Verb::GetDocument => {
                return Err(Failure::Status(Status::SUBDOC_INVALID_COMBO));
            }
        }
    }
    if edited.is_deleted {
        edited.body = Edit::Replaced(&[]);
        if subject.state == State::Live {
            edited.attributes.outlive();
        }
    } else if !has_body {
        // Only extended attributes were named.
        debug_assert!(creates || request.has(document_flags::REVIVE));
        edited.body = Edit::Replaced(b"{}");
        edited.datatype = datatype::JSON;
    }
    Ok(edited)
}

/// Stores what was edited, if the document is still what was read; `None` if it is not.
fn store(
    operation: &Operation<'_>,
    request: &Request<'_>,
    subject: &Subject,
    edited: Edited<'_>,
    cx: &mut NodeContext,
) -> Result<Option<kv::Written>, Failure> {
    let Edited { attributes, mut body, datatype, is_deleted, .. } = edited;
    let Operation { bucket, key, place, durability, value_limit, infos, .. } = operation;
    if body.len() + attributes.user_bytes() > *value_limit {
        return Err(Failure::Kv(KvError::TooBig));
    }
    let Attributes { mut section, placeholders, .. } = attributes;
    // Placeholders that occur elsewhere, too: another time they will be others.
    let Some(patches) = placeholders.patches(&section) else { return Ok(None) };
    let checksum = if patches.is_empty() { 0 } else { crc32c::crc32c(&body) };
    let total = section.len() + body.len();
    let mut small = Vec::new();
    let mut large = None;
    if is_deleted {
    } else if let (true, Edit::Long(item)) = (section.is_empty(), &mut body) {
        large = item.take();
    } else if total > LARGE_VALUE {
        let mut item = bucket.prepare_large(cx, *key, total)?;
        let (for_section, for_body) = item.window(0, total).split_at_mut(section.len());
        for_section.copy_from_slice(&section);
        for_body.copy_from_slice(&body);
        large = Some(item);
    } else {
        small.reserve_exact(total);
        small.extend_from_slice(&section);
        small.extend_from_slice(&body);
    }
    let expiry = if infos.preserve_ttl && subject.state == State::Live {
        Expiry::Keep
    } else {
        Expiry::from_protocol(request.expiry.unwrap_or(0), cx.now.unix_s)
    };
    let datatype = datatype | if section.is_empty() { datatype::RAW } else { datatype::XATTR };
    let cas = operation.request.header.cas;
    let mut is_same = true;
    let change = |entry: &mut kv::Entry<'_>| {
        is_same = is_same_version(entry, subject, cas, subject::sees_deleted(request))?;
        if !is_same {
            return Err(KvError::Exists);
        }
        let mut new_cas = 0;
        if !patches.is_empty() {
            let (cas, seqno) = entry.next_version();
            new_cas = cas;
            let into = match &mut large {
                _ if is_deleted => &mut section[..],
                Some(item) => item.window(0, section.len()),
                None => &mut small[..section.len()],
            };
            patches.iter().for_each(|patch| patch.apply(into, cas, seqno, checksum));
        }
        if is_deleted {
            return entry.leave_shadow(&section, new_cas);
        }
        let value = match large {
            Some(item) => Value::Large(Box::new(item)),
            None => Value::Bytes(&small),
        };
        let flags = request.user_flags.unwrap_or(subject.flags);
        entry.store_whole(Store { flags, expiry, datatype, value, new_cas })
    };
    let result = bucket.edit(cx, *key, *place, durability.as_ref(), total, change);
    if !is_same {
        return Ok(None);
    }
    bucket.count_store(cx, cas != 0, result.as_ref().map(drop).map_err(|error| *error));
    result.map(Some).map_err(Failure::Kv)
}

/// Returns true if the document is the one that was read. An error if it must not be changed.
fn is_same_version(
    entry: &mut kv::Entry<'_>,
    subject: &Subject,
    cas: u64,
    sees_deleted: bool,
) -> Result<bool, KvError> {
    if subject.state == State::Live {
        return match entry.check_version(cas) {
            // Gone since it was read.
            Err(KvError::NotFound) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => {
                let document = entry.document().map(|document| (document.seqno(), document.cas()));
                Ok(document == Some((subject.seqno, subject.cas)))
            }
        };
    }
    entry.check_changeable()?;
    if entry.exists() {
        return Ok(false);
    }
    let shadow = entry.with_shadow(|shadow| shadow.seqno());
    let deleted = shadow.or_else(|| Some(entry.deletion()?.seqno));
    Ok(match subject.state {
        // A request that does not see what is deleted replaces it.
        State::Missing => !sees_deleted || deleted.is_none(),
        _ => deleted == Some(subject.seqno),
    })
}
