// The models as chains of blocks: a row for each, its parts in proportion to their bytes. A part is a run of layers that the same
// models have. Fine-tunes have layers of the same sizes, so that what they share lies one below the other, in one colour.

import { $, bytes, node } from "./tools.js";

const hue = (text) => [...text].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 360, 7);
const colour = (text) => `hsl(${hue(text)} 45% 42%)`;

export function usersOf(view) {
  const users = {};
  for (const [name, application] of Object.entries(view.applications)) {
    for (const id of application.blocks) (users[id] ||= []).push(name);
  }
  return users;
}

// A block on a worker.
export function block(id, users, where) {
  const shared = users.length > 1 ? ` \u00d7${users.length}` : "";
  const cell = node("span", { className: "block", title: `block ${id}\nof ${users.join(", ")}\non ${where}` });
  cell.style.background = colour(id);
  cell.append(id.slice(0, 6) + shared);
  return cell;
}

export function saving(view) {
  const count = Object.keys(view.applications).length;
  const stored = `${count} model${count === 1 ? "" : "s"} in ${bytes(view.parameter_bytes)}`;
  if (!view.saved_bytes) return stored;
  const alone = view.parameter_bytes + view.saved_bytes;
  return `${stored} instead of ${bytes(alone)} (${Math.round((100 * view.saved_bytes) / alone)}% saved)`;
}

function part(segment, place, most) {
  const { of, bytes: size, delta } = segment;
  const own = delta ? ` + ${bytes(delta)} of its own` : "";
  const title = of.length > 1 ? `${bytes(size)}${own}\nshared by ${of.join(", ")}` : `${bytes(size)} of its own`;
  const cell = node("span", { className: of.length > 1 ? "block" : "block own", title }, of.length > 1 ? `\u00d7${of.length}${delta ? " +\u0394" : ""}` : "own");
  cell.style.background = colour(`${place} ${of.join("\n")}`);
  cell.style.width = `${(100 * (size + delta)) / most}%`;
  return cell;
}

export function drawChains(view) {
  const sizeOf = (one) => one.segments.reduce((sum, { bytes: size, delta }) => sum + size + delta, 0);
  const most = Math.max(1, ...Object.values(view.applications).map(sizeOf));
  $("saving").textContent = saving(view);
  $("chains").replaceChildren(...Object.entries(view.applications).map(([name, application]) => {
    const own = application.bytes, { kv, requests } = application;
    const on = view.routes.filter((route) => route.application === name).map((route) => route.hops.map((hop) => hop.worker).join("+"));
    const text = (application.base ? `from ${application.base}; ` : "") + `${application.state}${on.length ? ` on ${on.join(", ")}` : ""}; ` +
      `${bytes(own.own)} of its own, ${bytes(own.shared)} shared; ` +
      `KV ${bytes(kv.bytes)} (${bytes(kv.shared)} shared); ${requests.running} running, ${requests.waiting} waiting`;
    const bar = node("div", { className: "chainbar" }, ...application.segments.map((segment, place) => part(segment, place, most)));
    const made = node("div", { className: "chain" }, node("span", {}, name), node("span", { className: "quiet" }, text), bar);
    made.dataset.model = name;
    return made;
  }));
}
