// The items of a bucket by size: a slot for each, of the smallest class that it fits in.

import { ask, path } from "./ask.js";
import { bar, bytes, counted, element, number, share } from "./draw.js";
import { offer } from "./form.js";
import { message, repeat } from "./repeat.js";
import { row, table } from "./table.js";

const EVERY_MS = 10e3;
/** Above, classes are shown together: those up to each power of two. */
const ROWS_MOST = 24;

/** The classes as rows `{name, used, slots, usedBytes, slabBytes}`. */
function rows(classes) {
  const isEach = classes.length <= ROWS_MOST;
  const groups = new Map();
  for (const { slotBytes, used, slots, slabBytes } of classes) {
    const most = isEach ? slotBytes : 2 ** Math.ceil(Math.log2(slotBytes));
    const group = groups.get(most) ?? { name: `${isEach ? "" : "up to "}${bytes(most)}`, used: 0, slots: 0, usedBytes: 0, slabBytes: 0 };
    group.used += used;
    group.slots += slots;
    group.usedBytes += used * slotBytes;
    group.slabBytes += slabBytes;
    groups.set(most, group);
  }
  return [...groups.values()];
}

/** A bar of what is used and what is free, as long as the row's slabs beside the largest. */
function drawn({ name, usedBytes, slabBytes }, most) {
  const free = slabBytes - usedBytes;
  return bar([{ bytes: usedBytes, kind: "payload", title: `used: ${bytes(usedBytes)}` }, { bytes: free, kind: "free", title: `free: ${bytes(free)}` }],
    most, `${name}: ${bytes(usedBytes)} used, ${bytes(free)} free`);
}

/** Shows them in `place` until the returned `close` is called. `names` is told the buckets that there are, the first choice first. */
export function open(place) {
  const choice = element("select", { id: "sizes-bucket" });
  const state = message();
  const about = element("p", { id: "sizes-about" });
  const [region, body] = table("Items by size", ["slots of", "used", "of", "bytes used", "bytes free", "full", "used and free"], { id: "sizes" });
  const read = async () => {
    const name = choice.value;
    if (!name) return;
    const { classes, blockBytes, items } = await ask(`/pools/default/buckets${path(name)}/sizeClasses`);
    if (name !== choice.value) return;
    const all = rows(classes);
    const most = Math.max(...all.map(({ slabBytes }) => slabBytes), 1);
    about.textContent = `${counted(items, "item")} in ${classes.length} size ${classes.length === 1 ? "class" : "classes"}`
      + (blockBytes > 0 ? `, and ${bytes(blockBytes)} of items in blocks of their own.` : ".");
    body.replaceChildren(...all.map((one) => row(one.name, number(one.used), number(one.slots), bytes(one.usedBytes),
      bytes(one.slabBytes - one.usedBytes), share(one.usedBytes, one.slabBytes), drawn(one, most))));
  };
  let end = () => {};
  const begin = () => {
    end();
    about.textContent = "";
    body.replaceChildren();
    end = repeat(read, EVERY_MS, state);
  };
  choice.addEventListener("change", begin);
  place.append(element("form", { "aria-label": "Whose items" }, element("label", {}, "bucket", choice)), about, region, state);
  const names = (all) => {
    const before = choice.value;
    offer(choice, [...all].sort());
    if (!before && all.length) choice.value = all[0];
    if (choice.value !== before) begin();
  };
  return { names, close: () => end() };
}
