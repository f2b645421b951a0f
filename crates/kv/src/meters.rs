//! The one table of a bucket's event counters. [`crate::statistics`] has the other figures.

/// A list that `stats` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// `stats`.
    General,
    /// `stats memory`.
    Memory,
    /// `stats defragmenter`.
    Defragmenter,
    /// `stats compression`.
    Compression,
    /// `stats persistence`.
    Persistence,
    /// `stats warmup`.
    WarmUp,
    /// Couchbase's names: STAT without a group on Couchbase ports, and `/pools/default/buckets/B/stats`.
    Couchbase,
}

impl Group {
    /// The command that prints it.
    pub const fn command(self) -> &'static str {
        match self {
            Self::General => "stats",
            Self::Memory => "stats memory",
            Self::Defragmenter => "stats defragmenter",
            Self::Compression => "stats compression",
            Self::Persistence => "stats persistence",
            Self::WarmUp => "stats warmup",
            Self::Couchbase => "STAT",
        }
    }
}

macro_rules! meters {
    ($($variant:ident $name:literal $(as $metric:literal)? $([$($group:ident $also:literal),*])? $help:literal;)*) => {
        /// A per-bucket event counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Meter { $(#[doc = $help] $variant,)* }

        impl Meter {
            /// All meters in table order.
            pub const ALL: &'static [Meter] = &[$(Meter::$variant,)*];
            /// Number of meters.
            pub const COUNT: usize = Self::ALL.len();
            /// Name, as `stats` prints it; `_us` at its end is the unit, microseconds.
            pub const fn name(self) -> &'static str { match self { $(Meter::$variant => $name,)* } }
            /// Name in base units, as `/metrics` shows it between `dormouse_bucket_` and `_total`.
            pub const fn metric(self) -> &'static str {
                match self { $(Meter::$variant => meters!(@metric $name $($metric)?),)* }
            }
            /// The lists of `stats` that show it, with its name there.
            pub const fn shown(self) -> &'static [(Group, &'static str)] {
                match self {
                    $(Meter::$variant => &[(Group::General, $name), $($((Group::$group, $also)),*)?],)*
                }
            }
            /// One line of help.
            pub const fn help(self) -> &'static str { match self { $(Meter::$variant => $help,)* } }
        }
    };
    (@metric $name:literal) => { $name };
    (@metric $name:literal $metric:literal) => { $metric };
}

meters! {
    CmdGet "cmd_get" "Retrievals, hits and misses";
    CmdSet "cmd_set" "Stores of every kind";
    CmdFlush "cmd_flush" "flush_all commands";
    CmdTouch "cmd_touch" "Touches, gat included";
    CmdMeta "cmd_meta" "Meta commands";
    CmdSubdocLookup "cmd_subdoc_lookup" "Sub-document lookups";
    CmdSubdocMutation "cmd_subdoc_mutation" "Sub-document mutations";
    GetHits "get_hits" "Retrievals that found a document";
    GetMisses "get_misses" "Retrievals that found none";
    GetExpired "get_expired" "Retrievals that met an expired document";
    GetFlushed "get_flushed" "Retrievals that met a flushed document";
    DeleteHits "delete_hits" "Deletes that found a document";
    DeleteMisses "delete_misses" "Deletes that found none";
    IncrHits "incr_hits" "Increments that found a document";
    IncrMisses "incr_misses" "Increments that found none";
    DecrHits "decr_hits" "Decrements that found a document";
    DecrMisses "decr_misses" "Decrements that found none";
    CasHits "cas_hits" "Conditional stores that matched";
    CasMisses "cas_misses" "Conditional stores on a missing document";
    CasBadval "cas_badval" "Conditional stores on another version";
    TouchHits "touch_hits" "Touches that found a document";
    TouchMisses "touch_misses" "Touches that found none";
    StoreTooLarge "store_too_large" "Stores refused for their size";
    StoreNoMemory "store_no_memory" [Couchbase "ep_tmp_oom_errors"] "Stores refused by the memory budget";
    TotalItems "total_items" "Items stored since the start";
    Evictions "evictions" "Items evicted to stay within the budget";
    EvictedUnfetched "evicted_unfetched" "Items evicted that nobody had read";
    ExpiredUnfetched "expired_unfetched" "Expired items reclaimed that nobody had read";
    DirectReclaims "direct_reclaims" "Stores that had to free memory themselves";
    AuthCmds "auth_cmds" "Logins on memcached ports, failed ones included";
    AuthErrors "auth_errors" "Logins on memcached ports that failed";
    BytesRead "bytes_read" "Bytes read from clients of the bucket";
    BytesWritten "bytes_written" "Bytes sent to clients of the bucket";
    ConnYields "conn_yields" "Times a connection with more requests had to yield to others";
    DefragmentedItems "defragmented_items" [Defragmenter "defragmented_items"] "Items moved by the defragmenter";
    DefragmentedBytes "defragmented_bytes" [Defragmenter "defragmented_bytes"]
        "Bytes of the items moved by the defragmenter";
    DefragmentationFreed "defragmentation_freed" as "defragmentation_freed_bytes"
        [Defragmenter "defragmentation_freed"] "Bytes of slabs freed by the defragmenter's passes";
    DefragmentingUs "defragmenting_us" as "defragmenting_seconds" [Defragmenter "defragmenting_us"]
        "Time spent defragmenting";
    DefragmenterPasses "defragmenter_passes" [Defragmenter "defragmenter_passes"]
        "Passes of the defragmenter over the bucket that have ended";
    CompressorValues "compressor_values" [Compression "compressor_values"] "Values compressed while memory was short";
    CompressorSaved "compressor_saved_bytes" [Compression "compressor_saved_bytes"]
        "Bytes of memory that compressing them freed";
    CompressorUs "compressor_us" as "compressor_seconds" [Compression "compressor_us"]
        "Time spent compressing";
    CompressorPasses "compressor_passes" [Compression "compressor_passes"]
        "Passes of the compressor over the bucket that have ended";
    ExpiredReclaimed "expired_reclaimed" [General "reclaimed"] "Expired items whose memory was reclaimed";
    Locks "get_locked" "Documents locked";
    SyncWritesPrepared "sync_writes_prepared" "Durable writes that had to wait";
    SyncWritesCommitted "sync_writes_committed" "Waiting durable writes that were committed";
    SyncWritesAborted "sync_writes_aborted" "Waiting durable writes that were aborted";
    SyncWritesAmbiguous "sync_writes_ambiguous" "Durable writes that were answered ambiguous at their deadline";
}
