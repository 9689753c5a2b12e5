"""Values that the receiver cannot make: the waiting caller gets an error at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import torch

from blockwright.runtime import Actor, DecodeError, EncodeError, RemoteError, endpoint
from blockwright.runtime.base import buffers, envelope
from blockwright.runtime.base.codec import MAX_ITEMS
from blockwright.tests.runtime.conftest import Sides


class Maker(Actor):
    def __init__(self) -> None:
        self.seen = 0
        self.ended = False

    @endpoint
    async def take(self, value: Any) -> int:
        self.seen += 1
        return self.seen

    @endpoint
    async def make(self) -> Any:
        self.seen += 1
        return torch.ones(3)

    @endpoint
    async def items(self) -> AsyncIterator[Any]:
        try:
            for value in (1, torch.ones(3), 3, 4):
                yield value
                self.seen += 1
        finally:
            self.ended = True

    @endpoint
    async def down(self, depth: int) -> None:
        if not depth:
            raise KeyError("at the bottom")
        await self.node.ref(f"{self.node.name}/maker{depth - 1}").down(depth - 1)


@pytest.fixture
def no_torch(monkeypatch):
    """As a process that has not imported it."""

    def refuse(*_: object) -> None:
        raise DecodeError("a tensor came to a process that has not imported torch")

    monkeypatch.setattr(buffers, "_tensor", refuse)


@pytest.mark.parametrize("sides", ["encoded", "remote"], indirect=True)
async def test_waiting_callers_are_notified(sides: Sides, no_torch) -> None:
    maker = Maker()
    ref = await sides.spawn(maker)
    with pytest.raises(DecodeError, match="not imported torch"):
        await ref.take(torch.ones(3))
    assert maker.seen == 0
    with pytest.raises(DecodeError, match="not imported torch"):
        await ref.make()
    assert maker.seen == 1
    got = []
    with pytest.raises(DecodeError, match="not imported torch"):
        await _read(ref.items(), got)
    assert got == [1]
    await sides.turns()
    assert maker.ended
    ref.take.cast(torch.ones(3))
    await sides.turns()
    assert sides.callee.dead_letters["DecodeError"] == 1
    assert await ref.take(5) == maker.seen, "and everything goes on"
    peer = sides.caller.parts.itself if sides.caller is sides.callee else sides.caller.table.current[sides.callee.name]
    assert not peer.pending
    assert not peer.streams


async def _read(items: AsyncIterator[Any], into: list[Any]) -> None:
    async for item in items:
        into.append(item)


@pytest.mark.parametrize(
    "body", [b"", b"\x90", b"\x91\x07", b"\x92\xc0\x01", b"\x93\x07\xa1x\x01", b"\xc1", b"\x92\x07", b"\x81\x01\x02"]
)
def test_what_has_no_outline(body: bytes) -> None:
    assert envelope.outline(body) is None


def test_an_outline_is_looked_for_no_further_than_it_can_be() -> None:
    tracemalloc.start()
    try:
        assert envelope.outline(b"\x92\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20)) is None
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "a list of a million lists is built"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sides", ["encoded", "remote"], indirect=True)
async def test_a_mask_and_too_many_items_are_refused_before_they_leave(sides: Sides) -> None:
    ref = await sides.spawn(Maker())
    with pytest.raises(EncodeError, match="masked array"):
        await ref.take(np.ma.array([1, 2], mask=[False, True]))
    for count in (MAX_ITEMS, MAX_ITEMS + 1):
        with pytest.raises(EncodeError, match="send large data as bytes or arrays"):
            await ref.take([0] * count)


async def test_the_trace_of_a_long_chain_of_calls_does_not_grow_with_each_link(sides: Sides) -> None:
    for depth in range(31):
        await sides.spawn(Maker(), name=f"maker{depth}")
    with pytest.raises(RemoteError, match="KeyError: 'at the bottom'") as caught:
        await sides.caller.ref(f"{sides.callee.name}/maker30").down(30)
    assert "at the bottom" in caught.value.trace
    assert len(caught.value.trace) < 200_000
