// The OVSDB databases: `#/databases`, one of them (`/DB`), and the rows of a table (`/DB/tables/T`).

import { ask, path } from "./ask.js";
import { bytes, element, number } from "./draw.js";
import { parsed } from "./json.js";
import { act, message, repeat, replace, say, tiles } from "./repeat.js";
import { row, table } from "./table.js";

export const title = "Databases";

const EVERY_MS = 5000;
const ROWS_AT_ONCE = 100;
/** A longer value is cut off in a cell; the whole one is its title. */
const SHOWN_CHARACTERS = 200;

const href = (...parts) => `#/databases${path(...parts)}`;
const link = (text, ...parts) => element("a", { href: href(...parts), title: text }, text);
const when = (ms) => new Date(ms).toLocaleString();

export function open(place, [database, what, name]) {
  if (!database) return list(place);
  return what === "tables" && name ? rows(place, database, name) : report(place, database);
}

function list(place) {
  const said = message();
  const summary = element("p");
  const [all, body] = table("OVSDB databases", ["database", "schema", "rows", "bytes of rows", "resident", "budget", "log", "commits",
    "monitors", "last compaction", "state"]);
  all.hidden = true;
  place.append(element("h2", {}, "OVSDB databases"), summary, all, said);
  return repeat(async () => {
    const { sessions, databases } = await ask("/databases");
    all.hidden = databases.length === 0;
    summary.textContent = databases.length === 0 ? "This node has no OVSDB database." : `${number(sessions)} sessions of clients`;
    replace(body, ...databases.map((one) => row(link(one.name, one.name), one.schemaVersion, number(one.rows), bytes(one.recordBytes),
      bytes(one.residentBytes), bytes(one.budgetBytes), bytes(one.logBytes), number(one.commits), number(one.monitors),
      compaction(one), one.fault ?? "can be written")));
  }, EVERY_MS, said);
}

function compaction({ compacting, lastCompaction: end }) {
  if (compacting) return "running";
  if (!end) return "none since the start";
  return end.error ? `failed: ${end.error}` : `${when(end.endedMs)}, ${bytes(end.oldBytes)} to ${bytes(end.newBytes)}`;
}

function report(place, name) {
  const [said, done] = [message(), message()];
  const figures = element("dl", { class: "tiles" });
  const compact = element("button", { type: "button" }, "compact the log");
  const schema = element("button", { type: "button", "aria-expanded": "false" }, "show the schema");
  const text = element("pre", { tabindex: "0", role: "region", "aria-label": "Schema" });
  text.hidden = true;
  const [all, body] = table(`Tables of ${name}`, ["table", "rows", "bytes"]);
  place.append(element("p", {}, element("a", { href: "#/databases" }, "all databases")), element("h2", {}, name), figures,
    element("p", { class: "buttons" }, compact, schema), done, text, all, said);
  compact.addEventListener("click", () => act(compact, done, async () => {
    const end = await ask(`${path("databases", name)}/compact`, { method: "POST" });
    return end.compacting ? "it takes a while, and goes on" : `compacted in ${number(end.tookMs)} ms: ${bytes(end.oldBytes)} to ${bytes(end.newBytes)}`;
  }));
  schema.addEventListener("click", async () => {
    if (text.hidden) {
      try {
        text.textContent = JSON.stringify(await ask(`${path("databases", name)}/schema`), null, 2);
      } catch (error) {
        return say(done, error.message, true);
      }
    }
    text.hidden = !text.hidden;
    schema.setAttribute("aria-expanded", String(!text.hidden));
    schema.textContent = text.hidden ? "show the schema" : "hide the schema";
  });
  return repeat(async () => {
    const one = await ask(path("databases", name));
    figures.replaceChildren(...tiles([
      ["state", one.fault ?? "can be written"], ["schema", one.schemaVersion || "-"], ["rows", number(one.rows)],
      ["bytes of rows", bytes(one.recordBytes)], ["indexes", bytes(one.indexBytes)],
      ["history", `${number(one.historyCommits)} commits, ${bytes(one.historyBytes)}`],
      ["resident", `${bytes(one.residentBytes)} of ${bytes(one.budgetBytes)}`], ["commits", number(one.commits)],
      ["monitors", `${number(one.monitors)} of ${number(one.monitoringSessions)} sessions`],
      ["log", bytes(one.logBytes)], ["file", one.logFile || "-"], ["last compaction", compaction(one)],
    ]));
    replace(body, ...one.tables.map((table) => row(link(table.name, name, "tables", table.name), number(table.rows), bytes(table.bytes))));
  }, EVERY_MS, said);
}

/** An OVSDB value as text: sets and maps in braces. */
function shown(value) {
  if (!Array.isArray(value)) return String(value);
  const [kind, inner] = value;
  if (kind === "set") return `{${inner.map(shown).join(", ")}}`;
  if (kind === "map") return `{${inner.map(([key, one]) => `${shown(key)}=${shown(one)}`).join(", ")}}`;
  return String(inner);
}

/** A cell without what would make the page slow. */
function cell(value) {
  const text = value === undefined ? "-" : shown(value);
  return element("span", { title: text }, text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}...` : text);
}

function rows(place, database, name) {
  const said = message();
  const more = element("button", { type: "button" }, "more rows");
  const holder = element("div");
  place.append(element("p", {}, link(database, database)), element("h2", {}, `Rows of ${name}`), holder,
    element("p", { class: "buttons" }, more), said);
  let next = 0;
  let count = 0;
  let columns = null;
  let body = null;
  let isClosed = false;
  const load = async () => {
    // Vacant places may make an answer empty.
    const answer = parsed(await ask(`${path("databases", database, "tables", name)}?from=${next}&limit=${ROWS_AT_ONCE}`, { raw: true }), String);
    if (isClosed) return "";
    if (!columns && answer.rows.length) {
      // Those that exist in every row: a row that is too long has only its UUID.
      const names = new Set(answer.rows.flatMap(Object.keys));
      for (const hidden of ["_uuid", "_version"]) names.delete(hidden);
      columns = [...names].sort((one, other) => (other === "name") - (one === "name"));
      const [all, inner] = table(`Rows of ${name}`, ["_uuid", ...columns]);
      body = inner;
      holder.replaceChildren(all);
    }
    body?.append(...answer.rows.map((one) => row(shown(one._uuid), ...columns.map((column) => cell(one[column])))));
    count += answer.rows.length;
    next = answer.next;
    more.hidden = next === null;
    return next === null ? `${number(count)} rows, all there are` : `${number(count)} rows so far`;
  };
  more.addEventListener("click", () => act(more, said, load));
  act(more, said, load);
  return () => { isClosed = true; };
}
