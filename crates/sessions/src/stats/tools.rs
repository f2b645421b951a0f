//! Groups that Couchbase's tools (`cbstats`) ask for.

use std::fmt::Arguments;

use kv::statistics::{self, Group};
use kv::{BUCKET_SETTINGS, Bucket, BucketKind, NodeContext, SettingValue};

use super::{consumers, show};

/// Gathers a group. Returns false if it is none of these.
pub(super) fn gather(
    bucket: &Bucket,
    (group, arguments): (&[u8], &[u8]),
    cx: &mut NodeContext,
    emit: &mut dyn FnMut(&str, Arguments<'_>),
) -> bool {
    match group {
        b"uuid" => emit("uuid", format_args!("{}", bucket.uuid())),
        b"config" => config(bucket, emit),
        b"diskinfo" => {
            let figures = bucket.persistence_figures(cx);
            let bytes = figures.map_or(0, |figures| figures.journal_bytes);
            emit("ep_db_file_size", format_args!("{bytes}"));
            emit("ep_db_data_size", format_args!("{bytes}"));
        }
        b"dcp" => consumers::each(bucket, emit),
        b"dcpagg" => consumers::totals(bucket, arguments, emit),
        b"collections-details" => collections(bucket, emit),
        // There are no checkpoints, tasks, threads of a pool or measured times that could be listed.
        b"checkpoint" | b"tasks" | b"scheduler" | b"runtimes" | b"dispatcher" | b"workload" | b"timings"
        | b"kvtimings" | b"kvstore" | b"range-scans" | b"eviction" => {}
        _ => return false,
    }
    true
}

/// Figures by the names that they have in Couchbase, besides those of all ports.
pub(super) fn general(bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    show(Group::Couchbase, statistics::MEMORY, &bucket.memory(), emit);
    super::show_meters(Group::Couchbase, bucket, emit);
    let kind = bucket.settings().kind;
    emit("ep_bucket_type", format_args!("{}", kind_name(kind)));
    let served = (0..bucket.vbuckets()).filter(|vb| bucket.serves(*vb)).count();
    emit("vb_active_num", format_args!("{served}"));
}

/// `stats collections-details`: the manifest that each vBucket follows, which is the same for all, and what is in it.
fn collections(bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let manifest = bucket.collections().manifest();
    for vb in (0..bucket.vbuckets()).filter(|vb| bucket.serves(*vb)) {
        emit(&format!("vb_{vb}:manifest:uid"), format_args!("{:#x}", manifest.uid));
        emit(&format!("vb_{vb}:manifest:entries"), format_args!("{}", manifest.collections().count()));
    }
    for (scope, one) in manifest.collections() {
        let id = one.id;
        emit(&format!("{id:#x}:name"), format_args!("{}", one.name));
        emit(&format!("{id:#x}:scope"), format_args!("{:#x}", scope.id));
        emit(&format!("{id:#x}:max_ttl"), format_args!("{}", one.max_ttl_s));
    }
}

fn kind_name(kind: BucketKind) -> &'static str {
    match kind {
        BucketKind::Ephemeral => "ephemeral",
        BucketKind::Persistent => "persistent",
    }
}

/// `stats config`: the bucket's settings, by their names in the configuration.
fn config(bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let settings = bucket.settings_in_force();
    emit("ep_bucket_type", format_args!("{}", kind_name(settings.kind)));
    emit("ep_max_size", format_args!("{}", bucket.accounts().budget));
    for setting in BUCKET_SETTINGS {
        let name = format!("ep_{}", setting.key);
        match setting.get(&settings) {
            SettingValue::Number(number) => emit(&name, format_args!("{number}")),
            SettingValue::Flag(flag) => emit(&name, format_args!("{flag}")),
            SettingValue::Word(word) => emit(&name, format_args!("{word}")),
        }
    }
}
