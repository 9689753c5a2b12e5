// The workers: their state, what their memory holds, and behind a click the blocks that run there. Gateways that joined.

import { hiddenOf } from "./families.js";
import { $, bytes, node } from "./tools.js";

const opened = new Set(); // workers whose blocks are shown

function block(id, users, where) {
  const shared = users.length > 1 ? ` \u00d7${users.length}` : "";
  return node("span", { className: "block", title: `block ${id}\nof ${users.join(", ")}\non ${where}` }, id.slice(0, 6) + shared);
}

// uses: [[class, bytes]]; whole: bytes of the bar.
export function bar(made, uses, whole) {
  made.replaceChildren(...uses.map(([name, size, title]) => {
    const part = node("i", { className: name, title: title || "" });
    part.style.width = `${whole ? (100 * size) / whole : 0}%`;
    return part;
  }));
  return made;
}

// Returns how many cached pages of a worker another one has, too, as text; nothing if there are none.
function redundantOf(worker) {
  const count = worker.counters?.redundant_pages || 0;
  return count ? `, ${count} cached page${count === 1 ? "" : "s"} also on other workers` : "";
}

// Returns the guesses of hidden states that a worker has made, and the ones that stood, as text; nothing if there are none.
function guessesOf(worker) {
  const made = worker.counters?.guessed_states || 0, accepted = worker.counters?.accepted_guesses || 0;
  return made ? `, ${accepted} of ${made} guesses of hidden states accepted` : "";
}

// Returns where a worker is, and its labels, as text that follows its pid.
function whereabouts(worker) {
  const labels = Object.entries(worker.labels || {}).map(([name, value]) => `${name}=${value}`);
  return [worker.host && ` on ${worker.host}`, worker.joined && ", joined", labels.length && `; ${labels.join(", ")}`].filter(Boolean).join("");
}

// What crosses from a worker to others, by pair of components: the view's entries of this worker.
function sends(crossing) {
  return crossing.map((one) => node("div", { className: "quiet" },
    `${one.model} crosses to ${one.to} before component ${one.before}: ${one.sweeps} transfers, ${bytes(one.bytes)}`));
}

function row(worker, group, users, crossing) {
  const m = worker.memory, { running, waiting } = worker.queue;
  const restarts = worker.restarts ? `, restarted ${worker.restarts === 1 ? "once" : `${worker.restarts} times`}` : "";
  const head = node("div", {}, node("b", {}, worker.id),
    node("span", { className: `chip ${worker.state === "ready" ? "good" : "bad"}` }, worker.state),
    ...(group.group ? [node("span", { className: "chip" }, `${group.state} ${group.group}`)] : []),
    node("span", { className: "quiet" }, `${running} running, ${waiting} waiting${restarts}${guessesOf(worker)}`),
    node("span", { className: "quiet right" }, `${bytes(m.budget - m.free)} of ${bytes(m.budget)}`));
  const title = `parameters ${bytes(m.parameters)}, KV in use ${bytes(m.kv)}, cached ${bytes(m.cached)}, free ${bytes(m.free)}${hiddenOf(worker)}${redundantOf(worker)}`;
  const uses = bar(node("div", { className: "bar", title }), ["parameters", "kv", "cached"].map((use) => [use, m[use], title]), m.budget);
  const count = worker.blocks.length;
  const cells = node("div", { className: "cells" }, ...worker.blocks.map((id) => block(id, users[id] || [], worker.id)));
  const blocks = node("details", { open: opened.has(worker.id) },
    node("summary", { className: "quiet" }, `${count} block${count === 1 ? "" : "s"}; pid ${worker.pid}${whereabouts(worker)}`), cells);
  blocks.addEventListener("toggle", () => (blocks.open ? opened.add(worker.id) : opened.delete(worker.id)));
  const made = node("div", { className: "worker" }, head, uses, ...sends(crossing), blocks);
  made.dataset.worker = worker.id;
  made.dataset.state = worker.state;
  made.dataset.group = group.group || "";
  return made;
}

function card(one) {
  const { total, free } = one.memory;
  const said = [
    ...(one.use === null ? [] : [`${Math.round(100 * one.use)} % busy`]),
    ...(one.power === null ? [] : [`${Math.round(one.power)} W`]),
    ...one.throttled.map((why) => `held down by ${why}`)];
  const head = node("div", {}, node("b", {}, one.id), node("span", { className: "quiet" }, [one.name, ...said].join(", ")),
    node("span", { className: "quiet right" }, `${bytes(total - free)} of ${bytes(total)}`));
  const used = bar(node("div", { className: "bar" }), [["kv", total - free, "memory of all programs"]], total);
  const made = node("div", { className: "worker" }, head, used);
  made.dataset.card = one.id;
  return made;
}

// The gateways, once one has joined from another machine.
function gateway(one) {
  const made = node("div", { className: "worker" }, node("div", {}, node("b", {}, one.id),
    node("span", { className: `chip ${one.state === "ready" ? "good" : "bad"}` }, one.state),
    node("span", { className: "quiet" }, `gateway, ${one.requests} request${one.requests === 1 ? "" : "s"}${one.address && ` at ${one.address}`}${whereabouts(one)}`)));
  made.dataset.gateway = one.id;
  return made;
}

// The processes of predictors, once one has joined from another machine.
function predictor(one) {
  const made = node("div", { className: "worker" }, node("div", {}, node("b", {}, one.id),
    node("span", { className: `chip ${one.state === "ready" ? "good" : "bad"}` }, one.state),
    node("span", { className: "quiet" }, `predicts ${one.predicts.join(", ") || "no worker"}${whereabouts(one)}`)));
  made.dataset.predictor = one.id;
  return made;
}

export function drawWorkers(view, users) {
  const gateways = (view.gateways || []).some((one) => one.joined) ? view.gateways.map(gateway) : [];
  const predictors = (view.predictors || []).some((one) => one.joined) ? view.predictors.map(predictor) : [];
  const cards = (view.cards || []).map(card);
  const crossing = (worker) => (view.placement?.transfers || []).filter((one) => one.worker === worker.id);
  const rows = view.workers.map((worker) => row(worker, view.overload?.workers[worker.id] || {}, users, crossing(worker)));
  $("workers").replaceChildren(...cards, ...rows, ...gateways, ...predictors);
}
