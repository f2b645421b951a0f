// Elements, numbers and drawings. Text goes in as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children: elements, or text. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same in SVG. */
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes with a binary unit. */
export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${UNITS[unit]}`;
}

/** A rate or a count, short. */
export function number(value) {
  if (!Number.isFinite(value)) return "-";
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

/** So many of something. */
export function counted(value, one) {
  return `${number(value)} ${one}${value === 1 ? "" : "s"}`;
}

/** A part of a whole in per cent. */
export function share(part, whole) {
  return whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "-";
}

/** A bar of parts `[{bytes, kind, title}]`; `whole` is its full length. */
export function bar(parts, whole, label) {
  const svg = shape("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": label });
  let at = 0;
  for (const part of parts) {
    const width = whole > 0 ? 1000 * part.bytes / whole : 0;
    if (width > 0) {
      svg.append(shape("rect", { x: at, y: 0, width, height: 10, class: part.kind }, shape("title", {}, part.title)));
    }
    at += width;
  }
  return svg;
}

/** A line over time: points `[x, y]` in order, y from 0 to `most`. */
export function line(points, [from, to], most, label) {
  const svg = shape("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": label });
  const place = ([x, y]) => `${(1000 * (x - from) / Math.max(1, to - from)).toFixed(1)},${(100 - 95 * y / Math.max(1, most)).toFixed(2)}`;
  const path = points.map(place).join(" ");
  if (points.length > 1) {
    const [first, last] = [points[0], points[points.length - 1]].map((point) => place(point).split(",")[0]);
    svg.append(shape("polygon", { class: "area", points: `${first},100 ${path} ${last},100` }));
    svg.append(shape("polyline", { class: "line", points: path }));
  }
  return svg;
}
