// The page: asks the server what everybody can ask it, once a second, and chats through the API that everybody has.

import { Chart, bands, buckets, parse, quantile, scatter, sum } from "./charts.js";
import { listModels, startChat } from "./chat.js";
import { block, drawChains, usersOf } from "./map.js";
import { drawRequests } from "./requests.js";
import { $, bytes, node, seconds } from "./tools.js";

const show = (name, text) => document.querySelectorAll(`[data-of=${name}]`).forEach((b) => (b.textContent = text));

// ---- charts

const requests = new Chart($("requests"), ["running", "waiting"], (v) => v.toFixed(0));
const tokens = new Chart($("tokens"), ["tokens/s"], (v) => v.toFixed(0));
const ttft = new Chart($("ttft"), ["p50", "p95"], seconds);
const memory = new Chart($("memory"), ["parameters"], bytes);
const FIRST = "vllm:time_to_first_token_seconds_bucket";
let last = null; // the look before: {at, generated}
const looks = []; // buckets of the last ten looks, for quantiles of recent requests

function drawMetrics(found) {
  const now = performance.now() / 1000;
  const running = sum(found["vllm:num_requests_running"]);
  const waiting = sum(found["vllm:num_requests_waiting"]);
  const generated = sum(found["vllm:generation_tokens_total"]);
  const rate = last ? Math.max(0, generated - last.generated) / (now - last.at) : 0;
  last = { at: now, generated };
  const counts = buckets(found[FIRST]);
  looks.push(counts);
  if (looks.length > 10) looks.shift();
  const [p50, p95] = [0.5, 0.95].map((share) => quantile(looks[0], counts, share));
  requests.push([running, waiting]);
  tokens.push([rate]);
  ttft.push([p50, p95]);
  show("running", running);
  show("waiting", waiting);
  show("rate", rate.toFixed(0));
  show("ttft", p50 === null ? "" : `p50 ${seconds(p50)}, p95 ${seconds(p95)}`);
}

// Shown once there is a forecast: where dispatchers choose by it. How many requests were forecast is in the metrics.
async function drawForecasts(found) {
  if (!sum(found["blockwright:forecast_latency_error_count"])) return;
  const answer = await fetch("admin/forecasts");
  if (!answer.ok) return;
  const { data } = await answer.json();
  if ($("forecasts").hidden) {
    $("forecasts").hidden = false;
    $("forecasts").append(node("canvas", { id: "forecast", role: "img" }));
  }
  scatter($("forecast"), {
    "first token": data.map((p) => [p.predicted_first_token, p.first_token]),
    "last token": data.map((p) => [p.predicted_last_token, p.last_token]),
  }, seconds);
  show("forecasts", `${data.length} requests`);
}

// Shown once a batch runs: how far, how long still, and what both sides of its scanner hold.
let sides = null;
function drawBatches(found) {
  const of = (name, labels = {}) => (found[`blockwright:batch_${name}`] || [])
    .filter((s) => Object.entries(labels).every(([key, value]) => s.labels[key] === value));
  const [done, running, waiting] = ["done", "running", "waiting"].map((state) => sum(of("requests", { state })));
  if (!sides && done + running + waiting === 0) return;
  if (!sides) {
    $("batches").hidden = false;
    $("batches").append(node("canvas", { id: "sides", role: "img" }));
    sides = new Chart($("sides"), ["left", "right"], (v) => v.toFixed(0));
  }
  const held = ["left", "right"].map((side) => sum(of("side_positions", { side, what: "used" })));
  sides.push(held);
  $("sides").ariaLabel = `left ${held[0].toFixed(0)} tokens, right ${held[1].toFixed(0)}`;
  const left = Math.max(...of("remaining_seconds").map((s) => s.value), 0);
  const models = of("sharing").map((s) => {
    const [density] = of("density", s.labels);
    return `${s.labels.model_name}: ${(100 * s.value).toFixed(0)} % shared, density ${density.value.toPrecision(3)}`;
  });
  const told = [`${done} of ${done + running + waiting} lines, ${running} running`, ...(left ? [`about ${seconds(left)} left`] : []), ...models];
  show("batches", done + running + waiting ? told.join("; ") : "none runs");
}

// ---- the cluster

const memories = []; // of the last two minutes: [parameters, KV, what KV may have besides]

// Shown where parameters may be dropped: they turn into KV, and back.
function drawDrops(view) {
  const total = (kind) => view.workers.reduce((sum, worker) => sum + worker.memory[kind], 0);
  memories.push([total("parameters"), total("kv"), total("cached") + total("free")]);
  if (memories.length > 120) memories.shift();
  if (!view.overload) return;
  if ($("drops").hidden) {
    $("drops").hidden = false;
    $("drops").append(node("canvas", { id: "dropped", role: "img" }));
  }
  const [parameters, kv, free] = memories[memories.length - 1];
  $("dropped").ariaLabel = `parameters ${bytes(parameters)}, KV ${bytes(kv)}, free ${bytes(free)}`;
  bands($("dropped"), ["parameters", "KV", "free for KV"], memories);
  const change = view.overload.changes[view.overload.changes.length - 1];
  if (!change) return;
  const took = change.seconds === null ? "under way" : `took ${seconds(change.seconds)}`;
  show("dropped", `${change.what} ${change.group} at ${new Date(change.at * 1000).toLocaleTimeString()}, ${took}`);
}

function drawCluster(view) {
  const users = usersOf(view);
  $("workers").replaceChildren(...view.workers.map((worker) => {
    const m = worker.memory;
    const group = view.overload?.workers[worker.id] || {};
    const bar = node("div", { className: "bar", title: `parameters ${bytes(m.parameters)}, KV in use ${bytes(m.kv)}, cached ${bytes(m.cached)}, free ${bytes(m.free)}` });
    for (const use of ["parameters", "kv", "cached"]) {
      const part = node("i", { className: use });
      part.style.width = `${m.budget ? (100 * m[use]) / m.budget : 0}%`;
      bar.append(part);
    }
    const head = node("div", {}, node("b", {}, worker.id),
      node("span", { className: `chip ${worker.state === "ready" ? "good" : "bad"}` }, worker.state),
      ...(group.group ? [node("span", { className: "chip" }, `${group.state} ${group.group}`)] : []),
      node("span", { className: "quiet" }, `pid ${worker.pid}, ${worker.queue.running} running, ${worker.queue.waiting} waiting, ` +
        `${bytes(m.parameters)} parameters + ${bytes(m.kv)} KV in use + ${bytes(m.cached)} cached of ${bytes(m.budget)}` + (worker.restarts ? `, ${worker.restarts} restarts` : "")));
    const cells = node("div", { className: "cells" }, ...worker.blocks.map((id) => block(id, users[id] || [], worker.id)));
    const made = node("div", { className: "worker" }, head, bar, cells);
    made.dataset.worker = worker.id;
    made.dataset.state = worker.state;
    made.dataset.group = group.group || "";
    return made;
  }));
  drawChains(view);
  const used = { parameters: 0 };
  for (const worker of view.workers) {
    used.parameters += worker.memory.parameters;
    for (const [tenant, size] of Object.entries(worker.kv_by_tenant || {})) {
      const name = `KV ${tenant || "of all"}`;
      used[name] = (used[name] || 0) + size;
    }
  }
  memory.pushNamed(used);
  show("memory", bytes(Object.values(used).reduce((a, b) => a + b, 0)));
  drawDrops(view);
  drawEvents(view.events || []);
}

function drawEvents(events) {
  if ($("events").dataset.last === String(events.length && events[events.length - 1].number)) return;
  $("events").dataset.last = events.length && events[events.length - 1].number;
  $("events").replaceChildren(...events.slice().reverse().map((event) => {
    const at = new Date(event.at * 1000);
    const line = node("li", {}, node("time", { dateTime: at.toISOString() }, at.toLocaleTimeString()), node("span", {}, event.text));
    line.dataset.event = event.event;
    if (event.event === "down") line.className = "bad";
    if (event.event === "ready") line.className = "good";
    return line;
  }));
}

async function look() {
  let text = "not reachable", good = false;
  try {
    const ready = await (await fetch("health/ready")).json();
    [text, good] = [ready.status + (ready.reason ? `: ${ready.reason}` : ""), ready.status === "ready"];
    const [cluster, metrics] = await Promise.all([fetch("admin/cluster"), fetch("metrics")]);
    if (metrics.ok) {
      const found = parse(await metrics.text());
      drawMetrics(found);
      drawBatches(found);
      await drawForecasts(found);
    }
    if (cluster.ok) drawCluster(await cluster.json());
    else if (cluster.status === 403) $("workers").textContent = "This key may not see the workers; use one that is marked admin.";
    await drawRequests();
    if (!$("model").options.length) await listModels();
    if (!$("version").textContent) $("version").textContent = (await (await fetch("version")).json()).version;
  } catch { /* the next look will tell */ }
  $("state").textContent = text;
  $("state").className = `chip ${good ? "good" : "bad"}`;
  setTimeout(look, 1000);
}

startChat();
look();
