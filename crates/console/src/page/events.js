// One stream of events for all views, read with fetch so that the browser's login dialog appears where one is needed.

import { here } from "./ask.js";
import { element } from "./draw.js";

const AGAIN_MS = [500, 1000, 2000, 5000];
const listeners = new Map();

/** Calls `listener` with each event of this name; returns a function that ends it. */
export function listen(name, listener) {
  const all = listeners.get(name) ?? new Set();
  listeners.set(name, all.add(listener));
  return () => all.delete(listener);
}

function state(text, kind = "") {
  const place = document.getElementById("state");
  if (place.textContent !== text) place.textContent = text;
  place.className = kind;
}

function tell(name, json) {
  for (const listener of listeners.get(name) ?? []) {
    try {
      listener(json);
    } catch (error) {
      console.error(error);
      state(`the page cannot show ${name}: ${error.message}`, "lost");
    }
  }
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
      if (name) tell(name, JSON.parse(json));
    }
  }
}

/** Shows why the node refuses, and waits until somebody asks again: each attempt with a wrong password counts. */
function refused(why) {
  state(`${why} `, "lost");
  const again = element("button", { type: "button" }, "try again");
  document.getElementById("state").append(again);
  return new Promise((resolve) => again.addEventListener("click", resolve, { once: true }));
}

/** Follows the node's events for as long as the page is open. */
export async function run() {
  for (let failures = 0; ; failures += 1) {
    const stop = new AbortController();
    try {
      const response = await fetch(here("/events"), { cache: "no-store", signal: stop.signal });
      if (response.ok) {
        failures = 0;
        state("live", "live");
        await follow(response.body);
        state("the connection has ended; connecting again", "lost");
      } else if (response.status === 401) {
        await refused("a login is needed");
      } else if (response.status === 403) {
        await refused((await response.text()).trim());
      } else {
        state(`${response.status}: ${(await response.text()).trim()}; trying again`, "lost");
      }
    } catch {
      state("the node does not answer; trying again", "lost");
    } finally {
      stop.abort();
    }
    await new Promise((wait) => setTimeout(wait, AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)]));
  }
}
