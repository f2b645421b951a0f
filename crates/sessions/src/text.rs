//! The executor of the memcached text protocol: what each command does, and its answer.
//!
//! Answers are memcached's, `noreply` included: it silences every answer to a well-formed command, errors too.
//! Everything a command does to one key happens under a single acquisition of its vBucket's lock.

use kv::prefixes::Access;
use kv::requests::Class;
use kv::users::roles::Rights;
use kv::watch::{Attempt, Deletion};
use kv::{
    Bucket, Document, Entry, Expiry, Key, KvError, Meter, Mutated, Mutation, NodeContext, Place, Store,
    StoreKind, Unavailable, Value,
};
use wire::meta::{SetMode, Verb};
use wire::text::{self, Command, Error, Get, ShutdownMode, StoreVerb};

use super::counter::{self, Count};
use super::stats;
use super::{Admission, At, Body, Output, Peer, Refusal, meta};

/// Bytes that memcached counts for an item besides key, value and client flags: its header, CAS, a NUL and the line
/// end.
const ITEM_OVERHEAD: usize = 59;
/// Bytes of client flags other than 0 in a memcached item.
const FLAGS_SIZE: usize = 4;
/// A CAS that no document has; it stands for a CAS of 0 where memcached compares it.
pub(super) const NO_CAS: u64 = u64::MAX;

const MEMLIMIT_LEAST_MIB: u64 = 8;
const MEMLIMIT_MOST_MIB: u64 = 1_000_000_000;

pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(super) const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(super) const NON_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
const BAD_DATA_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";

/// The key that a command is placed by; `None` if it has none or it is encoded. Retrievals arrive one key at a time
/// ([`Get::take_first`]), here as in [`execute`].
#[inline]
pub fn key<'a>(command: &Command<'a>) -> Option<Key<'a>> {
    let bytes = match *command {
        Command::Get(get) => get.single_key(),
        Command::Store(store) => store.key,
        Command::Delete { key, .. } | Command::Arithmetic { key, .. } | Command::Touch { key, .. } => key,
        Command::Meta(command) if !command.key.is_encoded() => command.key.as_sent(),
        _ => return None,
    };
    (!bytes.is_empty()).then_some(Key::plain(bytes))
}

/// Decides what to do with a command's data block.
#[inline]
pub fn admit<'a>(peer: &Peer, command: &Command<'a>, body: usize) -> Admission<'a> {
    let (key, flags) = match *command {
        Command::Login => return Admission::Inline,
        Command::Store(store) => (store.key, store.flags),
        // For the preparation of memory only the length of an encoded key matters; decoded, it has the length of a
        // prefix.
        Command::Meta(command) if command.key.is_encoded() => (
            command.key.as_sent().get(..command.key.length()).unwrap_or_default(),
            command.flags.client_flags(),
        ),
        Command::Meta(command) => (command.key.as_sent(), command.flags.client_flags()),
        _ => return Admission::Inline,
    };
    if peer.must_log_in() || peer.bucket.is_none() {
        return Admission::Refuse(Refusal::NotAllowed);
    }
    if item_size(key.len(), flags, body) > peer.value_limit {
        return Admission::Refuse(Refusal::TooBig);
    }
    Admission::Store(Key::plain(key))
}

/// The size of an item as memcached counts it against its item size limit.
#[inline]
pub(super) fn item_size(key: usize, flags: u32, value: usize) -> usize {
    ITEM_OVERHEAD + key + if flags == 0 { 0 } else { FLAGS_SIZE } + value
}

/// The key of a command, decoded; `None` if it has none.
pub(super) fn document<'k>(command: &Command<'k>, buffer: &'k mut [u8; text::KEY_MAX]) -> Option<Key<'k>> {
    match command {
        Command::Meta(command) if command.verb != wire::meta::Verb::Noop => {
            Some(Key::plain(command.key.decode(buffer)))
        }
        command => key(command),
    }
}

/// Properties of a command that follow from its verb.
pub(super) struct Traits {
    /// It is ordered with all requests before and after it.
    pub is_fence: bool,
    /// It needs the existing value, or at least rewrites the item.
    pub needs_value: bool,
    /// Lines behind it can only be parsed once it has been executed.
    pub changes_session: bool,
    /// It may be the work of a hundred ordinary commands.
    pub is_slow: bool,
}

/// The traits of a command: every verb has its row.
pub(super) const fn traits(command: &Command<'_>) -> Traits {
    let (is_fence, needs_value) = match command {
        Command::Get(_) | Command::Arithmetic { .. } | Command::Touch { .. } => (false, true),
        Command::Store(store) => (false, matches!(store.verb, StoreVerb::Append | StoreVerb::Prepend)),
        Command::Delete { .. } => (false, false),
        Command::Meta(command) => match command.verb {
            Verb::Get | Verb::Arithmetic { .. } => (false, true),
            Verb::Set(mode) => (false, matches!(mode, SetMode::Append | SetMode::Prepend)),
            // An invalidation rewrites the item.
            Verb::Delete => (false, true),
            Verb::Debug | Verb::Noop => (false, false),
        },
        Command::FlushAll { .. }
        | Command::CacheMemlimit { .. }
        | Command::Quit
        | Command::Shutdown(_)
        | Command::Login => (true, false),
        Command::Verbosity { .. }
        | Command::Stats { .. }
        | Command::Dump(_)
        | Command::Watch(_)
        | Command::Version => (false, false),
    };
    let is_slow =
        matches!(command, Command::FlushAll { .. } | Command::CacheMemlimit { .. } | Command::Stats { .. });
    Traits { is_fence, needs_value, changes_session: matches!(command, Command::Login), is_slow }
}

/// What a command does, and its name, for the record of requests.
pub(super) fn class_and_operation(command: &Command<'_>) -> (Class, &'static str) {
    match command {
        Command::Get(Get { with_cas, exptime, .. }) => {
            let name = match (exptime, with_cas) {
                (None, false) => "get",
                (None, true) => "gets",
                (Some(_), false) => "gat",
                (Some(_), true) => "gats",
            };
            (Class::Read, name)
        }
        Command::Store(store) => (Class::Write, store.verb.name()),
        Command::Delete { .. } => (Class::Delete, "delete"),
        Command::Arithmetic { decrement, .. } => (Class::Counter, if *decrement { "decr" } else { "incr" }),
        Command::Touch { .. } => (Class::Write, "touch"),
        Command::FlushAll { .. } => (Class::Other, "flush_all"),
        Command::Verbosity { .. } => (Class::Other, "verbosity"),
        Command::CacheMemlimit { .. } => (Class::Other, "cache_memlimit"),
        Command::Stats { .. } => (Class::Other, "stats"),
        Command::Dump(_) => (Class::Other, "lru_crawler"),
        Command::Watch(_) => (Class::Other, "watch"),
        Command::Version => (Class::Other, "version"),
        Command::Quit => (Class::Other, "quit"),
        Command::Shutdown(_) => (Class::Other, "shutdown"),
        Command::Login => (Class::Other, "login"),
        Command::Meta(command) => match command.verb {
            Verb::Get => (Class::Read, "mg"),
            Verb::Set(_) => (Class::Write, "ms"),
            Verb::Delete => (Class::Delete, "md"),
            Verb::Arithmetic { .. } => (Class::Counter, "ma"),
            Verb::Debug => (Class::Read, "me"),
            Verb::Noop => (Class::Other, "mn"),
        },
    }
}

/// Answers a command that could not be executed. A retrieval of many keys cannot go on behind an error: the connection
/// closes.
pub(super) fn fail(peer: &mut Peer, command: &Command<'_>, error: KvError, out: &mut Output) {
    reply(out, command.is_noreply(), failure(error, b"SERVER_ERROR\r\n"));
    peer.close |= matches!(command, Command::Get(get) if !get.last);
}

/// Executes a command. An error concerns its document: nothing was changed, and the partial answer must be taken back.
#[inline]
pub fn execute(
    peer: &mut Peer,
    command: &Command<'_>,
    at: At,
    body: Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    if !cx.may_take_long && matches!(command, Command::Login | Command::Stats { .. }) {
        return Err(KvError::TakesLong);
    }
    if peer.must_log_in() {
        log_in(peer, command, &body, cx, out);
        return Ok(());
    }
    let Some(bucket) = peer.bucket.as_deref().filter(|bucket| !bucket.is_gone()) else {
        reply(out, command.is_noreply(), b"SERVER_ERROR bucket is gone\r\n");
        peer.close = true;
        return Ok(());
    };
    let limit = peer.value_limit;
    match *command {
        Command::Get(get) => return retrieve(bucket, get, at, cx, out),
        Command::Store(store) => return self::store(bucket, &store, at, body, limit, cx, out),
        Command::Meta(command) => return meta::execute(bucket, &command, at, body, limit, cx, out),
        Command::Delete { key, noreply } => {
            let (key, at) = placed(bucket, key, at);
            bucket.prefixes.note(key.bytes, Access::Delete);
            let deletion = Deletion::new(bucket, "delete");
            let result = KvError::set_apart(bucket.remove_as(cx, key, at, 0, deletion))?;
            reply(
                out,
                noreply,
                result.map_or_else(|error| failure(error, b"NOT_FOUND\r\n"), |_| b"DELETED\r\n"),
            );
        }
        Command::Arithmetic { key, delta, decrement, noreply } => {
            let (key, at) = placed(bucket, key, at);
            match count(bucket, key, at, Count { delta, decrement, cas: 0, new_cas: 0 }, cx)? {
                Ok(_) if noreply => {}
                Ok(number) => {
                    out.decimal(number);
                    out.bytes(b"\r\n");
                }
                Err(KvError::DeltaBadValue) => reply(out, noreply, NON_NUMERIC),
                Err(KvError::NoMemory) => reply(out, noreply, b"SERVER_ERROR out of memory\r\n"),
                Err(error) => reply(out, noreply, failure(error, b"NOT_FOUND\r\n")),
            }
        }
        Command::Touch { key, exptime, noreply } => {
            let (key, at) = placed(bucket, key, at);
            let result = touch(bucket, key, at, exptime, cx)?;
            reply(
                out,
                noreply,
                result.map_or_else(|error| failure(error, b"NOT_FOUND\r\n"), |()| b"TOUCHED\r\n"),
            );
        }
        Command::FlushAll { noreply, .. } if !peer.rules.flush_all => {
            reply(out, noreply, b"CLIENT_ERROR flush_all not allowed\r\n");
        }
        Command::FlushAll { delay, noreply } => {
            let when = match Expiry::from_protocol(delay.max(0), cx.now.unix_s) {
                Expiry::At(at) => at,
                Expiry::Keep => 0,
            };
            let flushed = bucket.flush(cx, when);
            reply(
                out,
                noreply,
                flushed.map_or_else(|error| failure(error, b"SERVER_ERROR\r\n"), |()| b"OK\r\n"),
            );
        }
        Command::Verbosity { noreply } => reply(out, noreply, b"OK\r\n"),
        Command::CacheMemlimit { noreply, .. }
            if peer.login_required && !peer.may_everywhere(Rights::BUCKET) =>
        {
            reply(out, noreply, b"CLIENT_ERROR cache_memlimit needs the role bucket_admin\r\n");
        }
        Command::CacheMemlimit { mebibytes, noreply } => {
            limit_memory(bucket, mebibytes, noreply, out);
        }
        Command::Stats { arguments } => stats::text(bucket, peer, arguments, cx, out),
        // The session itself lists keys and feeds watchers, since that takes many turns.
        Command::Dump(_) | Command::Watch(_) => {}
        Command::Version => {
            out.bytes(b"VERSION ");
            out.bytes(cx.node.settings().version.as_bytes());
            out.bytes(b"\r\n");
        }
        Command::Quit => peer.quit(),
        Command::Shutdown(mode) => match (cx.node.settings().shutdown_command, mode) {
            (false, _) => out.bytes(b"SERVER_ERROR: shutdown not enabled\r\n"),
            (true, ShutdownMode::Invalid) => out.bytes(b"CLIENT_ERROR invalid shutdown mode\r\n"),
            (true, _) if peer.login_required && !peer.may_on_node(Rights::NODE) => {
                out.bytes(b"CLIENT_ERROR shutdown needs the role cluster_admin\r\n");
            }
            (true, ShutdownMode::Now | ShutdownMode::Graceful) => {
                peer.close = true;
                cx.node.request_shutdown();
            }
        },
        Command::Login => error(peer, &Error::Unauthenticated, cx, out),
    }
    Ok(())
}

/// Answers a malformed line.
pub fn error(peer: &mut Peer, error: &Error, _: &mut NodeContext, out: &mut Output) {
    if error.is_fatal() {
        peer.close = true;
    }
    if peer.must_log_in() && *error != Error::Http {
        out.bytes(Error::Unauthenticated.answer());
    } else {
        out.bytes(error.answer());
    }
}

/// Answers a command whose data block is refused.
///
/// COMPAT: an unconditional set whose value finds no memory removes the present value, as in memcached (which does so
/// with any `ms`, and with a binary SET whatever its CAS): [`Bucket::drop_replaced`].
pub fn refuse(
    peer: &mut Peer,
    command: &Command<'_>,
    refusal: Refusal,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let meter = match refusal {
        Refusal::TooBig => Some(Meter::StoreTooLarge),
        Refusal::NoMemory => Some(Meter::StoreNoMemory),
        Refusal::BadTrailer => Some(Meter::CmdSet),
        Refusal::NotAllowed => None,
    };
    if let (Some(bucket), Some(meter)) = (peer.bucket.as_deref().filter(|bucket| !bucket.is_gone()), meter) {
        bucket.count(cx, meter, 1);
        if refusal != Refusal::BadTrailer {
            report_refused(bucket, command, refusal, cx);
            drop_replaced(bucket, command, cx);
        }
    }
    let answer: &[u8] = match refusal {
        Refusal::TooBig => TOO_LARGE,
        Refusal::NoMemory => NO_MEMORY,
        Refusal::BadTrailer if matches!(command, Command::Login) => {
            b"CLIENT_ERROR bad command line termination\r\n"
        }
        Refusal::BadTrailer => BAD_DATA_CHUNK,
        Refusal::NotAllowed if peer.must_log_in() => Error::Unauthenticated.answer(),
        Refusal::NotAllowed => {
            peer.close = true;
            b"SERVER_ERROR bucket is gone\r\n"
        }
    };
    reply(out, command.is_noreply(), answer);
}

/// Notifies watchers of a store whose data block is refused.
fn report_refused(bucket: &Bucket, command: &Command<'_>, refusal: Refusal, cx: &mut NodeContext) {
    let mut buffer = [0; text::KEY_MAX];
    let (key, name, exptime) = match command {
        Command::Store(store) => (store.key, store.verb.name(), store.exptime),
        Command::Meta(command) => {
            let exptime = command.flags.exptime(b'T').unwrap_or(0);
            (command.key.decode(&mut buffer), meta::store_name(command), exptime)
        }
        _ => return,
    };
    let (key, expiry) = (Key::plain(key), Expiry::from_protocol(exptime, cx.now.unix_s));
    let Some(attempt) = Attempt::new(bucket, name, key, 0, expiry) else { return };
    let why = if refusal == Refusal::TooBig { KvError::TooBig } else { KvError::NoMemory };
    attempt.report(bucket, cx, key, Err(why));
}

/// Removes the document that a refused unconditional `set` or `ms` was to replace.
fn drop_replaced(bucket: &Bucket, command: &Command<'_>, cx: &mut NodeContext) {
    let mut buffer = [0; text::KEY_MAX];
    let key = match command {
        Command::Store(store) if store.verb == StoreVerb::Set => store.key,
        Command::Meta(command) if meta::is_unconditional_set(command) => command.key.decode(&mut buffer),
        _ => return,
    };
    let (key, at) = placed(bucket, key, None);
    bucket.drop_replaced(cx, key, at);
}

/// The first `set` on a port that requires a login; anything else is refused.
#[cold]
fn log_in(peer: &mut Peer, command: &Command<'_>, body: &Body<'_>, cx: &mut NodeContext, out: &mut Output) {
    let block = match (command, body) {
        (Command::Login, Body::Inline(block)) => block,
        _ => return out.bytes(Error::Unauthenticated.answer()),
    };
    let Some((name, password)) = text::credentials(block) else {
        return out.bytes(b"CLIENT_ERROR bad authentication token format\r\n");
    };
    let name = std::str::from_utf8(name).unwrap_or_default();
    count_login(peer, Meter::AuthCmds, cx);
    let user = cx.node.users().log_in(name, password, peer.caller(cx.now));
    if user.is_some_and(|user| peer.log_in(user, cx)) {
        out.bytes(b"STORED\r\n");
    } else {
        count_login(peer, Meter::AuthErrors, cx);
        out.bytes(b"CLIENT_ERROR authentication failure\r\n");
    }
}

pub(super) fn count_login(peer: &Peer, meter: Meter, cx: &NodeContext) {
    if let Some(bucket) = &peer.bucket {
        bucket.count(cx, meter, 1);
    }
}

/// A key of the default collection and its place.
#[inline]
pub(super) fn placed<'a>(bucket: &Bucket, key: &'a [u8], at: At) -> (Key<'a>, Place) {
    let key = Key::plain(key);
    (key, at.unwrap_or_else(|| bucket.locate(key)))
}

#[inline]
fn reply(out: &mut Output, noreply: bool, answer: &[u8]) {
    if !noreply {
        out.bytes(answer);
    }
}

/// The answer to an error of the engine; `otherwise` for errors that each command words differently.
pub(super) fn failure(error: KvError, otherwise: &'static [u8]) -> &'static [u8] {
    match error {
        KvError::Locked | KvError::NotLocked => b"SERVER_ERROR document is locked\r\n",
        KvError::TooBig => TOO_LARGE,
        KvError::NoMemory => NO_MEMORY,
        KvError::BucketGone => b"SERVER_ERROR bucket is gone\r\n",
        KvError::NoCollection => b"SERVER_ERROR there is no such collection\r\n",
        KvError::DeltaBadValue => NON_NUMERIC,
        KvError::CasAhead => b"CLIENT_ERROR CAS is too far ahead of the clock\r\n",
        KvError::NotResident => b"SERVER_ERROR the value is not in memory, try again\r\n",
        KvError::ReadFailed => b"SERVER_ERROR the value could not be read from disk\r\n",
        KvError::TakesLong => b"SERVER_ERROR the request takes long, try again\r\n",
        KvError::WarmingUp => b"SERVER_ERROR warming up, try again\r\n",
        KvError::NotActive => b"SERVER_ERROR the vBucket is not active, try again\r\n",
        KvError::Damaged => b"SERVER_ERROR the journal is damaged\r\n",
        KvError::NoSpace => b"SERVER_ERROR out of disk space\r\n",
        KvError::ReCommit => b"SERVER_ERROR a durable write of the key is being committed again\r\n",
        KvError::SyncWriteInProgress => b"SERVER_ERROR a durable write of the key is in progress\r\n",
        KvError::DurabilityImpossible => b"SERVER_ERROR too few nodes for a durable write\r\n",
        KvError::NotFound | KvError::Exists | KvError::NotStored => otherwise,
    }
}

/// `get` and its kin, one key at a time.
#[inline]
fn retrieve(
    bucket: &Bucket,
    get: Get<'_>,
    at: At,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    let bytes = get.single_key();
    if !bytes.is_empty() {
        let (key, at) = placed(bucket, bytes, at);
        match get.exptime {
            None => {
                let hit = bucket.read(cx, key, at, |document| {
                    if let Some(document) = &document {
                        write_value(out, bytes, document, get.with_cas);
                    }
                    document.is_some()
                })?;
                bucket.prefixes.note(bytes, Access::Get { hit });
            }
            Some(exptime) => retrieve_and_touch(bucket, key, at, exptime, get.with_cas, cx, out)?,
        }
    }
    if get.last {
        out.bytes(b"END\r\n");
    }
    Ok(())
}

#[inline]
fn write_value(out: &mut Output, key: &[u8], document: &Document<'_>, with_cas: bool) {
    out.bytes(b"VALUE ");
    out.bytes(key);
    match document.flags() {
        0 => out.bytes(b" 0 "),
        flags => {
            out.bytes(b" ");
            out.decimal(u64::from(flags));
            out.bytes(b" ");
        }
    }
    out.decimal(document.value_len() as u64);
    if with_cas {
        out.bytes(b" ");
        out.decimal(document.visible_cas());
    }
    out.bytes(b"\r\n");
    out.value(document);
    out.bytes(b"\r\n");
}

fn retrieve_and_touch(
    bucket: &Bucket,
    key: Key<'_>,
    at: Place,
    exptime: i32,
    with_cas: bool,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    let expiry = Expiry::from_protocol(exptime, cx.now.unix_s);
    let found = out.with_entry(false, (bucket, key, at), cx, |entry, out| {
        let Some(document) = entry.document() else { return Ok(None) };
        write_value(out, key.bytes, &document, with_cas);
        let size = document.item_size();
        // A locked document is returned but keeps its expiry; so does one whose new expiry finds no memory.
        if !document.is_locked() {
            let _ = entry.set_expiry(expiry);
        }
        entry.record_access();
        Ok(Some(size))
    })??;
    bucket.count_touch_of(cx, found);
    bucket.prefixes.note(key.bytes, Access::Get { hit: found.is_some() });
    Ok(())
}

fn touch(
    bucket: &Bucket,
    key: Key<'_>,
    at: Place,
    exptime: i32,
    cx: &mut NodeContext,
) -> Result<Result<(), KvError>, Unavailable> {
    let expiry = Expiry::from_protocol(exptime, cx.now.unix_s);
    let mut found = None;
    let result = bucket.with_entry(cx, key, at, |entry| {
        let document = entry.document().ok_or(KvError::NotFound)?;
        found = Some(document.item_size());
        if document.is_locked() {
            return Err(KvError::Locked);
        }
        entry.set_expiry(expiry)?;
        entry.record_access();
        Ok(())
    })?;
    bucket.count_touch_of(cx, found);
    Ok(result)
}

/// Applies the increment and updates its meters.
fn count(
    bucket: &Bucket,
    key: Key<'_>,
    at: Place,
    how: Count,
    cx: &mut NodeContext,
) -> Result<Result<u64, KvError>, Unavailable> {
    if let Err(error) = bucket.admit(cx, key.bytes.len() + counter::NUMBER_MAX) {
        return Ok(Err(error));
    }
    let result = bucket.with_entry(cx, key, at, |entry| counter::count(entry, how))?;
    counter::note(bucket, cx, how.decrement, result, false);
    Ok(result.map(|counted| counted.number))
}

#[inline]
fn store(
    bucket: &Bucket,
    store: &text::Store<'_>,
    at: At,
    body: Body<'_>,
    limit: usize,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    let (key, at) = placed(bucket, store.key, at);
    bucket.prefixes.note(key.bytes, Access::Set);
    let value = body.into_value();
    let expiry = Expiry::from_protocol(store.exptime, cx.now.unix_s);
    let (kind, cas) = match store.verb {
        StoreVerb::Set => (StoreKind::Set, 0),
        StoreVerb::Add => (StoreKind::Add, 0),
        StoreVerb::Replace => (StoreKind::Replace, 0),
        StoreVerb::Cas => (StoreKind::Set, if store.cas == 0 { NO_CAS } else { store.cas }),
        StoreVerb::Append | StoreVerb::Prepend => {
            let front = store.verb == StoreVerb::Prepend;
            let result = extend(bucket, key, at, value, (front, expiry), limit, cx)?;
            store_reply(out, store, result);
            return Ok(());
        }
    };
    let new = Store { flags: store.flags, expiry, datatype: 0, value, new_cas: 0 };
    let result = KvError::set_apart(bucket.mutate(cx, key, at, Mutation { kind, cas, store: new }))?;
    if result == Err(KvError::NoMemory) && store.verb == StoreVerb::Set {
        bucket.drop_replaced(cx, key, at);
    }
    store_reply(out, store, result);
    Ok(())
}

#[inline]
fn store_reply(out: &mut Output, store: &text::Store<'_>, result: Result<Mutated, KvError>) {
    let answer: &[u8] = match (result, store.verb) {
        (Ok(_), _) => b"STORED\r\n",
        (Err(KvError::Exists | KvError::Locked), StoreVerb::Cas) => b"EXISTS\r\n",
        (Err(KvError::NotFound), StoreVerb::Cas) => b"NOT_FOUND\r\n",
        (Err(KvError::Locked), StoreVerb::Add) => b"NOT_STORED\r\n",
        (Err(error), _) => failure(error, b"NOT_STORED\r\n"),
    };
    reply(out, store.noreply, answer);
}

/// `append` and `prepend`; memcached's limit applies to the total length.
fn extend(
    bucket: &Bucket,
    key: Key<'_>,
    at: Place,
    value: Value<'_>,
    (front, expiry): (bool, Expiry),
    limit: usize,
    cx: &mut NodeContext,
) -> Result<Result<Mutated, KvError>, Unavailable> {
    let command = if front { "prepend" } else { "append" };
    let mut attempt = Attempt::new(bucket, command, key, value.len(), expiry);
    let result = match bucket.admit(cx, key.bytes.len() + value.len()) {
        Ok(()) => bucket.with_entry(cx, key, at, |entry| {
            let mutated = extend_entry(entry, key, &value, front, limit, 0)?;
            if let Some(attempt) = &mut attempt {
                attempt.note(entry);
            }
            Ok(mutated)
        })?,
        Err(error) => Err(error),
    };
    if result == Err(KvError::TakesLong) {
        return Err(Unavailable::TakesLong);
    }
    bucket.count_store_of(cx, (key, value.len()), false, result.map(drop));
    if let Some(attempt) = attempt {
        attempt.report(bucket, cx, key, result.map(drop));
    }
    Ok(result)
}

/// Extends the present value unless that makes it larger than the port accepts.
pub(super) fn extend_entry(
    entry: &mut Entry<'_>,
    key: Key<'_>,
    value: &Value<'_>,
    front: bool,
    limit: usize,
    new_cas: u64,
) -> Result<Mutated, KvError> {
    let document = entry.document().ok_or(KvError::NotStored)?;
    let (flags, length) = (document.flags(), document.value_len());
    entry.check_changeable()?;
    if item_size(key.bytes.len(), flags, length + value.len()) > limit {
        return Err(KvError::NotStored);
    }
    let mutated = entry.extend(value, front, new_cas)?;
    entry.set_marks(false, false);
    entry.clear_fetched();
    Ok(mutated)
}

/// `cache_memlimit`: needs no login, so it changes the budget only within the configured memory.
fn limit_memory(bucket: &Bucket, mebibytes: u64, noreply: bool, out: &mut Output) {
    if mebibytes < MEMLIMIT_LEAST_MIB {
        return reply(out, noreply, b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n");
    }
    if mebibytes > MEMLIMIT_MOST_MIB {
        return reply(out, noreply, b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n");
    }
    match bucket.lower_budget(mebibytes << 20) {
        Ok(()) => reply(out, noreply, b"OK\r\n"),
        Err(_) if noreply => {}
        Err(configured) => {
            out.bytes(b"MEMLIMIT_ADJUST_FAILED the bucket is configured with ");
            out.decimal(configured >> 20);
            out.bytes(b"m\r\n");
        }
    }
}

#[cfg(test)]
mod tests;
