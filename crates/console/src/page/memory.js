// Where every byte lies: bars, a table that adds up, and the last hour.

import { bar, bytes, counted, element, line, shape, share } from "./draw.js";

// Parts by what they are.
const KINDS = {
  "keys and values": "payload", metadata: "metadata", index: "index", rounding: "rounding", "free in slabs": "free",
  "free pages": "free", "in flight": "flight", clients: "flight", flushers: "flight", rows: "rows", history: "metadata",
  program: "program",
};
const KEY = [
  ["payload", "keys and values"], ["rows", "rows"], ["metadata", "metadata, history"], ["index", "index"],
  ["rounding", "rounding"], ["free", "free"], ["flight", "in flight, buffers"], ["program", "program"], ["other", "other"],
];
const HOUR_MS = 3600e3;

let points = [];
let latest = null;

const kind = (name) => KINDS[name] ?? "other";

/** The leaves of a part, each with its kind. */
function leaves(part) {
  if (!part.parts?.length) return [{ bytes: part.bytes, kind: kind(part.name), title: `${part.name}: ${bytes(part.bytes)}` }];
  return part.parts.flatMap(leaves);
}

/** Remembers a reading of `/memory`. */
export function note(memory) {
  latest = memory;
  // The clock may have been set back.
  points = points.filter(([at]) => at < memory.atMs);
  points.push([memory.atMs, memory.residentBytes]);
}

/** Takes what the node remembers. */
export function remember(past) {
  points = past.points.map(([atMs, resident]) => [atMs, resident]);
}

/** The names of the buckets, the largest first. */
export function buckets() {
  const parts = latest?.parts.find((part) => part.name === "buckets")?.parts ?? [];
  return [...parts].sort((a, b) => b.bytes - a.bytes).map((part) => part.name);
}

/** Shows what is known. */
export function draw() {
  if (latest) reading(latest);
  history();
}

function reading(memory) {
  const whole = memory.residentBytes;
  const limit = memory.limitBytes > 0 ? ` Buckets may use ${bytes(memory.limitBytes)}.` : "";
  document.getElementById("memory-sum").textContent = `${bytes(whole)} resident.${limit}`;
  bars(memory, whole);
  table(memory, whole);
}

function bars(memory, whole) {
  const place = document.getElementById("memory-bars");
  const rows = [["the whole node", { parts: memory.parts, bytes: whole }, whole]];
  const holders = memory.parts.filter((part) => part.name === "buckets" || part.name === "databases");
  const tenants = holders.flatMap((part) => part.parts ?? []).sort((a, b) => b.bytes - a.bytes);
  for (const tenant of tenants.slice(0, 12)) rows.push([tenant.name, tenant, whole]);
  place.replaceChildren(...rows.map(([name, part, full]) => {
    const label = `${name}: ${bytes(part.bytes)}, ${share(part.bytes, whole)} of resident memory`;
    return element("div", { class: "bar" }, element("span", { title: name }, name), bar(leaves(part), full, label),
      element("span", {}, bytes(part.bytes)));
  }));
  if (!document.getElementById("memory-key").children.length) {
    document.getElementById("memory-key").append(...KEY.map(([kind, name]) => {
      const box = shape("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }, shape("rect", { width: 1, height: 1, class: kind }));
      return element("li", {}, box, name);
    }));
  }
}

function table(memory, whole) {
  const rows = [];
  const add = (part, depth) => {
    if (depth > 0 && part.bytes === 0 && !part.about) return;
    const name = part.about ? `${part.name} (${part.about.kind}, ${counted(part.about.items, part.about.kind === "ovsdb" ? "row" : "item")})` : part.name;
    rows.push(element("tr", { class: `deep${depth}` }, element("th", { scope: "row", title: name }, name),
      element("td", {}, part.bytes.toLocaleString("en")), element("td", {}, share(part.bytes, whole))));
    for (const inner of part.parts ?? []) add(inner, depth + 1);
  };
  for (const part of memory.parts) add(part, 0);
  rows.push(element("tr", { class: "whole" }, element("th", { scope: "row" }, "resident"),
    element("td", {}, whole.toLocaleString("en")), element("td", {}, "100.0 %")));
  document.querySelector("#memory-table tbody").replaceChildren(...rows);
}

function history() {
  const now = points.length ? points[points.length - 1][0] : 0;
  points = points.filter(([at]) => at > now - HOUR_MS);
  const most = Math.max(...points.map(([, resident]) => resident), 1);
  const from = Math.max(now - HOUR_MS, points[0]?.[0] ?? 0);
  const minutes = Math.round((now - from) / 60e3);
  const length = minutes > 1 ? `${minutes} minutes` : `${Math.round((now - from) / 1e3)} seconds`;
  const before = minutes < 59 ? "; before, no page was open" : "";
  const label = `Resident memory over ${length}: at most ${bytes(most)}${before}`;
  document.getElementById("memory-history").replaceChildren(line(points, [from, now], most, label), element("p", {}, label));
}
