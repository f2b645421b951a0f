//! memcached-style statistics: lists of names and values, for the text command `stats` and the binary opcode STAT.
//!
//! [`gather`] makes the lists and knows nothing of a protocol. Figures come from the table in [`kv::statistics`]; what
//! is no number of the engine is written here.

mod consumers;
mod persistence;
mod tools;
mod vbuckets;

use std::fmt::{Arguments, Write as _};
use std::io::Write as _;

use kv::class_counters::ClassCounter;
use kv::clients::Address;
use kv::node::Service;
use kv::prefixes;
use kv::sizes::{CLASSES, class_of, limit_of};
use kv::statistics::{self, Group, NodeFigures, Statistic};
use kv::{Bucket, Eviction, NodeContext};
use memory::backend::{self, report};

use crate::{Output, Peer, Port, Spoken};

/// What a request for statistics is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The list that was emitted.
    List,
    /// The counters are back at zero.
    Reset,
    /// There are no such statistics.
    Unknown,
    /// A subcommand memcached knows and Dormouse does not serve; the text says why.
    Refused(&'static str),
}

/// Up to so many items `stats items` and `stats slabs` count all.
const COUNTED_MAX: u64 = 16 << 10;
/// Groups of the index, of some 30 items each, that they look at beyond that: at least one of each vBucket.
const SAMPLED_GROUPS: usize = 512;
const PAGE_BYTES: u64 = 1 << 20;
/// Steps of `stats sizes` in bytes, as memcached counts them.
const SIZE_STEP: usize = 32;

/// Answers `stats` of the text protocol.
pub fn text(bucket: &Bucket, peer: &Peer, arguments: &[u8], cx: &mut NodeContext, out: &mut Output) {
    let mut words = arguments.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    match words.next() {
        Some(b"detail") => return detail(bucket, words.next().unwrap_or_default(), out),
        // There is no such store and no proxy, which memcached answers with an empty list.
        Some(b"extstore" | b"proxy") => return out.bytes(b"END\r\n"),
        _ => {}
    }
    let mut line = String::new();
    let answer = gather(bucket, peer, arguments.trim_ascii(), cx, &mut |name, value| {
        line.clear();
        let _ = write!(line, "STAT {name} {value}");
        // Names of nodes come from peers: a line break in one must not look like another answer.
        if line.contains(char::is_control) {
            line = line.replace(char::is_control, "?");
        }
        out.bytes(line.as_bytes());
        out.bytes(b"\r\n");
    });
    match answer {
        Answer::List => out.bytes(b"END\r\n"),
        Answer::Reset => out.bytes(b"RESET\r\n"),
        Answer::Unknown => out.bytes(b"ERROR\r\n"),
        Answer::Refused(why) => {
            out.bytes(b"CLIENT_ERROR ");
            out.bytes(why.as_bytes());
            out.bytes(b"\r\n");
        }
    }
}

/// `stats detail on|off|dump`
fn detail(bucket: &Bucket, what: &[u8], out: &mut Output) {
    match what {
        b"on" | b"off" => {
            bucket.prefixes.switch(what == b"on");
            out.bytes(b"OK\r\n");
        }
        b"dump" => out.bytes(&prefix_lines(bucket)),
        _ => out.bytes(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
    }
}

/// `PREFIX <prefix> get <n> hit <n> set <n> del <n>` of each prefix, and `END`.
pub(crate) fn prefix_lines(bucket: &Bucket) -> Vec<u8> {
    let mut lines = Vec::new();
    bucket.prefixes.each(&mut |prefix, counts| {
        lines.extend_from_slice(b"PREFIX ");
        lines.extend_from_slice(prefix);
        let prefixes::Counts { gets, hits, sets, deletes } = counts;
        // Writing to memory cannot fail.
        let _ = write!(lines, " get {gets} hit {hits} set {sets} del {deletes}\r\n");
    });
    lines.extend_from_slice(b"END\r\n");
    lines
}

/// Hands the statistics that `arguments` name to `emit`: nothing for the general ones, else a word like `items`.
pub fn gather(
    bucket: &Bucket,
    peer: &Peer,
    arguments: &[u8],
    cx: &mut NodeContext,
    emit: &mut dyn FnMut(&str, Arguments<'_>),
) -> Answer {
    let subject = arguments.split(|byte| *byte == b' ').next().unwrap_or_default();
    match subject {
        b"" if arguments.is_empty() => {
            general(bucket, cx, emit);
            if peer.port == Port::Couchbase {
                tools::general(bucket, emit);
            }
        }
        b"reset" => {
            bucket.reset_meters();
            return Answer::Reset;
        }
        b"settings" => settings(bucket, peer, cx, emit),
        b"items" => items(bucket, &Classes::of(bucket, cx), emit),
        b"slabs" => slabs(bucket, &Classes::of(bucket, cx), emit),
        b"sizes" => sizes(bucket, cx, emit),
        b"memory" => show(Group::Memory, statistics::MEMORY, &bucket.memory(), emit),
        b"defragmenter" => defragmenter(bucket, emit),
        b"compression" => compression(bucket, emit),
        b"allocator" => allocator(bucket, emit),
        b"durability-monitor" => bucket.sync_write_statistics(emit),
        b"collections" => collections(bucket, peer, emit),
        b"scopes" => scopes(bucket, peer, emit),
        b"persistence" if persistence::persistence(bucket, cx, emit) => {}
        b"warmup" => persistence::warm_up(bucket, emit),
        b"detail" => return Answer::Refused("stats detail not allowed"),
        // Over the binary protocol: a list that may be long is for the text protocol.
        b"cachedump" => return Answer::Refused("stats cachedump not allowed"),
        _ if vbuckets::gather(bucket, arguments, cx, emit) => {}
        _ if peer.port == Port::Couchbase && tools::gather(bucket, (subject, arguments), cx, emit) => {}
        _ => return Answer::Unknown,
    }
    Answer::List
}

fn general(bucket: &Bucket, cx: &mut NodeContext, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let settings = cx.node.settings();
    emit("pid", format_args!("{}", std::process::id()));
    emit("uptime", format_args!("{}", cx.now.mono_ms() / 1000));
    emit("time", format_args!("{}", cx.now.unix_s));
    emit("version", format_args!("{}", settings.version));
    emit("pointer_size", format_args!("{}", usize::BITS));
    if let Some((user_us, system_us)) = cx.process_times_us.and_then(|times_us| times_us()) {
        for (name, us) in [("rusage_user", user_us), ("rusage_system", system_us)] {
            emit(name, format_args!("{}.{:06}", us / 1_000_000, us % 1_000_000));
        }
    }
    emit("max_connections", format_args!("{}", cx.node.limits().connections));
    emit("threads", format_args!("{}", settings.threads));
    show(Group::General, statistics::NODE, &NodeFigures::of(&cx.node), emit);
    show_meters(Group::General, bucket, emit);
    show(Group::General, statistics::MEMORY, &bucket.accounts(), emit);
    let watching = bucket.watch_figures();
    // Lines go to the watchers at once: there is no queue before them that could be full.
    emit("log_worker_dropped", format_args!("0"));
    emit("log_worker_written", format_args!("{}", watching.events));
    emit("log_watcher_skipped", format_args!("{}", watching.skipped));
    emit("log_watcher_sent", format_args!("{}", watching.sent));
    emit("log_watchers", format_args!("{}", watching.watchers));
    if let Some(figures) = bucket.persistence_figures(cx) {
        show(Group::General, statistics::PERSISTENCE, &figures, emit);
    }
}

/// The figures of one list.
fn show<S>(group: Group, table: &[Statistic<S>], source: &S, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    for statistic in table {
        for name in statistic.names(group) {
            emit(name, format_args!("{}", (statistic.value)(source)));
        }
    }
}

/// The event counters of one list.
fn show_meters(group: Group, bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    for (meter, statistic) in statistics::meters() {
        for name in statistic.names(group) {
            emit(name, format_args!("{}", bucket.meter(meter)));
        }
    }
}

fn settings(bucket: &Bucket, peer: &Peer, cx: &NodeContext, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let limits = cx.node.limits();
    let on = bucket.settings().eviction == Eviction::AutoDelete;
    let idle_limit_ms = peer.listener().map_or(0, |listener| listener.idle_limit_ms);
    let is_text = peer.port == Port::Memcached && peer.rules.spoken != Spoken::Binary;
    let logs_in_by_text = peer.login_required && is_text;
    emit("maxbytes", format_args!("{}", bucket.accounts().budget));
    emit("maxconns", format_args!("{}", limits.connections));
    place(peer, cx, emit);
    emit("udpport", format_args!("0"));
    emit("verbosity", format_args!("0"));
    emit("evictions", format_args!("{}", if on { "on" } else { "off" }));
    emit("shutdown_command", format_args!("{}", yes(cx.node.settings().shutdown_command)));
    emit("num_threads", format_args!("{}", cx.node.settings().threads));
    emit("stat_key_prefix", format_args!("{}", char::from(prefixes::DELIMITER)));
    emit("detail_enabled", format_args!("{}", yes(bucket.prefixes.is_on())));
    emit("reqs_per_event", format_args!("{}", limits.turn_requests));
    emit("cas_enabled", format_args!("yes"));
    emit("binding_protocol", format_args!("{}", spoken_name(peer.rules.spoken)));
    emit(
        "auth_enabled_sasl",
        format_args!("{}", yes(peer.login_required && peer.rules.spoken != Spoken::Text)),
    );
    emit("auth_enabled_ascii", format_args!("{}", yes(logs_in_by_text)));
    emit("item_size_max", format_args!("{}", peer.value_limit));
    emit("maxconns_fast", format_args!("yes"));
    emit("flush_enabled", format_args!("{}", yes(peer.rules.flush_all)));
    emit("dump_enabled", format_args!("yes"));
    emit("idle_timeout", format_args!("{}", idle_limit_ms.div_ceil(1000)));
    emit("ssl_enabled", format_args!("{}", yes(peer.listener().is_some_and(|listener| listener.tls))));
    emit("hash_algorithm", format_args!("rapidhash"));
    emit("bucket", format_args!("{}", bucket.name()));
    emit("vbuckets", format_args!("{}", bucket.vbuckets()));
    emit("item_heap", format_args!("{}", bucket.settings().item_heap.name()));
    emit("line_bytes_max", format_args!("{}", limits.line_bytes));
}

/// Where the port listens; for a connection to another kind of port, where the first memcached port does.
fn place(peer: &Peer, cx: &NodeContext, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let endpoints = cx.node.endpoints();
    let own = peer.listener().filter(|_| peer.port == Port::Memcached);
    let (tcp, unix) = match own.map(|listener| &listener.address) {
        Some(Address::Tcp(address)) => (Some(*address), None),
        Some(Address::Unix(path)) => (None, Some(path)),
        None => {
            let mut unix = endpoints.unix.iter();
            let unix = unix.find(|endpoint| endpoint.service == Service::Memcached);
            let tcp = endpoints.memcached.first().map(|(address, _)| *address);
            (tcp, unix.map(|endpoint| &endpoint.path))
        }
    };
    if let Some(address) = tcp {
        emit("tcpport", format_args!("{}", address.port()));
        emit("inter", format_args!("{}", address.ip()));
    }
    match unix {
        Some(path) => emit("domain_socket", format_args!("{}", path.display())),
        None => emit("domain_socket", format_args!("NULL")),
    }
}

const fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "no" }
}

/// By memcached's name.
const fn spoken_name(spoken: Spoken) -> &'static str {
    match spoken {
        Spoken::Any => "auto-negotiate",
        Spoken::Text => "ascii",
        Spoken::Binary => "binary",
    }
}

/// Items by size class. Counted while there are few; else a sample of each vBucket, scaled to the number of items.
struct Classes([Class; CLASSES]);

#[derive(Clone, Copy, Default)]
struct Class {
    items: u64,
    bytes: u64,
    idle_s: u32,
}

impl Classes {
    fn of(bucket: &Bucket, cx: &mut NodeContext) -> Self {
        let mut classes = [Class::default(); CLASSES];
        let (items, mut met) = (bucket.accounts().items, 0u64);
        let groups = if items <= COUNTED_MAX {
            usize::MAX
        } else {
            SAMPLED_GROUPS.div_ceil(usize::from(bucket.vbuckets()))
        };
        bucket.sample(cx, groups, &mut |size, idle_s| {
            met += 1;
            if let Some(class) = classes.get_mut(class_of(size) as usize) {
                class.items += 1;
                class.bytes += size as u64;
                class.idle_s = class.idle_s.max(idle_s);
            }
        });
        if groups != usize::MAX && met > 0 {
            let scale = |count: u64| (u128::from(count) * u128::from(items) / u128::from(met)) as u64;
            for class in &mut classes {
                (class.items, class.bytes) = (scale(class.items), scale(class.bytes));
            }
        }
        Self(classes)
    }

    fn present(&self) -> impl Iterator<Item = (usize, &Class)> {
        self.0.iter().enumerate().filter(|(_, class)| class.items > 0)
    }
}

/// The names are memcached's. There are no LRU lists: all items count as cold, as all may be evicted.
fn items(bucket: &Bucket, classes: &Classes, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let counters = bucket.class_counters();
    for (number, class) in classes.present() {
        let counted = |counter| counters.sum(number, counter);
        for (name, value) in [
            ("number", class.items),
            ("number_hot", 0),
            ("number_warm", 0),
            ("number_cold", class.items),
            ("age_hot", 0),
            ("age_warm", 0),
            ("age", u64::from(class.idle_s)),
            ("mem_requested", class.bytes),
            ("evicted", counted(ClassCounter::Evicted)),
            ("evicted_nonzero", counted(ClassCounter::EvictedNonzero)),
            ("evicted_time", u64::from(counters.evicted_idle_s(number))),
            ("outofmemory", counted(ClassCounter::OutOfMemory)),
            ("tailrepairs", 0),
            ("reclaimed", counted(ClassCounter::Reclaimed)),
            ("expired_unfetched", counted(ClassCounter::ExpiredUnfetched)),
            ("evicted_unfetched", counted(ClassCounter::EvictedUnfetched)),
            ("evicted_active", 0),
            ("crawler_reclaimed", 0),
            ("crawler_items_checked", 0),
            ("lrutail_reflocked", 0),
            ("moves_to_cold", 0),
            ("moves_to_warm", 0),
            ("moves_within_lru", 0),
            ("direct_reclaims", counted(ClassCounter::DirectReclaims)),
            ("hits_to_hot", 0),
            ("hits_to_warm", 0),
            ("hits_to_cold", counted(ClassCounter::GetHits)),
            ("hits_to_temp", 0),
        ] {
            emit(&format!("items:{number}:{name}"), format_args!("{value}"));
        }
    }
}

/// Nothing is allocated in pages of a class: `total_pages` is how many MiB its items take, rounded up.
fn slabs(bucket: &Bucket, classes: &Classes, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let counters = bucket.class_counters();
    let mut active = 0;
    // A class whose items are gone keeps its counters.
    let is_shown = |(number, class): &(usize, &Class)| class.items > 0 || counters.is_known(*number);
    for (number, class) in classes.0.iter().enumerate().filter(is_shown) {
        active += 1;
        let limit = limit_of(number as u32);
        let counted = |counter| counters.sum(number, counter);
        for (name, value) in [
            ("chunk_size", limit as u64),
            ("chunks_per_page", (PAGE_BYTES / limit as u64).max(1)),
            ("total_pages", class.bytes.div_ceil(PAGE_BYTES)),
            ("total_chunks", class.items),
            ("used_chunks", class.items),
            ("free_chunks", 0),
            ("free_chunks_end", 0),
            ("get_hits", counted(ClassCounter::GetHits)),
            ("cmd_set", counted(ClassCounter::CmdSet)),
            ("delete_hits", counted(ClassCounter::DeleteHits)),
            ("incr_hits", counted(ClassCounter::IncrHits)),
            ("decr_hits", counted(ClassCounter::DecrHits)),
            ("cas_hits", counted(ClassCounter::CasHits)),
            ("cas_badval", counted(ClassCounter::CasBadval)),
            ("touch_hits", counted(ClassCounter::TouchHits)),
        ] {
            emit(&format!("{number}:{name}"), format_args!("{value}"));
        }
    }
    emit("active_slabs", format_args!("{active}"));
    emit("total_malloced", format_args!("{}", bucket.accounts().allocated));
}

fn sizes(bucket: &Bucket, cx: &mut NodeContext, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let mut counts = std::collections::BTreeMap::new();
    bucket
        .item_sizes(cx, &mut |size| *counts.entry(size.div_ceil(SIZE_STEP) * SIZE_STEP).or_insert(0u64) += 1);
    for (size, count) in counts {
        emit(&size.to_string(), format_args!("{count}"));
    }
}

/// What the defragmenter is at, and what there is for it to gain.
fn defragmenter(bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let memory = bucket.memory();
    let figures = bucket.defragmenter();
    let state = match (figures.is_on, figures.is_armed) {
        (false, _) => "off",
        (true, false) => "disarmed",
        (true, true) => "armed",
    };
    let used = memory.payload + memory.metadata + memory.index;
    let wasted = memory.resident.saturating_sub(used + memory.in_flight);
    emit("state", format_args!("{state}"));
    emit(
        "fragmentation_percent",
        format_args!("{:.1}", wasted as f64 * 100.0 / memory.resident.max(1) as f64),
    );
    emit("resident", format_args!("{}", memory.resident));
    emit("used", format_args!("{used}"));
    emit("recoverable", format_args!("{}", figures.recoverable_bytes));
    show_meters(Group::Defragmenter, bucket, emit);
}

/// How many values are compressed, and what that saves.
fn compression(bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    emit("mode", format_args!("{}", bucket.compression().name()));
    show(Group::Compression, statistics::MEMORY, &bucket.accounts(), emit);
    emit("compressor", format_args!("{}", if bucket.is_compressing() { "armed" } else { "disarmed" }));
    show_meters(Group::Compression, bucket, emit);
}

/// Who allocates, its settings in force, and where the memory of the process and of the bucket's arena is. Walks all
/// arenas, and the kernel all pages of the process.
fn allocator(bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    emit("allocator", format_args!("{}", backend::version()));
    for (setting, value) in report::settings() {
        emit(setting.name(), format_args!("{value}"));
    }
    emit("system_thp", format_args!("{}", report::system_thp()));
    for figure in report::figures() {
        emit(figure.name, format_args!("{}", figure.value));
    }
    for (name, bytes) in bucket.arena_figures() {
        emit(&format!("bucket_{name}"), format_args!("{bytes}"));
    }
}

/// `stats collections`: each by the ids of its scope and its own.
fn collections(bucket: &Bucket, peer: &Peer, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let manifest = bucket.collections().manifest();
    emit("manifest_uid", format_args!("{:#x}", manifest.uid));
    for (scope, collection) in manifest.collections().filter(|(_, one)| peer.sees_statistics(one.id)) {
        let mut line = |name: &str, value: Arguments<'_>| {
            emit(&format!("{:#x}:{:#x}:{name}", scope.id, collection.id), value);
        };
        line("name", format_args!("{}", collection.name));
        line("scope_name", format_args!("{}", scope.name));
        line("items", format_args!("{}", bucket.collection_items(collection.id)));
        line("maxTTL", format_args!("{}", collection.max_ttl_s));
        line("history", format_args!("{}", collection.history));
    }
}

/// `stats scopes`: those whose collections the client may all see.
fn scopes(bucket: &Bucket, peer: &Peer, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let manifest = bucket.collections().manifest();
    emit("manifest_uid", format_args!("{:#x}", manifest.uid));
    for scope in &manifest.scopes {
        let is_seen = scope.collections.iter().all(|one| peer.sees_statistics(one.id));
        if !is_seen || scope.collections.is_empty() && !peer.sees_all_statistics() {
            continue;
        }
        let items: u64 = scope.collections.iter().map(|one| bucket.collection_items(one.id)).sum();
        emit(&format!("{:#x}:name", scope.id), format_args!("{}", scope.name));
        emit(&format!("{:#x}:collections", scope.id), format_args!("{}", scope.collections.len()));
        emit(&format!("{:#x}:items", scope.id), format_args!("{items}"));
    }
}
