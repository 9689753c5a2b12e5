// The models as chains of blocks: a row for each, its parts in proportion to their bytes. A part is a run of layers that the same
// models have. All rows have one scale and leave out what adapters add, so that a block that models share lies in one column, in one
// color. What an adapter adds to a part is a strip above it.

import { chainNote, familiesOf, familyNote } from "./families.js";
import { $, bytes, node } from "./tools.js";

export const usersOf = (view) => {
  const users = {};
  for (const [name, application] of Object.entries(view.applications)) {
    for (const id of application.blocks) (users[id] ||= []).push(name);
  }
  return users;
};

// Colors far from each other, by the order in which they are asked for.
function palette() {
  const given = new Map();
  return (key) => {
    if (!given.has(key)) given.set(key, given.size);
    return `hsl(${(215 + 137.5 * given.get(key)) % 360} 42% 44%)`;
  };
}

export function saving(view) {
  const count = Object.values(view.applications).filter((one) => !one.variant_of && !one.drafts_for).length;
  const stored = `${count} model${count === 1 ? "" : "s"} in ${bytes(view.parameter_bytes)}`;
  if (!view.saved_bytes) return stored;
  const alone = view.parameter_bytes + view.saved_bytes;
  return `${stored} instead of ${bytes(alone)} (${Math.round((100 * view.saved_bytes) / alone)}% saved)`;
}

// start: bytes of the parts before it; most: of the longest row.
function part(segment, start, most, colour) {
  const { of, bytes: size, delta } = segment, shared = of.length > 1, wide = (100 * size) / most;
  const adds = delta ? `\n+ ${bytes(delta)} that this adapter adds` : "";
  const title = (shared ? `${bytes(size)} shared by ${of.join(", ")}` : `${bytes(size)} of its own`) + adds;
  const cell = node("span", { className: shared ? "block" : "block own", title }, wide < 4 ? "" : shared ? `\u00d7${of.length}` : "own");
  cell.style.background = colour(`${start} ${of.join("\n")}`);
  const strip = node("i", { className: "delta", title });
  strip.style.width = delta ? `max(3px, ${Math.min(100, (100 * delta) / Math.max(size, 1))}%)` : "0";
  const made = node("span", { className: "part" }, strip, cell);
  made.style.width = `${wide}%`;
  return made;
}

function row(name, application, view, most, colour) {
  const { bytes: own, kv, requests } = application;
  const on = view.routes.filter((route) => route.application === name).map((route) => route.hops.map((hop) => hop.worker).join("+"));
  const title = [
    `${name}${application.base ? ` from ${application.base}` : ""}`,
    `${application.state}${on.length ? ` on ${on.sort().join(", ")}` : ""}`,
    `${bytes(own.own)} of its own, ${bytes(own.shared)} shared`,
    `KV ${bytes(kv.bytes)} (${bytes(kv.shared)} shared)`,
    `${requests.running} running, ${requests.waiting} waiting`,
  ].join("\n");
  let start = 0;
  const parts = application.segments.map((segment) => {
    const made = part(segment, start, most, colour);
    start += segment.bytes;
    return made;
  });
  const busy = requests.running + requests.waiting > 0;
  const made = node("div", { className: busy ? "chain busy" : "chain", title }, node("span", { className: "name" }, name),
    node("div", { className: "chainbar" }, ...parts), node("span", { className: "number" }, own.own ? bytes(own.own) : "0"));
  made.dataset.model = name;
  return made;
}

// A family is one thing: its top tier, below it the lower ones, and a line on what they do together. So is a model with the shares
// of the chains that served it.
function grouped(applications, made) {
  const by = Object.fromEntries(applications), families = familiesOf(by);
  const tiers = new Set(Object.values(families).flat());
  return applications.flatMap(([name, application]) => {
    const chains = chainNote(application);
    if (!families[name] && !chains) return tiers.has(name) ? [] : [made(name, application)];
    const rows = (families[name] || [name]).map((one) => made(one, by[one]));
    const note = [familyNote(name), chains].filter(Boolean).join("; ");
    const group = node("div", { className: "family" }, ...rows, ...(note ? [node("p", { className: "quiet" }, note)] : []));
    group.style.gridRow = `span ${rows.length}`;
    group.dataset.family = name;
    return [group];
  });
}

export function drawChains(view) {
  const applications = Object.entries(view.applications);
  const sizeOf = ([, one]) => one.segments.reduce((sum, { bytes: size }) => sum + size, 0);
  const most = Math.max(1, ...applications.map(sizeOf)), colour = palette();
  $("saving").textContent = saving(view);
  $("chains").className = applications.length > 10 ? "many" : ""; // two columns, the first one down and then the second
  $("chains").style.setProperty("--rows", Math.ceil(applications.length / 2));
  $("chains").style.setProperty("--name", `${Math.min(22, Math.max(6, ...applications.map(([name]) => name.length + 2)))}ch`);
  $("chains").replaceChildren(...grouped(applications, (name, application) => row(name, application, view, most, colour)));
}
