"""Reading logs of messages: the calls of each trace as a tree, as lines of text.

Owns parsing and drawing; writing is ``message_log.py``. Knows nothing of running nodes. Lines that are damaged (a process
was killed while it wrote) are counted and passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class TraceSpan:
    """One message: who sent it when, who handled it for how long, with what outcome."""

    trace: str
    id: str
    parent: str = ""
    begun: float = 0.0  # seconds since 1970
    sender: str = ""
    what: str = ""  # actor and endpoint
    kind: str = ""
    node: str = ""  # that handled it
    seconds: float | None = None
    outcome: str = ""
    children: list[TraceSpan] = field(default_factory=list)


@dataclass(slots=True)
class Reading:
    """``traces``: spans without a known parent, by trace, in the order in which they began."""

    traces: dict[str, list[TraceSpan]] = field(default_factory=dict)
    damaged: int = 0
    lost: int = 0  # lines that a node's buffer had no room for


def read(lines: Iterable[str]) -> Reading:
    """Read one or several logs, in any order."""
    reading = Reading()
    spans: dict[tuple[str, str], TraceSpan] = {}
    for line in lines:
        if not line.strip():
            continue
        try:
            _take(json.loads(line), reading, spans)
        except (ValueError, KeyError, TypeError, AttributeError):
            reading.damaged += 1
    for span in sorted(spans.values(), key=lambda s: (s.begun, s.id)):
        above = spans.get((span.trace, span.parent))
        if above is not None and above is not span:
            above.children.append(span)
        else:
            reading.traces.setdefault(span.trace, []).append(span)
    return reading


def _take(entry: dict[str, Any], reading: Reading, spans: dict[tuple[str, str], TraceSpan]) -> None:
    what, at = entry["what"], float(entry["at"])
    if what == "lost":
        reading.lost += int(entry["count"])
        return
    key = (str(entry["trace"]), str(entry["span"]))
    made = spans.get(key) or TraceSpan(*key)
    if what == "sent":
        made.parent = str(entry["parent"])
        made.begun = at
        made.sender = str(entry["node"])
        made.what, made.kind = f"{entry['to']}.{entry['endpoint']}", str(entry["kind"])
    elif what == "ran":
        made.node = str(entry["node"])
        made.seconds = float(entry["seconds"])
        made.outcome = str(entry["outcome"])
        made.what = made.what or f"{made.node.partition('#')[0]}/{entry['actor']}.{entry['endpoint']}"
        made.begun = made.begun or at - made.seconds
    else:
        raise ValueError(what)
    spans[key] = made


def draw(reading: Reading, trace: str = "") -> Iterator[str]:
    """Draw the traces as lines of text; ``trace``: only traces whose id begins with it."""
    shown = {name: roots for name, roots in reading.traces.items() if name.startswith(trace)}
    for name, roots in sorted(shown.items(), key=lambda item: item[1][0].begun):
        yield f"trace {name}"
        for root in roots:
            yield from _draw(root, roots[0].begun, 1, set())
    if not shown:
        yield "no messages" if not trace else f"no messages of a trace {trace}"
    if reading.lost:
        yield f"{reading.lost} messages were not logged: a buffer was full"
    if reading.damaged:
        yield f"{reading.damaged} lines could not be read"


def _draw(span: TraceSpan, start: float, depth: int, above: set[str]) -> Iterator[str]:
    took = "" if span.seconds is None else f"  {span.seconds * 1e3:.3f} ms"
    where = f"{span.sender or '?'} -> {span.node or '?'}"
    outcome = span.outcome or "no outcome logged"
    kind = f"{span.kind} " if span.kind not in ("", "call") else ""
    yield f"{'  ' * depth}+{(span.begun - start) * 1e3:.3f} ms  {kind}{span.what}  [{where}]{took}  {outcome}"
    if span.id not in above:  # a log that was tampered with may hold a circle
        for child in span.children:
            yield from _draw(child, start, depth + 1, above | {span.id})


def render(paths: Iterable[Path], trace: str = "") -> Iterator[str]:
    """Render the logs of one or several nodes with ``draw``. Raises OSError; ValueError if no line is from a message log."""

    def lines() -> Iterator[str]:
        for path in paths:
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from file

    reading = read(lines())
    if reading.damaged and not reading.traces and not reading.lost:
        raise ValueError(
            f"none of the {reading.damaged} lines is of a log of messages; give what Node(message_log=...) wrote"
        )
    return draw(reading, trace)
