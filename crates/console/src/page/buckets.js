// Buckets: what there is, making, changing, emptying and dropping them; and the scopes and collections of each.

import { ask, confirmed, path } from "./ask.js";
import { bytes, counted, element, number } from "./draw.js";
import { button, form } from "./form.js";
import { filled } from "./table.js";

export const title = "Buckets";

const MIB = 1024 * 1024;
const TYPES = [["couchbase", "persistent"], ["ephemeral"]];
const POLICIES = [["", "as in Couchbase"], ["nruEviction", "ephemeral: evict (nruEviction)"], ["noEviction", "ephemeral: refuse (noEviction)"],
  ["valueOnly", "persistent: valueOnly"], ["fullEviction", "persistent: fullEviction"]];
const LEVELS = [["none"], ["majority"], ["majorityAndPersistActive"], ["persistToMajority"]];
const YES_NO = [["0", "no"], ["1", "yes"]];
const SWITCH = [["on"], ["off"]];
const MODES = [["off"], ["passive"], ["active"]];

const at = (...parts) => path("pools", "default", "buckets", ...parts);

export function open(place, [name]) {
  let is_open = true;
  const show = async () => {
    try {
      const parts = name === undefined ? await all(show) : await one(name, show);
      if (is_open) place.replaceChildren(...parts);
    } catch (error) {
      if (is_open) place.replaceChildren(element("p", { role: "alert", class: "refused" }, error.message), button("try again", show));
    }
  };
  show();
  return () => { is_open = false; };
}

async function all(again) {
  const buckets = await ask("/pools/default/buckets");
  const rows = buckets.map((bucket) => [
    element("a", { href: `#/buckets/${encodeURIComponent(bucket.name)}`, title: bucket.name }, bucket.name), kind(bucket),
    number(bucket.basicStats.itemCount), bytes(bucket.basicStats.residentBytes), bytes(bucket.quota.ram),
    `${bucket.basicStats.quotaPercentUsed.toFixed(1)} %`, bucket.evictionPolicy,
  ]);
  const fields = [
    { name: "name", label: "name" }, { name: "bucketType", label: "type", options: TYPES, value: "couchbase" },
    { name: "ramQuota", label: "memory, MiB", kind: "number", value: "256" },
    { name: "evictionPolicy", label: "when it is full", options: POLICIES }, { name: "flushEnabled", label: "may be emptied", options: YES_NO, value: "0" },
    { name: "maxTTL", label: "longest expiry, seconds (0: none)", kind: "number", value: "0" },
    { name: "durabilityMinLevel", label: "least durability", options: LEVELS, value: "none" },
  ];
  const create = async (values) => {
    const given = Object.entries(values).filter(([field, value]) => value !== "" || field === "name" || field === "ramQuota");
    await ask("/pools/default/buckets", { form: Object.fromEntries(given) });
    await again();
    document.querySelector(`a[href="#/buckets/${CSS.escape(encodeURIComponent(values.name))}"]`)?.focus();
  };
  return [
    element("h2", {}, "Buckets"),
    filled("All buckets", ["bucket", "type", "items", "resident", "budget", "used", "when full"], rows),
    element("h3", {}, "Create a bucket"), form("Create a bucket", fields, "create", create),
  ];
}

const kind = (bucket) => bucket.bucketType === "ephemeral" ? "ephemeral" : "persistent";

async function one(name, again) {
  const bucket = await ask(at(name));
  const manifest = await ask(at(name, "scopes"));
  return [
    element("p", {}, element("a", { href: "#/buckets" }, "all buckets")),
    element("h2", {}, name),
    element("p", {}, `${kind(bucket)}, ${counted(bucket.basicStats.itemCount, "item")}, ${bytes(bucket.basicStats.residentBytes)} of ${bytes(bucket.quota.ram)}. `,
      element("a", { href: `#/keys${path(name)}` }, "keys")),
    element("h3", {}, "Settings"), settings(bucket, again),
    element("p", { class: "buttons" }, button("empty it", async () => {
      if (!await confirmed(`Delete all documents of ${name}?`, "empty it", name)) return;
      await ask(at(name, "controller", "doFlush"), { method: "POST", form: {} });
      await again();
    }, { class: "danger" }), button("drop it", async () => {
      if (!await confirmed(`Drop ${name} with all of its documents and files?`, "drop it", name)) return;
      await ask(at(name), { method: "DELETE" });
      location.hash = "#/buckets";
    }, { class: "danger" })),
    element("h3", {}, "Scopes and collections"), ...collections(name, manifest, again),
  ];
}

/** The settings that can change while the bucket is in use. Only those that were changed are sent. */
function settings(bucket, again) {
  const now = {
    ramQuota: `${bucket.quota.ram / MIB}`, flushEnabled: bucket.flushEnabled ? "1" : "0", compressionMode: bucket.compressionMode,
    defragmenter: bucket.defragmenter, maxTTL: `${bucket.maxTTL}`, durabilityMinLevel: bucket.durabilityMinLevel,
  };
  const fields = [
    { name: "ramQuota", label: "memory, MiB", kind: "number" }, { name: "flushEnabled", label: "may be emptied", options: YES_NO },
    { name: "compressionMode", label: "compression", options: MODES }, { name: "defragmenter", label: "defragmenter", options: SWITCH },
    { name: "maxTTL", label: "longest expiry, seconds (0: none)", kind: "number" },
    { name: "durabilityMinLevel", label: "least durability", options: LEVELS },
  ];
  if (kind(bucket) === "persistent") {
    now.evictionPolicy = bucket.evictionPolicy;
    fields.push({ name: "evictionPolicy", label: "when it is full", options: [["valueOnly"], ["fullEviction"]] });
  }
  return form("Settings", fields.map((field) => ({ ...field, value: now[field.name] })), "change", async (values) => {
    const changed = Object.entries(values).filter(([field, value]) => value !== now[field]);
    if (!changed.length) return "nothing to change";
    await ask(at(bucket.name), { form: Object.fromEntries(changed) });
    Object.assign(now, values);
    return "changed";
  });
}

const limit = (seconds) => seconds === 0 ? "the bucket's" : seconds < 0 ? "never" : `${seconds} s`;

/** Scopes that cannot be dropped. */
const stays = (scope) => scope === "_default" || scope === "_system";

function collections(name, { scopes }, again) {
  const rows = scopes.flatMap((scope) => {
    const drop = () => button("drop", async () => {
      if (!await confirmed(`Drop the scope ${scope.name} with its collections?`, "drop", scope.name)) return;
      await ask(at(name, "scopes", scope.name), { method: "DELETE" });
      await again();
    }, { class: "danger", "aria-label": `drop the scope ${scope.name}` });
    const head = [scope.name, "", "", stays(scope.name) ? "" : drop()];
    return [head, ...scope.collections.map((one) => collection(name, scope.name, one, again))];
  });
  const addScope = async ({ name: scope }) => {
    await ask(at(name, "scopes"), { form: { name: scope } });
    await again();
  };
  const addCollection = async ({ scope, name: one, maxTTL }) => {
    await ask(at(name, "scopes", scope, "collections"), { form: { name: one, maxTTL } });
    await again();
  };
  return [
    filled("Scopes and collections", ["scope", "collection", "longest expiry", ""], rows),
    form("Add a scope", [{ name: "name", label: "scope" }], "add scope", addScope),
    form("Add a collection", [
      { name: "scope", label: "in the scope", options: scopes.filter(({ name }) => name !== "_system").map((scope) => [scope.name]), value: scopes[0]?.name },
      { name: "name", label: "collection" },
      { name: "maxTTL", label: "longest expiry, seconds (0: the bucket's, -1: never)", kind: "number", value: "0" },
    ], "add collection", addCollection),
  ];
}

function collection(name, scope, { name: own, maxTTL }, again) {
  const here = at(name, "scopes", scope, "collections", own);
  const keys = element("a", { href: `#/keys${path(name, scope, own)}`, title: own }, own);
  const seconds = element("input", { type: "number", min: "-1", class: "short", "aria-label": `longest expiry of ${own}, seconds` });
  seconds.value = maxTTL;
  const set = button("set", async () => {
    await ask(here, { method: "PATCH", form: { maxTTL: seconds.value } });
    await again();
  }, { "aria-label": `set the longest expiry of ${own}` });
  const drop = button("drop", async () => {
    if (!await confirmed(`Drop the collection ${own} of ${scope} with its documents?`, "drop", own)) return;
    await ask(here, { method: "DELETE" });
    await again();
  }, { class: "danger", "aria-label": `drop the collection ${own} of ${scope}` });
  if (scope === "_system") return ["", keys, limit(maxTTL), ""];
  const is_default = scope === "_default" && own === "_default";
  return ["", keys, element("span", { class: "act" }, limit(maxTTL), seconds, set), is_default ? "" : drop];
}
