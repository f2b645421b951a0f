// The page: one view at a time, by the address's fragment (`#/buckets/orders`).
//
// A view is a module of its own. It exports its `title` and `open(place, path)`: `place` is an empty section to fill,
// `path` what follows its name in the fragment, as a list. `open` returns a function that ends what it began:
// a closed view asks the node nothing. To add one, import it, give it a row in VIEWS, and list its file in page.rs.

import * as allocator from "./allocator.js";
import * as buckets from "./buckets.js";
import * as databases from "./databases.js";
import { element } from "./draw.js";
import * as events from "./events.js";
import * as keys from "./keys.js";
import * as log from "./log.js";
import * as overview from "./overview.js";
import * as requests from "./requests.js";
import * as work from "./work.js";

/** Name in the fragment, and module. The first is shown if the fragment names none. */
const VIEWS = Object.entries({ overview, buckets, keys, requests, work, databases, allocator, log });
const UNKNOWN = {
  title: "No such view",
  open(place) {
    place.append(element("p", { role: "alert" }, `There is no view of this name: ${location.hash}`));
    return () => {};
  },
};

let opened = null;

function wanted() {
  const [name, ...path] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  return [name ? VIEWS.find(([known]) => known === name) ?? ["", UNKNOWN] : VIEWS[0], path];
}

/** Somebody may have typed the fragment. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function show() {
  const [[name, view], path] = wanted();
  opened?.();
  const place = element("section", { "aria-label": view.title });
  document.querySelector("main").replaceChildren(place);
  opened = view.open(place, path);
  document.title = `${view.title} - Dormouse`;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

document.getElementById("views").replaceChildren(...VIEWS.map(([name, view]) =>
  element("li", {}, element("a", { href: `#/${name}`, "data-view": name }, view.title))));
addEventListener("hashchange", show);
show();
events.run();
