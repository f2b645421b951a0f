// What the page asks the node besides the stream of events, and the questions that it asks people.

import { element } from "./draw.js";

/** Why the node refused, in its own words. */
export class Refused extends Error {
  /** `errors`: what is wrong with each field, if the node says so. */
  constructor(status, words, errors) {
    super(words);
    this.status = status;
    this.errors = errors;
  }
}

/**
 * Asks for a path and returns the answer: parsed if it is JSON, else as text. `form` (an object) is sent as a form, `json` as
 * JSON; `method` is GET, or POST with either. `raw`: the answer as text in any case. Throws [`Refused`] if the node says no, or an Error if it does not answer.
 */
export async function ask(path, { method, form, json, raw = false, headers = {} } = {}) {
  const body = form ? new URLSearchParams(form) : json === undefined ? undefined : JSON.stringify(json);
  const type = json === undefined ? {} : { "Content-Type": "application/json" };
  const options = { method: method ?? (body === undefined ? "GET" : "POST"), body, headers: { ...type, ...headers }, cache: "no-store" };
  let response, text;
  try {
    response = await fetch(here(path), options);
    text = await response.text();
  } catch {
    throw new Error("the node does not answer");
  }
  const parsed = response.headers.get("Content-Type")?.startsWith("application/json") ? tried(text) : undefined;
  if (response.ok) return raw ? text : parsed ?? text;
  throw new Refused(response.status, response.status === 401 ? "a login is needed" : words(parsed) || text.trim() || response.statusText, parsed?.errors);
}

/** The address of a path. One relative to a page's that names a user and a password would be refused. */
export function here(path) {
  return new URL(path, location.origin);
}

function tried(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** What is wrong, of an answer like `{"errors": {"ramQuota": "..."}}`. */
function words(json) {
  if (typeof json === "string") return json;
  if (json?._) return json._;
  if (json?.permissions) return `${json.message}: ${json.permissions.join(", ")}`;
  return Object.entries(json?.errors ?? {}).map(([field, wrong]) => field === "_" ? wrong : `${field}: ${wrong}`).join("; ");
}

/** Each part of a path, encoded. */
export function path(...parts) {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join("");
}

/**
 * Asks whether to do what cannot be undone. `name` has to be typed, if there is one. Resolves to true or false; the focus goes
 * back to where it was.
 */
export function confirmed(question, action, name = "") {
  const typed = element("input", { type: "text", autocomplete: "off", spellcheck: "false", "aria-label": `Type ${name}` });
  const act = element("button", { type: "button", class: "danger" }, action);
  const leave = element("button", { type: "button" }, "cancel");
  const ask = name ? [element("p", {}, "Type ", element("code", {}, name), " to go on."), typed] : [];
  const dialog = element("dialog", { "aria-label": question }, element("p", {}, question), ...ask,
    element("p", { class: "buttons" }, act, leave));
  const ready = () => { act.disabled = name !== "" && typed.value !== name; };
  const before = document.activeElement;
  ready();
  document.body.append(dialog);
  return new Promise((resolve) => {
    const close = (answer) => {
      dialog.remove();
      before?.focus();
      resolve(answer);
    };
    typed.addEventListener("input", ready);
    typed.addEventListener("keydown", (event) => { if (event.key === "Enter" && !act.disabled) close(true); });
    act.addEventListener("click", () => close(true));
    leave.addEventListener("click", () => close(false));
    dialog.addEventListener("cancel", () => close(false));
    dialog.showModal();
    (name ? typed : leave).focus();
  });
}
