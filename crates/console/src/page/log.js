// The log's tail: what the node logs, the newest first, while the view is open.

import { ask } from "./ask.js";
import { element } from "./draw.js";
import { message, repeat } from "./repeat.js";

export const title = "Log";

const EVERY_MS = 2000;
const LINES_MAX = 1000;
const LEVELS = ["error", "warn", "info", "debug", "trace"];

/** Local time, to the millisecond. */
function time(atMs) {
  const at = new Date(atMs);
  return `${at.toLocaleDateString("en-CA")} ${at.toLocaleTimeString("en-GB")}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

function item(line) {
  return element("li", {}, element("time", { datetime: new Date(line.atMs).toISOString() }, time(line.atMs)), " ",
    element("strong", { class: `level-${line.level}` }, line.level), " ", element("span", { class: "quiet" }, line.target), " ",
    element("span", {}, line.text));
}

export function open(place) {
  const said = message();
  const level = element("select", {}, ...LEVELS.map((name) => element("option", { value: name }, name === "trace" ? "all" : name)));
  level.value = "trace";
  const filter = element("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const form = element("form", { "aria-label": "Which lines" }, element("label", {}, "as severe as", level), element("label", {}, "with the text", filter));
  const count = element("p", { class: "quiet" });
  const list = element("ol", { class: "log", "aria-label": "Lines of the log, the newest first" });
  place.append(element("h2", {}, "Log"), form, said, count, list);
  let last = 0;
  let lines = [];
  const isShown = (line) => LEVELS.indexOf(line.level) <= LEVELS.indexOf(level.value)
    && `${line.target} ${line.text}`.toLowerCase().includes(filter.value.toLowerCase());
  const tell = () => { count.textContent = `${list.children.length} of ${lines.length} lines`; };
  const draw = () => {
    list.replaceChildren(...lines.filter(isShown).map(item).reverse());
    tell();
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  level.addEventListener("change", draw);
  filter.addEventListener("input", draw);
  return repeat(async () => {
    let answer = await ask(`/log?lines=${LINES_MAX}&after=${last}`);
    if (answer.last < last) {
      // The node was started again, and counts anew.
      lines = [];
      list.replaceChildren();
      answer = await ask(`/log?lines=${LINES_MAX}`);
    }
    last = answer.last;
    lines = [...lines, ...answer.lines].slice(-LINES_MAX);
    list.prepend(...answer.lines.filter(isShown).map(item).reverse());
    const most = lines.filter(isShown).length;
    while (list.children.length > most) list.lastChild.remove();
    tell();
  }, EVERY_MS, said);
}
