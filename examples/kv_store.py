"""A key-value store: one supervised shard per process, every key on two of them, found by consistent hashing.

    python examples/kv_store.py

It starts four processes, stores keys, kills one process with SIGKILL while reads continue, and shows that the process is
replaced, its shard restarted by the supervisor and refilled from the other shards. It exits with 1 if a key is missing.

Guaranteed: an acknowledged write is on two shards, or on one while the other is down, and is copied when that returns. Not
guaranteed: values live in memory, so keys whose two shards die together are lost.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import logging
import sys
import time
from collections.abc import Sequence

from blockwright.runtime import (
    Actor,
    Away,
    Backoff,
    Child,
    Down,
    NoSuchActor,
    Ref,
    Restart,
    Supervisor,
    endpoint,
    run,
)
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.processes import ForkserverLauncher
from blockwright.runtime.node.node import Node

PAGE = 500  # entries of one answer while a shard is refilled
Entry = tuple[str, int, bytes]  # key, version, value


class Ring:
    """Consistent hashing: a shard more or less moves only its own share of the keys."""

    def __init__(self, shards: Sequence[str], points: int = 64) -> None:
        self._points = sorted((_hash(f"{shard}/{i}"), shard) for shard in shards for i in range(points))
        self._hashes = [point for point, _ in self._points]

    def owners(self, key: str, copies: int = 2) -> list[str]:
        """The shards of a key: the first takes its writes, the others hold copies."""
        found: list[str] = []
        start = bisect.bisect(self._hashes, _hash(key))
        for i in range(len(self._points)):
            shard = self._points[(start + i) % len(self._points)][1]
            if shard not in found:
                found.append(shard)
                if len(found) == copies:
                    break
        return found


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


class Shard(Actor):
    """Holds the keys of which it is an owner. A new life of it asks the other shards for what it should hold."""

    def __init__(self, shards: list[str]) -> None:
        self._shards, self._ring = shards, Ring(shards)
        self._entries: dict[str, tuple[int, bytes]] = {}
        self._filled = asyncio.Event()
        self._refilled = 0

    async def on_start(self) -> None:
        # Registered before it asks: from here on others send it new writes, so that none falls between.
        await self.node.register(self.ref.name, self.ref, wait=10.0)
        self.ref.refill.cast()

    @endpoint(concurrent=True)
    async def refill(self) -> None:
        for shard in self._shards:
            if shard != self.ref.name:
                try:
                    await self._take_from(await self.node.lookup(shard))
                except Away:
                    continue  # it is down too, or it was never up
        self._filled.set()

    async def _take_from(self, other: Ref) -> None:
        after, page = "", [("", 0, b"")]
        while page:
            page = await other.entries(self.ref.name, after, returns=list[Entry])
            for entry in page:
                self._refilled += self._merge(*entry)
            after = page[-1][0] if page else ""

    def _merge(self, key: str, version: int, value: bytes) -> bool:
        newer = version > self._entries.get(key, (0, b""))[0]
        if newer:
            self._entries[key] = (version, value)
        return newer

    @endpoint
    async def put(self, key: str, value: bytes) -> int:
        """Store and copy; the number of shards that hold it now."""
        await self._filled.wait()
        version = self._entries.get(key, (0, b""))[0] + 1
        self._merge(key, version, value)
        copies = 1
        for shard in self._ring.owners(key)[1:]:
            try:
                await (await self.node.lookup(shard)).store(key, version, value)
                copies += 1
            except Away:
                continue  # it fetches this when it is back
        return copies

    @endpoint
    async def get(self, key: str) -> bytes | None:
        await self._filled.wait()
        return self._entries.get(key, (0, None))[1]

    @endpoint(concurrent=True)
    async def store(self, key: str, version: int, value: bytes) -> None:
        """A copy from the key's first shard."""
        self._merge(key, version, value)

    @endpoint(concurrent=True)
    async def entries(self, owner: str, after: str, limit: int = PAGE) -> list[Entry]:
        """What another shard should hold, in order of keys, from after a key."""
        keys = sorted(key for key in self._entries if key > after and owner in self._ring.owners(key))
        return [(key, *self._entries[key]) for key in keys[:limit]]

    @endpoint
    async def counts(self) -> tuple[int, int]:
        """(keys held, of these fetched from other shards at the start of this life)."""
        await self._filled.wait()
        return len(self._entries), self._refilled


class Store:
    """What a client uses: knows where keys are, and waits for a shard that is being restarted."""

    def __init__(self, node: Node, shards: Sequence[str]) -> None:
        self._node, self.owners = node, Ring(shards).owners

    async def put(self, key: str, value: bytes, patience: float = 10.0) -> int:
        """Number of shards that hold it. Waits for the key's first shard, ``patience`` seconds at most."""
        until = self._node.clock.now() + patience
        while True:
            try:
                shard = await self._node.lookup(self.owners(key)[0], Shard, wait=patience)
                return int(await shard.put(key, value))
            except Away:
                if self._node.clock.now() > until:
                    raise

    async def get(self, key: str) -> bytes | None:
        """From the first owner, or from a copy while that is down."""
        for shard in self.owners(key):
            try:
                found: bytes | None = await (await self._node.lookup(shard, Shard)).get(key)
                return found
            except Away:
                continue
        raise NoSuchActor(f"all shards of {key!r} are down: {', '.join(self.owners(key))}")


async def idle(node: Node, config: int) -> None:
    """Entry of a process: the supervisor starts what it runs."""


class Service:
    """The processes and the supervisor. A process that ends is replaced; what ran on it is the supervisor's business."""

    def __init__(self, count: int) -> None:
        self.shards = [f"shard-{i}" for i in range(count)]
        self.cluster = ClusterHead("head", launcher=ForkserverLauncher())
        self.cluster.on_down(self._replace)
        self.downs: list[Down] = []
        self._launches: set[asyncio.Task[int]] = set()

    async def start(self) -> Store:
        await self.cluster.start()
        for shard in self.shards:
            await self.cluster.launch(shard, "kv_store:idle", 0)
        await asyncio.gather(*[self.cluster.wait_up(shard) for shard in self.shards])
        children = [
            Child(name=shard, actor="kv_store:Shard", args=(self.shards,), on=shard, restart=Restart.PERMANENT)
            for shard in self.shards
        ]
        node = self.cluster.node
        await node.spawn(Supervisor(children, backoff=Backoff(initial=0.02)), name="shards")
        return Store(node, self.shards)

    async def stop(self) -> None:
        await self.cluster.stop()

    def _replace(self, down: Down) -> None:
        self.downs.append(down)
        launch = asyncio.ensure_future(self.cluster.launch(down.node, "kv_store:idle", 0))
        self._launches.add(launch)
        launch.add_done_callback(self._launches.discard)


async def main(count: int = 4, keys: int = 2000) -> int:
    service = Service(count)
    try:
        store = await service.start()
        print(f"{count} shards, each in a process of its own: {[service.cluster.pid(s) for s in service.shards]}")
        wanted = {f"key-{i}": f"value {i}".encode() for i in range(keys)}
        copies = await asyncio.gather(*[store.put(key, value) for key, value in wanted.items()])
        print(f"{keys} keys stored, {sum(copies)} copies")
        victim = service.shards[1]
        began = time.monotonic()
        await service.cluster.kill(victim)
        read = await store.get(next(key for key in wanted if store.owners(key)[0] == victim))
        print(
            f"{victim} killed; a key of it is read from its copy {1e3 * (time.monotonic() - began):.0f} ms later: {read!r}"
        )
        shard = await service.cluster.node.lookup(victim, Shard, wait=10.0)
        held, refilled = await shard.counts()
        print(
            f"{shard} answers after {time.monotonic() - began:.2f} s with {held} keys, {refilled} of them from other shards"
        )
        found = await asyncio.gather(*[store.get(key) for key in wanted])
        missing = sum(value != wanted[key] for key, value in zip(wanted, found, strict=True))
        print(f"{keys - missing} of {keys} keys are there")
        return 1 if missing or refilled == 0 else 0
    finally:
        await service.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    sys.exit(run(main()))
