// Load and memory over time, as the server kept them: after a reload the past is still there.

import { Chart, clock } from "./charts.js";
import { $, bytes, node, seconds, show } from "./tools.js";
import { bar } from "./workers.js";

const whole = (v) => v.toFixed(v < 10 && v % 1 ? 1 : 0);
const requests = new Chart($("requests"), whole);
const tokens = new Chart($("tokens"), whole);
const ttft = new Chart($("ttft"), seconds);
const memory = new Chart($("memory"), bytes, { binary: true });
let drops = null; // made where parameters may be dropped
let rows = []; // as /metrics/history has them, oldest first
let step = 1; // seconds of a row

const span = () => Number($("span").value);

async function fetchRows() {
  const after = rows.length ? `&after=${rows[rows.length - 1].at}` : ""; // the last one may have grown since
  const asked = span();
  const answer = await fetch(`metrics/history?seconds=${asked}${after}`);
  if (!answer.ok || asked !== span()) return;
  const found = await answer.json();
  step = found.step;
  const first = found.rows.length ? found.rows[0].at : Infinity;
  rows = [...rows.filter((row) => row.at < first), ...found.rows];
  const newest = rows.length ? rows[rows.length - 1].at : 0;
  rows = rows.filter((row) => row.at > newest - asked - step);
}

// A bar of what all memory is used for now: parameters, each tenant's KV with its cached pages (without keys each model's), and what is
// free. Of more than four tenants the largest three have a part of their own: a server may have hundreds.
function drawHeld({ parameters, kv, cached, free, tenants }) {
  const { others: unnamed = 0, ...known } = tenants; // the server names the largest alone
  const all = Object.entries(known).sort(([, one], [, other]) => other - one);
  const named = all.length > 4 || unnamed ? all.slice(0, 3) : all;
  const others = all.slice(named.length).reduce((sum, [, size]) => sum + size, unnamed);
  const uses = [["parameters", parameters, "parameters"], ...named.map(([name, size], n) => [`tenant${n}`, size, `KV of ${name || "no tenant"}`])];
  if (others) uses.push(["others", others, "KV of others"]);
  const told = uses.map(([name, size, text]) => [name, size, `${text} ${bytes(size)}`]);
  const total = parameters + kv + cached + free;
  $("held").hidden = false;
  bar($("uses"), told, total).ariaLabel = told.map(([, , text]) => text).join(", ");
  const keys = [...told, ["free", 0, `free ${bytes(free)}`]].flatMap(([name, , text]) => [node("span", { className: `key ${name}` }), ` ${text} `]);
  $("names").replaceChildren(...keys);
  show("memory", `${bytes(total - free)} of ${bytes(total)}`);
}

export async function drawLoad() {
  await fetchRows();
  if (!rows.length) return;
  const times = rows.map((row) => row.at);
  const of = (name) => rows.map((row) => row[name]);
  const last = rows[rows.length - 1];
  const range = { from: last.at - span(), to: last.at + step, step };
  requests.show(times, { running: of("running"), waiting: of("waiting") }, range);
  tokens.show(times, { "tokens/s": of("tokens_per_second") }, range);
  ttft.show(times, { p50: of("p50"), p95: of("p95") }, range);
  const part = (name) => rows.map((row) => (row.memory ? row.memory[name] : null));
  memory.show(times, { parameters: part("parameters"), "KV in use": part("kv"), "KV cached": part("cached") }, range);
  show("rate", last.tokens_per_second.toFixed(0));
  show("ttft", last.p50 === null ? "" : `p50 ${seconds(last.p50)}, p95 ${seconds(last.p95)}`);
  if (last.memory) drawHeld(last.memory);
  if (drops) {
    const known = rows.filter((row) => row.memory);
    const of = (pick) => known.map((row) => pick(row.memory));
    const lines = { parameters: of((m) => m.parameters), KV: of((m) => m.kv), "free for KV": of((m) => m.cached + m.free) };
    drops.show(known.map((row) => row.at), lines, range);
  }
}

// overload: of /admin/cluster, where parameters may be dropped: they turn into KV, and back.
export function drawDrops(overload) {
  if (!overload) return;
  if (!drops) {
    $("drops").hidden = false;
    const canvas = node("canvas", { id: "dropped", role: "img" });
    $("drops").append(canvas);
    drops = new Chart(canvas, bytes, { binary: true, stacked: true });
  }
  const change = overload.changes[overload.changes.length - 1];
  if (!change) return;
  const took = change.seconds === null ? "under way" : `took ${seconds(change.seconds)}`;
  show("dropped", `${change.what} ${change.group} at ${clock(change.at)}, ${took}`);
}

$("span").addEventListener("change", () => {
  rows = [];
  drawLoad();
});
