//! The one table of statistics. `stats`, STAT, `/metrics` and `docs/statistics.md` come from it.
//!
//! A row has the names of one figure: in the lists of `stats` and in `/metrics`, which has names in base units. What
//! one side does not show has no name there. Event counters of a bucket are rows of [`crate::meters`], and become
//! [`meters`] here.

use crate::bucket::{MemoryFigures, WorkFigures};
pub use crate::meters::Group;
use crate::meters::Meter;
use crate::node::{ConnectionCounts, Node};
use crate::storage::{Persistence, PersistenceFigures, WarmUp};
use crate::users::LoginFigures;

/// What a figure does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only rises.
    Counter,
    /// A counter of microseconds. `/metrics` shows seconds.
    Microseconds,
    /// It rises and falls.
    Gauge,
    /// A gauge of microseconds. `/metrics` shows seconds.
    GaugeMicroseconds,
}

/// A figure of an `S`.
#[derive(Debug)]
pub struct Statistic<S: 'static> {
    /// Its name in `/metrics` behind `dormouse_` (and `bucket_`, if it is a bucket's), without a counter's `_total`.
    pub metric: Option<&'static str>,
    /// The lists of `stats` that show it, with its name there.
    pub shown: &'static [(Group, &'static str)],
    /// Counter or gauge.
    pub kind: Kind,
    /// One line of help.
    pub help: &'static str,
    /// Reads the figure.
    pub value: fn(&S) -> u64,
}

impl<S> Statistic<S> {
    /// Its names in one list of `stats`.
    pub fn names(&self, group: Group) -> impl Iterator<Item = &'static str> {
        self.shown.iter().filter(move |(of, _)| *of == group).map(|(_, name)| *name)
    }
}

macro_rules! statistics {
    ($(
        $(#[$doc:meta])*
        $table:ident: $source:ty {
            $($kind:ident $($metric:literal)? [$($group:ident $name:literal),*] $help:literal => $value:expr;)*
        }
    )*) => {
        $(
            $(#[$doc])*
            pub const $table: &[Statistic<$source>] = &[$(Statistic {
                metric: statistics!(@metric $($metric)?),
                shown: &[$((Group::$group, $name)),*],
                kind: Kind::$kind,
                help: $help,
                value: $value,
            }),*];
        )*
    };
    (@metric $metric:literal) => { Some($metric) };
    (@metric) => { None };
}

statistics! {
    /// Of the node: connections and what they hold.
    NODE: NodeFigures {
        Gauge "connections" [General "curr_connections"] "Open client connections" => |n| n.connections.current;
        Counter "connections_accepted" [General "total_connections"] "Client connections accepted since the start"
            => |n| n.connections.total;
        Counter "connections_refused" [General "rejected_connections"]
            "Client connections refused at the limit or for lack of file descriptors" => |n| n.connections.rejected;
        Gauge [General "connection_structures"] "The same as curr_connections: each has one, which goes with it"
            => |n| n.connections.current;
        Gauge [General "read_buf_count"] "Read buffers" => |n| n.read_buffers;
        Gauge [General "read_buf_bytes"] "Bytes of these" => |n| n.read_buffer_bytes;
        Gauge "client_buffer_bytes" [General "client_buffer_bytes"]
            "Unfinished requests and unsent answers of clients of the data ports"
            => |n| n.client_buffer_bytes;
        Gauge "client_uncharged_bytes" []
            "What clients hold and no bucket is charged for: connections, buffers before a login, OVSDB, HTTP"
            => |n| n.client_uncharged_bytes;
        Counter "connections_idle_closed" [General "idle_kicks"]
            "Client connections closed because no request came in time" => |n| n.connections.idle_kicks;
        Counter "connections_unfinished_closed" [General "unfinished_kicks"]
            "Client connections closed because a request, or a login, was not finished in time"
            => |n| n.connections.unfinished;
        Counter "connections_stuck_closed" [General "stuck_kicks"]
            "Client connections closed because the client did not read its answers in time"
            => |n| n.connections.stuck;
        Counter "connections_cut_off" [General "memory_kicks"]
            "Client connections closed for what they held while memory was short"
            => |n| n.cut_off;
        Gauge [General "accepting_conns"] "1 while connections are accepted"
            => |n| u64::from(n.connections.is_accepting);
        Counter [General "listen_disabled_num"] "Times accepting stopped for lack of file descriptors"
            => |n| n.connections.stops;
        Microseconds [General "time_in_listen_disabled_us"] "Time during which accepting was stopped"
            => |n| n.connections.stopped_us;
        Counter "logins_failed" [] "Logins that failed, on all ports, refused ones included"
            => |n| n.logins.failed;
        Counter "logins_refused" [] "Logins refused without checking the password, because of failures before"
            => |n| n.logins.refused;
    }

    /// Of a bucket: its memory.
    MEMORY: MemoryFigures {
        Gauge "payload_bytes" [Memory "payload", Memory "ep_kv_size", Couchbase "ep_kv_size"]
            "Key and value bytes of all items"
            => |m| m.payload;
        Gauge "metadata_bytes" [Memory "metadata"] "Item headers and optional words" => |m| m.metadata;
        Gauge "index_bytes" [Memory "index", General "hash_bytes"]
            "Index, seqno slots, expiry entries and side tables" => |m| m.index;
        Gauge [Memory "ep_overhead", Couchbase "ep_overhead"] "Metadata and index" => |m| m.metadata + m.index;
        Gauge [General "bytes"] "Payload and metadata" => |m| m.payload + m.metadata;
        Gauge "allocated_bytes" [Memory "allocated", Memory "total_allocated_bytes"]
            "Blocks, slots and index, rounded to their classes" => |m| m.allocated;
        Gauge "slab_bytes" [Memory "slabs"] "Slabs, whether or not their slots are used" => |m| m.slabs;
        Gauge "slot_bytes" [Memory "slots"] "Used slots of slabs, a part of the allocated bytes" => |m| m.slots;
        Gauge "in_flight_bytes" [Memory "in_flight"] "Values being received or sent, and connection buffers"
            => |m| m.in_flight;
        Gauge "resident_bytes"
            [
                Memory "resident", Memory "mem_used", Couchbase "mem_used", Memory "total_resident_bytes",
                Memory "total_heap_bytes"
            ]
            "Physical memory of the bucket's arena" => |m| m.resident;
        Gauge [Memory "total_fragmentation_bytes"] "Resident bytes that are neither allocated nor in flight"
            => |m| m.resident.saturating_sub(m.allocated + m.in_flight);
        Gauge "budget_bytes" [Memory "budget", General "limit_maxbytes", Couchbase "ep_max_size"]
            "Budget of resident memory" => |m| m.budget;
        Gauge "items" [
            Memory "items", General "curr_items", Couchbase "curr_items_tot", Couchbase "vb_active_curr_items"
        ] "Items stored" => |m| m.items;
        Gauge "compressed_values" [Compression "compressed_values"] "Compressed values in memory" => |m| m.compressed;
        Gauge "compressed_bytes" [Compression "compressed_bytes"] "Bytes of these, a part of the payload"
            => |m| m.compressed_bytes;
        Gauge "inflated_bytes" [Compression "inflated_bytes"] "Bytes these would have inflated"
            => |m| m.inflated_bytes;
    }

    /// Of a bucket: what is done behind its clients' requests.
    WORK: WorkFigures {
        Gauge "sync_writes_pending" [] "Durable writes that wait to be committed or aborted"
            => |w| w.sync_writes_pending;
        Gauge "sync_writes_overdue" [] "Those of them that were answered ambiguous at their deadline"
            => |w| w.sync_writes_overdue;
        GaugeMicroseconds "sync_writes_oldest_seconds" [] "Time since the oldest of them was made"
            => |w| w.oldest_pending_us;
        GaugeMicroseconds "sync_writes_late_max_seconds" [] "How late an ambiguous answer was at most"
            => |w| w.late_max_us;
        Gauge "defragmenter_armed" [] "1 while the defragmenter is at work"
            => |w| u64::from(w.defragmenter.is_armed);
        Gauge "recoverable_bytes" [] "Bytes of pages that the defragmenter could give back, as last surveyed"
            => |w| w.defragmenter.recoverable_bytes;
        Gauge "compressor_armed" [] "1 while the compressor is at work" => |w| u64::from(w.is_compressing);
    }

    /// Of a persistent bucket: its journal.
    PERSISTENCE: PersistenceFigures {
        Gauge "unflushed_items" [
            Persistence "unflushed_items", Persistence "ep_queue_size", General "ep_queue_size",
            Persistence "ep_diskqueue_items", General "ep_diskqueue_items",
            Persistence "vb_active_queue_size", General "vb_active_queue_size"
        ] "Items that wait to be written" => |f| f.unflushed_items;
        Counter "persisted_items"
            [Persistence "persisted_items", Persistence "ep_total_persisted", General "ep_total_persisted"]
            "Items written to the journal" => |f| f.persisted_items;
        Counter "journal_commits" [Persistence "journal_commits", Persistence "ep_commit_num", General "ep_commit_num"]
            "Commits of the journal, each with one sync unless sync is off" => |f| f.commits;
        Counter "journal_syncs" [Persistence "journal_syncs"] "Syncs of the journal's files and directories"
            => |f| f.syncs;
        Microseconds "journal_sync_seconds" [Persistence "journal_sync_microseconds"] "Time spent in these syncs"
            => |f| f.sync_us;
        Counter "journal_written_bytes" [Persistence "journal_written_bytes"] "Bytes written to the journal"
            => |f| f.written_bytes;
        Counter "journal_write_failures" [
            Persistence "journal_write_failures", Persistence "ep_item_commit_failed", General "ep_item_commit_failed"
        ] "Flushes that failed and were tried again" => |f| f.failures;
        Gauge "journal_segments" [Persistence "journal_segments"] "Segments of the journal" => |f| f.segments;
        Gauge "journal_bytes" [Persistence "journal_bytes", Persistence "ep_db_file_size", General "ep_db_file_size"]
            "Bytes of the journal's segments" => |f| f.journal_bytes;
        Gauge "journal_superfluous_bytes" [Persistence "journal_superfluous_bytes"]
            "Bytes of the journal that are not needed any more, estimated" => |f| f.superfluous_bytes;
        Gauge "compaction_debt_bytes" [Persistence "compaction_debt_bytes"]
            "Bytes that compaction has to read and write until it is as far as flushing" => |f| f.debt_bytes;
        Counter "compacted_segments" [Persistence "compacted_segments"] "Segments removed by compaction"
            => |f| f.compacted_segments;
        Counter "compacted_bytes" [Persistence "compacted_bytes"] "Bytes of the segments removed by compaction"
            => |f| f.compacted_bytes;
        Gauge "ejected_items" [
            Persistence "ejected_items", Persistence "ep_num_non_resident", General "ep_num_non_resident",
            Persistence "vb_active_num_non_resident", General "vb_active_num_non_resident"
        ] "Items whose value is only on disk" => |f| f.ejected_items;
        Gauge "ejected_bytes" [Persistence "ejected_bytes"] "Bytes of values that are only on disk"
            => |f| f.ejected_bytes;
        Counter "fetched_values" [Persistence "fetched_values", Persistence "ep_bg_fetched", General "ep_bg_fetched"]
            "Values read back from disk for clients" => |f| f.fetched;
        Counter "fetch_failures"
            [Persistence "fetch_failures", Persistence "ep_bg_fetch_failures", General "ep_bg_fetch_failures"]
            "Values that could not be read from disk" => |f| f.fetch_failures;
        Gauge "disk_full" [Persistence "disk_full"] "1 while writes are refused because the disk is full"
            => |f| u64::from(f.disk_full);
    }

    /// Of a node with persistent buckets: its flushers.
    FLUSHERS: Node {
        Gauge "flush_buffer_bytes" [Persistence "flush_buffer_bytes"]
            "Buffers of the flushers: what writing needs beside the items themselves" => Node::flush_buffer_bytes;
    }

    /// Of a persistent bucket: how far its journal is loaded, and what of it cannot be served.
    WARM_UP: WarmUpFigures {
        Gauge "warmup_records" [WarmUp "ep_warmup_key_count"] "Records read" => |w| w.warm_up.records;
        Gauge [WarmUp "ep_warmup_value_count"] "Records read" => |w| w.warm_up.records;
        Gauge "warmup_segments" [WarmUp "warmup_segments"] "Segments of the journal at the start"
            => |w| w.warm_up.segments;
        Gauge "warmup_segments_done" [WarmUp "warmup_segments_done"] "Those of them that are read"
            => |w| w.warm_up.segments_done;
        Gauge "warmup_vbuckets" [WarmUp "warmup_vbuckets"] "vBuckets that are loaded from the journal"
            => |w| w.warm_up.vbuckets;
        Gauge "warmup_vbuckets_done" [WarmUp "warmup_vbuckets_done"] "Those of them that are served"
            => |w| w.warm_up.vbuckets_done;
        Gauge "damaged_vbuckets" [WarmUp "warmup_vbuckets_damaged"]
            "vBuckets that are not served because of a damaged journal" => |w| w.damaged_vbuckets;
    }
}

/// Figures of the node, read at one time.
#[derive(Debug)]
pub struct NodeFigures {
    connections: ConnectionCounts,
    read_buffers: u64,
    read_buffer_bytes: u64,
    client_buffer_bytes: u64,
    client_uncharged_bytes: u64,
    cut_off: u64,
    logins: LoginFigures,
}

impl NodeFigures {
    /// Reads them.
    pub fn of(node: &Node) -> Self {
        let (read_buffers, read_buffer_bytes) = node.read_buffers();
        let memory = node.client_memory();
        Self {
            connections: node.connections(),
            read_buffers,
            read_buffer_bytes,
            client_buffer_bytes: memory.buffer_bytes(),
            client_uncharged_bytes: memory.outside_bytes(),
            cut_off: memory.cut_off(),
            logins: node.users().login_figures(),
        }
    }
}

/// Figures of a bucket's warm-up, read at one time.
#[derive(Debug)]
pub struct WarmUpFigures {
    warm_up: WarmUp,
    damaged_vbuckets: u64,
}

impl WarmUpFigures {
    /// Reads them.
    pub fn of(persistence: &Persistence) -> Self {
        Self { warm_up: persistence.warm_up(), damaged_vbuckets: persistence.damaged().count() as u64 }
    }

    /// Returns true while the journal is being read.
    pub fn is_running(&self) -> bool {
        self.warm_up.is_running()
    }
}

/// Of a bucket: its event counters.
pub fn meters() -> impl Iterator<Item = (Meter, Statistic<u64>)> {
    Meter::ALL.iter().map(|meter| {
        let kind = if meter.name().ends_with("_us") { Kind::Microseconds } else { Kind::Counter };
        let statistic = Statistic {
            metric: Some(meter.metric()),
            shown: meter.shown(),
            kind,
            help: meter.help(),
            value: |value: &u64| *value,
        };
        (*meter, statistic)
    })
}
