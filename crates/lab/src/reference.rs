//! Figures of the public reports that the experiments repeat, and of peers on a two-core machine. Machines differ:
//! shapes and ratios compare, figures do not.

/// E1: settings of jemalloc 5.1, and operations per second of a cluster of two nodes with 40 cores each.
pub const ALLOCATOR_SETTINGS: [(&str, f64); 4] = [
    ("jemalloc 5.1 as it is", 1_831_406.0),
    ("background threads", 1_832_381.0),
    ("metadata_thp auto", 1_841_475.0),
    ("metadata_thp always", 1_852_863.0),
];

/// E1: thousand operations per second of server CPU with 20 % reads, at the depths of [`DEPTHS`].
pub const RATES: [(&str, [f64; 3]); 3] = [
    ("memcached", [160.0, 516.0, 464.0]),
    ("redis", [156.0, 503.0, 587.0]),
    ("valkey", [165.0, 531.0, 605.0]),
];
/// Requests per batch.
pub const DEPTHS: [u64; 3] = [1, 16, 64];

/// E2: fragmentation in per cent, by the resident size, of persistent and ephemeral buckets.
pub const FRAGMENTATION: [(&str, f64, f64); 7] = [
    ("before jemalloc 5.1", 22.7, 43.0),
    ("jemalloc 5.1", 21.2, 39.0),
    ("+ background threads", 21.4, 40.0),
    ("+ metadata_thp auto", 26.2, 36.0),
    ("+ metadata_thp always", 24.5, 35.0),
    ("+ background threads, auto", 25.9, 36.0),
    ("+ background threads, always", 26.0, 35.0),
];
/// E2: 100 x (1 - payload / RSS) of peers at the end of the append test.
pub const PEERS_UNUSED: [(&str, f64); 3] = [("memcached", 38.5), ("redis", 33.4), ("valkey", 32.6)];

/// E3: 30 empty buckets.
pub struct Idle {
    /// Whether timeouts are polled for.
    pub polls: bool,
    /// CPU of the process in % of a core.
    pub cpu_percent: f64,
    /// Its busiest thread.
    pub busiest: &'static str,
    /// Resident bytes, about.
    pub resident_bytes: u64,
}
/// E3: before and after the original work.
pub const IDLE: [Idle; 2] = [
    Idle { polls: true, cpu_percent: 89.3, busiest: "NonIO 11 (7 of them)", resident_bytes: 730_000_000 },
    Idle { polls: false, cpu_percent: 10.3, busiest: "3.7", resident_bytes: 730_000_000 },
];
/// E3: CPU of idle peers in % of a core.
pub const PEERS_IDLE: [(&str, f64); 3] = [("memcached", 0.011), ("redis", 0.11), ("valkey", 0.16)];

/// E4: one flush. Pairs are insert and replace, with one-byte values on 24 cores at 2.4 GHz.
pub struct Flush {
    /// Items in it.
    pub items: u32,
    /// Peak bytes per item before the original work.
    pub before: [f64; 2],
    /// The same after it.
    pub after: [f64; 2],
    /// Items per CPU second.
    pub rate: [f64; 2],
    /// Wall time, milliseconds.
    pub wall_ms: [f64; 2],
}
/// E4.
pub const FLUSHES: [Flush; 4] = [
    Flush {
        items: 1,
        before: [169_600.0, 174_200.0],
        after: [169_600.0, 174_200.0],
        rate: [2_200.0, 1_660.0],
        wall_ms: [10.4, 10.3],
    },
    Flush {
        items: 100,
        before: [2374.0, 2511.0],
        after: [2327.0, 2464.0],
        rate: [136e3, 120e3],
        wall_ms: [10.8, 10.2],
    },
    Flush {
        items: 10_000,
        before: [786.0, 809.0],
        after: [738.0, 761.0],
        rate: [218e3, 173e3],
        wall_ms: [55.0, 67.0],
    },
    Flush {
        items: 1_000_000,
        before: [807.0, 812.0],
        after: [759.0, 764.0],
        rate: [139e3, 116e3],
        wall_ms: [7404.0, 8731.0],
    },
];

/// E5: a workload under glibc, jemalloc 4.0.4 and tcmalloc.
pub struct Ovsdb {
    /// Its cases here, together.
    pub cases: &'static [&'static str],
    /// Its name.
    pub name: &'static str,
    /// Seconds.
    pub seconds: [f64; 3],
    /// Resident MB at the end.
    pub resident_mb: [f64; 3],
}
/// E5.
pub const OVSDB: [Ovsdb; 5] = [
    Ovsdb {
        cases: &["update1-mon"],
        name: "Update 1",
        seconds: [28.0, 24.0, 31.0],
        resident_mb: [7.35, 18.92, 171.42],
    },
    Ovsdb {
        cases: &["update2-mon"],
        name: "Update 2",
        seconds: [57.0, 38.0, 33.0],
        resident_mb: [1090.7, 82.88, 111.08],
    },
    Ovsdb {
        cases: &["insert-mon"],
        name: "Insert",
        seconds: [38.0, 32.0, 27.0],
        resident_mb: [66.66, 57.86, 127.56],
    },
    Ovsdb {
        cases: &["queue"],
        name: "Queue",
        seconds: [4.0, 4.0, 4.0],
        resident_mb: [1094.40, 28.13, 270.47],
    },
    Ovsdb {
        cases: &["size-one", "size-each"],
        name: "Size",
        seconds: [129.92, 119.87, 114.21],
        resident_mb: [410.17, 116.50, 114.21],
    },
];

/// E6: bytes per item beyond key and value, 1M items with keys of 20 bytes, for values of [`VALUES_BYTES`].
pub const OVERHEAD: [(&str, [f64; 4]); 3] = [
    ("kv_engine, computed", [83.0, 80.0, 132.0, 324.0]),
    ("memcached", [84.0, 82.0, 119.0, 152.0]),
    ("redis", [95.0, 88.0, 142.0, 342.0]),
];
/// Sizes of values.
pub const VALUES_BYTES: [u64; 4] = [1, 100, 256, 1024];
