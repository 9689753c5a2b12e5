// What happened to the cluster, the latest first; above it the last death of a worker, with what became of its requests.

import { clock } from "./charts.js";
import { $, node, seconds } from "./tools.js";

// The last "down", what each gateway told of its requests then, and when the worker served again.
export function recovery(events) {
  const last = events.findLastIndex((event) => event.event === "down");
  if (last < 0) return "";
  const { at, subject, text } = events[last];
  const since = events.slice(last + 1).filter((event) => event.subject === subject);
  const told = since.filter((event) => event.event === "recovered").map((event) => event.text.replace(/^.*?: /, ""));
  const back = since.find((event) => event.event === "ready");
  const again = back ? `serves again after ${seconds(back.at - at)}` : "does not serve yet";
  return [`${text} at ${clock(at)}`, ...told, `${subject} ${again}`].join("; ");
}

export function drawEvents(events) {
  const newest = String(events.length && events[events.length - 1].number);
  if ($("events").dataset.last === newest) return;
  $("events").dataset.last = newest;
  const told = recovery(events);
  $("recovery").replaceChildren(node("b", {}, "Last recovery: "), told);
  $("recovery").hidden = !told;
  $("events").replaceChildren(...events.slice().reverse().map((event) => {
    const at = new Date(event.at * 1000);
    const line = node("li", {}, node("time", { dateTime: at.toISOString() }, clock(event.at)), node("span", {}, event.text));
    line.dataset.event = event.event;
    if (event.event === "down") line.className = "bad";
    if (event.event === "ready" || event.event === "recovered") line.className = "good";
    return line;
  }));
}
