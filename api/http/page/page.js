// The page: asks the server what everybody can ask it, once a second, and chats through the API that everybody has.

import { Chart, bands, buckets, parse, quantile, scatter, sum } from "./charts.js";

const $ = (id) => document.getElementById(id);
const node = (tag, attributes = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
};
const bytes = (n) => {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024 || unit === "GiB") return `${n >= 100 || unit === "B" ? Math.round(n) : n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
};
const seconds = (n) => (n < 1 ? `${Math.round(n * 1000)} ms` : `${n.toFixed(1)} s`);
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

const colour = (id) => `hsl(${parseInt(id.slice(0, 6), 16) % 360} 45% 42%)`;

function block(id, users, where) {
  const shared = users.length > 1 ? ` ×${users.length}` : "";
  const cell = node("span", { className: "block", title: `block ${id}\nof ${users.join(", ")}\non ${where.join(", ") || "no worker"}` });
  cell.style.background = colour(id);
  if (!where.length) cell.classList.add("missing");
  cell.append(id.slice(0, 6) + shared, " ", node("small", {}, where.join(" ")));
  return cell;
}

const memories = []; // of the last two minutes: [parameters, KV, free]

// Shown where parameters may be dropped: they turn into KV, and back.
function drawDrops(view) {
  const kinds = ["parameters", "kv", "free"];
  memories.push(kinds.map((kind) => view.workers.reduce((total, worker) => total + worker.memory[kind], 0)));
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
  const users = {};
  for (const [name, application] of Object.entries(view.applications)) {
    for (const id of application.blocks) (users[id] ||= []).push(name);
  }
  const where = (id) => view.workers.filter((w) => w.blocks.includes(id)).map((w) => w.id);
  $("workers").replaceChildren(...view.workers.map((worker) => {
    const m = worker.memory;
    const group = view.overload?.workers[worker.id] || {};
    const bar = node("div", { className: "bar", title: `parameters ${bytes(m.parameters)}, KV ${bytes(m.kv)}, free ${bytes(m.free)}` });
    for (const use of ["parameters", "kv"]) {
      const part = node("i", { className: use });
      part.style.width = `${m.budget ? (100 * m[use]) / m.budget : 0}%`;
      bar.append(part);
    }
    const head = node("div", {}, node("b", {}, worker.id),
      node("span", { className: `chip ${worker.state === "ready" ? "good" : "bad"}` }, worker.state),
      ...(group.group ? [node("span", { className: "chip" }, `${group.state} ${group.group}`)] : []),
      node("span", { className: "quiet" }, `pid ${worker.pid}, ${worker.queue.running} running, ${worker.queue.waiting} waiting, ` +
        `${bytes(m.parameters)} parameters + ${bytes(m.kv)} KV of ${bytes(m.budget)}` + (worker.restarts ? `, ${worker.restarts} restarts` : "")));
    const cells = node("div", { className: "cells" }, ...worker.blocks.map((id) => block(id, users[id] || [], [worker.id])));
    const made = node("div", { className: "worker" }, head, bar, cells);
    made.dataset.worker = worker.id;
    made.dataset.state = worker.state;
    made.dataset.group = group.group || "";
    return made;
  }));
  $("chains").replaceChildren(...Object.entries(view.applications).map(([name, application]) => {
    const size = application.bytes;
    const { kv, requests } = application;
    const text = (application.base ? `from ${application.base}; ` : "") +
      `${application.state}; ${bytes(size.own)} of its own, ${bytes(size.shared)} shared with others; ` +
      `KV ${bytes(kv.bytes)}, of it ${bytes(kv.shared)} shared; ${requests.running} running, ${requests.waiting} waiting`;
    return node("div", { className: "chain" }, node("span", {}, name), node("span", { className: "quiet" }, text),
      node("div", { className: "cells" }, ...application.blocks.map((id) => block(id, users[id], where(id)))));
  }));
  const used = { parameters: 0 };
  for (const worker of view.workers) {
    used.parameters += worker.memory.parameters;
    for (const [tenant, size] of Object.entries(worker.kv_by_tenant || {})) {
      const name = `KV ${tenant || "everybody"}`;
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
    if (!$("model").options.length) await listModels();
  } catch { /* the next look will tell */ }
  $("state").textContent = text;
  $("state").className = `chip ${good ? "good" : "bad"}`;
  setTimeout(look, 1000);
}

// ---- chat

const history = [];

async function listModels() {
  const answer = await fetch("v1/models");
  if (!answer.ok) return;
  for (const model of (await answer.json()).data) $("model").append(node("option", {}, model.id));
}

function say(role, text = "") {
  const line = node("li", { className: role }, text);
  $("messages").append(line);
  line.scrollIntoView({ block: "nearest" });
  return line;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n\n")) >= 0) {
      const event = held.slice(0, end);
      held = held.slice(end + 2);
      if (event.startsWith(": ")) yield { comment: event.slice(2) };
      else if (event.startsWith("data: ") && event !== "data: [DONE]") yield JSON.parse(event.slice(6));
    }
  }
}

async function send(text) {
  history.push({ role: "user", content: text });
  say("user", text);
  const line = say("assistant");
  const began = performance.now();
  let [first, usage] = [0, null];
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model: $("model").value, messages: history, stream: true, stream_options: { include_usage: true } }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.comment) { $("note").textContent = event.comment; continue; }
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const piece = event.choices.length ? event.choices[0].delta.content || "" : "";
      if (piece && !first) first = performance.now();
      line.append(piece);
    }
    history.push({ role: "assistant", content: line.textContent });
    const took = (performance.now() - began) / 1000;
    $("note").textContent = usage ? `${usage.completion_tokens} tokens in ${seconds(took)}, the first after ${seconds((first - began) / 1000)}` : "";
  } catch (error) {
    history.pop();
    line.className = "error";
    line.textContent = error.message;
  }
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || $("send").disabled) return;
  $("text").value = "";
  $("send").disabled = true;
  await send(text);
  $("send").disabled = false;
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); $("ask").requestSubmit(); }
});
$("reset").addEventListener("click", () => { history.length = 0; $("messages").replaceChildren(); $("note").textContent = ""; });

look();
