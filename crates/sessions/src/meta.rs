//! The executor of the memcached meta protocol.
//!
//! Each command reads the document once under the lock, applies its flags in the order they were sent (as memcached
//! does: `t T30` shows the old time to live, `T30 t` the new one), changes the document, and writes its answer while
//! the lock is still held.

use kv::class_counters::ClassCounter;
use kv::prefixes::Access;
use kv::sizes::class_of;
use kv::watch::{Attempt, Deletion};
use kv::{Bucket, Entry, Expiry, Key, KvError, Meter, Mutated, NodeContext, Now, Place, Store, Value};
use wire::meta::{Command, Flags, SetMode, Verb, encode_base64};
use wire::text::KEY_MAX;

use super::counter::{self, Count, Counted, NUMBER_MAX, write_decimal};
use super::text::{self, NO_MEMORY, NON_NUMERIC};
use super::{At, Body, Output};

/// Executes a command; see [`super::text::execute`]. `limit` is the largest item the port takes.
pub fn execute(
    bucket: &Bucket,
    command: &Command<'_>,
    at: At,
    body: Body<'_>,
    limit: usize,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    if command.verb == Verb::Noop {
        out.bytes(b"MN\r\n");
        return Ok(());
    }
    let mut buffer = [0; KEY_MAX];
    let (key, at) = text::placed(bucket, command.key.decode(&mut buffer), at);
    let request = Operation { bucket, command, key, at };
    bucket.count(cx, Meter::CmdMeta, 1);
    match command.verb {
        Verb::Get => request.get(cx, out),
        Verb::Set(mode) => request.set(mode, body.into_value(), limit, cx, out),
        Verb::Delete => request.delete(cx, out),
        Verb::Arithmetic { decrement } => request.count(decrement, cx, out),
        Verb::Debug => request.debug(cx, out),
        Verb::Noop => Ok(()),
    }
}

/// Returns true if a command stores unconditionally.
pub(super) fn is_unconditional_set(command: &Command<'_>) -> bool {
    command.verb == Verb::Set(SetMode::Set) && !command.flags.has(b'C')
}

/// The name of a store command as watchers see it.
pub(super) fn store_name(command: &Command<'_>) -> &'static str {
    match command.verb {
        Verb::Set(SetMode::Append) => "append",
        Verb::Set(SetMode::Prepend) => "prepend",
        Verb::Set(SetMode::Add) => "add",
        _ if command.flags.has(b'C') => "cas",
        Verb::Set(SetMode::Replace) => "replace",
        _ => "set",
    }
}

/// A command with its key decoded and placed.
struct Operation<'a> {
    bucket: &'a Bucket,
    command: &'a Command<'a>,
    key: Key<'a>,
    at: Place,
}

/// What `mg` reports of a document.
struct Seen {
    item_size: usize,
    flags: u32,
    expiry: u32,
    cas: u64,
    idle_s: u32,
    fetched: bool,
    stale: bool,
    win_sent: bool,
    created: bool,
}

impl Operation<'_> {
    fn flags(&self) -> &Flags<'_> {
        &self.command.flags
    }

    /// An explicit new CAS (`E`); 0 if there is none.
    fn new_cas(&self) -> u64 {
        self.flags().number(b'E').unwrap_or(0)
    }

    fn expiry(&self, letter: u8, now: Now) -> Option<Expiry> {
        self.flags().exptime(letter).map(|exptime| Expiry::from_protocol(exptime, now.unix_s))
    }

    /// `O` and `k`, in the order they were sent.
    fn write_opaque_and_key(&self, out: &mut Output) {
        for flag in self.flags().iter() {
            self.write_common(flag.letter, flag.word, out);
        }
    }

    fn write_common(&self, letter: u8, word: &[u8], out: &mut Output) {
        match letter {
            b'O' => {
                out.bytes(b" ");
                out.bytes(word);
            }
            b'k' => {
                out.bytes(b" k");
                self.write_key(out);
                if self.command.key.is_encoded() {
                    out.bytes(b" b");
                }
            }
            _ => {}
        }
    }

    fn write_key(&self, out: &mut Output) {
        if self.command.key.is_encoded() {
            encode_base64(self.key.bytes, |piece| out.bytes(piece));
        } else {
            out.bytes(self.key.bytes);
        }
    }

    /// A status with the flags of every answer to `md`, and of the other commands' answers without a document.
    fn write_status(&self, status: &[u8], out: &mut Output) {
        out.bytes(status);
        self.write_opaque_and_key(out);
        out.bytes(b"\r\n");
    }

    fn get(&self, cx: &mut NodeContext, out: &mut Output) -> Result<(), KvError> {
        let now = cx.now;
        let vivify = self.expiry(b'N', now);
        let may_create = vivify.is_some() && self.bucket.admit(cx, self.key.bytes.len()).is_ok();
        let answer = |entry: &mut Entry<'_>, out: &mut Output| {
            // Nothing has been changed yet: the request is executed again once the value is back.
            if entry.document().is_some_and(|document| !document.is_resident()) {
                return Err(KvError::NotResident);
            }
            let created = match (entry.document(), vivify) {
                (None, Some(expiry)) if may_create => {
                    let new_cas = self.new_cas();
                    let stub = Store { flags: 0, expiry, datatype: 0, value: Value::Bytes(b""), new_cas };
                    match entry.store(stub) {
                        Err(KvError::CasAhead) => return Err(KvError::CasAhead),
                        stored => stored.is_ok(),
                    }
                }
                _ => false,
            };
            self.get_entry(entry, created, now, out)
        };
        let result = if self.flags().has(b'v') {
            out.with_entry(false, (self.bucket, self.key, self.at), cx, answer)?
        } else {
            self.bucket.with_entry(cx, self.key, self.at, |entry| answer(entry, out))?
        };
        let found = match result {
            Ok(found) => found,
            Err(KvError::NotResident) => return Err(self.bucket.note_missed().into()),
            Err(error) => {
                out.bytes(text::failure(error, b"SERVER_ERROR out of memory\r\n"));
                return Ok(());
            }
        };
        let size = found.as_ref().map(|seen| seen.item_size);
        if found.as_ref().is_some_and(|seen| seen.created) {
            self.bucket.count(cx, Meter::TotalItems, 1);
        }
        if size.is_some() && self.flags().has(b'T') {
            self.bucket.count_touch_of(cx, size);
        } else {
            self.bucket.count_get(cx, size);
        }
        self.bucket.prefixes.note(self.key.bytes, Access::Get { hit: size.is_some() });
        if size.is_none() && !self.flags().has(b'q') {
            self.write_status(b"EN", out);
        }
        Ok(())
    }

    /// Answers from a document, and returns what was seen of it; `None` if there is none.
    fn get_entry(
        &self,
        entry: &mut Entry<'_>,
        created: bool,
        now: Now,
        out: &mut Output,
    ) -> Result<Option<Seen>, KvError> {
        let Some(document) = entry.document() else { return Ok(None) };
        let seen = Seen {
            item_size: document.item_size(),
            flags: document.flags(),
            // COMPAT: a document made by `N` has no time to live until `N` itself is reached.
            expiry: if created { 0 } else { document.expiry() },
            cas: document.visible_cas(),
            idle_s: document.idle_s(),
            fetched: document.fetched(),
            stale: document.is_stale(),
            win_sent: document.win_sent(),
            created,
        };
        let (locked, won) = (document.is_locked(), self.wins(&seen, now));
        // The client has this version: it is not sent again.
        let is_known = self.flags().number(b'C').is_some_and(|cas| cas == seen.cas && !locked);
        if self.flags().has(b'T') {
            if locked {
                return Err(KvError::Locked);
            }
            entry.set_expiry(self.final_expiry(created, now))?;
        }
        if won {
            entry.set_marks(seen.stale, true);
        }
        if !self.flags().has(b'u') {
            entry.record_access();
        }
        let Some(document) = entry.document() else { return Ok(None) };
        let value_len = document.value_len() as u64;
        let with_value = self.flags().has(b'v') && !is_known;
        if with_value {
            out.bytes(b"VA ");
            out.decimal(value_len);
        } else {
            out.bytes(b"HD");
        }
        self.write_seen(&seen, value_len, now, out);
        if seen.win_sent {
            out.bytes(b" Z");
        }
        if seen.stale {
            out.bytes(b" X");
        }
        if won {
            out.bytes(b" W");
        }
        out.bytes(b"\r\n");
        if with_value {
            out.value(&document);
            out.bytes(b"\r\n");
        }
        Ok(Some(seen))
    }

    /// Returns true if this client wins the right to recache the document.
    fn wins(&self, seen: &Seen, now: Now) -> bool {
        if seen.created {
            return true;
        }
        if seen.win_sent {
            return false;
        }
        if seen.stale {
            return true;
        }
        let Some(Expiry::At(recache)) = self.expiry(b'R', now) else { return false };
        let mut expiry = seen.expiry;
        for flag in self.flags().iter() {
            match flag.letter {
                b'T' => expiry = self.absolute(b'T', now),
                b'R' => break,
                _ => {}
            }
        }
        expiry != 0 && expiry < recache
    }

    /// The expiry that results from `T` and, for a created document, `N`: the later flag wins.
    fn final_expiry(&self, created: bool, now: Now) -> Expiry {
        let mut expiry = Expiry::Keep;
        for flag in self.flags().iter() {
            if flag.letter == b'T' || (flag.letter == b'N' && created) {
                expiry = Expiry::At(self.absolute(flag.letter, now));
            }
        }
        expiry
    }

    fn absolute(&self, letter: u8, now: Now) -> u32 {
        match self.expiry(letter, now) {
            Some(Expiry::At(at)) => at,
            _ => 0,
        }
    }

    /// The flags of an `mg` answer in the order they were requested.
    fn write_seen(&self, seen: &Seen, value_len: u64, now: Now, out: &mut Output) {
        let mut expiry = seen.expiry;
        for flag in self.flags().iter() {
            match flag.letter {
                b'T' => expiry = self.absolute(b'T', now),
                b'N' if seen.created => expiry = self.absolute(b'N', now),
                b't' => write_ttl(expiry, now, out),
                b's' => write_number(b" s", value_len, out),
                b'c' => write_number(b" c", seen.cas, out),
                b'f' => write_number(b" f", u64::from(seen.flags), out),
                b'l' => write_number(b" l", u64::from(seen.idle_s), out),
                b'h' => out.bytes(if seen.fetched { b" h1" } else { b" h0" }),
                letter => self.write_common(letter, flag.word, out),
            }
        }
    }

    fn set(
        &self,
        mode: SetMode,
        value: Value<'_>,
        limit: usize,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<(), KvError> {
        let now = cx.now;
        self.bucket.prefixes.note(self.key.bytes, Access::Set);
        let expiry = self.expiry(b'T', now).unwrap_or(Expiry::At(0));
        let sent = value.len();
        let mut attempt = Attempt::new(self.bucket, store_name(self.command), self.key, sent, expiry);
        let result = match self.bucket.admit(cx, self.key.bytes.len() + sent) {
            Ok(()) => self.bucket.with_entry(cx, self.key, self.at, |entry| {
                let mutated = self.set_entry(entry, mode, value, limit, now)?;
                if let Some(attempt) = &mut attempt {
                    attempt.note(entry);
                }
                Ok((mutated.cas, entry.document().map_or(0, |document| document.value_len())))
            })?,
            Err(error) => Err(error),
        };
        if result == Err(KvError::TakesLong) {
            return Err(KvError::TakesLong);
        }
        let with_cas = self.flags().has(b'C') && matches!(mode, SetMode::Set | SetMode::Replace);
        self.bucket.count_store_of(cx, (self.key, sent), with_cas, result.map(drop));
        if let Some(attempt) = attempt {
            attempt.report(self.bucket, cx, self.key, result.map(drop));
        }
        let (status, cas, size): (&[u8], u64, usize) = match result {
            Ok(_) if self.flags().has(b'q') => return Ok(()),
            Ok((cas, size)) => (b"HD", cas, size),
            Err(KvError::NotFound) => (b"NF", 0, sent),
            Err(KvError::Exists) => (b"EX", 0, sent),
            Err(KvError::NotStored) => (b"NS", 0, sent),
            Err(KvError::NoMemory) => {
                if is_unconditional_set(self.command) {
                    self.bucket.drop_replaced(cx, self.key, self.at);
                }
                out.bytes(NO_MEMORY);
                return Ok(());
            }
            Err(error) => {
                out.bytes(text::failure(error, b"NS\r\n"));
                return Ok(());
            }
        };
        out.bytes(status);
        for flag in self.flags().iter() {
            match flag.letter {
                b'c' => write_number(b" c", cas, out),
                b's' => write_number(b" s", size as u64, out),
                letter => self.write_common(letter, flag.word, out),
            }
        }
        out.bytes(b"\r\n");
        Ok(())
    }

    /// Stores under the lock. NotFound, Exists and NotStored are the protocol's NF, EX and NS.
    fn set_entry(
        &self,
        entry: &mut Entry<'_>,
        mode: SetMode,
        value: Value<'_>,
        limit: usize,
        now: Now,
    ) -> Result<Mutated, KvError> {
        let required = self.flags().number(b'C');
        entry.name_cas(required.unwrap_or(0));
        let present =
            entry.document().map(|document| (document.cas(), document.is_locked(), document.win_sent()));
        if let Some((cas, true, _)) = present
            && required != Some(cas)
            && mode != SetMode::Add
        {
            return Err(KvError::Locked);
        }
        let expiry = self.expiry(b'T', now).unwrap_or(Expiry::At(0));
        let new_cas = self.new_cas();
        let store =
            |expiry, value| Store { flags: self.flags().client_flags(), expiry, datatype: 0, value, new_cas };
        match (mode, present) {
            (SetMode::Set | SetMode::Replace, Some((cas, _, win_sent))) => {
                match required {
                    None => entry.store(store(expiry, value)),
                    Some(required) if required == cas => entry.store(store(expiry, value)),
                    // `I`: an older version is still stored, but stays stale and keeps its time to live.
                    Some(required) if self.flags().has(b'I') && required < cas && required != 0 => {
                        let mutated = entry.store(store(Expiry::Keep, value))?;
                        entry.set_marks(true, win_sent);
                        Ok(mutated)
                    }
                    Some(_) => Err(KvError::Exists),
                }
            }
            (SetMode::Set | SetMode::Replace, None) if required.is_some() => Err(KvError::NotFound),
            (SetMode::Set | SetMode::Add, None) => entry.store(store(expiry, value)),
            (SetMode::Replace, None) | (SetMode::Add, Some(_)) => Err(KvError::NotStored),
            (SetMode::Append | SetMode::Prepend, Some((cas, _, _))) => {
                if required.is_some_and(|required| required != 0 && required != cas) {
                    return Err(KvError::Exists);
                }
                text::extend_entry(entry, self.key, &value, mode == SetMode::Prepend, limit, new_cas)
            }
            (SetMode::Append | SetMode::Prepend, None) => match self.expiry(b'N', now) {
                Some(expiry) => entry.store(store(expiry, value)),
                None => Err(KvError::NotStored),
            },
        }
    }

    fn delete(&self, cx: &mut NodeContext, out: &mut Output) -> Result<(), KvError> {
        let now = cx.now;
        self.bucket.prefixes.note(self.key.bytes, Access::Delete);
        let admitted =
            if self.flags().has(b'x') { self.bucket.admit(cx, self.key.bytes.len()) } else { Ok(()) };
        let mut deletion = Deletion::new(self.bucket, "md");
        let result = match admitted {
            Ok(()) => self.bucket.with_entry(cx, self.key, self.at, |entry| {
                let size = entry.item_size();
                if let Some(deletion) = &mut deletion {
                    deletion.note(entry);
                }
                self.delete_entry(entry, now).map(|()| size)
            })?,
            Err(error) => Err(error),
        };
        if result.is_ok() && self.flags().has(b'x') {
            self.bucket.count(cx, Meter::TotalItems, 1);
        }
        match result {
            Ok(_) if self.flags().has(b'I') => {}
            Ok(size) => {
                self.bucket.count(cx, Meter::DeleteHits, 1);
                self.bucket.count_in_class(cx, size, ClassCounter::DeleteHits);
                if let Some(deletion) = deletion {
                    deletion.report(self.bucket, cx, self.key);
                }
            }
            Err(KvError::NotFound | KvError::Exists) => self.bucket.count(cx, Meter::DeleteMisses, 1),
            Err(_) => {}
        }
        match result {
            Ok(_) if self.flags().has(b'q') => {}
            Ok(_) => self.write_status(b"HD", out),
            Err(KvError::NotFound) => self.write_status(b"NF", out),
            Err(KvError::Exists) => self.write_status(b"EX", out),
            Err(error) => out.bytes(text::failure(error, b"SERVER_ERROR out of memory\r\n")),
        }
        Ok(())
    }

    fn delete_entry(&self, entry: &mut Entry<'_>, now: Now) -> Result<(), KvError> {
        let required = self.flags().number(b'C');
        entry.name_cas(required.unwrap_or(0));
        let document = entry.document().ok_or(KvError::NotFound)?;
        let cas = document.cas();
        if document.is_locked() && required != Some(cas) {
            return Err(KvError::Locked);
        }
        if required.is_some_and(|required| required != cas) {
            return Err(KvError::Exists);
        }
        let (empties, invalidates) = (self.flags().has(b'x'), self.flags().has(b'I'));
        if empties {
            let expiry = self.expiry(b'T', now).unwrap_or(Expiry::At(0));
            // COMPAT: the CAS stays, unless another is named or the item is invalidated as well.
            let new_cas = match self.new_cas() {
                0 if !invalidates => cas,
                named => named,
            };
            let flags = self.flags().client_flags();
            entry.store(Store { flags, expiry, datatype: 0, value: Value::Bytes(b""), new_cas })?;
        }
        if invalidates {
            // Refuse a bad CAS before anything is changed.
            if !empties {
                entry.revise(self.new_cas())?;
            }
            if let Some(expiry) = self.expiry(b'T', now) {
                entry.set_expiry(expiry)?;
            }
            entry.set_marks(true, false);
        } else if !empties {
            entry.remove()?;
        }
        Ok(())
    }

    fn count(&self, decrement: bool, cx: &mut NodeContext, out: &mut Output) -> Result<(), KvError> {
        let now = cx.now;
        let how = Count {
            delta: self.flags().number(b'D').unwrap_or(1),
            decrement,
            cas: self.flags().number(b'C').unwrap_or(0),
            new_cas: self.new_cas(),
        };
        let expiry = self.expiry(b'N', now).unwrap_or(Expiry::At(0));
        let mut attempt = Attempt::to_count(self.bucket, self.key, self.initial(), expiry);
        let result = match self.bucket.admit(cx, self.key.bytes.len() + NUMBER_MAX) {
            Ok(()) => self.bucket.with_entry(cx, self.key, self.at, |entry| {
                let created = self.count_entry(entry, how, now, out)?;
                if let Some(attempt) = &mut attempt {
                    attempt.note(entry);
                }
                Ok(created)
            })?,
            Err(error) => Err(error),
        };
        let created = result.is_ok_and(|(_, created)| created);
        if let Some(attempt) = attempt.filter(|_| created) {
            attempt.report(self.bucket, cx, self.key, Ok(()));
        }
        counter::note(self.bucket, cx, decrement, result.map(|(counted, _)| counted), created);
        match result {
            Ok(_) => {}
            Err(KvError::NotFound) => self.write_status(b"NF", out),
            Err(KvError::Exists) => self.write_status(b"EX", out),
            Err(KvError::DeltaBadValue) => out.bytes(NON_NUMERIC),
            Err(KvError::NoMemory) => out.bytes(b"SERVER_ERROR out of memory\r\n"),
            Err(error) => out.bytes(text::failure(error, b"NS\r\n")),
        }
        Ok(())
    }

    /// The initial value of a created counter.
    fn initial(&self) -> u64 {
        self.flags().number(b'J').unwrap_or(0)
    }

    /// Counts and answers; returns true as well if the document was created.
    fn count_entry(
        &self,
        entry: &mut Entry<'_>,
        how: Count,
        now: Now,
        out: &mut Output,
    ) -> Result<(Counted, bool), KvError> {
        let (counted, mut expiry, created) = match counter::count(entry, how) {
            Ok(counted) => (counted, entry.document().map_or(0, |document| document.expiry()), false),
            Err(KvError::NotFound) => {
                let Some(expiry) = self.expiry(b'N', now) else { return Err(KvError::NotFound) };
                (counter::create(entry, self.initial(), expiry, how.new_cas)?, 0, true)
            }
            Err(error) => return Err(error),
        };
        if self.flags().has(b'T') {
            entry.set_expiry(self.final_expiry(created, now))?;
        }
        if self.flags().has(b'q') {
            return Ok((counted, created));
        }
        let mut digits = [0; NUMBER_MAX];
        let length = write_decimal(&mut digits, counted.number);
        let with_value = self.flags().has(b'v');
        if with_value {
            out.bytes(b"VA ");
            out.decimal(length as u64);
        } else {
            out.bytes(b"HD");
        }
        for flag in self.flags().iter() {
            match flag.letter {
                b'T' => expiry = self.absolute(b'T', now),
                b'N' if created => expiry = self.absolute(b'N', now),
                b't' => write_ttl(expiry, now, out),
                b'c' => write_number(b" c", counted.cas, out),
                letter => self.write_common(letter, flag.word, out),
            }
        }
        out.bytes(b"\r\n");
        if with_value {
            out.bytes(digits.get(..length).unwrap_or_default());
            out.bytes(b"\r\n");
        }
        Ok((counted, created))
    }

    fn debug(&self, cx: &mut NodeContext, out: &mut Output) -> Result<(), KvError> {
        let now = cx.now;
        self.bucket.with_entry(cx, self.key, self.at, |entry| {
            let Some(document) = entry.document() else { return out.bytes(b"EN\r\n") };
            out.bytes(b"ME ");
            self.write_key(out);
            out.bytes(b" exp=");
            match document.expiry() {
                0 => out.bytes(b"-1"),
                expiry => out.decimal(u64::from(expiry.saturating_sub(now.unix_s))),
            }
            write_number(b" la=", u64::from(document.idle_s()), out);
            write_number(b" cas=", document.visible_cas(), out);
            out.bytes(if document.fetched() { b" fetch=yes" } else { b" fetch=no" });
            write_number(b" cls=", u64::from(class_of(document.item_size())), out);
            write_number(b" size=", document.item_size() as u64, out);
            out.bytes(b"\r\n");
        })?;
        Ok(())
    }
}

fn write_ttl(expiry: u32, now: Now, out: &mut Output) {
    match expiry {
        0 => out.bytes(b" t-1"),
        expiry => write_number(b" t", u64::from(expiry.saturating_sub(now.unix_s)), out),
    }
}

fn write_number(label: &[u8], number: u64, out: &mut Output) {
    out.bytes(label);
    out.decimal(number);
}
