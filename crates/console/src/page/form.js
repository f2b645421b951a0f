// Forms whose fields say what the node did not like about them.

import { element } from "./draw.js";

let forms = 0;

/** An input of a field `{name, label, kind, value, options, hint}`. */
function control({ name, kind = "text", value = "", options, rows }) {
  if (options) {
    const select = element("select", { name });
    select.append(...options.map(([word, text = word]) => element("option", { value: word }, text)));
    select.value = value;
    return select;
  }
  const input = kind === "textarea" ? element("textarea", { name, rows: rows ?? 12, spellcheck: "false" })
    : element("input", { name, type: kind, autocomplete: "off", spellcheck: "false" });
  input.value = value;
  return input;
}

/**
 * A form of these fields. `submit(values)` is called with the text of each; what it returns is shown as done. If the node
 * refuses, its words stand next to the fields that they name, and the others at the end.
 */
export function form(label, fields, action, submit) {
  forms += 1;
  const controls = new Map(), wrongs = new Map();
  const parts = fields.map((field) => {
    const input = control(field), id = `form${forms}-${field.name}`;
    const wrong = element("span", { id, class: "refused" });
    input.setAttribute("aria-describedby", id);
    controls.set(field.name, input);
    wrongs.set(field.name, wrong);
    return element("label", field.kind === "textarea" ? { class: "whole" } : {}, field.label, input, wrong);
  });
  const button = element("button", { type: "submit" }, action);
  const said = element("p", { role: "status", class: "said" });
  const whole = element("form", { "aria-label": label }, ...parts, button, said);
  const say = (text, kind) => {
    said.textContent = text;
    said.className = `said ${kind}`;
  };
  // Not by disabling the button: it would lose the focus.
  let is_busy = false;
  whole.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (is_busy) return;
    is_busy = true;
    wrongs.forEach((wrong) => { wrong.textContent = ""; });
    say("", "");
    try {
      say(await submit(Object.fromEntries([...controls].map(([name, input]) => [name, input.value]))) ?? "", "done");
    } catch (error) {
      const rest = Object.entries(error.errors ?? { "": error.message }).filter(([name, words]) => {
        const wrong = wrongs.get(name);
        if (wrong) wrong.textContent = words;
        return !wrong;
      });
      say(rest.map(([, words]) => words).join(" "), "refused");
    } finally {
      is_busy = false;
    }
  });
  return whole;
}

/** Offers these names in a `select`, and keeps what is chosen if it is still there. */
export function offer(select, names) {
  if ([...select.options].map((option) => option.value).join("\n") === names.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  if (names.includes(chosen)) select.value = chosen;
}

/** A button that does something, and shows next to it why it was refused. */
export function button(text, act, attributes = {}) {
  const pressed = element("button", { type: "button", ...attributes }, text);
  const wrong = element("span", { role: "status", class: "refused" });
  let is_busy = false;
  pressed.addEventListener("click", async () => {
    if (is_busy) return;
    is_busy = true;
    wrong.textContent = "";
    try {
      await act();
    } catch (error) {
      wrong.textContent = error.message;
    } finally {
      is_busy = false;
    }
  });
  return element("span", { class: "act" }, pressed, wrong);
}
