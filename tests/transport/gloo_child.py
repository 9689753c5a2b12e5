"""The other process of the tests and benchmarks of gloo links: a node that sends back whatever comes.

python gloo_child.py DIRECTORY STORE: node "b" in DIRECTORY, rank 1 of a group of two whose file store is STORE. A file
"ready" in DIRECTORY says that it listens.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from blockwright.runtime import Node
from blockwright.transport.gloo import GlooLane
from blockwright.transport.wire import Traffic


def gloo_lane(store: str, rank: int) -> GlooLane:
    """This process's end. Blocks until the other end is there."""
    group = dist.ProcessGroupGloo(dist.FileStore(store, 2), rank, 2, datetime.timedelta(seconds=60))
    return GlooLane(group, 1 - rank, partial(torch.frombuffer, dtype=torch.uint8))


async def main(directory: str, store: str) -> None:
    lane = await asyncio.to_thread(gloo_lane, store, 1)
    node = Node("b", directory=Path(directory))
    await node.start()

    def echo(kind: Traffic, sender: str, header: bytes, buffers: list[memoryview]) -> None:
        node.link(sender).send(kind, header, buffers)

    for kind in Traffic:
        node.on_link(kind, partial(echo, kind))
    (Path(directory) / "ready").write_bytes(b"")
    for _ in range(6000):
        if "a" in node.peers():
            break
        await asyncio.sleep(0.01)
    node.tensor_links.use_lane(node.peers()["a"].id, lane)
    await node.closed.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
