"""The burst part of the demo: two replicas run out of KV memory, drop the parameters that both hold, and load them again.

It has a server of its own with little memory, whose sweeps run at the pace of a slower machine, so that there is something
to see. The demo talks to it through its HTTP API.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...policies.binary_size import binary_size
from ..program.client import Client
from .client import view_of
from .display import TourCheck
from .recovery import KilledStream, listen

STREAMS, TOKENS = 16, 150  # number and length of answers; the replicas have KV memory for about ten of them
SPARE, LEAST = 0.35, 640 << 10  # KV memory as a share of the parameters; its least bytes
PACE = {"base": 0.01}  # least seconds of a sweep
BACK_SECONDS = 30.0  # seconds until the parameters must be loaded again
LOOK = 0.1  # seconds between two queries of the cluster
SHOWN = ("drop", "restore")


def command(checkpoint: Path, port: int, pace: Path) -> list[str]:
    """Return the command that starts the server; write ``pace``."""
    pace.write_text(json.dumps(PACE))
    parameters = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    memory = parameters + max(int(SPARE * parameters), LEAST)
    settings = {"overload": "on", "memory": memory, "pace": pace, "heartbeat": LOOK}
    words = (word for name, value in settings.items() for word in ("--set", f"{name}={value}"))
    return [
        *(sys.executable, "-m", "blockwright", "serve", str(checkpoint)),
        *("--workers", "2", "--port", str(port), *words),
    ]


async def show_burst(client: Client, say: Callable[[str], None]) -> list[TourCheck]:
    """Stream while parameters turn into KV memory, and wait until they are back. ``say`` receives each line."""
    model = (await client.models())[0]
    say(f"\nmeanwhile a burst on a second server: {STREAMS} streams at once from {model},")
    say("2 workers with little memory (--set overload=on):")
    streams = [KilledStream(f"repeat {n}: stream {n} =") for n in range(1, STREAMS + 1)]
    load = asyncio.gather(*(listen(client, model, one, lambda: None, TOKENS) for one in streams))
    seen: list[dict[str, Any]] = []
    until = time.monotonic() + BACK_SECONDS
    while time.monotonic() < until and not (load.done() and [one["what"] for one in seen][-1:] == ["restore"]):
        await asyncio.sleep(LOOK)
        for one in (await _changes(client))[len(seen) :]:
            seen.append(one)
            say(f"  {describe_change(one)}")
    await load
    say("")
    return judge(streams, [one["what"] for one in seen])


async def _changes(client: Client) -> list[dict[str, Any]]:
    """Return the drops and restores that have ended."""
    changes = (await view_of(client, "/admin/cluster"))["overload"]["changes"]
    return [one for one in changes if one["what"] in SHOWN and one["seconds"] is not None]


def describe_change(change: dict[str, Any]) -> str:
    """Return a sentence on one change."""
    if change["what"] == "restore":
        return f"{change['group']}: the parameters are back after {change['seconds']:.1f} s; it served meanwhile"
    mean = change["stall"] / max(change["requests"], 1)
    return (
        f"{change['group']}: {binary_size(change['bytes'])} of parameters became KV memory,\n"
        f"    {change['requests']} requests paused for {mean:.2f} s on average"
    )


def judge(streams: list[KilledStream], seen: list[str]) -> list[TourCheck]:
    """Return the checks: parameters became memory, and nothing was lost."""
    whole = sum(not one.error for one in streams)
    return [
        TourCheck(f"{whole} of {len(streams)} streams of the burst are complete", whole == len(streams)),
        TourCheck("parameters became KV memory in the burst", "drop" in seen),
        TourCheck("the parameters came back after it", "restore" in seen),
    ]
