// One stream of events, read with fetch so that the browser's login dialog appears where one is needed.

import * as figures from "./figures.js";
import * as memory from "./memory.js";

const HANDLERS = { history: memory.remember, memory: memory.show, figures: (json) => figures.show(json, Date.now()) };
const AGAIN_MS = [500, 1000, 2000, 5000];

function state(text, kind = "") {
  const place = document.getElementById("state");
  if (place.textContent !== text) place.textContent = text;
  place.className = kind;
}

/** Handles the events of a stream until it ends. */
async function follow(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const [, name, json] = event.match(/^event: (\w+)\ndata: (.*)$/s) ?? [];
      HANDLERS[name]?.(JSON.parse(json));
    }
  }
}

for (let failures = 0; ; failures += 1) {
  try {
    const response = await fetch("/events", { cache: "no-store" });
    if (response.ok) {
      failures = 0;
      state("live", "live");
      await follow(response.body);
      state("the connection has ended; connecting again", "lost");
    } else {
      state(response.status === 401 ? "a login is needed" : `refused: ${response.status}: ${(await response.text()).trim()}`, "lost");
    }
  } catch {
    state("the node does not answer; trying again", "lost");
  }
  await new Promise((wait) => setTimeout(wait, AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)]));
}
