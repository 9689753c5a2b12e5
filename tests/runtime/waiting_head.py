"""A head as a program of its own, which starts nobody and waits for nodes that join: ``python -m … WHERE EPOCH KEYS``.

WHERE: "tcp://HOST:PORT", or a directory for its socket file. KEYS: a folder, or "-". It says what happens to it in lines.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.join_text import JoinTexts
from blockwright.runtime.cluster.key_folder import read_keys
from blockwright.runtime.cluster.launcher import Launcher, LaunchError, NodeSpec, OnExit
from blockwright.transport.address import PeerId
from blockwright.transport.curve import NodeKeys
from blockwright.transport.interface import Transport
from blockwright.transport.sockets import SocketTransport

HEARTBEAT, SILENCE = 0.2, 2.0
GRACE = 600.0


class Nobody(Launcher):
    """A launcher of nothing."""

    def __init__(self, directory: str) -> None:
        self._path = directory

    @property
    def directory(self) -> str:
        return self._path

    async def start(self, on_exit: OnExit) -> None: ...

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        return SocketTransport(head, listen or Path(self._path), keys, lasting=True)

    async def spawn(self, spec: NodeSpec) -> int:
        raise LaunchError("this head waits for nodes that join")

    def kill(self, node: PeerId) -> None: ...

    def list(self) -> dict[PeerId, int]:
        return {}

    async def stop(self) -> None: ...


def say(*what: object) -> None:
    print(*what, flush=True)


async def main(where: str, epoch: int, folder: str) -> int:
    over_tcp = where.startswith("tcp://")
    keys = read_keys(Path(folder)) if folder != "-" else None
    head = ClusterHead(
        "head",
        launcher=Nobody("" if over_tcp else where),
        heartbeat=HEARTBEAT,
        silence=SILENCE,
        listen=where if over_tcp else "",
        keys=keys,
        join_texts=JoinTexts(keys) if keys is not None else None,
        epoch=epoch,
        orphan_grace=GRACE,
        secret=b"a secret of this cluster",
    )
    ended = asyncio.Event()
    head.on_up(lambda name, incarnation: say("up", name, incarnation))
    head.on_adopt(lambda name, incarnation: say("adopted", name, incarnation))
    head.on_down(lambda down: say("down", down.node, down.cause))
    head.on_superseded(lambda later, sentence: (say("superseded", sentence), ended.set()))
    await head.start()
    await head.adopting(0.0)
    say("listens", head.node.endpoint)
    await ended.wait()
    await head.stop()
    return 3


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
