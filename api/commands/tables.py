"""``ps`` and ``top`` as tables on a terminal, once or refreshed until q or Ctrl-C.

Owns the looks alone; what is in the tables is ``observe.py``'s.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Container, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live

from blockwright.api.commands.fitted_table import FittedTable
from blockwright.api.commands.keyboard import Keyboard
from blockwright.api.program.job_bar import in_words
from blockwright.api.saving import saving
from blockwright.policies.binary_size import binary_size

View = Mapping[str, Any]
size = binary_size  # bytes with a binary unit


def show(
    view: Callable[[], View], render: Callable[[View], Group], *, of: str, once: bool, as_json: bool, interval: float
) -> int:
    """Print what ``view`` gives: as JSON, once as a table, or (where a person looks) again every ``interval`` seconds, below
    the name ``of`` what is looked at."""
    if as_json:
        print(json.dumps(view(), indent=1))
        return 0
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    if once or not sys.stdout.isatty():
        console.print(render(view()))
        return 0

    def screen() -> Group:
        return Group(f"{of}, {time.strftime('%H:%M:%S')}, every {interval:g} s; q quits", "", render(view()))

    with Keyboard() as keys, Live(screen(), console=console, screen=True, auto_refresh=False) as live:
        while not keys.ended_within(interval):
            live.update(screen(), refresh=True)
    return 0


def share(value: float) -> str:
    return f"{value:.0%}"


def milliseconds(seconds: float | None) -> str:
    """A time: whole milliseconds, or seconds where nobody counts those."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.3g} s"


def rate(value: float) -> str:
    """Of something per second: tenths only where they tell something."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def ps_tables(view: View) -> Group:
    applications = FittedTable(
        ("MODEL", "BASE", "STATE", "RUNS ON", "OWNS", "SHARES", "KV", "KV SHARED", "RUN", "WAIT", "CONTEXT"),
        [
            (
                one["id"],
                one["base"] or "-",
                one["state"],
                ", ".join("+".join(workers) for workers in one["replicas"]) or "-",
                size(one["memory"]["own"]),
                size(one["memory"]["shared"]),
                *(size(one["kv"][name]) for name in ("bytes", "shared")),
                *(str(one["requests"][name]) for name in ("running", "waiting")),
                f"{one['max_length']:,}",
            )
            for one in view["applications"]
        ],
        numbers=7,
        least=("CONTEXT", "KV SHARED", "STATE", "KV", "BASE"),
    )
    workers = FittedTable(
        ("WORKER", "STATE", "DEVICE", "NUMERICS", "PID", "RESTARTS", "BLOCKS", "PARAMETERS", "KV", "CACHED", "FREE"),
        [
            (
                *(one["id"], one["state"], one["device"], one["numerics"]),
                *(str(one[name]) for name in ("pid", "restarts", "blocks")),
                *(size(one["memory"][name]) for name in ("parameters", "kv", "cached", "free")),
            )
            for one in view["workers"]
        ],
        numbers=7,
        least=("NUMERICS", "DEVICE", "BLOCKS", "STATE"),
    )
    more = [*_autoscale(view["autoscale"]), *overload_lines(view["overload"])]
    default = default_line(view["default"], {one["id"] for one in view["applications"]})
    return Group(applications, saving_line(view), f"{held(view)}{default}", "", workers, *more)


def default_line(default: str, served: Container[str]) -> str:
    """Return which model answers requests that name none."""
    if default in served:
        return f"requests without a model go to {default}"
    return f"requests without a model are refused: {default or 'no model'} is not served"


def saving_line(view: View) -> str:
    """All models together; what each shows as shared overlaps, so that no total can be made of it."""
    return saving(len(view["applications"]), **view["parameters"])


def held(view: View) -> str:
    """Return what workers hold of the parameters, which differs from the files: tensors are packed to be computed with, and
    what is on demand may be nowhere."""
    found = sorted({one["memory"]["parameters"] for one in view["workers"]})
    if not found or not found[-1]:
        return ""
    amount = size(found[0]) if len(found) == 1 else f"{size(found[0])} to {size(found[-1])}"
    count = len(view["workers"])
    return f"packed and loaded: {amount} on {'each of ' * (count > 1)}{count} worker{'s' * (count > 1)}; "


def _autoscale(scaled: View) -> list[str]:
    """How many workers are wanted, and why the last one came or went."""
    if scaled["mode"] == "off":
        return []
    count, last = scaled["workers"], scaled["last"]
    said = f"autoscale ({scaled['mode']}, {scaled['limit']:g} s): {count['wanted']} workers wanted"
    said += "".join(f", {count[stage]} {stage}" for stage in ("starting", "draining") if count[stage])
    return ["", said, *([f"  {last['decision']}: {last['why']}"] if last else [])]


def overload_lines(drops: View | None) -> list[RenderableType]:
    """Who has dropped parameters for KV, and what happened last."""
    if drops is None:
        return []
    groups = FittedTable(
        ("WORKER", "GROUP", "IS", "COMPONENTS", "PARAMETERS", "+ KV", "OF"),
        [
            (
                *(one["id"], one["group"] or "-", one["state"]),
                "all" if one["first"] is None else f"{one['first']} to {one['last'] - 1}",
                *(size(one["memory"][name]) for name in ("parameters", "kv", "budget")),
            )
            for one in drops["workers"]
        ],
        numbers=3,
    )
    return ["", groups, *(change_line(drops[name]) for name in ("last", "lacking") if drops[name])]


def change_line(last: View) -> str:
    """A drop, a restore or what else happened, as a sentence."""
    at = time.strftime("%H:%M:%S", time.localtime(last["at"]))
    if last["what"] == "lacking":
        return f"{at}: short of {size(last['bytes'])} of KV memory, which no drop can free: {last['why']}"
    said = f"last change, {at}: {last['what']} of {last['group']}"
    if last["bytes"]:
        said += f", {size(last['bytes'])} freed"
    said += ", under way" if last["seconds"] is None else f", took {milliseconds(last['seconds'])}"
    if last["requests"]:
        stalled = f"{milliseconds(last['stall'])} in all, {milliseconds(last['stall_worst'])} at worst"
        said += f"; {last['requests']} requests left, and paused {stalled}"
    return f"{said}: {last['why']}"


def top_tables(view: View) -> Group:
    applications = FittedTable(
        ("MODEL", "STATE", "RUN", "WAIT", "TOK/S", "PROMPT/S", "TTFT P50", "P95", "KV", "SHARED", "HITS"),
        [
            (
                *(one["id"], one["state"], str(one["running"]), str(one["waiting"])),
                *(rate(one[name]) for name in ("tokens_per_s", "prompt_tokens_per_s")),
                *(milliseconds(one[name]) for name in ("ttft_p50", "ttft_p95")),
                *(share(one[name]) for name in ("kv_used", "shared", "cache_hits")),
            )
            for one in view["applications"]
        ],
        numbers=9,
        least=("STATE", "SHARED", "PROMPT/S"),
    )
    workers = FittedTable(
        ("WORKER", "STATE", "RUN", "WAIT", "KV", "CACHED", "HITS"),
        [
            (
                *(one["id"], one["state"], str(one["running"]), str(one["waiting"])),
                *(share(one[name]) for name in ("kv_used", "kv_cached", "cache_hits")),
            )
            for one in view["workers"]
        ],
        numbers=5,
    )
    batches = batch_lines(view["batches"])
    last = [*batches, *overload_lines(view["overload"])]
    return Group(total_line(view), saving_line(view), "", applications, "", workers, *last)


def total_line(view: View) -> str:
    """How busy the whole server is."""

    def total(name: str) -> float:
        return sum(float(one[name]) for one in view["applications"])

    ready = sum(one["state"] == "ready" for one in view["workers"])
    return (
        f"{total('running'):,.0f} running, {total('waiting'):,.0f} waiting; {rate(total('tokens_per_s'))} tokens/s, "
        f"{rate(total('prompt_tokens_per_s'))} of prompts; {ready} of {len(view['workers'])} workers ready"
    )


def batch_lines(batches: list[View]) -> list[RenderableType]:
    """Nothing where none runs."""
    if not batches:
        return []
    shown = FittedTable(
        ("BATCHES OF", "DONE", "RUN", "WAIT", "TIME LEFT", "DENSITY", "SHARED", "KV LEFT", "KV RIGHT"),
        [
            (
                *(one["model"], *(f"{one[name]:,}" for name in ("done", "running", "waiting"))),
                in_words(one["remaining_seconds"]) or "-",
                *(f"{one['density']:.3g}", share(one["sharing"])),
                *(share(one["sides"][side]["used"] / max(one["sides"][side]["most"], 1)) for side in ("left", "right")),
            )
            for one in batches
        ],
        numbers=8,
        least=("DENSITY", "KV LEFT", "KV RIGHT"),
    )
    return ["", shown]
