// Memory by prefixes of keys: bars with the intervals of the estimate, and a table.

import { ask } from "./ask.js";
import { bytes, counted, element, number, shape } from "./draw.js";
import { form } from "./form.js";
import { decode, encode, shown, typed } from "./key.js";
import { filled } from "./table.js";

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** The share as a bar, and where it is for 95 samples of 100. */
function interval(share, [low, high], label) {
  const rect = (from, to, y, height, kind) => shape("rect", { x: 1000 * from, y, width: Math.max(0, 1000 * (to - from)), height, class: kind });
  return shape("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": label },
    rect(0, share, 0, 10, "payload"), rect(low, high, 4, 2, "interval"));
}

/** A form, and below it what the node estimates. `address` returns where to ask. */
export function prefixes(address) {
  const result = element("div", {});
  const fields = [
    { name: "separator", label: "separator", value: ":" },
    { name: "depth", label: "depth", kind: "number", value: "1" },
    { name: "sample", label: "documents to look at", kind: "number", value: "16384" },
  ];
  const estimate = async ({ separator, depth, sample }) => {
    const { bucket, scope, collection } = address();
    const query = `scope=${encodeURIComponent(scope)}&collection=${encodeURIComponent(collection)}&separator=${encode(typed(separator))}`;
    const numbers = `depth=${encodeURIComponent(depth)}&sample=${encodeURIComponent(sample)}`;
    const found = await ask(`/pools/default/buckets/${encodeURIComponent(bucket)}/prefixes?${query}&${numbers}`);
    draw(result, found);
    const from = found.exact ? "all of them" : `a sample of ${number(found.sampled)}, ${percent(found.fraction)}; the marks are where the share is in 95 of 100 samples`;
    return `${counted(found.items, "document")} in ${bytes(found.bytes)}, from ${from}`;
  };
  return [form("Memory by prefixes", fields, "estimate", estimate), result];
}

function draw(place, found) {
  const rows = found.prefixes.map((one) => [shown(decode(one.encoded)) || "(none)", one]);
  if (found.others.prefixes) rows.push([`${found.others.prefixes} others`, found.others]);
  const bars = rows.slice(0, 12).map(([name, one]) => {
    const label = `${name}: ${bytes(one.bytes)}, ${percent(one.byteShare)} of memory, ${one.byteShareInterval.map(percent).join(" to ")}`;
    return element("div", { class: "bar" }, element("span", { title: name }, name), interval(one.byteShare, one.byteShareInterval, label),
      element("span", {}, bytes(one.bytes)));
  });
  const cells = rows.map(([name, one]) => [element("span", { title: name }, name), number(one.items), bytes(one.bytes), percent(one.byteShare),
    one.byteShareInterval.map(percent).join(" - "), bytes(Math.round(one.meanValueBytes)), percent(one.withExpiry)]);
  place.replaceChildren(...bars,
    filled("Memory by prefixes", ["prefix", "documents", "bytes", "share", "95 %", "mean value", "with expiry"], cells));
}
