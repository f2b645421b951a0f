// Questions that a view asks again and again while it is open.

import { element } from "./draw.js";
import { Refused } from "./ask.js";

/** A place for what the node says. */
export function message() {
  return element("p", { role: "status" });
}

/** Shows that something is done, or why not. */
export function say(place, text, isRefused = false) {
  if (place.textContent !== text) place.textContent = text;
  place.className = isRefused ? "refused" : "done";
}

/** Does something that a click asks for, once at a time: `button` is disabled meanwhile, and `place` has the outcome. */
export async function act(button, place, f) {
  button.disabled = true;
  say(place, "...");
  try {
    say(place, await f());
  } catch (error) {
    say(place, error.message, true);
  } finally {
    button.disabled = false;
  }
}

/**
 * Calls `f` now, and again `everyMs` after it is done, until the returned function is called. `place` shows why it fails. After a
 * refusal it waits for a click: each attempt with a wrong password counts.
 */
export function repeat(f, everyMs, place) {
  let timer = 0;
  let isClosed = false;
  const again = (ms) => {
    if (!isClosed) timer = setTimeout(once, ms);
  };
  const once = async () => {
    // Nobody sees a page in the background.
    if (document.hidden) return again(everyMs);
    try {
      await f();
      if (place.className === "refused") say(place, "");
      again(everyMs);
    } catch (error) {
      if (isClosed) return;
      say(place, `${error.message} `, true);
      if (!(error instanceof Refused) || error.status >= 500) return again(everyMs);
      const button = element("button", { type: "button" }, "try again");
      button.addEventListener("click", () => once(), { once: true });
      place.append(button);
    }
  };
  once();
  return () => {
    isClosed = true;
    clearTimeout(timer);
  };
}

/** Replaces what is in a place. If a link there had the focus, the new one to the same address has it. */
export function replace(place, ...children) {
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  place.replaceChildren(...children);
  if (focused !== null) [...place.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

/** Names and values, as tiles. */
export function tiles(pairs) {
  return pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
}
