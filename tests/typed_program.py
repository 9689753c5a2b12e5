"""A program that uses the installed package, for mypy --strict: results have types, and each line marked "wrong" is found.

tests/test_wheel.py has it checked against the wheel. Nobody runs it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_type

import blockwright
from blockwright.runtime import Actor, LocalCluster, Supervised, endpoint


async def embedded(folder: str) -> None:
    async with blockwright.Cluster(folder, workers=2, memory="64MiB") as cluster:
        answer = await cluster.generate("reverse: blocks =", max_tokens=32, temperature=0)
        assert_type(answer, blockwright.Answer)
        assert_type(answer.text, str)
        async for piece in cluster.chat("sort: 3021 =", seed=1):
            assert_type(piece, blockwright.Piece)
        assert_type(await cluster.models(), list[str])
        await cluster.generate("reverse: blocks =", max_tokns=32)  # wrong: an option that there is not
        await cluster.generate("reverse: blocks =", max_tokens="32")  # wrong: a text for a number
        print(answer.txt)  # wrong: a field that there is not


def without_await(folder: str) -> None:
    assert_type(blockwright.generate(folder, ["reverse: abc ="], max_tokens=9)[0].text, str)
    with blockwright.Cluster(folder) as cluster:
        assert_type(cluster.generate("sort: 21 =").token_ids, tuple[int, ...])
    try:
        blockwright.generat(folder, ["x"])  # wrong: a name that there is not
    except blockwright.RequestError as error:
        assert_type(error.status, int)


class Counter(Actor):
    total = 0

    @endpoint
    async def add(self, n: int) -> int:
        self.total += n
        return self.total

    @endpoint
    async def count(self, below: int) -> AsyncIterator[int]:
        for n in range(below):
            yield n


async def actors(supervised: Supervised[Counter]) -> None:
    async with LocalCluster(1) as cluster:
        counter = await cluster.node.spawn(Counter, name="counter", on="w0")
        assert_type(await counter.add(3), int)
        async for n in counter.count(2):
            assert_type(n, int)
        counter.add.cast(1)
        await counter.add("3")  # wrong: a text for a number
        await counter.add()  # wrong: an argument is missing
        await counter.addd(3)  # wrong: an endpoint that there is not
        counter.add.cast("3")  # wrong: the same of a cast
    assert_type(await (await supervised.ref()).add(1), int)
    await (await supervised.ref()).add("1")  # wrong: a text for a number
