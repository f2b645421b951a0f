//! Operations with metadata: another cluster's changes, with the CAS, revision and times that they have there; and
//! RETURN_META, for clients that copy their own changes to another cluster.

use kv::{
    Compression, Expiry, KvError, Made, MadeKind, Mutation, NodeContext, REV_MOST, Resolution, Store,
    StoreKind, Value,
};
use wire::binary::{Opcode, Status, datatype};
use wire::couchbase::Feature;
use wire::couchbase::with_meta::{self, Command, JsonMeta, WithMeta, options};
use wire::snappy::{self, SnappyError};
use wire::xattrs;

use super::super::{Body, Output};
use super::answer::Refusal;
use super::documents::{self, Operation};
use super::{datatype_is_valid, json};

/// What RETURN_META does, by the number in its extras.
const RETURN_SET: u32 = 1;
const RETURN_ADD: u32 = 2;
const RETURN_DELETE: u32 = 3;

/// Bytes of a number that is written into a value: `0x` and 16 digits.
const PATCH_BYTES: usize = 18;

/// Writes a number at some places of a value.
fn patch(value: &mut [u8], offsets: &[usize], number: u64) {
    let digits = format!("0x{number:016x}");
    for at in offsets {
        if let Some(place) = value.get_mut(*at..*at + PATCH_BYTES) {
            place.copy_from_slice(digits.as_bytes());
        }
    }
}

/// What a request with metadata asks for.
struct Asked {
    command: Command,
    meta: WithMeta,
    /// Where in the extended attributes the new CAS and seqno are to be written.
    cas_offsets: Vec<usize>,
    seqno_offsets: Vec<usize>,
}

impl Operation<'_> {
    /// SET, ADD and DELETE_WITH_META, and MUTATE_WITH_META, which says in JSON what it is.
    pub(super) fn with_meta(
        &self,
        body: &Body<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<(), KvError> {
        let body = match body {
            Body::Inline(bytes) => bytes,
            Body::Large(item) => item.bytes(),
        };
        let mut room = Vec::new();
        let parsed = self.asked(body).and_then(|(asked, value)| {
            let made = self.made(&asked, value, &mut room)?;
            Ok((asked, made))
        });
        let (asked, made) = match parsed {
            Ok(parsed) => parsed,
            Err(Refusal(status, why)) => {
                self.answer.error(status, why, out);
                return Ok(());
            }
        };
        let (is_deletion, cas) = (asked.command == Command::Delete, self.request.header.cas);
        let skips = asked.meta.has(options::SKIP_CONFLICT_RESOLUTION);
        let by = (!skips).then(|| self.bucket.resolution());
        let patches = !asked.cas_offsets.is_empty() || !asked.seqno_offsets.is_empty();
        let mut patched = if patches { made.value.to_vec() } else { Vec::new() };
        let result = self.bucket.edit(cx, self.key, self.place, None, made.value.len(), |entry| {
            if cas != 0 {
                entry.check_version(cas)?;
            }
            if asked.command == Command::Add && entry.exists() {
                return Err(KvError::Exists);
            }
            if !patches {
                return entry.take(&made, by);
            }
            let (new_cas, seqno) = entry.next_version();
            let cas = if made.cas == 0 { new_cas } else { made.cas };
            // As the macros of sub-documents are expanded.
            patch(&mut patched, &asked.cas_offsets, cas.swap_bytes());
            patch(&mut patched, &asked.seqno_offsets, seqno);
            entry.take(&Made { cas, value: &patched, ..made }, by)
        });
        let counted = result.as_ref().map(drop).map_err(|error| *error);
        match is_deletion {
            true => self.bucket.count_removal(cx, counted),
            false => self.bucket.count_store(cx, cas != 0, counted),
        }
        self.finish(result, out)
    }

    /// Returns what is asked for, and the value.
    fn asked<'a>(&self, body: &'a [u8]) -> Result<(Asked, &'a [u8]), Refusal> {
        let split = |meta_len: usize| {
            let value_len = body.len().checked_sub(meta_len);
            let parts = value_len.and_then(|value_len| body.split_at_checked(value_len));
            parts.ok_or(Refusal::invalid("The metadata is longer than the value"))
        };
        let opcode = self.request.header.opcode;
        if opcode == Opcode::MUTATE_WITH_META {
            let Ok(meta_len) = <[u8; 4]>::try_from(self.request.extras) else {
                return Err(Refusal::invalid("The extras must be the length of the metadata, 4 bytes"));
            };
            let (value, meta) = split(u32::from_be_bytes(meta_len) as usize)?;
            let JsonMeta { command, meta, cas_offsets, seqno_offsets } = JsonMeta::parse(meta)?;
            return Ok((Asked { command, meta, cas_offsets, seqno_offsets }, value));
        }
        let meta = WithMeta::decode(self.request.extras).ok_or(Refusal::invalid(
            "The extras must be flags, expiry, revision and CAS, options, and a length: 24 to 30 bytes",
        ))?;
        let (value, extended) = split(meta.meta_len)?;
        if !with_meta::is_valid(extended) {
            return Err(Refusal::invalid("The extended metadata is malformed"));
        }
        if meta.has(options::REGENERATE_CAS) && !meta.has(options::SKIP_CONFLICT_RESOLUTION) {
            return Err(Refusal::invalid("REGENERATE_CAS needs SKIP_CONFLICT_RESOLUTION"));
        }
        let command = match opcode {
            Opcode::DEL_WITH_META | Opcode::DELQ_WITH_META => Command::Delete,
            Opcode::ADD_WITH_META | Opcode::ADDQ_WITH_META => Command::Add,
            _ => Command::Set,
        };
        Ok((Asked { command, meta, cas_offsets: Vec::new(), seqno_offsets: Vec::new() }, value))
    }

    /// Returns the version that the request makes. What is inflated is placed in `room`.
    fn made<'a>(&self, asked: &Asked, value: &'a [u8], room: &'a mut Vec<u8>) -> Result<Made<'a>, Refusal> {
        let Asked { command, meta: asked, cas_offsets, seqno_offsets } = asked;
        let is_deletion = *command == Command::Delete;
        let known = options::SKIP_CONFLICT_RESOLUTION
            | options::FORCE_ACCEPT
            | options::REGENERATE_CAS
            | if is_deletion { options::IS_EXPIRATION } else { 0 };
        if asked.options & !known != 0 {
            return Err(Refusal::invalid("An option is not known"));
        }
        if asked.has(options::FORCE_ACCEPT) != (self.bucket.resolution() == Resolution::Time) {
            return Err(Refusal::invalid(
                "FORCE_ACCEPT is for buckets that resolve conflicts by time, and only for these",
            ));
        }
        if asked.rev > REV_MOST || matches!(asked.cas, 0 | u64::MAX) && !asked.has(options::REGENERATE_CAS) {
            return Err(Refusal::invalid("The revision must be below 2^43, and the CAS a CAS"));
        }
        let (bits, value) = self.checked(value, is_deletion, room)?;
        let section_len = if bits & datatype::XATTR != 0 { xattrs::split(value).0.len() } else { 0 };
        let fits = |at: &usize| at.checked_add(PATCH_BYTES).is_some_and(|end| end <= section_len);
        if !cas_offsets.iter().chain(seqno_offsets).all(fits) {
            return Err(Refusal::invalid("An offset is not within the extended attributes"));
        }
        Ok(Made {
            cas: if asked.has(options::REGENERATE_CAS) { 0 } else { asked.cas },
            rev: asked.rev,
            flags: asked.flags,
            expiry: asked.expiry,
            datatype: bits,
            value,
            kind: match is_deletion {
                false => MadeKind::Document,
                true if asked.has(options::IS_EXPIRATION) => MadeKind::Expiration,
                true => MadeKind::Deletion,
            },
        })
    }

    /// Returns datatype and bytes of a value as it is stored: with extended attributes it is not compressed.
    fn checked<'a>(
        &self,
        value: &'a [u8],
        is_deletion: bool,
        room: &'a mut Vec<u8>,
    ) -> Result<(u8, &'a [u8]), Refusal> {
        let (bits, features) = (self.request.header.datatype, self.answer.features());
        let has_xattrs = bits & datatype::XATTR != 0;
        if !datatype_is_valid(features, bits & !datatype::XATTR)
            || has_xattrs && !features.has(Feature::XATTR)
        {
            return Err(Refusal::invalid("The datatype was not negotiated"));
        }
        let (mut bits, mut value, mut inflated_len) = (bits, value, value.len());
        if bits & datatype::SNAPPY != 0 {
            inflated_len = snappy::check(value, self.value_limit).map_err(|error| match error {
                SnappyError::TooLong => Refusal(Status::E2BIG, "The value is too long when it is inflated"),
                SnappyError::Malformed => Refusal::invalid("The value is not what its datatype says: Snappy"),
            })?;
            if has_xattrs || self.bucket.compression() == Compression::Off {
                room.resize(inflated_len, 0);
                snappy::inflate(value, room);
                value = room;
                bits &= !datatype::SNAPPY;
            }
        }
        if inflated_len > self.value_limit {
            return Err(Refusal(Status::E2BIG, "The value is too long"));
        }
        if has_xattrs && !xattrs::is_valid(value) {
            return Err(Refusal::invalid("The value is not what its datatype says: extended attributes"));
        }
        let body = if has_xattrs { xattrs::split(value).1 } else { value };
        if is_deletion {
            if !body.is_empty() {
                return Err(Refusal::invalid("A deletion must not have a value but extended attributes"));
            }
            return Ok((bits & datatype::XATTR, value));
        }
        if has_xattrs {
            return Ok((datatype::XATTR | json::of_long(body), value));
        }
        Ok((json::of_stored(bits, &Value::Bytes(value)), value))
    }

    fn finish(&self, result: Result<kv::Written, KvError>, out: &mut Output) -> Result<(), KvError> {
        match KvError::set_apart(result)? {
            Ok(kv::Written::Done(mutated)) => self.answer.mutated(mutated, &[], out),
            Ok(kv::Written::Pending) => {}
            Err(error) => documents::refuse(self.answer, error, out),
        }
        Ok(())
    }

    /// RETURN_META: SET, ADD or DELETE, answered with `flags 4 | expiry 4 | revision 8` of the new version.
    pub(super) fn return_meta(
        &self,
        body: Body<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<(), KvError> {
        let &[o0, o1, o2, o3, f0, f1, f2, f3, e0, e1, e2, e3] = self.request.extras else {
            let why = "The extras must be what to do, flags and expiry, 12 bytes";
            self.answer.error(Status::EINVAL, why, out);
            return Ok(());
        };
        let (flags, cas) = (u32::from_be_bytes([f0, f1, f2, f3]), self.request.header.cas);
        let asked_s = i64::from(u32::from_be_bytes([e0, e1, e2, e3]));
        let kind = match u32::from_be_bytes([o0, o1, o2, o3]) {
            RETURN_SET => Some(StoreKind::Set),
            RETURN_ADD if cas == 0 => Some(StoreKind::Add),
            RETURN_DELETE if !self.has_value => None,
            _ => {
                let why = "It must be 1 (SET), 2 (ADD, without a CAS) or 3 (DELETE, without a value)";
                self.answer.error(Status::EINVAL, why, out);
                return Ok(());
            }
        };
        let mut meta = (0, 0, 0);
        let result = match kind {
            None => self.bucket.edit(cx, self.key, self.place, None, 0, |entry| {
                entry.check_version(cas)?;
                meta = entry.document().map_or(meta, |it| (it.flags(), it.expiry(), it.rev() + 1));
                entry.remove()
            }),
            Some(kind) => {
                let mut room = Vec::new();
                let incoming = super::incoming::value(
                    self,
                    body,
                    super::incoming::Compressed::Inflated,
                    &mut room,
                    cx,
                    out,
                );
                let Some((value, bits)) = incoming else { return Ok(()) };
                let expiry = Expiry::from_protocol(asked_s, cx.now.unix_s);
                let bits = json::of_stored(bits, &value);
                let (added, mut store) =
                    (value.len(), Some(Store { flags, expiry, datatype: bits, value, new_cas: 0 }));
                self.bucket.edit(cx, self.key, self.place, None, added, |entry| {
                    let store = store.take().ok_or(KvError::NotFound)?;
                    let mutated = entry.mutate(Mutation { kind, cas, store })?;
                    meta = entry.document().map_or(meta, |it| (it.flags(), it.expiry(), it.rev()));
                    Ok(mutated)
                })
            }
        };
        match KvError::set_apart(result)? {
            Ok(kv::Written::Done(mutated)) => {
                let (flags, expiry, rev) = meta;
                let mut extras = [0; 16];
                extras[..4].copy_from_slice(&flags.to_be_bytes());
                extras[4..8].copy_from_slice(&expiry.to_be_bytes());
                extras[8..].copy_from_slice(&rev.to_be_bytes());
                self.answer.value(mutated.cas, &extras, &[], out);
            }
            Ok(kv::Written::Pending) => {}
            Err(error) => documents::refuse(self.answer, error, out),
        }
        Ok(())
    }
}
