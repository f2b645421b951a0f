// The first view: where every byte lies, and what the node is doing.

import { listen } from "./events.js";
import * as figures from "./figures.js";
import * as memory from "./memory.js";
import * as sizes from "./sizes.js";

export const title = "Overview";

// What came while other views were open is remembered.
listen("history", memory.remember);
listen("memory", memory.note);
listen("figures", figures.note);

export function open(place) {
  place.append(document.getElementById("overview").content.cloneNode(true));
  const items = sizes.open(document.getElementById("sizes-place"));
  const parts = () => {
    memory.draw();
    items.names(memory.buckets());
  };
  const ends = [["history", memory.draw], ["memory", parts], ["figures", figures.draw]].map(([name, draw]) => {
    draw();
    return listen(name, draw);
  });
  return () => [items.close, ...ends].forEach((end) => end());
}
