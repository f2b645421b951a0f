// What requests take: latencies by class, slow and large requests, hot keys. Keys need a login, which the browser asks for.

import { ask, path } from "./ask.js";
import { bytes, element, line, number } from "./draw.js";
import { listen } from "./events.js";
import { offer } from "./form.js";
import { decode, shown } from "./key.js";
import { row, table } from "./table.js";

export const title = "Requests";

const COLUMNS = [["p50Us", "p50"], ["p95Us", "p95"], ["p99Us", "p99"], ["p999Us", "p99.9"], ["maxUs", "max"]];
/** Seconds of the curves, and between two readings of the lists. */
const CURVE_S = 60;
const LISTS_S = 5;

/** Latencies of the last seconds, and names of buckets, also while other views are open. */
let readings = [];
let bucketNames = [];

listen("figures", (figures) => {
  const last = readings.at(-1);
  if (last && figures.uptimeMs < last.uptimeMs) readings = [];
  readings.push({ uptimeMs: figures.uptimeMs, latency: figures.latency });
  readings = readings.filter(({ uptimeMs }) => uptimeMs >= figures.uptimeMs - CURVE_S * 1e3);
  bucketNames = Object.keys(figures.buckets);
});

/** A time with the unit that suits it. */
function time(us) {
  if (us === undefined || us === null) return "-";
  if (us < 1000) return `${us} \u00b5s`;
  return us < 1e6 ? `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms` : `${(us / 1e6).toFixed(2)} s`;
}

function latencies() {
  const state = element("p", { id: "requests-state" });
  const columns = ["class", "per second", ...COLUMNS.map(([, name]) => name), `p99, the last ${CURVE_S} s`];
  const [region, body] = table("Latency of requests in the node", columns, { id: "requests-latency" });
  const draw = () => {
    const latest = readings.at(-1)?.latency;
    const names = [...new Set(readings.flatMap(({ latency }) => Object.keys(latency?.classes ?? {})))].sort();
    state.textContent = !latest ? "Workers begin to measure; the first latencies come in a second."
      : names.length ? "" : `No request in the last ${CURVE_S} seconds.`;
    body.replaceChildren(...names.map((name) => {
      const now = latest?.classes[name];
      const rate = now ? number(now.requests / Math.max(1e-3, latest.overMs / 1e3)) : "0";
      return row(name, rate, ...COLUMNS.map(([column]) => time(now?.[column])), curve(name));
    }));
  };
  return { nodes: [element("h2", {}, "Latency"), state, region], draw };
}

function curve(name) {
  const points = readings.map(({ uptimeMs, latency }) => [uptimeMs, latency?.classes[name]?.p99Us ?? 0]);
  const most = Math.max(...points.map(([, us]) => us));
  const to = points.at(-1)[0];
  return line(points, [to - CURVE_S * 1e3, to], most, `p99 of ${name}: at most ${time(most)}`);
}

function documentName(request) {
  if (request.encoded === undefined) return "-";
  return [request.scope, request.collection, shown(decode(request.encoded))].filter((part) => part !== undefined).join(" / ");
}

/** A list that is read again every few seconds, unless the node has refused it: then when somebody asks. */
function list(id, heading, route, about) {
  const columns = ["document", "operation", "took", "executing", "together", "request", "answer", "bucket", "client", "user", "at"];
  const [region, body] = table(heading, columns, { id });
  const state = element("p", { id: `${id}-state`, role: "status" });
  const again = element("button", { type: "button" }, "try again");
  let refused = false;
  const read = async () => {
    try {
      const json = await ask(route);
      refused = false;
      state.className = "";
      state.textContent = [about(json), json.requests.length ? "" : "There are none yet.",
        json.hidden ? `${json.hidden} more are for documents that you may not read.` : ""].filter(Boolean).join(" ");
      body.replaceChildren(...json.requests.map((request) => row(documentName(request),
        request.operation, time(request.tookUs), time(request.executionUs), number(request.together), bytes(request.requestBytes),
        bytes(request.answerBytes), request.bucket ?? "-", request.client ?? "-", request.user ?? "-",
        new Date(request.atMs).toISOString().slice(11, 23))));
    } catch (error) {
      refused = true;
      state.className = "refused";
      state.replaceChildren(`${error.message} `, again);
    }
  };
  again.addEventListener("click", read);
  return { nodes: [element("h2", {}, heading), state, region], read, wants: () => !refused };
}

function hotKeys() {
  const [region, body] = table("Hot keys", ["document", "frequency, 0 to 15", "visits since its last access"], { id: "requests-hot" });
  const state = element("p", { id: "requests-hot-state", role: "status" });
  const choice = element("select", { name: "bucket", id: "requests-bucket" });
  const look = element("button", { type: "submit" }, "look");
  const form = element("form", {}, element("label", {}, "bucket", choice), look);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!choice.value) return;
    look.disabled = true;
    try {
      const json = await ask(`/pools/default/buckets${path(choice.value)}/hotKeys?count=50`);
      state.className = "";
      state.textContent = `${number(json.looked)} of ${number(json.items)} documents were looked at. `
        + (json.isVisited ? "" : "Nothing had to be evicted yet: the counters only tell what was accessed since it was stored.");
      body.replaceChildren(...json.keys.map((key) => row(documentName(key), key.frequency, key.idleVisits ?? "never accessed")));
    } catch (error) {
      state.className = "refused";
      state.textContent = error.message;
      body.replaceChildren();
    }
    look.disabled = false;
  });
  const names = () => offer(choice, bucketNames);
  const about = element("p", {}, "What eviction values most, by the index's own counters: not a count of requests.");
  return { nodes: [element("h2", {}, "Hot keys"), about, form, state, region], names };
}

export function open(place) {
  const latency = latencies();
  const lists = [
    list("requests-slow", "Slow requests", "/requests/slow", (json) => `The newest that took ${time(json.slowUs)} or longer.`),
    list("requests-large", "Large requests", "/requests/large", (json) => `The newest with ${bytes(json.largeBytes)} or more, or such an answer.`),
  ];
  const hot = hotKeys();
  place.append(...latency.nodes, ...lists.flatMap(({ nodes }) => nodes), ...hot.nodes);
  let seconds = 0;
  const draw = () => {
    latency.draw();
    hot.names();
  };
  draw();
  lists.forEach(({ read }) => read());
  return listen("figures", () => {
    draw();
    seconds += 1;
    if (seconds % LISTS_S === 0) lists.filter(({ wants }) => wants()).forEach(({ read }) => read());
  });
}
