// Keys: lists of a collection, one document at a time, and memory by prefixes.

import { ask, confirmed, path } from "./ask.js";
import { bytes, counted, element, number } from "./draw.js";
import { button, form } from "./form.js";
import { formatted, parsed } from "./json.js";
import { decode, encode, shown, typed } from "./key.js";
import { prefixes } from "./prefixes.js";
import { filled } from "./table.js";

export const title = "Keys";

const PAGE = 50;

export function open(place, [bucket, scope, collection]) {
  let is_open = true;
  begin(place, { bucket, scope, collection }).catch((error) => {
    if (is_open) place.replaceChildren(element("p", { role: "alert", class: "refused" }, error.message));
  });
  return () => { is_open = false; };
}

async function begin(place, chosen) {
  const buckets = (await ask("/pools/default/buckets")).map((bucket) => bucket.name);
  if (!buckets.length) return place.replaceChildren(element("p", {}, "There is no bucket."));
  const view = new View(buckets, chosen);
  await view.choose();
  place.replaceChildren(...view.parts());
}

class View {
  constructor(buckets, { bucket, scope, collection }) {
    this.at = { bucket: buckets.includes(bucket) ? bucket : buckets[0], scope, collection };
    this.pickers = { bucket: picker("bucket"), collection: picker("collection") };
    fill(this.pickers.bucket, buckets.map((name) => [name, name]), this.at.bucket);
    this.pickers.bucket.addEventListener("change", async () => {
      this.at = { bucket: this.pickers.bucket.value };
      try {
        await this.choose();
        this.chosen();
      } catch (error) {
        // It may have been dropped meanwhile.
        fill(this.pickers.collection, [], "");
        this.document.replaceChildren();
        this.list.replaceChildren(element("p", { role: "alert", class: "refused" }, error.message));
      }
    });
    this.pickers.collection.addEventListener("change", () => {
      [this.at.scope, this.at.collection] = this.pickers.collection.value.split(".");
      this.chosen();
    });
    this.list = element("div", {});
    this.document = element("section", { "aria-label": "Document" });
  }

  /** Asks for the collections of the bucket, and chooses one. */
  async choose() {
    const { scopes } = await ask(path("pools", "default", "buckets", this.at.bucket, "scopes"));
    const all = scopes.flatMap((scope) => scope.collections.map((one) => `${scope.name}.${one.name}`));
    const wanted = `${this.at.scope}.${this.at.collection}`;
    const one = all.includes(wanted) ? wanted : all[0] ?? "_default._default";
    [this.at.scope, this.at.collection] = one.split(".");
    fill(this.pickers.collection, all.map((name) => [name, name]), one);
  }

  /** Another collection has been chosen: the address says so, and what was shown goes. */
  chosen() {
    history.replaceState(null, "", `#/keys${path(this.at.bucket, this.at.scope, this.at.collection)}`);
    this.list.replaceChildren();
    this.document.replaceChildren();
  }

  docs() {
    const { bucket, scope, collection } = this.at;
    return path("pools", "default", "buckets", bucket, "scopes", scope, "collections", collection, "docs");
  }

  /** The address of a document: as a field, since `.` and `..` cannot be parts of a path. */
  address(key) {
    return `${this.docs()}?key=${encode(key)}`;
  }

  parts() {
    const search = form("List keys", [{ name: "prefix", label: "keys that begin with" }], "list", async ({ prefix }) => {
      this.prefix = typed(prefix);
      await this.page("");
    });
    const sample = button("random sample", async () => {
      const prefix = search.elements.prefix.value;
      await this.show(`sample=${PAGE}&prefix=${encode(typed(prefix))}`);
    });
    const create = form("Store a document", [{ name: "key", label: "key" }, { name: "value", label: "value", kind: "textarea", rows: 4 }], "store",
      async ({ key, value }) => {
        const bytes = typed(key);
        await ask(this.address(bytes), { method: "PUT", json: { value }, headers: { "If-None-Match": "*" } });
        await this.look(bytes);
        return "stored";
      });
    return [
      element("h2", {}, "Keys"),
      element("form", { "aria-label": "Where" }, ...Object.entries(this.pickers).map(([name, select]) => element("label", {}, name, select))),
      search, sample, this.list, this.document,
      element("h3", {}, "Store a document"), create,
      element("h3", {}, "Memory by prefixes"), ...prefixes(() => this.at),
    ];
  }

  async page(after) {
    await this.show(`limit=${PAGE}&prefix=${encode(this.prefix)}${after && `&after=${after}`}`);
  }

  async show(query) {
    const found = await ask(`${this.docs()}?${query}`);
    const rows = found.keys.map(({ encoded, valueBytes, expiry, resident }) => {
      const key = decode(encoded), name = shown(key);
      const open = button(name, () => this.look(key), { class: "key-name", title: name, "data-key": encoded });
      return [open, bytes(valueBytes), when(expiry), resident ? "yes" : "on disk"];
    });
    const part = found.complete ? "" : ` Not all of them were looked at (${number(found.visited)} documents were); there may be more keys.`;
    const parts = [
      element("p", { role: "status" }, `${counted(found.keys.length, "key")}. The collection has ${counted(found.items, "document")}.${part}`),
      filled("Keys", ["key", "value", "expires", "in memory"], rows),
    ];
    if (found.next && !query.startsWith("sample")) parts.push(button("next page", () => this.page(found.next)));
    this.list.replaceChildren(...parts);
  }

  async look(key) {
    const found = parsed(await ask(this.address(key), { raw: true }), JSON.rawJSON ?? Number);
    this.document.replaceChildren(...this.detail(key, found));
    this.document.querySelector("h3").focus();
  }

  detail(key, found) {
    const facts = [
      ["CAS", found.locked ? "locked by a client" : found.cas], ["expires", when(found.expiry)], ["flags", `${found.flags}`],
      ["seqno", found.seqno], ["revision", found.revision], ["value", bytes(found.valueBytes)], ["stored", bytes(found.storedBytes)],
      ["in memory with key and header", bytes(found.allocatedBytes)], ["was in memory", found.resident ? "yes" : "no, on disk"],
      ["kind", [found.datatype.json ? "JSON" : found.value === undefined ? "bytes" : "text", ...found.datatype.compressed ? ["compressed"] : []].join(", ")],
    ];
    const parts = [
      element("h3", { tabindex: "-1", class: "key-title" }, shown(key)),
      element("dl", { class: "tiles" }, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", { class: "fact" }, value)))),
    ];
    if (Object.keys(found.xattrs).length) parts.push(element("p", {}, "Extended attributes"), element("pre", { tabindex: "0" }, formatted(JSON.stringify(found.xattrs))));
    if (found.datatype.json && !found.truncated) parts.push(element("pre", { tabindex: "0", "aria-label": "Value, formatted" }, formatted(found.value)));
    const version = { "If-Match": `"${found.cas}"` };
    if (found.truncated) {
      parts.push(element("p", {}, "Only the beginning of the value is shown, so it cannot be edited here."),
        element("pre", { tabindex: "0" }, found.value ?? found.base64));
    } else {
      // A text field would turn each CR into LF.
      const field = found.value === undefined || found.value.includes("\r") ? "base64" : "value";
      const label = field === "base64" ? "value in base64" : "value";
      const value = found[field] ?? base64(new TextEncoder().encode(found.value));
      parts.push(form("Edit the value", [{ name: field, label, kind: "textarea", value }], "save", async (values) => {
        await ask(this.address(key), { method: "PUT", json: values, headers: version });
        await this.look(key);
      }));
    }
    parts.push(form("Change the expiry", [{ name: "ttl", label: "expires in, seconds (0: never)", kind: "number", value: "0" }], "set expiry", async ({ ttl }) => {
      await ask(this.address(key), { method: "PUT", form: { ttl }, headers: version });
      await this.look(key);
    }), element("p", { class: "buttons" }, button("load again", () => this.look(key)), button("delete", async () => {
      if (!await confirmed(`Delete ${shown(key)}?`, "delete")) return;
      await ask(this.address(key), { method: "DELETE", headers: version });
      this.document.replaceChildren(element("p", { role: "status", class: "done" }, `${shown(key)} is deleted`));
      for (const name of this.list.querySelectorAll("[data-key]")) if (shown(decode(name.dataset.key)) === shown(key)) name.closest("tr").remove();
    }, { class: "danger" })));
    return parts;
  }
}

const picker = (name) => element("select", { name });

function fill(select, options, value) {
  select.replaceChildren(...options.map(([word, text]) => element("option", { value: word }, text)));
  select.value = value;
}

const base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));

const when = (seconds) => seconds === 0 ? "never" : new Date(1000 * seconds).toISOString().replace("T", " ").slice(0, 19);
