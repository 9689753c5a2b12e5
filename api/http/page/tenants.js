// The tenants: weight, requests, tokens, KV of the cap, limits. Without keys they are the models, and the card is closed at first.

import { $, bytes, node } from "./tools.js";

const LIMITS = {
  requests_per_minute: "requests / min", tokens_per_minute: "tokens / min", tokens_per_day: "tokens / day", concurrent_requests: "at once",
};
const whole = (n) => n.toLocaleString("en");
const sum = (counts) => Object.values(counts).reduce((total, n) => total + n, 0);
let known = false; // whether the card was shown before

// "7 of 60" over a bar that is so full.
function used(amount, allowed, format) {
  if (allowed === null || allowed === undefined) return node("td", {}, amount === null ? "-" : format(amount));
  const fill = node("i", { className: amount >= allowed ? "full" : "" });
  fill.style.width = `${Math.min(100, (100 * amount) / Math.max(allowed, 1))}%`;
  return node("td", {}, `${format(amount)} of ${format(allowed)}`, node("div", { className: "use" }, fill));
}

function row(one, limits) {
  const { requests, refused, kv } = one;
  const codes = Object.entries(refused).map(([code, count]) => `${code}: ${whole(count)}`).join("\n");
  const numbers = [one.weight ?? "-", whole(requests.running), whole(requests.waiting), whole(requests.started)];
  const made = node("tr", {}, node("td", {}, one.tenant || "all together"), ...numbers.map((text) => node("td", {}, String(text))),
    node("td", { title: codes }, whole(sum(refused))), node("td", {}, whole(one.tokens)), used(kv.bytes, kv.cap, bytes),
    ...limits.map((name) => used(one.limits[name]?.used ?? null, one.limits[name]?.allowed, whole)));
  made.dataset.tenant = one.tenant;
  return made;
}

export function drawTenants(view) {
  const tenants = view.tenants || []; // a server of an earlier release tells none
  const models = new Set(Object.values(view.applications).map((one) => one.model));
  const limits = Object.keys(LIMITS).filter((name) => tenants.some((one) => name in one.limits));
  const open = tenants.every((one) => models.has(one.tenant)) && !limits.length;
  const busy = (one) => one.requests.running + one.requests.waiting;
  const shown = tenants.slice().sort((one, other) => busy(other) - busy(one) || other.requests.started - one.requests.started);
  $("tenants").hidden = !tenants.length;
  $("tenants-said").textContent = open ? "without API keys each model is one" : `${tenants.length}`;
  if (!known && tenants.length) $("tenants").querySelector("details").open = !open;
  known ||= tenants.length > 0;
  const columns = ["tenant", "weight", "running", "waiting", "started", "refused", "tokens", "KV + cached", ...limits.map((name) => LIMITS[name])];
  $("tenant-columns").replaceChildren(...columns.map((text) => node("th", {}, text)));
  $("tenant-rows").replaceChildren(...shown.map((one) => row(one, limits)));
}
