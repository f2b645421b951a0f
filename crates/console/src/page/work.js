// What the node does behind its clients' requests, bucket by bucket: from the figures of two moments.

import { bytes, element, number, share } from "./draw.js";
import { listen } from "./events.js";
import { row, table } from "./table.js";

export const title = "Work";

let before = null;
let last = null;

// What came while other views were open is remembered.
listen("figures", (figures) => {
  before = last && figures.uptimeMs >= last.uptimeMs ? last : null;
  last = figures;
});

const state = (isAtWork) => isAtWork ? "at work" : "rests";
const size = (value) => value === undefined ? "-" : bytes(value);

/** Seconds, short; "-" for none. */
function time(seconds) {
  if (!seconds) return "-";
  return seconds < 1 ? `${(seconds * 1e3).toFixed(seconds < 0.01 ? 2 : 0)} ms` : `${seconds.toFixed(1)} s`;
}

const isPersistent = (now) => now.journal_bytes !== undefined;

/** Caption, which buckets, and columns: a heading, and what of a bucket's figures and their rates is shown. */
const TABLES = [
  ["Durable writes", () => true, [
    ["waiting", (now) => number(now.sync_writes_pending)],
    ["the oldest for", (now) => time(now.sync_writes_oldest_seconds)],
    ["overdue", (now) => number(now.sync_writes_overdue)],
    ["latest timeout, late by", (now) => time(now.sync_writes_late_max_seconds)],
    ["committed / s", (now, rate) => number(rate("sync_writes_committed"))],
    ["aborted / s", (now, rate) => number(rate("sync_writes_aborted"))],
    ["ambiguous", (now) => number(now.sync_writes_ambiguous)],
  ]],
  ["Flusher and journal", isPersistent, [
    ["unflushed", (now) => number(now.unflushed_items)],
    ["written / s", (now, rate) => bytes(Math.round(rate("journal_written_bytes")))],
    ["syncs / s", (now, rate) => number(rate("journal_syncs"))],
    ["a sync takes", (now, rate) => time(rate("journal_sync_seconds") / (rate("journal_syncs") || 1))],
    ["on disk", (now) => size(now.journal_bytes)],
    ["superfluous", (now) => size(now.journal_superfluous_bytes)],
    ["compaction debt", (now) => size(now.compaction_debt_bytes)],
    ["compacted / s", (now, rate) => bytes(Math.round(rate("compacted_bytes")))],
    ["failed flushes", (now) => number(now.journal_write_failures)],
    ["disk", (now) => now.disk_full ? "full" : "has room"],
  ]],
  ["Warm-up", isPersistent, [
    ["segments read", (now) => `${number(now.warmup_segments_done)} of ${number(now.warmup_segments)}`],
    ["done", (now) => now.warmup_segments ? share(now.warmup_segments_done, now.warmup_segments) : "100.0 %"],
    ["vBuckets served", (now) => `${number(now.warmup_vbuckets_done)} of ${number(now.warmup_vbuckets)}`],
    ["records", (now) => number(now.warmup_records)],
    ["damaged vBuckets", (now) => number(now.damaged_vbuckets)],
  ]],
  ["Pager", () => true, [
    ["evicted / s", (now, rate) => number(rate("evictions"))],
    ["expired, reclaimed / s", (now, rate) => number(rate("expired_reclaimed"))],
    ["direct reclaims / s", (now, rate) => number(rate("direct_reclaims"))],
    ["refused for memory", (now) => number(now.store_no_memory)],
    ["values only on disk", (now) => now.ejected_items === undefined ? "-" : number(now.ejected_items)],
    ["fetched / s", (now, rate) => now.ejected_items === undefined ? "-" : number(rate("fetched_values"))],
  ]],
  ["Defragmenter", () => true, [
    ["it", (now) => state(now.defragmenter_armed)],
    ["could give back", (now) => size(now.recoverable_bytes)],
    ["free in slabs", (now) => size(Math.max(0, now.slab_bytes - now.slot_bytes))],
    ["of all slabs", (now) => share(Math.max(0, now.slab_bytes - now.slot_bytes), now.slab_bytes)],
    ["passes", (now) => number(now.defragmenter_passes)],
    ["items moved / s", (now, rate) => number(rate("defragmented_items"))],
    ["given back by passes", (now) => size(now.defragmentation_freed_bytes)],
  ]],
  ["Compressor", () => true, [
    ["it", (now) => state(now.compressor_armed)],
    ["passes", (now) => number(now.compressor_passes)],
    ["values it compressed", (now) => number(now.compressor_values)],
    ["saved by that", (now) => size(now.compressor_saved_bytes)],
    ["compressed now", (now) => number(now.compressed_values)],
    ["saved now", (now) => size(Math.max(0, now.inflated_bytes - now.compressed_bytes))],
  ]],
];

/** How much a bucket's counters have risen per second. One that has fallen was reset, or belongs to a new bucket. */
function rates(name, now) {
  const then = before?.buckets[name];
  const seconds = before ? (last.uptimeMs - before.uptimeMs) / 1e3 : 0;
  return (counter) => {
    if (!then || seconds <= 0) return 0;
    const risen = (now[counter] ?? 0) - (then[counter] ?? 0);
    return (risen < 0 ? now[counter] : risen) / seconds;
  };
}

export function open(place) {
  const none = element("p", {}, "There is no persistent bucket: nothing is flushed, compacted or warmed up.");
  const shown = TABLES.map(([caption, isShown, columns]) => {
    const [all, body] = table(caption, ["bucket", ...columns.map(([heading]) => heading)]);
    return { all, body, isShown, columns };
  });
  place.append(element("h2", {}, "Work in the background"), none, ...shown.map(({ all }) => all));
  const draw = () => {
    if (!last) return;
    const buckets = Object.entries(last.buckets);
    none.hidden = buckets.some(([, now]) => isPersistent(now));
    for (const { all, body, isShown, columns } of shown) {
      const rows = buckets.filter(([, now]) => isShown(now));
      all.hidden = rows.length === 0;
      body.replaceChildren(...rows.map(([name, now]) => {
        const rate = rates(name, now);
        return row(name, ...columns.map(([, cell]) => cell(now, rate)));
      }));
    }
  };
  draw();
  return listen("figures", draw);
}
