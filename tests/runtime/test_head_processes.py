"""A head that dies, with real processes: the members are of this test, the heads programs that it kills and stops."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blockwright.runtime import Node, NodeDown
from blockwright.runtime.cluster.join_text import NODE, JoinTexts
from blockwright.runtime.cluster.joining import join
from blockwright.runtime.cluster.key_folder import make_keys, read_keys
from blockwright.tests.claims import claim
from blockwright.tests.runtime.lives import Tally
from blockwright.tests.waiting import PATIENCE, until
from blockwright.transport.address import split_key

pytestmark = pytest.mark.system


class HeadProgram:
    """A head and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(line.decode().strip())

    async def heard(self, begin: str) -> str:
        """The first line that begins so."""
        lines = await until(lambda: [line for line in self.said if line.startswith(begin)], f"{begin} of {self.said}")
        return str(lines[0].removeprefix(begin).strip())

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reader


class Heads:
    """Heads of one cluster, one after the other."""

    def __init__(self, where: str, keys: str) -> None:
        self.where, self.keys = where, keys
        self.programs: list[HeadProgram] = []
        self.nodes: list[Node] = []

    async def next(self) -> HeadProgram:
        """Start the next head; it listens when this returns."""
        arguments = self.where, str(1000 + len(self.programs)), self.keys
        program = HeadProgram(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "blockwright.tests.runtime.waiting_head", *arguments, stdout=asyncio.subprocess.PIPE
            )
        )
        self.programs.append(program)
        endpoint = split_key(await program.heard("listens"))[0]
        self.where = endpoint if endpoint.startswith("tcp://") else self.where
        return program

    async def members(self, text: str, *names: str) -> list[Node]:
        for name in names:
            node = await join(text, name=name)
            await node.spawn(Tally(), name="tally")
            self.nodes.append(node)
        await until(lambda: all(len(node.peers()) == len(names) for node in self.nodes))
        return self.nodes


@asynccontextmanager
async def heads(where: str, keys: str = "-") -> AsyncIterator[Heads]:
    made = Heads(where, keys)
    try:
        yield made
    finally:
        for node in made.nodes:
            node.last_words = None
            await node.stop()
        for program in made.programs:
            await program.end()


def led(nodes: list[Node], epoch: int) -> bool:
    return all((node.head_state.state, node.head_state.epoch) == ("led", epoch) for node in nodes)


@claim("Members outlive kill -9 of their head, and the next head takes them as they are", of="actor-runtime")
async def test_members_outlive_a_killed_head(tmp_path: Path) -> None:
    """Over TCP, with keys."""
    make_keys(tmp_path / "keys")
    async with heads("tcp://127.0.0.1:0", str(tmp_path / "keys")) as made:
        first = await made.next()
        text = JoinTexts(read_keys(tmp_path / "keys")).issue([made.where], NODE, 4_000_000_000).pack()
        a, b = await made.members(text, "a", "b")
        assert await a.ref("b/tally").add(1, returns=int) == 1
        for epoch in (1001, 1002):
            first.process.kill()
            await until(lambda: [node.head_state.state for node in (a, b)] == ["headless"] * 2)
            assert await a.ref("b/tally").add(1, returns=int) == epoch - 999
            with pytest.raises(NodeDown):
                await a.ref("head/anything").add(1)
            first = await made.next()
            await until(lambda epoch=epoch: led([a, b], epoch))
            assert {line.split()[1] for line in first.said if line.startswith("adopted")} == {"a", "b"}
        assert (a.incarnation, b.incarnation) == (1, 1)
        assert await b.ref("a/tally").add(1, returns=int) == 1
        assert not [line for line in first.said if line.startswith(("up", "down"))]


@claim("A head that was stopped and wakes is refused by the members of its successor, and ends itself", of="actor-runtime")
async def test_an_older_head_that_wakes_ends_itself(tmp_path: Path) -> None:
    """Over a socket file, which both have."""
    async with heads(str(tmp_path / "s")) as made:
        first = await made.next()
        a, b = await made.members(f"ipc://{tmp_path}/s/head.sock", "a", "b")
        first.process.send_signal(signal.SIGSTOP)
        await until(lambda: [node.head_state.state for node in (a, b)] == ["headless"] * 2)
        second = await made.next()
        await until(lambda: led([a, b], 1001))
        first.process.send_signal(signal.SIGCONT)
        said = await first.heard("superseded")
        assert said.endswith("the later head head#1001, so head#1000 is over")
        async with asyncio.timeout(PATIENCE):
            assert await first.process.wait() == 3
        assert led([a, b], 1001)
        assert await a.ref("b/tally").add(1, returns=int) == 1
        assert not [line for line in first.said + second.said if line.startswith("down")]
        third = await join(f"ipc://{tmp_path}/s/head.sock", name="c")  # the address is still the second's
        made.nodes.append(third)
        assert third.head == (second and ("head", 1001))
