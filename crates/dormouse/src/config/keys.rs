//! The table of configuration keys: every key, its kind, default, meaning, and whether SIGHUP applies it.
//!
//! Nothing else lists keys, except that the rows of bucket settings come from [`kv::BUCKET_SETTINGS`]. The file reader,
//! `config default`, `config reference` and `docs/configuration.md` are all derived from this table; a test compares
//! the names of flags.

use super::key::{Key, Kind, Raw, Section};
use super::{
    AllocatorSection, AuthSection, BucketSection, EvictionChoice, HttpSection, KvSection, LimitsSection,
    LogSection, MemcachedSection, NodeSection, OvsdbSection, ReplicationSection, TlsSection,
};
use super::{Format, Level, size};
use kv::{
    BUCKET_SETTINGS, BucketKind, BucketSetting, BucketSettings, SettingKind, SettingValue, TimeoutMode,
};
use memory::backend::settings::{Setting, Thp};
use sessions::Spoken;
use std::sync::LazyLock;
use transport::{ClientCertificates, OldestVersion};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Smallest budget of a bucket.
pub const BUCKET_MEMORY_MIN: u64 = 8 * MIB;

fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub static NODE: Section<NodeSection> = Section {
    name: "node",
    repeated: false,
    about: "The process as a whole.",
    keys: &[
        Key {
            name: "workers",
            kind: Kind::Count { min: 0, max: 64, unit: "threads", set: |s, v| s.workers = to_usize(v) },
            default: Raw::Integer(0),
            about: "Threads that serve the data ports. 0: one per core, at most 8.",
            reload: false,
        },
        Key {
            name: "memory",
            kind: Kind::SizeOrAuto { min: BUCKET_MEMORY_MIN, max: 64 * TIB, set: |s, v| s.memory_bytes = v },
            default: Raw::Text("auto"),
            about: "Resident memory that all buckets may use together. \"auto\": 60 % of the machine's (or the \
                control group's) memory. More than that memory is taken with a warning.",
            reload: false,
        },
        Key {
            name: "data",
            kind: Kind::Path { set: |s, v| s.data = v },
            default: Raw::Text(""),
            about: "Directory for what the node writes: endpoints.json, and the persistent buckets in \
            buckets/. It is created if missing. \"\": nothing is written, which is enough for ephemeral \
            buckets.",
            reload: false,
        },
        Key {
            name: "shutdown_command",
            kind: Kind::Flag { set: |s, v| s.shutdown_command = v },
            default: Raw::Flag(false),
            about: "Whether memcached's text command \"shutdown\" stops the node.",
            reload: false,
        },
        Key {
            name: "durability_timeout_mode",
            kind: Kind::Choice {
                allowed: &["event-driven", "polling"],
                set: |s, word| s.durability_timeout_mode = TimeoutMode::from_name(word).unwrap_or_default(),
            },
            default: Raw::Text("event-driven"),
            about: "When pending durable writes are checked for timeouts. \"event-driven\": when one is \
            due, which costs nothing while none is pending. \"polling\": every vBucket every 25 ms, by a \
            thread of its own.",
            reload: true,
        },
        Key {
            name: "record_requests",
            kind: Kind::Choice {
                allowed: &["watched", "always"],
                set: |s, word| s.record_requests = word == "always",
            },
            default: Raw::Text("watched"),
            about: "When latencies, slow and large requests are recorded. \"watched\": while the page, GET /events, \
            /figures or /requests is asked for them. \"always\": so that what was slow at night can be read in the \
            morning, at the price of a clock reading per request.",
            reload: true,
        },
        Key {
            name: "slow_request_ms",
            kind: Kind::Count {
                min: 0,
                max: 60_000,
                unit: "milliseconds",
                set: |s, v| s.slow_request_us = v * 1000,
            },
            default: Raw::Integer(10),
            about: "A recorded request that takes at least this long is listed in GET /requests/slow.",
            reload: true,
        },
        Key {
            name: "large_request_bytes",
            kind: Kind::Size { min: 1, max: 20 * MIB, set: |s, v| s.large_request_bytes = to_usize(v) },
            default: Raw::Text("1MiB"),
            about: "A recorded request is listed in GET /requests/large if it, or its answer, is at least this large.",
            reload: true,
        },
    ],
};

/// What a port may ask of clients with TLS: what `[tls]` says, or one of that key's values.
const OF_PORT: &[&str] = &["tls", "none", "optional", "required"];

/// `None`: what `[tls]` says.
fn certificates_of_port(word: &str) -> Option<ClientCertificates> {
    match word {
        "none" => Some(ClientCertificates::None),
        "optional" => Some(ClientCertificates::Optional),
        "required" => Some(ClientCertificates::Required),
        _ => None,
    }
}

pub static MEMCACHED: Section<MemcachedSection> = Section {
    name: "memcached",
    repeated: true,
    about: "A port for memcached clients: text, meta and binary protocol, told apart by the first byte. Each entry \
        serves one bucket. With no entry at all, one with these defaults exists; address = \"none\" serves none.",
    keys: &[
        Key {
            name: "address",
            kind: Kind::Address { set: |s, v| s.address = v },
            default: Raw::Text("127.0.0.1:11211"),
            about: "Where to listen. \"localhost:PORT\": 127.0.0.1 and, if the machine has it, ::1. \
            \":PORT\": all addresses of the machine, or those of localhost while the development user \
            exists. \"unix:PATH\": a socket in the file system; its peers count as local, a stale one is \
            replaced, and it is removed at exit.",
            reload: false,
        },
        Key {
            name: "bucket",
            kind: Kind::BucketName { set: |s, v| s.bucket = v },
            default: Raw::Text("default"),
            about: "The bucket this port serves: one of the configuration, or one in the data directory. \
            Default, if the configuration names a single bucket: that one.",
            reload: false,
        },
        Key {
            name: "item_size_max",
            kind: Kind::Size { min: KIB, max: 20 * MIB, set: |s, v| s.item_size_max = to_usize(v) },
            default: Raw::Text("1MiB"),
            about: "Largest item, as memcached's -I: larger values are refused.",
            reload: false,
        },
        Key {
            name: "protocol",
            kind: Kind::Choice {
                allowed: Spoken::NAMES,
                set: |s, word| s.rules.spoken = Spoken::of_name(word).unwrap_or_default(),
            },
            default: Raw::Text("auto"),
            about: "Which protocols the port speaks, as memcached's -B: \"text\" (meta included), \
            \"binary\", or \"auto\": all, chosen by the first byte of a connection.",
            reload: false,
        },
        Key {
            name: "flush_all",
            kind: Kind::Flag { set: |s, v| s.rules.flush_all = v },
            default: Raw::Flag(true),
            about: "Whether flush_all is executed. false refuses it, as memcached's -F.",
            reload: false,
        },
        Key {
            name: "idle_timeout_s",
            kind: Kind::Count {
                min: 0,
                max: 86_400 * 365,
                unit: "seconds",
                set: |s, v| s.idle_timeout_ms = v * 1000,
            },
            default: Raw::Integer(0),
            about: "A connection is closed after this time without a request, as memcached's -o \
            idle_timeout. 0: never.",
            reload: false,
        },
        Key {
            name: "tls",
            kind: Kind::Flag { set: |s, v| s.tls = v },
            default: Raw::Flag(false),
            about: "Whether the port speaks TLS, with the certificate of [tls], as memcached's -Z.",
            reload: false,
        },
        Key {
            name: "client_certificates",
            kind: Kind::Choice {
                allowed: OF_PORT,
                set: |s, word| s.client_certificates = certificates_of_port(word),
            },
            default: Raw::Text("tls"),
            about: "Whether clients of this port, with tls = true, must present a certificate: \"tls\", as \
            tls.client_certificates says, or one of its values for this port alone.",
            reload: false,
        },
    ],
};

pub static KV: Section<KvSection> = Section {
    name: "kv",
    repeated: false,
    about: "The port for Couchbase SDKs: couchbase:// connection strings.",
    keys: &[
        Key {
            name: "address",
            kind: Kind::Address { set: |s, v| s.address = v },
            default: Raw::Text("127.0.0.1:11210"),
            about: "Where to listen: as memcached.address. SDKs connect over TCP only.",
            reload: false,
        },
        Key {
            name: "item_size_max",
            kind: Kind::Size { min: KIB, max: 20 * MIB, set: |s, v| s.item_size_max = to_usize(v) },
            default: Raw::Text("20MiB"),
            about: "Largest value: larger ones are refused with E2BIG.",
            reload: true,
        },
        Key {
            name: "idle_timeout_s",
            kind: Kind::Count {
                min: 0,
                max: 86_400 * 365,
                unit: "seconds",
                set: |s, v| s.idle_timeout_ms = v * 1000,
            },
            default: Raw::Integer(0),
            about: "A connection is closed after this time without a request. 0: never. (SDKs keep \
            connections open and send NOOP or nothing.)",
            reload: false,
        },
        Key {
            name: "tls_address",
            kind: Kind::Address { set: |s, v| s.tls_address = v },
            default: Raw::Text("127.0.0.1:11207"),
            about: "Where couchbases:// clients connect. Served if tls.certificate is given.",
            reload: false,
        },
        Key {
            name: "client_certificates",
            kind: Kind::Choice {
                allowed: OF_PORT,
                set: |s, word| s.client_certificates = certificates_of_port(word),
            },
            default: Raw::Text("tls"),
            about: "Whether clients at kv.tls_address must present a certificate: \"tls\", as \
            tls.client_certificates says, or one of its values for this port alone.",
            reload: false,
        },
    ],
};

pub static HTTP: Section<HttpSection> = Section {
    name: "http",
    repeated: false,
    about: "The port for HTTP: what SDKs ask, bucket administration, /health and /metrics.",
    keys: &[
        Key {
            name: "address",
            kind: Kind::Address { set: |s, v| s.address = v },
            default: Raw::Text("127.0.0.1:8091"),
            about: "Where to listen: as memcached.address.",
            reload: false,
        },
        Key {
            name: "host_names",
            kind: Kind::HostNames { set: |s, v| s.host_names = v },
            default: Raw::Text(""),
            about: "Names by which clients reach this node, separated by blanks, as in http://NAME:8091. \
            IP addresses and localhost are always allowed. Any other name is refused, so that a web page \
            cannot make a name of its own point to the node. \"*\" allows all names and loses that \
            protection.",
            reload: false,
        },
        Key {
            name: "tls_address",
            kind: Kind::Address { set: |s, v| s.tls_address = v },
            default: Raw::Text("127.0.0.1:18091"),
            about: "Where HTTPS is served, if tls.certificate is given.",
            reload: false,
        },
        Key {
            name: "client_certificates",
            kind: Kind::Choice {
                allowed: OF_PORT,
                set: |s, word| s.client_certificates = certificates_of_port(word),
            },
            default: Raw::Text("tls"),
            about: "Whether clients at http.tls_address must present a certificate: \"tls\", as \
            tls.client_certificates says, or one of its values for this port alone.",
            reload: false,
        },
    ],
};

pub static BUCKET: LazyLock<Section<BucketSection>> = LazyLock::new(|| Section {
    name: "bucket",
    repeated: true,
    about: "A bucket that exists from the start. Buckets in the data directory need no entry. With no \
    entry at all, there is a bucket \"default\": the one in the data directory, or else an ephemeral one.",
    keys: own_bucket_keys()
        .into_iter()
        .chain(BUCKET_SETTINGS.iter().map(bucket_key))
        .collect::<Vec<_>>()
        .leak(),
});

/// A bucket's setting as a key of its section.
fn bucket_key(setting: &'static BucketSetting) -> Key<BucketSection> {
    let default = setting.get(&BucketSettings::default());
    let default = match (default, &setting.kind) {
        (SettingValue::Number(bytes), SettingKind::Bytes { .. }) => Raw::Text(size::show(bytes).leak()),
        (SettingValue::Number(number), _) => Raw::Integer(number.cast_signed()),
        (SettingValue::Flag(is_on), SettingKind::Switch { .. }) => {
            Raw::Text(if is_on { "on" } else { "off" })
        }
        (SettingValue::Flag(flag), _) => Raw::Flag(flag),
        (SettingValue::Word(word), _) => Raw::Text(word),
    };
    let kind = Kind::Setting { setting, settings: |section: &mut BucketSection| &mut section.settings };
    Key { name: setting.key, kind, default, about: setting.about, reload: setting.live.is_some() }
}

/// The bucket keys that depend on other keys or on the node.
fn own_bucket_keys() -> [Key<BucketSection>; 4] {
    [
        Key {
            name: "name",
            kind: Kind::BucketName { set: |s, v| s.name = v },
            default: Raw::Text("default"),
            about: "Its name, unique.",
            reload: false,
        },
        Key {
            name: "kind",
            kind: Kind::Choice {
                allowed: &["ephemeral", "persistent"],
                set: |s, word| {
                    s.settings.kind =
                        if word == "ephemeral" { BucketKind::Ephemeral } else { BucketKind::Persistent };
                },
            },
            default: Raw::Text("ephemeral"),
            about: "\"ephemeral\": in memory only. \"persistent\": also in a journal below node.data, which must be \
                given.",
            reload: false,
        },
        Key {
            name: "memory",
            kind: Kind::SizeOrAuto { min: BUCKET_MEMORY_MIN, max: 64 * TIB, set: |s, v| s.memory_bytes = v },
            default: Raw::Text("auto"),
            about: "Its budget of resident memory. \"auto\": an equal share of what the sized buckets leave of \
                node.memory, adjusted as buckets come and go.",
            reload: false,
        },
        Key {
            name: "eviction",
            kind: Kind::Choice {
                allowed: &["auto", "auto_delete", "fail_new_data", "value_ejection"],
                set: |s, word| {
                    s.eviction = match word {
                        "auto_delete" => EvictionChoice::AutoDelete,
                        "fail_new_data" => EvictionChoice::FailNewData,
                        "value_ejection" => EvictionChoice::ValueEjection,
                        _ => EvictionChoice::Auto,
                    };
                },
            },
            default: Raw::Text("auto"),
            about: "What happens when the budget is used up. \"auto_delete\": old and rarely used \
            documents are evicted. \"fail_new_data\": new data is refused. \"value_ejection\", for \
            persistent buckets only and their only choice: values that are on disk leave memory, their \
            keys stay. \"auto\": auto_delete, or value_ejection for a persistent bucket.",
            reload: false,
        },
    ]
}

pub static OVSDB: Section<OvsdbSection> = Section {
    name: "ovsdb",
    repeated: true,
    about: "An OVSDB database beside the buckets, in a file that the stock tools read and write. The \
    protocol has no login: a client that reaches a remote may do everything.",
    keys: &[
        Key {
            name: "file",
            kind: Kind::Path { set: |s, v| s.file = v },
            default: Raw::Text(""),
            about: "The database's file, which must exist (ovsdb-tool create makes one). \"\": the entry \
            is ignored.",
            reload: false,
        },
        Key {
            name: "remotes",
            kind: Kind::Remotes { set: |s, v| s.remotes = v },
            default: Raw::Text(""),
            about: "Where clients reach the databases of this node. Each remote serves all of them.",
            reload: false,
        },
        Key {
            name: "memory",
            kind: Kind::Size { min: BUCKET_MEMORY_MIN, max: 64 * TIB, set: |s, v| s.memory_bytes = v },
            default: Raw::Text("256MiB"),
            about: "Its budget, part of node.memory: transactions that would exceed it fail with \
            \"resources exhausted\".",
            reload: false,
        },
    ],
};

pub static LIMITS: Section<LimitsSection> = Section {
    name: "limits",
    repeated: false,
    about: "Bounds on what clients may do, each enforced before memory is allocated. (The protocols limit \
    keys to 250 bytes; that is not a setting.)",
    keys: &[
        Key {
            name: "connections",
            kind: Kind::Count {
                min: 1,
                max: 1_000_000,
                unit: "connections",
                set: |s, v| s.connections = to_usize(v),
            },
            default: Raw::Integer(20_000),
            about: "Maximum number of client connections on the data ports. The limit on open files is \
            raised to fit, as far as the system allows.",
            reload: true,
        },
        Key {
            name: "loopback_connections",
            kind: Kind::Count {
                min: 0,
                max: 1_000_000,
                unit: "connections",
                set: |s, v| s.loopback_connections = to_usize(v),
            },
            default: Raw::Integer(16),
            about: "Number of these connections (at most half) reserved for loopback addresses, so that an \
            operator on the machine is served when others hold all the rest.",
            reload: true,
        },
        Key {
            name: "unfinished_request_s",
            kind: Kind::Count {
                min: 1,
                max: 86_400,
                unit: "seconds",
                set: |s, v| s.unfinished_request_ms = v * 1000,
            },
            default: Raw::Integer(60),
            about: "A client that leaves a request unfinished is disconnected after this time, which \
            restarts with every 16 KiB received. At most 10 seconds before a required login, for which a client has \
            this time as well, at most 30 seconds.",
            reload: true,
        },
        Key {
            name: "line",
            kind: Kind::Size { min: 2 * KIB, max: MIB, set: |s, v| s.line_bytes = to_usize(v) },
            default: Raw::Text("64KiB"),
            about: "Longest command line of the text and meta protocols, without its data block; a multi-key get may \
                be longer.",
            reload: true,
        },
        Key {
            name: "frame",
            kind: Kind::Size { min: MIB, max: 64 * MIB, set: |s, v| s.frame_bytes = to_usize(v) },
            default: Raw::Text("30MiB"),
            about: "Largest frame of the binary protocols, including the header.",
            reload: true,
        },
        Key {
            name: "pipeline",
            kind: Kind::Count {
                min: 1,
                max: 65_536,
                unit: "requests",
                set: |s, v| s.turn_requests = to_usize(v),
            },
            default: Raw::Integer(1024),
            about: "Requests of one connection that are executed before the next connection gets its turn.",
            reload: true,
        },
        Key {
            name: "output_backlog",
            kind: Kind::Size {
                min: 64 * KIB,
                max: 64 * MIB,
                set: |s, v| s.output_backlog_bytes = to_usize(v),
            },
            default: Raw::Text("1MiB"),
            about: "Unsent answers after which the server stops reading from a connection until its client \
            reads some.",
            reload: true,
        },
        Key {
            name: "stuck_peer_s",
            kind: Kind::Count {
                min: 1,
                max: 86_400,
                unit: "seconds",
                set: |s, v| s.stuck_peer_ms = v * 1000,
            },
            default: Raw::Integer(60),
            about: "A client that reads none of its answers for this time is disconnected.",
            reload: true,
        },
        Key {
            name: "ovsdb_message",
            kind: Kind::Size {
                min: MIB,
                max: 4 * 1024 * MIB,
                set: |s, v| s.ovsdb_message_bytes = to_usize(v),
            },
            default: Raw::Text("256MiB"),
            about: "Longest message of an OVSDB client.",
            reload: false,
        },
        Key {
            name: "ovsdb_depth",
            kind: Kind::Count { min: 16, max: 1000, unit: "levels", set: |s, v| s.ovsdb_depth = to_usize(v) },
            default: Raw::Integer(1000),
            about: "Deepest nesting of arrays and objects in a message of an OVSDB client.",
            reload: false,
        },
        Key {
            name: "ovsdb_sessions",
            kind: Kind::Count {
                min: 1,
                max: 1_000_000,
                unit: "sessions",
                set: |s, v| s.ovsdb_sessions = to_usize(v),
            },
            default: Raw::Integer(10_000),
            about: "Maximum number of OVSDB clients. (What one of them may leave unread: output_backlog.)",
            reload: false,
        },
        Key {
            name: "ovsdb_clients",
            kind: Kind::SizeOrAuto { min: MIB, max: 64 * TIB, set: |s, v| s.ovsdb_clients_bytes = v },
            default: Raw::Text("auto"),
            about: "Memory that incomplete messages, waiting requests and unread replies of all OVSDB \
            clients may take together. Beyond that the client that holds most is disconnected. \"auto\": \
            an eighth of node.memory, or twice the largest database's budget if that is more.",
            reload: false,
        },
    ],
};

pub static ALLOCATOR: Section<AllocatorSection> = Section {
    name: "allocator",
    repeated: false,
    about: "jemalloc's settings, see docs/allocator.md. A key that is not given keeps jemalloc's own \
    value; the defaults here are those of the built-in jemalloc. With another allocator each key is \
    refused by name; a jemalloc preloaded on alloc-system accepts all but thp. Options in jemalloc's \
    environment variable (_RJEM_MALLOC_CONF; MALLOC_CONF for a preloaded one) override the file.",
    keys: &[
        Key {
            name: "metadata_thp",
            kind: Kind::Choice {
                allowed: &["disabled", "auto", "always"],
                set: |s, word| s.set(Setting::MetadataThp, word),
            },
            default: Raw::Text("disabled"),
            about: "Huge pages for the allocator's own metadata. \"auto\": once there is much of it.",
            reload: false,
        },
        Key {
            name: "narenas",
            kind: Kind::Count { min: 1, max: 256, unit: "arenas", set: |s, v| s.set(Setting::Narenas, v) },
            default: Raw::Integer(2),
            about: "Arenas that threads share for everything but item memory; each tenant has its own in \
            addition.",
            reload: false,
        },
        Key {
            name: "cache_oblivious",
            kind: Kind::Flag { set: |s, v| s.set(Setting::CacheOblivious, v) },
            default: Raw::Flag(false),
            about: "Whether large blocks begin at random offsets, at the cost of a page each.",
            reload: false,
        },
        Key {
            name: "profile",
            kind: Kind::Flag { set: |s, v| s.set(Setting::Profile, v) },
            default: Raw::Flag(false),
            about: "Whether allocations are sampled, one for each 512 KiB, so that POST /allocator/profile can write \
                a heap profile into node.data. Needs a build with the feature heap-profile, or a preloaded jemalloc \
                that can.",
            reload: false,
        },
        Key {
            name: "background_thread",
            kind: Kind::Flag { set: |s, v| s.set(Setting::BackgroundThread, v) },
            default: Raw::Flag(true),
            about: "Whether a thread of the allocator gives free pages back. Without it, allocating and \
            freeing threads do.",
            reload: true,
        },
        Key {
            name: "dirty_decay_ms",
            kind: Kind::MillisecondsOrNever {
                max: DECAY_MS_MAX,
                set: |s, v| s.set(Setting::DirtyDecayMs, or_never(v)),
            },
            default: Raw::Integer(5000),
            about: "How long free pages of the shared arenas are kept before they are given back. Tenants' \
            arenas do not decay: they give back by amount.",
            reload: true,
        },
        Key {
            name: "muzzy_decay_ms",
            kind: Kind::MillisecondsOrNever {
                max: DECAY_MS_MAX,
                set: |s, v| s.set(Setting::MuzzyDecayMs, or_never(v)),
            },
            default: Raw::Integer(0),
            about: "The same for pages that the system may already reclaim (MADV_FREE). 0: pages are given \
            back for good after dirty_decay_ms.",
            reload: true,
        },
        Key {
            name: "thp",
            kind: Kind::Choice { allowed: Thp::NAMES, set: |s, word| s.set(Setting::Thp, word) },
            default: Raw::Text("default"),
            about: "Huge pages for item memory. \"default\": for all chunks of a tenant but its first 8 \
            MiB. \"always\": for the first as well. \"never\": none. A change affects existing memory only \
            as advice to the kernel: pages stay huge or small until they are freed or the kernel merges \
            them.",
            reload: true,
        },
    ],
};

/// Longest decay: a day.
const DECAY_MS_MAX: u64 = 86_400_000;

/// A time as jemalloc writes it; -1 for never.
fn or_never(time_ms: Option<u64>) -> String {
    time_ms.map_or_else(|| "-1".to_owned(), |time_ms| time_ms.to_string())
}

/// Why this build does not accept a key, given the allocator that is really in use.
pub fn missing(section: &str, key: &str) -> Option<String> {
    Setting::from_name(key).filter(|_| section == ALLOCATOR.name)?.missing()
}

pub static AUTH: Section<AuthSection> = Section {
    name: "auth",
    repeated: false,
    about: "The users of the configuration, who may do everything. Without a password file and a users file \
    there is the development user Administrator / password, on loopback addresses only, and memcached \
    ports require no login. With either file, every protocol requires a login. Further users, with roles, \
    are created over HTTP and kept in the data directory (users.md); if one of them is an administrator, \
    there is no development user.",
    keys: &[
        Key {
            name: "user",
            kind: Kind::UserName { set: |s, v| s.user = v },
            default: Raw::Text("Administrator"),
            about: "Name of the user.",
            reload: true,
        },
        Key {
            name: "password_file",
            kind: Kind::Path { set: |s, v| s.password_file = v },
            default: Raw::Text(""),
            about: "File whose first line is the password. \"\": the development password. SIGHUP applies \
            a changed file or password; the change from the development password to another needs a \
            restart.",
            reload: true,
        },
        Key {
            name: "users_file",
            kind: Kind::Path { set: |s, v| s.users_file = v },
            default: Raw::Text(""),
            about: "File of further users, one line user:password each, as for memcached's --auth-file. \
            Names may have a realm (user@realm). \"\": none. Without a password file its users are the \
            only ones. SIGHUP applies a changed file.",
            reload: true,
        },
    ],
};

pub static REPLICATION: Section<ReplicationSection> = Section {
    name: "replication",
    repeated: false,
    about: "Replicas on other nodes (replication.md). Which vBucket is copied from where is said over HTTP or by \
    SET_VBUCKET; this says who this node is, and how it reaches the others.",
    keys: &[
        Key {
            name: "node",
            kind: Kind::Name { set: |s, v| s.node = v },
            default: Raw::Text(""),
            about: "This node's name in topologies. \"\": the address of its KV port, such as \"10.0.0.1:11210\".",
            reload: false,
        },
        Key {
            name: "peers",
            kind: Kind::Nodes { set: |s, v| s.peers = v },
            default: Raw::Text(""),
            about: "The other nodes: their names in topologies, where their KV ports are, and their HTTP ports for \
            cluster maps, without TLS and, after a comma, with it: \"n2=10.0.0.2:11210/8091,11207/18091\". A KV \
            port of 0: none without TLS. A node whose name is HOST:PORT need not be listed.",
            reload: true,
        },
        Key {
            name: "user",
            kind: Kind::Name { set: |s, v| s.user = v },
            default: Raw::Text(""),
            about: "As whom this node logs in at others. The user needs the rights to read all documents with their \
            system attributes, and to change the bucket. \"\": auth.user, with its password.",
            reload: true,
        },
        Key {
            name: "password_file",
            kind: Kind::Path { set: |s, v| s.password_file = v },
            default: Raw::Text(""),
            about: "File whose first line is that user's password. It is needed with replication.user.",
            reload: true,
        },
        Key {
            name: "ca",
            kind: Kind::Path { set: |s, v| s.ca = v },
            default: Raw::Text(""),
            about: "Certificates of the authorities that sign those of the other nodes. With it, this node connects to \
            their KV ports with TLS, and only if their certificates have the hosts of replication.peers; it presents \
            tls.certificate if they ask for one. SIGHUP reads it again. \"\": only nodes on this machine are reached, \
            without TLS. Switching needs a restart.",
            reload: true,
        },
    ],
};

pub static TLS: Section<TlsSection> = Section {
    name: "tls",
    repeated: false,
    about: "TLS on the client ports: kv.tls_address, http.tls_address, memcached ports with tls = true, \
    and ovsdb.remotes of ssl: and pssl:. The files are PEM. SIGHUP reads them again; existing connections \
    are not affected.",
    keys: &[
        Key {
            name: "certificate",
            kind: Kind::Path { set: |s, v| s.certificate = v },
            default: Raw::Text(""),
            about: "The certificate of this node, followed by the chain to the authority that clients \
            trust. \"\": no TLS. Switching TLS on or off needs a restart.",
            reload: true,
        },
        Key {
            name: "key",
            kind: Kind::Path { set: |s, v| s.key = v },
            default: Raw::Text(""),
            about: "Its private key.",
            reload: true,
        },
        Key {
            name: "client_ca",
            kind: Kind::Path { set: |s, v| s.client_ca = v },
            default: Raw::Text(""),
            about: "Certificates of the authorities that sign client certificates.",
            reload: true,
        },
        Key {
            name: "client_certificates",
            kind: Kind::Choice {
                allowed: &["none", "optional", "required"],
                set: |s, word| s.client_certificates = certificates_of_port(word).unwrap_or_default(),
            },
            default: Raw::Text("none"),
            about: "Whether clients must present a certificate signed by client_ca. \"none\": not \
            requested. \"optional\": an invalid one is refused, none is accepted. \"required\": clients \
            without one are refused. A login is required in any case. Ports may say otherwise: \
            memcached.client_certificates, kv.client_certificates, http.client_certificates.",
            reload: true,
        },
        Key {
            name: "oldest_version",
            kind: Kind::Choice {
                allowed: &["1.2", "1.3"],
                set: |s, word| {
                    s.oldest_version =
                        if word == "1.3" { OldestVersion::Tls13 } else { OldestVersion::Tls12 };
                },
            },
            default: Raw::Text("1.2"),
            about: "The oldest TLS version that is accepted; the newest is 1.3.",
            reload: true,
        },
    ],
};

pub static LOG: Section<LogSection> = Section {
    name: "log",
    repeated: false,
    about: "What is logged, on standard error.",
    keys: &[
        Key {
            name: "level",
            kind: Kind::Choice {
                allowed: Level::NAMES,
                set: |s, word| {
                    if let Some(level) = Level::named(word) {
                        s.level = level;
                    }
                },
            },
            default: Raw::Text("info"),
            about: "The least severe level that is logged.",
            reload: true,
        },
        Key {
            name: "format",
            kind: Kind::Choice {
                allowed: &["text", "json"],
                set: |s, word| s.format = if word == "json" { Format::Json } else { Format::Text },
            },
            default: Raw::Text("text"),
            about: "Lines for people, or one JSON object per line.",
            reload: false,
        },
    ],
};

/// One key with its type erased, for listings.
pub struct KeyRow {
    /// Its name.
    pub name: &'static str,
    /// Its allowed values.
    pub allowed: String,
    /// Its default as TOML.
    pub default: String,
    /// What it does.
    pub about: &'static str,
    /// Whether SIGHUP applies it.
    pub reload: bool,
    /// Why this build does not accept it, if so.
    pub missing: Option<String>,
}

/// One section with its type erased, for listings.
pub struct SectionRow {
    /// Its name.
    pub name: &'static str,
    /// Whether it is written `[[name]]`.
    pub repeated: bool,
    /// Its purpose.
    pub about: &'static str,
    /// Its keys.
    pub keys: Vec<KeyRow>,
}

/// All sections and keys in the order they are documented.
pub fn rows() -> Vec<SectionRow> {
    fn row<T>(section: &Section<T>) -> SectionRow {
        let keys = section.keys.iter().map(|key| KeyRow {
            name: key.name,
            allowed: key.kind.allowed(),
            default: key.default.show(),
            about: key.about,
            reload: key.reload,
            missing: missing(section.name, key.name),
        });
        SectionRow {
            name: section.name,
            repeated: section.repeated,
            about: section.about,
            keys: keys.collect(),
        }
    }
    vec![
        row(&NODE),
        row(&MEMCACHED),
        row(&KV),
        row(&HTTP),
        row(&BUCKET),
        row(&OVSDB),
        row(&LIMITS),
        row(&ALLOCATOR),
        row(&AUTH),
        row(&REPLICATION),
        row(&TLS),
        row(&LOG),
    ]
}
