// Tables that scroll where they are too wide.

import { element } from "./draw.js";

/** A table: its element, and its body to fill with rows. */
export function table(caption, headings, attributes = {}) {
  const body = element("tbody");
  const head = element("thead", {}, element("tr", {}, ...headings.map((heading) => element("th", { scope: "col" }, heading))));
  const all = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `${caption} as a table` },
    element("table", attributes, element("caption", {}, caption), head, body));
  return [all, body];
}

/** A row: its first cell names it. */
export function row(name, ...cells) {
  const title = typeof name === "string" ? { title: name } : {};
  return element("tr", {}, element("th", { scope: "row", ...title }, name), ...cells.map((cell) => element("td", {}, cell)));
}

/** A table with its rows, each a list of cells. */
export function filled(caption, headings, rows) {
  const [all, body] = table(caption, headings);
  body.append(...rows.map((cells) => row(...cells)));
  return all;
}
