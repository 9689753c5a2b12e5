"""Messages of two nodes are logged, read together and drawn as trees; and what a reader makes of damaged logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from blockwright.runtime import Actor, ManualClock, Node, RemoteError, endpoint, trace
from blockwright.runtime.tracing.message_log import MOST, MessageLog
from blockwright.runtime.tracing.trace_reader import draw, read, render
from blockwright.tests.claims import claim
from blockwright.transport.address import PeerId
from blockwright.transport.loopback import Network


class Hop(Actor):
    @endpoint(concurrent=True)
    async def further(self, address: str) -> int:
        ref = self.node.ref(address, Hop)
        ref.tell.cast()
        return await ref.last() + sum([n async for n in ref.items()])

    @endpoint
    async def last(self) -> int:
        return 1

    @endpoint
    async def tell(self) -> None: ...

    @endpoint
    async def items(self) -> AsyncIterator[int]:
        yield 2

    @endpoint
    async def fail(self) -> None:
        raise KeyError("x")


@pytest.fixture
async def logged(tmp_path):
    """Two nodes that log, and their logs once they are stopped."""
    network, clock = Network(), ManualClock()
    nodes = [
        Node(n, transport=network.transport(PeerId(n, 1)), clock=clock, message_log=tmp_path / f"{n}.log") for n in "ab"
    ]
    for node in nodes:
        await node.start()
        await node.spawn(Hop(), name="hop")
    nodes[1].peering.join(nodes[0].id, nodes[0].endpoint)
    for _ in range(20):
        await asyncio.sleep(0)
    yield nodes, [tmp_path / "a.log", tmp_path / "b.log"]
    for node in nodes:
        await node.stop()


@claim("The message log draws traces as trees", of="actor-runtime")
async def test_a_trace_across_nodes_is_drawn_as_a_tree(logged):
    (a, b), paths = logged
    with trace() as begun:
        assert await a.ref("b/hop", Hop).further("a/hop") == 3
    with pytest.raises(RemoteError):
        await a.ref("b/hop").fail()
    for node in (b, a):
        await node.stop()
    lines = list(render(paths, begun[3:35]))
    assert lines[0] == f"trace {begun[3:35]}"
    shown = [line.split("  [")[0].split(" ms  ")[1] for line in lines[1:]]
    assert shown == ["b/hop.further", "cast a/hop.tell", "a/hop.last", "stream a/hop.items"]
    assert [line.index("+") // 2 for line in lines[1:]] == [1, 2, 2, 2]
    assert all(line.endswith("value") for line in lines[1:])
    assert "[a#1 -> b#1]" in lines[1]
    assert "[b#1 -> a#1]" in lines[2]
    everything = list(render(paths))
    assert sum(line.endswith("KeyError") for line in everything) == 1
    assert len([line for line in everything if line.startswith("trace")]) == 2


def test_a_reader_takes_what_it_can_from_damaged_logs():
    good = {"at": 5.0, "node": "a#1", "what": "ran", "trace": "t", "span": "s", "actor": "x", "endpoint": "f"}
    lines = [
        json.dumps({**good, "seconds": 0.002, "outcome": "value"}),
        json.dumps({**good, "seconds": 0.002, "outcome": "value"})[:40],
        "[]",
        "{}",
        json.dumps({"at": 1, "what": "odd", "trace": "t", "span": "s"}),
        json.dumps({"at": 1, "node": "a#1", "what": "lost", "count": 7}),
        "",
    ]
    assert list(draw(read(lines))) == [
        "trace t",
        "  +0.000 ms  a/x.f  [? -> a#1]  2.000 ms  value",
        "7 messages were not logged: a buffer was full",
        "4 lines could not be read",
    ]
    assert list(draw(read([]), "abc")) == ["no messages of a trace abc"]


def test_spans_that_name_each_other_as_parents_end():
    sent = {"at": 1.0, "node": "a#1", "what": "sent", "trace": "t", "to": "b/x", "endpoint": "f", "kind": "call"}
    circle = [
        {**sent, "span": "1", "parent": "2"},
        {**sent, "span": "2", "parent": "1"},
        {**sent, "span": "3", "parent": "3"},
    ]
    assert len(list(draw(read(map(json.dumps, circle))))) == 2


def test_a_full_buffer_is_counted_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr("blockwright.runtime.tracing.message_log.PAUSE", 1e6)
    log = MessageLog(tmp_path / "log", "a#1", now=lambda: 1.0)
    for _ in range(MOST + 3):
        log.ran(bytes(25), "x", "f", 0.0, "value")
    assert log.lost == 3
    log.close()
    log.close()
    reading = read((tmp_path / "log").read_text().splitlines())
    assert (reading.lost, reading.damaged) == (3, 0)


def test_a_log_that_cannot_be_opened_is_the_callers_error(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        MessageLog(tmp_path / "nowhere" / "log", "a#1")
