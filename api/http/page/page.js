// The page: asks the server what everybody can ask it, once a second, and chats through the API that everybody has.

import { Chart } from "./charts.js";
import { listModels, startChat } from "./chat.js";
import { drawEvents } from "./events.js";
import { countFamilies, drawDrafts } from "./families.js";
import { drawDrops, drawLoad } from "./load.js";
import { drawChains, usersOf } from "./map.js";
import { parse, sum } from "./metrics.js";
import { drawRequests } from "./requests.js";
import { scatter } from "./scatter.js";
import { drawTenants } from "./tenants.js";
import { $, node, seconds, show } from "./tools.js";
import { drawWorkers } from "./workers.js";

// ---- figures of now

function drawMetrics(found) {
  show("running", sum(found["vllm:num_requests_running"]));
  show("waiting", sum(found["vllm:num_requests_waiting"]));
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
let sides = null; // a chart since the first batch was seen
const held = []; // [when, left, right], of the last two minutes
function drawBatches(found) {
  const of = (name, labels = {}) => (found[`blockwright:batch_${name}`] || [])
    .filter((s) => Object.entries(labels).every(([key, value]) => s.labels[key] === value));
  const [done, running, waiting] = ["done", "running", "waiting"].map((state) => sum(of("requests", { state })));
  if (!sides && done + running + waiting === 0) return;
  if (!sides) {
    $("batches").hidden = false;
    $("batches").append(node("canvas", { id: "sides", role: "img" }));
    sides = new Chart($("sides"), (v) => v.toFixed(0));
  }
  const now = Date.now() / 1000;
  held.push([now, ...["left", "right"].map((side) => sum(of("side_positions", { side, what: "used" })))]);
  while (held[0][0] < now - 120) held.shift();
  const column = (n) => held.map((row) => row[n]);
  sides.show(column(0), { left: column(1), right: column(2) }, { from: now - 120, to: now, step: 1 });
  const left = Math.max(...of("remaining_seconds").map((s) => s.value), 0);
  const models = of("sharing").map((s) => {
    const [density] = of("density", s.labels);
    return `${s.labels.model_name}: ${(100 * s.value).toFixed(0)} % shared, density ${density.value.toPrecision(3)}`;
  });
  const told = [`${done} of ${done + running + waiting} lines, ${running} running`, ...(left ? [`about ${seconds(left)} left`] : []), ...models];
  show("batches", done + running + waiting ? told.join("; ") : "none running");
}

// ---- the cluster

function drawCluster(view) {
  drawWorkers(view, usersOf(view));
  drawChains(view);
  drawTenants(view);
  drawDrops(view.overload);
  drawEvents(view.events || []);
}

async function look() {
  let text = "not reachable", good = false;
  try {
    const ready = await (await fetch("health/ready")).json();
    [text, good] = [ready.status + (ready.reason ? `: ${ready.reason}` : ""), ready.status === "ready"];
    const [cluster, metrics] = await Promise.all([fetch("admin/cluster"), fetch("metrics")]);
    const view = cluster.ok ? await cluster.json() : null;
    if (metrics.ok) {
      const found = parse(await metrics.text());
      if (view) countFamilies(view, found);
      drawDrafts(found);
      drawMetrics(found);
      drawBatches(found);
      await drawForecasts(found);
    }
    if (view) drawCluster(view);
    else if (cluster.status === 403) $("workers").textContent = "This key cannot see the workers; use an admin key.";
    await drawLoad();
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
