// What the node is doing: rates from counters of two moments.

import { bar, bytes, element, number, share } from "./draw.js";

let before = null;
let last = null;

const WRITES = ["cmd_set", "cmd_touch", "incr_hits", "decr_hits", "cmd_subdoc_mutation"];
const READS = ["cmd_get", "cmd_subdoc_lookup"];
const DELETES = ["delete_hits", "delete_misses"];
const MISSES = ["incr_misses", "decr_misses"];

/** Remembers figures. A node that was started anew begins anew. */
export function note(figures) {
  before = last && figures.uptimeMs >= last.uptimeMs ? last : null;
  last = figures;
}

/** Shows what happened between the last two. */
export function draw() {
  if (!before) return;
  const figures = last;
  const seconds = Math.max(1e-3, (figures.uptimeMs - before.uptimeMs) / 1e3);
  const rows = Object.entries(figures.buckets).map(([name, now]) => {
    const then = before.buckets[name] ?? now;
    // A counter that has fallen was reset, or its bucket is a new one: it began at 0.
    const risen = (meter) => (now[meter] ?? 0) >= (then[meter] ?? 0) ? (now[meter] ?? 0) - (then[meter] ?? 0) : now[meter];
    const rate = (...meters) => meters.reduce((sum, meter) => sum + risen(meter), 0) / seconds;
    return {
      name, items: now.items, reads: rate(...READS), gets: rate("cmd_get"), hits: rate("get_hits"), writes: rate(...WRITES),
      deletes: rate(...DELETES), misses: rate(...MISSES), evicted: rate("evictions"), unflushed: now.unflushed_items,
    };
  });
  buckets(rows);
  node(figures, before, rows, seconds);
  threads(figures.threads, before.threads, seconds);
}

function buckets(rows) {
  const cells = (row) => [number(row.items), number(row.reads), share(row.hits, row.gets), number(row.writes),
    number(row.deletes), number(row.evicted), row.unflushed === undefined ? "-" : number(row.unflushed)];
  document.querySelector("#figures-buckets tbody").replaceChildren(...rows.map((row) => element("tr", {},
    element("th", { scope: "row", title: row.name }, row.name), ...cells(row).map((cell) => element("td", {}, cell)))));
}

function node(figures, then, rows, seconds) {
  const sum = (name) => rows.reduce((all, row) => all + row[name], 0);
  const cpu = (figures.cpuNs - then.cpuNs) / 1e7 / seconds;
  const tiles = [
    ["operations per second", number(sum("reads") + sum("writes") + sum("deletes") + sum("misses"))],
    ["hit ratio", share(sum("hits"), sum("gets"))],
    ["CPU, % of a core", cpu.toFixed(2)],
    ["connections", number(figures.node.connections)],
    ["buffers of clients", bytes(figures.node.client_buffer_bytes)],
    ["evicted per second", number(sum("evicted"))],
    ["up", duration(figures.uptimeMs / 1e3)],
  ];
  document.getElementById("figures-node").replaceChildren(...tiles.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function cpuPercent(now, then, seconds) {
  const former = new Map(then.map((thread) => [thread.id, thread.cpuNs]));
  return now.map((thread) => ({
    name: thread.name, percent: Math.max(0, thread.cpuNs - (former.get(thread.id) ?? thread.cpuNs)) / 1e7 / seconds,
  }));
}

function threads(now, then, seconds) {
  // Threads of the same name together: the allocator has several.
  const byName = new Map();
  for (const { name, percent } of cpuPercent(now, then, seconds)) byName.set(name, (byName.get(name) ?? 0) + percent);
  const sorted = [...byName].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
  document.querySelector("#figures-threads tbody").replaceChildren(...sorted.map(([name, percent]) => element("tr", {},
    element("th", { scope: "row" }, name), element("td", {}, percent.toFixed(2)),
    element("td", {}, bar([{ bytes: Math.min(percent, 100), kind: "payload", title: `${percent.toFixed(2)} %` }], 100,
      `${name}: ${percent.toFixed(2)} %`)))));
}

function duration(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}
