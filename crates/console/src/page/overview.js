// The first view: where every byte lies, and what the node is doing.

import { listen } from "./events.js";
import * as figures from "./figures.js";
import * as memory from "./memory.js";

export const title = "Overview";

// What came while other views were open is remembered.
listen("history", memory.remember);
listen("memory", memory.note);
listen("figures", figures.note);

export function open(place) {
  place.append(document.getElementById("overview").content.cloneNode(true));
  const ends = [["history", memory.draw], ["memory", memory.draw], ["figures", figures.draw]].map(([name, draw]) => {
    draw();
    return listen(name, draw);
  });
  return () => ends.forEach((end) => end());
}
