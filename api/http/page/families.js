// Model families and drafts in numbers: how many requests a step takes through each part of a family's layers, which tiers answered
// the requests that leave the choice to the server, and what drafts bring.

import { sum } from "./metrics.js";
import { $, bytes, show } from "./tools.js";

const DRAFTS = { rounds: "drafts", drafted: "draft_tokens", accepted: "accepted_tokens" };
let notes = {}; // family -> text of its line
let before = {}; // "family first last" -> [steps, requests] at the last look

const layersOf = (name) => Number(name.slice(name.lastIndexOf(":") + 1));

// {family: its tiers, the highest first}, the family itself as the top tier.
export function familiesOf(applications) {
  const found = {};
  for (const [name, { family }] of Object.entries(applications)) {
    if (family && applications[family]) (found[family] ||= []).push(name);
  }
  return Object.fromEntries(Object.entries(found).map(([family, tiers]) =>
    [family, [family, ...tiers.sort((one, other) => layersOf(other) - layersOf(one))]]));
}

// Counts cover the time since the last look, or all time if no request passed meanwhile.
function segmentsOf(family, view) {
  const totals = {};
  for (const one of view.workers.flatMap((worker) => worker.segments || []).filter((one) => one.family === family)) {
    const key = `${family} ${one.first} ${one.last}`, [steps, rows] = totals[key]?.counts || [0, 0];
    totals[key] = { first: one.first, last: one.last, counts: [steps + one.sweeps, rows + one.rows] };
  }
  return Object.entries(totals).sort(([, one], [, other]) => one.first - other.first).map(([key, { first, last, counts }]) => {
    const old = before[key] || [0, 0], recent = counts[0] > old[0];
    before[key] = counts;
    const [steps, rows] = recent ? [counts[0] - old[0], counts[1] - old[1]] : counts;
    return { layers: first === last ? `layer ${first}` : `layers ${first}-${last}`, mean: steps ? rows / steps : 0 };
  });
}

function noteOf(family, view, found) {
  const parts = segmentsOf(family, view).filter(({ mean }) => mean).map(({ layers, mean }) => `${mean.toFixed(1)} in ${layers}`);
  const chosen = (found["blockwright:tier_choices_total"] || []).filter(({ labels }) => labels.family === family);
  return [
    ...(parts.length ? [`requests in a mean step: ${parts.join(", ")}`] : []),
    ...(chosen.length ? [`${family}:auto was answered by ${chosen.map(({ labels, value }) => `${labels.tier} ${value}`).join(", ")}`] : []),
  ].join("; ");
}

// Called once for each look at the server; the map shows the texts.
export function countFamilies(view, found) {
  notes = Object.fromEntries(Object.keys(familiesOf(view.applications)).map((family) => [family, noteOf(family, view, found)]));
}

// Returns the shares of a model's sequences by chain, as text; nothing unless a variant has served.
export function chainNote({ chains = {}, similarity = {} }) {
  const total = Object.values(chains).reduce((sum, count) => sum + count, 0);
  if (!Object.keys(chains).some(Boolean)) return "";
  const parts = Object.entries(chains).map(([name, count]) => `${name || "its own chain"} ${Math.round((100 * count) / total)} %`);
  const scored = similarity.tokens ? `; ${Math.round(100 * similarity.agreed)} % of ${similarity.tokens} tokens as its own` : "";
  return `served ${total} time${total === 1 ? "" : "s"}: ${parts.join(", ")}${scored}`;
}

export const familyNote = (family) => notes[family] || "";

// Shown once a request with drafts has ended.
export function drawDrafts(found) {
  const of = (name, source) => sum((found[`vllm:spec_decode_num_${name}_total`] || []).filter((one) => one.labels.source === source));
  const sources = new Set((found[`vllm:spec_decode_num_${DRAFTS.rounds}_total`] || []).map(({ labels }) => labels.source));
  const told = [...sources].map((source) => {
    const [rounds, drafted, accepted] = Object.values(DRAFTS).map((name) => of(name, source));
    return rounds ? `${source}: ${(1 + accepted / rounds).toFixed(2)} tokens a step, ${Math.round((100 * accepted) / Math.max(drafted, 1))} % accepted` : "";
  }).filter(Boolean);
  $("drafts").hidden = !told.length;
  show("drafts", told.join("; "));
}

// Returns the part of a worker's KV memory that holds hidden states, as text; nothing if there are none.
export function hiddenOf(worker) {
  const size = worker.counters?.hidden_bytes || 0;
  return size ? `, hidden states ${bytes(size)} of KV and cached` : "";
}
