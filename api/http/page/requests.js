// The latest requests: where each waits or runs, how far it is; cancel, and what happened to it.

import { $, node, seconds } from "./tools.js";

let told = null; // the request whose story is open

async function story(id) {
  const answer = await fetch(`v1/requests/${encodeURIComponent(id)}`);
  if (!answer.ok) return;
  const view = await answer.json();
  const lines = view.events.map((event) => {
    const { at, event: name, ...more } = event;
    const detail = Object.entries(more).map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`);
    return `${at.toFixed(3).padStart(9)} s  ${name}${detail.length ? `: ${detail.join(", ")}` : ""}`;
  });
  const drafts = Object.entries(view.drafts.sources).map(([source, { rounds, drafted, accepted }]) =>
    `drafts from the ${source}: ${drafted} verified, ${accepted} accepted, ${(1 + accepted / rounds).toFixed(2)} tokens a step`);
  $("story").textContent = [`${view.id}: ${view.state}, attempt ${view.attempt}`, ...lines, ...drafts].join("\n");
  $("story").hidden = false;
}

export function stateOf(one) {
  if (one.state === "waiting") return one.place ? `waiting, position ${one.place}` : "waiting";
  if (one.state !== "running" || one.emitted_tokens) return one.state;
  return `prefill ${Math.round((100 * one.computed_tokens) / Math.max(1, one.prompt_tokens))} %`;
}

function row(one, tenants) {
  const active = one.state === "waiting" || one.state === "running";
  const explain = node("button", { type: "button", title: "what happened to it" }, "explain");
  explain.addEventListener("click", () => {
    told = told === one.id ? null : one.id;
    $("story").hidden = told === null;
    if (told) story(told);
  });
  const cancel = node("button", { type: "button", disabled: !active }, "cancel");
  cancel.addEventListener("click", () => fetch(`v1/requests/${encodeURIComponent(one.id)}/cancel`, { method: "POST" }));
  const cells = {
    id: one.id.slice(-8), ...(tenants ? { tenant: one.tenant || "-" } : {}), model: one.model, state: stateOf(one), on: one.home || "",
    tokens: `${one.prompt_tokens} + ${one.emitted_tokens}`, time: seconds(one.age),
  };
  const made = node("tr", { title: one.id }, ...Object.entries(cells).map(([className, text]) => node("td", { className }, text)),
    node("td", {}, explain, " ", ...(active ? [cancel] : [])));
  made.dataset.state = one.state;
  return made;
}

export async function drawRequests() {
  const answer = await fetch("v1/requests?limit=12");
  if (!answer.ok) return;
  const { data } = await answer.json();
  const tenants = data.some((one) => one.tenant);
  if (!$("list").matches(":hover")) { // a button must not move under the pointer
    $("of-tenant").hidden = !tenants;
    $("list").replaceChildren(...data.map((one) => row(one, tenants)));
  }
  if (told) await story(told);
}
