"""Peer process of ``links.py``: nodes that send back the header of each message that reaches them over a link.

    python -m blockwright.actors.profiling.link_peer DIRECTORY

Writes the addresses where its nodes listen to ``DIRECTORY/addresses``, one on each line, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ...runtime import Node
from ...transport.link import Traffic

NAME = "profiled"
TCP = "tcp://127.0.0.1:0"


def echo(node: Node) -> None:
    """Send each message with a header back, without its buffers. Messages without a header are only load."""

    def answer(sender: str, header: bytes, buffers: list[memoryview]) -> None:
        if header:
            node.link(sender).send(Traffic.ACTIVATION, header)

    for kind in Traffic:
        node.on_link(kind, answer)


async def main(directory: Path) -> None:
    nodes = [Node(NAME, directory=directory), Node(NAME, listen=TCP)]
    for node in nodes:
        await node.start()
        echo(node)
    (directory / "new").write_text("".join(f"{node.endpoint}\n" for node in nodes))
    (directory / "new").rename(directory / "addresses")
    await asyncio.to_thread(sys.stdin.read)
    for node in nodes:
        await node.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
