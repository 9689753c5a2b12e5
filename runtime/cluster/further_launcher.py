"""Two launchers as one: the head's own nodes start on this machine, further workers wherever the other launcher starts them.

Owns nothing but who is asked for which node, and what further workers need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from ...transport.address import PeerId
from ...transport.curve import NodeKeys
from ...transport.interface import Transport
from .launcher import Launcher, Needs, NodeSpec, OnExit


class FurtherLauncher(Launcher):
    """See the module. local: of this machine's nodes. further: of ``names``, which need ``needs``."""

    def __init__(self, local: Launcher, further: Launcher, names: Collection[str], needs: Needs) -> None:
        self._local, self._further = local, further
        self._names = frozenset(names)
        self._needs = needs

    async def start(self, on_exit: OnExit) -> None:
        await self._local.start(on_exit)
        try:
            await self._further.start(on_exit)  # what it starts is held by a process of the other
        except BaseException:
            await self._local.stop()
            raise

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        return self._local.head_transport(head, listen, keys)

    @property
    def directory(self) -> str:
        return self._local.directory

    @property
    def places(self) -> bool:
        return self._further.places

    def joins(self, name: str) -> bool:
        return name in self._names and self._further.joins(name)

    async def spawn(self, spec: NodeSpec) -> int:
        if spec.name in self._names:
            return await self._further.spawn(dataclasses.replace(spec, needs=self._needs))
        return await self._local.spawn(spec)

    def kill(self, node: PeerId) -> None:
        self._of(node).kill(node)

    def spawned(self) -> dict[str, int]:
        return {**self._local.spawned(), **self._further.spawned()}

    def list(self) -> dict[PeerId, int]:
        return self._local.list() | self._further.list()

    async def leave(self) -> None:
        await self._further.leave()
        await self._local.leave()

    async def stop(self) -> None:
        await self._further.stop()
        await self._local.stop()

    def wish(self, workers: int, why: str) -> None:
        self._further.wish(workers, why)

    def last_words(self, node: PeerId) -> str:
        return self._of(node).last_words(node)

    def _of(self, node: PeerId) -> Launcher:
        return self._further if node.name in self._names else self._local
