// JSON as people read it: long numbers stay what they are. For that, text is indented, not parsed and printed.

const STEP = "  ";

/** Parses JSON. A number that a browser may not hold exactly becomes what `written` makes of its text. */
export function parsed(text, written) {
  return JSON.parse(text, (key, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && context?.source ? written(context.source) : value);
}

/** The same JSON text on lines of its own; what is no JSON comes out as some text. */
export function formatted(text) {
  let out = "", depth = 0;
  const line = () => { out += `\n${STEP.repeat(depth)}`; };
  // Strings, signs, and what is between them.
  const tokens = text.match(/"(?:\\.|[^"\\])*"|[{}[\],:]|[^\s{}[\],:"]+/gs) ?? [];
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      out += token;
      depth += 1;
      if (next !== "}" && next !== "]") line();
    } else if (token === "}" || token === "]") {
      depth = Math.max(0, depth - 1);
      if (tokens[at - 1] !== "{" && tokens[at - 1] !== "[") line();
      out += token;
    } else if (token === ",") {
      out += token;
      line();
    } else {
      out += token === ":" ? ": " : token;
    }
  });
  return out;
}
