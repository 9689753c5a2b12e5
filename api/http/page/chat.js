// The chat. What was said is kept in the tab, and survives errors and a reload. A base model, which has no chat template, continues
// the text instead. Answers are shown as the Markdown that they are, and copied as it.

import { markdown } from "./markdown.js";
import { stateOf } from "./requests.js";
import { $, node, seconds } from "./tools.js";

const KEPT = "blockwright.chat";
const LOOK = 1000; // milliseconds between two looks at where a request is
const PAUSES = [50, 100, 200, 500, 1000, 2000, 2000]; // milliseconds before a broken answer is asked for again
const history = [];
let stopping = null; // ends the answer that is coming

function keep() {
  const settings = { system: $("system").value, temperature: $("temperature").value, most: $("most").value };
  sessionStorage.setItem(KEPT, JSON.stringify({ history, settings }));
}

function say(message) {
  const said = node("div", { className: "said" });
  const line = node("li", { className: message.role });
  if (message.role === "assistant") {
    const copy = node("button", { type: "button", className: "tool" }, "copy");
    copy.addEventListener("click", () => navigator.clipboard?.writeText(message.content));
    line.append(copy);
    said.append(markdown(message.content));
  } else said.append(message.content);
  line.append(said);
  $("messages").append(line);
  line.scrollIntoView({ block: "nearest" });
  return line;
}

// Yields each event's data, with its id.
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
      const lines = event.split("\n"), data = lines.find((line) => line.startsWith("data: "));
      if (data) yield { id: lines.find((line) => line.startsWith("id: "))?.slice(4), data: data.slice(6) };
    }
  }
}

// Yields the objects of an answer. Where its stream breaks, it asks for the rest after the last event, of whichever gateway answers.
async function* whole(response, again) {
  let [last, pauses] = ["", [...PAUSES]];
  for (;;) {
    try {
      for await (const { id, data } of events(response)) {
        if (id) [last, pauses] = [id, [...PAUSES]];
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    } catch (error) {
      if (error.name === "AbortError" || !last) throw error;
    }
    if (!last) return;
    do {
      if (!pauses.length) throw new Error("the connection broke within the answer");
      await new Promise((go) => setTimeout(go, pauses.shift()));
      response = await again(last).catch((error) => {
        if (error.name === "AbortError") throw error;
      });
    } while (!response || response.status >= 502);
    if (!response.ok) throw new Error((await response.json()).error.message);
  }
}

function sampling() {
  const asked = { model: $("model").value, stream: true, stream_options: { include_usage: true } };
  if ($("temperature").value !== "") asked.temperature = Number($("temperature").value);
  if ($("most").value !== "") asked.max_tokens = Number($("most").value);
  return asked;
}

// Shows what has come so far, once for each frame of the screen.
function painter(message, said) {
  let waiting = false;
  const paint = () => {
    waiting = false;
    said.replaceChildren(markdown(message.content));
  };
  return {
    soon: () => { if (!waiting) waiting = Boolean(requestAnimationFrame(paint)); },
    now: paint,
  };
}

// Says each second where the request is, until it is called: the place in the queue, then how much of the prompt is computed.
function untilFirst(name, began) {
  let ended = false;
  const timer = setInterval(async () => {
    const found = await fetch(`v1/requests/${name}`).catch(() => ({})); // the answer reports a server that is gone
    const at = found.ok && !ended ? stateOf(await found.json()) : "";
    if (at && !ended) $("note").textContent = `${at}; ${seconds((performance.now() - began) / 1000)} so far`;
  }, LOOK);
  return () => {
    ended = true;
    clearInterval(timer);
  };
}

async function open(name) {
  const first = $("system").value.trim() ? [{ role: "system", content: $("system").value.trim() }] : [];
  const asked = sampling(), { signal } = stopping;
  const post = (path, body, last) => fetch(path, {
    method: "POST",
    headers: {
      "Content-Type": "application/json", "x-request-id": name, "x-event-ids": "auto", ...(last && { "Last-Event-ID": last }),
    },
    body: JSON.stringify({ ...asked, ...body }), signal,
  });
  const sent = async (...request) => ({ response: await post(...request), again: (last) => post(...request, last) });
  const chat = await sent("v1/chat/completions", { messages: [...first, ...history] }), { response } = chat;
  if (response.ok) return { ...chat, base: "" };
  const { error } = await response.json();
  if (error.code !== "no_chat_template") throw new Error(error.message);
  const base = "; a base model: it continues your text";
  const plain = await sent("v1/completions", { prompt: history.map((one) => one.content).join("") });
  if (!plain.response.ok) throw new Error((await plain.response.json()).error.message);
  return { ...plain, base };
}

async function answer() {
  stopping = new AbortController();
  busy(true);
  const message = { role: "assistant", content: "" };
  const line = say(message), shown = painter(message, line.querySelector(".said"));
  const began = performance.now(), name = `page-${Date.now()}-${Math.random().toString(36).slice(2)}`;
  const begun = untilFirst(name, began);
  let [first, usage] = [0, null];
  try {
    const { response, again, base } = await open(name);
    for await (const event of whole(response, again)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const choice = event.choices[0];
      const piece = choice ? choice.text ?? choice.delta.content ?? "" : "";
      const thought = choice?.delta?.reasoning ?? "";
      if (thought) think(line, thought);
      if ((piece || thought) && !first) {
        begun();
        first = performance.now();
      }
      message.content += piece;
      shown.soon();
    }
    const took = (performance.now() - began) / 1000;
    const count = usage && `${usage.completion_tokens} token${usage.completion_tokens === 1 ? "" : "s"}`;
    const after = first ? `, the first after ${seconds((first - began) / 1000)}` : ""; // an answer may have no text
    $("note").textContent = usage ? `${count} in ${seconds(took)}${after}${base}` : "";
  } catch (error) { // what has come stays
    const stopped = error.name === "AbortError";
    $("note").textContent = stopped ? "stopped" : "";
    if (!stopped) line.append(node("p", { className: "error" }, error.message));
  } finally {
    begun();
  }
  shown.now();
  if (message.content) history.push(message);
  stopping = null;
  busy(false);
  keep();
}

// What a model thinks stands folded above its answer, and is not sent back.
function think(line, text) {
  let place = line.querySelector(".thinking");
  if (!place) {
    place = node("details", { className: "thinking" });
    place.append(node("summary", {}, "thinking"), node("p", {}));
    line.querySelector(".said").before(place);
  }
  place.lastChild.append(text);
}

function busy(now) {
  $("send").disabled = now;
  $("stop").hidden = !now;
  $("again").hidden = now || !history.some((one) => one.role === "assistant");
}

export async function listModels() {
  const found = await fetch("v1/models");
  if (!found.ok) return;
  for (const model of (await found.json()).data) $("model").append(node("option", {}, model.id));
}

export function startChat() {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || "null");
  if (kept) {
    for (const message of kept.history) history.push(message), say(message);
    for (const [name, value] of Object.entries(kept.settings)) $(name).value = value;
  }
  busy(false);
  $("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = $("text").value.trim();
    if (!text || $("send").disabled) return;
    $("text").value = "";
    history.push({ role: "user", content: text });
    say(history[history.length - 1]);
    await answer();
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); $("ask").requestSubmit(); }
  });
  $("stop").addEventListener("click", () => stopping?.abort());
  $("again").addEventListener("click", () => {
    while (history.length && history[history.length - 1].role === "assistant") {
      history.pop();
      $("messages").lastElementChild.remove();
    }
    if (history.length) answer();
  });
  $("reset").addEventListener("click", () => {
    stopping?.abort();
    history.length = 0;
    $("messages").replaceChildren();
    $("note").textContent = "";
    busy(false);
    keep();
  });
  for (const name of ["system", "temperature", "most"]) $(name).addEventListener("change", keep);
}
