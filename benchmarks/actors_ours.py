"""Our side of ``actors.py``: a process of its own, which makes one measurement for each line that it reads.

    python actors_ours.py

The interpreter determines which checkout is measured, so that an older one can alternate with this one (``--beside``): both
stay up, and a temporary disturbance of the machine affects both. A line is ``TURN PART``; the answer is a line of JSON for
each case of that turn, and an empty line.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import numpy as np
from actors_echo import Echo
from actors_timing import CALLERS, LARGE_CALLS, SIZES, SMALL_CALLS, WARM, bulk, percentiles, tell, timed, together

from blockwright.runtime import Node, run
from blockwright.runtime.cluster.local_cluster import LocalCluster

CASTS, ITEMS = 50_000, 50_000
DATA = bytes(100)
Turn = Callable[[float], Awaitable[None]]


async def main() -> None:
    node = Node("alone", listen=False)
    await node.start()
    alone = await node.spawn(Echo(), name="echo")
    tcp = LocalCluster(1, listen="tcp://127.0.0.1:0", preload=["numpy"])
    async with LocalCluster(1, preload=["numpy"]) as here, tcp as there:
        ipc, far = [await cluster.node.spawn(Echo, name="echo", on="w0") for cluster in (here, there)]
        turns: dict[str, Turn] = {"inproc": partial(one_by_one, alone, "inproc", {})}
        for transport, ref in (("ipc", ipc), ("tcp", far)):
            turns[transport] = partial(one_by_one, ref, transport, {})
            turns[f"{transport}-large"] = partial(one_by_one, ref, transport, SIZES)
        turns |= {f"{number}callers": partial(callers, ipc, number) for number in CALLERS}
        turns |= {"casts": partial(casts, ipc), "stream": partial(stream, ipc)}
        print(" ".join(turns), flush=True)
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            await turns[words[0]](float(words[1]))
            print(flush=True)
    await node.stop()


async def one_by_one(ref: Echo, transport: str, sizes: dict[str, int], part: float) -> None:
    """Calls one after the other: small ones, or with arguments of several sizes."""
    if not sizes:
        calls = await timed(lambda: ref.echo(DATA), max(300, int(SMALL_CALLS * part)), WARM)
        tell(f"call/{transport}/100B", percentiles(calls))
    for name, size in sizes.items():
        times = await timed(partial(ref.touch, np.ones(size, np.uint8)), max(3, int(LARGE_CALLS[name] * part)), 3)
        tell(f"call/{transport}/{name}", bulk(times, size))


async def callers(ref: Echo, number: int, part: float) -> None:
    """Calls side by side."""
    rate = await together(lambda: ref.echo(DATA), number, int(CALLERS[number] * part))
    tell(f"calls/{number}callers/ipc", rate)


async def casts(ref: Echo, part: float) -> None:
    total, before = int(CASTS * part), await ref.noted()
    began = time.perf_counter()
    for number in range(total):
        ref.note.cast(DATA)
        if number % 512 == 511:
            await ref.noted()  # a cast never waits; who does not look whether they arrive fills the mailbox
    arrived = await ref.noted() - before  # first in, first out: the answer comes after all casts
    assert arrived == total, f"{total} casts were sent and {arrived} came"
    tell("cast/ipc/100B", {"per_s": total / (time.perf_counter() - began)})


async def stream(ref: Echo, part: float) -> None:
    items = int(ITEMS * part)
    began = time.perf_counter()
    async for _ in ref.items(items, DATA):
        pass
    tell("stream/ipc/100B", {"per_s": items / (time.perf_counter() - began)})


if __name__ == "__main__":
    run(main())
