// The allocator: its settings, changed while the node runs; heap profiles; copies of persistent buckets.

import { ask, path } from "./ask.js";
import { bytes, element } from "./draw.js";
import { form } from "./form.js";
import { act, message, say, tiles } from "./repeat.js";
import { row, table } from "./table.js";

export const title = "Allocator";

/** Values of settings that have few. */
const CHOICES = { background_thread: ["false", "true"], thp: ["default", "always", "never"] };
/** Figures that are no bytes. */
const COUNTS = ["background_threads", "metadata_huge_pages"];

const amount = ([name, value]) => [name.replaceAll("_", " ").replace(/ bytes$/, ""), COUNTS.includes(name) ? String(value) : bytes(value)];

export function open(place) {
  const said = message();
  let isClosed = false;
  const version = element("p");
  const figures = element("dl", { class: "tiles" });
  const settings = element("div");
  const actions = element("div");
  place.append(element("h2", {}, "Allocator"), version, said, figures, settings, actions);
  const load = async () => {
    const allocator = await ask("/allocator");
    if (isClosed) return;
    version.textContent = `${allocator.allocator}; huge pages of the system: ${allocator.systemThp}`;
    figures.replaceChildren(...tiles(Object.entries(allocator.figures).map(amount)));
    settings.replaceChildren(...settingsOf(allocator));
    const profile = profileOf(allocator);
    actions.replaceChildren(arenas(allocator), ...profile, ...await copies());
  };
  load().catch((error) => say(said, error.message, true));
  return () => { isClosed = true; };
}

function settingsOf(allocator) {
  const [all, body] = table("Settings", ["setting", "in force", "changes"]);
  const changes = (name) => allocator.changeable.includes(name) ? "at once" : "at a restart";
  body.append(...Object.entries(allocator.settings).map(([name, value]) => row(name, String(value), changes(name))),
    ...Object.entries(allocator.missing).map(([name, why]) => row(name, "-", why)));
  if (!allocator.changeable.length) return [all, element("p", {}, "This build's allocator has no setting that changes while the node runs.")];
  const fields = allocator.changeable.map((name) =>
    ({ name, label: name, value: String(allocator.settings[name]), options: CHOICES[name]?.map((choice) => [choice]) }));
  return [all, form("Settings that change at once", fields, "apply", async (values) => {
    const changed = Object.entries(values).filter(([name, value]) => value !== String(allocator.settings[name]));
    if (!changed.length) return "nothing is changed";
    await ask("/allocator", { form: Object.fromEntries(changed) });
    const now = (await ask("/allocator")).settings;
    allocator.settings = now;
    for (const line of body.rows) {
      const name = line.cells[0].textContent;
      if (name in now) line.cells[1].textContent = String(now[name]);
    }
    return `in force until the configuration is read again: ${changed.map(([name]) => `${name} = ${now[name]}`).join(", ")}`;
  })];
}

function arenas(allocator) {
  const buckets = Object.entries(allocator.buckets);
  const names = [...new Set(buckets.flatMap(([, figures]) => Object.keys(figures)))];
  const caption = "Arenas of buckets, as the allocator counts: with pages that were never touched";
  const [all, body] = table(caption, ["bucket", ...names.map((name) => name.replace(/_bytes$/, ""))]);
  body.append(...buckets.map(([bucket, figures]) => row(bucket, ...names.map((name) => name in figures ? bytes(figures[name]) : "-"))));
  all.hidden = buckets.length === 0;
  return all;
}

function profileOf(allocator) {
  const done = message();
  const write = element("button", { type: "button" }, "write a heap profile");
  const why = allocator.missing.profile ?? (allocator.settings.profile === false ? "allocator.profile is not set: it needs a restart" : "");
  write.disabled = why !== "";
  write.addEventListener("click", () => act(write, done, async () => `written: ${(await ask("/allocator/profile", { method: "POST" })).file}`));
  return [element("h3", {}, "Heap profile"), element("p", { class: "buttons" }, write), ...why ? [element("p", {}, `Not possible: ${why}.`)] : [], done];
}

/** A form for each bucket that has a journal. */
async function copies() {
  const { buckets } = await ask("/figures");
  const persistent = Object.keys(buckets).filter((name) => buckets[name].journal_bytes !== undefined);
  if (!persistent.length) return [];
  const forms = persistent.map((name) =>
    form(`Back up ${name}`, [{ name: "label", label: `label of a copy of ${name} (the time, if empty)` }], "back up", async (values) => {
      const answer = await ask(`${path("pools", "default", "buckets", name)}/backup`, { form: values.label ? values : {} });
      return `copied to ${answer.directory}`;
    }));
  return [element("h3", {}, "Copies of persistent buckets"), ...forms];
}
