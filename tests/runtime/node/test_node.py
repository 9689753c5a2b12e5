"""Calls on one node by reference, on one node with encoding, and between two nodes: they behave alike."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import numpy as np
import pytest

from blockwright.runtime import (
    Actor,
    ActorDied,
    DeadlineExceeded,
    DecodeError,
    EncodeError,
    MailboxFull,
    ManualClock,
    Node,
    NodeDown,
    NoSuchActor,
    RemoteError,
    endpoint,
)
from blockwright.runtime.base.scope import current_traceparent
from blockwright.tests.claims import claim
from blockwright.transport.address import PeerId
from blockwright.transport.errors import AddressError
from blockwright.transport.loopback import Network


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Probe(Actor):
    """Does what tests ask; ``gate`` holds what runs."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.gate = asyncio.Event()
        self.cancelled: list[str] = []

    async def on_start(self) -> None:
        self.seen.append("start")

    async def on_stop(self) -> None:
        self.seen.append("stop")

    @endpoint
    async def note(self, item: int) -> int:
        self.seen.append(item)
        return item

    @endpoint(urgent=True)
    async def shout(self, item: int) -> None:
        self.seen.append(item)

    @endpoint
    async def hold(self, item: int = 0) -> int:
        await self._wait(f"hold {item}")
        return item

    @endpoint(concurrent=True)
    async def beside(self, item: int) -> int:
        await self._wait(f"beside {item}")
        return item

    async def _wait(self, what: str) -> None:
        self.seen.append(what)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise

    @endpoint
    async def point(self, point: Point) -> Point:
        return Point(point.y, point.x)

    @endpoint
    async def array(self, array: np.ndarray, blob: bytes) -> tuple[np.ndarray, bytes]:
        return array + 1, blob

    @endpoint
    async def fail(self) -> None:
        raise KeyError("lost")

    @endpoint
    async def unfit(self) -> int:
        return object()  # type: ignore[return-value]

    @endpoint
    async def trace(self) -> str:
        return current_traceparent()

    @endpoint(concurrent=True)
    async def relay(self, address: str) -> int:
        return await self.node.ref(address).hold(9)

    @endpoint(concurrent=True)
    async def relay_trace(self, address: str) -> list[str]:
        return [current_traceparent(), await self.node.ref(address).trace()]


class World:
    """A caller's node, a callee's node (perhaps the same) and the probe on it."""

    def __init__(self, caller: Node, callee: Node, clock: ManualClock) -> None:
        self.caller = caller
        self.callee = callee
        self.clock = clock
        self.probe = Probe()

    @property
    def ref(self):
        return self.caller.ref(f"{self.callee.name}/probe", Probe)


async def connected(network: Network, clock: ManualClock) -> tuple[Node, Node]:
    a = Node("a", transport=network.transport(PeerId("a", 1)), clock=clock)
    b = Node("b", transport=network.transport(PeerId("b", 1)), clock=clock)
    await a.start()
    await b.start()
    b.peering.join(a.id, a.endpoint)
    await turns()
    assert a.peers().keys() == {"b"}
    return a, b


@pytest.fixture(params=["reference", "encoded", "remote"])
async def world(request):
    clock = ManualClock()
    if request.param == "remote":
        caller, callee = await connected(Network(), clock)
    else:
        caller = callee = Node("a", listen=False, clock=clock, encode_local=request.param == "encoded")
        await caller.start()
    made = World(caller, callee, clock)
    await callee.spawn(made.probe, name="probe", mailbox=4)
    yield made
    made.probe.gate.set()
    await callee.stop()
    await caller.stop()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_call_and_cast_in_order(world):
    world.ref.note.cast(1)
    assert await world.ref.note(2) == 2
    assert await world.ref.note(item=3) == 3
    assert world.probe.seen == ["start", 1, 2, 3]


async def test_dataclasses_arrays_and_bytes(world):
    assert await world.ref.point(Point(1, 2)) == Point(2, 1)
    array, blob = await world.ref.array(np.arange(3), b"x" * 1000)
    np.testing.assert_array_equal(array, [1, 2, 3])
    assert blob == b"x" * 1000


@claim("Messages keep their order for each sender and lane, and urgent ones overtake", of="actor-runtime")
async def test_urgent_overtakes_what_waits(world):
    calls = [asyncio.create_task(world.ref.hold(0))]
    await turns()
    calls += [asyncio.create_task(c) for c in (world.ref.note(1), world.ref.note(2), world.ref.shout(3), world.ref.shout(4))]
    await turns()
    world.probe.gate.set()
    await asyncio.gather(*calls)
    assert world.probe.seen == ["start", "hold 0", 3, 4, 1, 2]


async def test_one_at_a_time_but_concurrent_endpoints(world):
    calls = [
        asyncio.create_task(c) for c in (world.ref.hold(1), world.ref.hold(2), world.ref.beside(3), world.ref.beside(4))
    ]
    await turns()
    assert sorted(map(str, world.probe.seen)) == ["beside 3", "beside 4", "hold 1", "start"]
    world.probe.gate.set()
    assert await asyncio.gather(*calls) == [1, 2, 3, 4]


async def test_a_full_mailbox_is_an_error_at_the_caller(world):
    calls = [asyncio.create_task(world.ref.hold(i)) for i in range(5)]  # one runs, four wait
    await turns()
    with pytest.raises(MailboxFull, match="4 messages"):
        await world.ref.note(5)
    world.ref.note.cast(6)
    await turns()
    assert world.callee.dead_letters["MailboxFull"] == 1
    world.probe.gate.set()
    assert await asyncio.gather(*calls) == [0, 1, 2, 3, 4]


async def test_an_endpoint_that_raises_answers_with_its_traceback(world, caplog):
    with pytest.raises(RemoteError, match="KeyError: 'lost'") as caught:
        await world.ref.fail()
    assert caught.value.kind == "KeyError"
    assert 'raise KeyError("lost")' in caught.value.trace
    assert await world.ref.note(1) == 1
    with caplog.at_level(logging.CRITICAL):
        world.ref.fail.cast()
        await turns()
    assert world.callee.dead_letters["RemoteError"] == 1


async def test_deadline(world):
    call = asyncio.create_task(world.ref.hold(1, timeout=5.0))
    await turns()
    world.clock.advance(4.9)
    await turns()
    assert not call.done()
    world.clock.advance(0.2)
    with pytest.raises(DeadlineExceeded, match="within 5 s"):
        await call
    await turns()
    assert world.probe.cancelled == ["hold 1"]


async def test_calls_have_thirty_seconds_unless_said(world):
    call = asyncio.create_task(world.ref.hold(1))
    await turns()
    world.clock.advance(29.0)
    await turns()
    assert not call.done()
    world.clock.advance(2.0)
    with pytest.raises(DeadlineExceeded):
        await call


@claim("Calls inherit the deadline of their caller, and expired work never runs", of="actor-runtime")
async def test_work_that_expired_while_waiting_never_runs(world):
    held = asyncio.create_task(world.ref.hold(1))
    await turns()
    late = asyncio.create_task(world.ref.note(2, timeout=1.0))
    await turns()
    world.clock.advance(1.5)
    with pytest.raises(DeadlineExceeded):
        await late
    world.probe.gate.set()
    await held
    await world.ref.note(3)
    assert world.probe.seen == ["start", "hold 1", 3]


@claim("Calls inherit the deadline of their caller, and expired work never runs", of="actor-runtime")
async def test_calls_made_inside_inherit_the_deadline(world):
    """The relayed call has thirty seconds of its own, and ends with what it serves."""
    await world.callee.spawn(Probe(), name="second")
    relayed = asyncio.create_task(world.ref.relay(f"{world.callee.name}/second", timeout=2.0))
    await turns()
    second = world.callee.actors.find("second").actor
    assert second.seen == ["start", "hold 9"]
    world.clock.advance(2.1)
    with pytest.raises((DeadlineExceeded, RemoteError)):
        await relayed
    await turns()
    assert second.cancelled == ["hold 9"]


@claim("A cancelled call cancels its work in another process", of="actor-runtime")
async def test_cancelling_a_call_cancels_what_runs_and_what_waits(world):
    running, waiting = asyncio.create_task(world.ref.hold(1)), asyncio.create_task(world.ref.hold(2))
    beside = asyncio.create_task(world.ref.beside(3))
    await turns()
    for call in (waiting, running, beside):
        call.cancel()
    await turns()
    assert sorted(world.probe.cancelled) == ["beside 3", "hold 1"]
    assert await world.ref.note(4) == 4
    assert "hold 2" not in world.probe.seen


async def test_a_call_cancelled_before_its_task_ran_is_not_run(world):
    for _ in range(3):
        call = asyncio.create_task(world.ref.hold(1))
        await asyncio.sleep(0)
        call.cancel()
    await turns()
    assert await world.ref.note(1) == 1
    assert len(world.probe.cancelled) == world.probe.seen.count("hold 1")


async def test_unknown_names(world):
    with pytest.raises(NoSuchActor, match="nobody"):
        await world.caller.ref(f"{world.callee.name}/nobody").note(1)
    with pytest.raises(NoSuchActor, match="nothing"):
        await world.caller.ref(f"{world.callee.name}/probe").nothing()
    with pytest.raises(AttributeError, match="nothing"):
        _ = world.ref.nothing
    with pytest.raises(NodeDown, match="mars is not known"):
        await world.caller.ref("mars/probe").note(1)
    for address in ("probe", "a/b/c", "a/b#0", "a/b#x", "/b", "a/"):
        with pytest.raises(AddressError):
            world.caller.ref(address)
    world.caller.ref("mars/probe").note.cast(1)
    world.caller.ref(f"{world.callee.name}/nobody").note.cast(1)
    await turns()
    assert world.caller.dead_letters["NodeDown"] == 1
    assert world.callee.dead_letters["NoSuchActor"] == 1


async def test_a_stopped_actor_fails_what_waits_and_runs(world):
    calls = [asyncio.create_task(world.ref.hold(i)) for i in range(2)] + [asyncio.create_task(world.ref.beside(2))]
    await turns()
    await world.callee.despawn("probe")
    for call in calls:
        with pytest.raises(ActorDied):
            await call
    assert world.probe.seen[-1] == "stop"
    with pytest.raises(NoSuchActor):
        await world.ref.note(1)
    await world.callee.spawn(Probe(), name="probe")
    assert await world.ref.note(1) == 1


async def test_a_pinned_reference_does_not_reach_another_life(world):
    pinned = world.caller.ref(f"{world.callee.name}/probe#1")
    assert await pinned.note(1) == 1
    assert str(pinned) == f"{world.callee.name}/probe#1"
    assert (world.ref.node, world.ref.name, world.ref.incarnation) == (world.callee.name, "probe", 1)
    with pytest.raises(NodeDown, match=r"gone|incarnation"):
        await world.caller.ref(f"{world.callee.name}/probe#7").note(1)


async def test_the_trace_goes_along(world):
    await world.callee.spawn(Probe(), name="second")
    outer, inner = await world.ref.relay_trace(f"{world.callee.name}/second")
    assert outer[:36] == inner[:36]
    assert outer != inner


@pytest.mark.parametrize("world", ["encoded", "remote"], indirect=True)
async def test_what_encoding_adds(world):
    untyped = world.caller.ref(f"{world.callee.name}/probe")
    with pytest.raises(DecodeError, match="returns=TYPE"):
        await untyped.point(Point(1))
    assert await untyped.point(Point(1), returns=Point) == Point(0, 1)
    with pytest.raises(DecodeError, match=r"note\(item\): expected int, got str"):
        await untyped.note("x")
    with pytest.raises(DecodeError, match="needs item"):
        await untyped.note()
    with pytest.raises(DecodeError, match="the answer of"):
        await untyped.note(1, returns=str)
    with pytest.raises(EncodeError, match=r"builtins\.object"):
        await untyped.note(object())
    with pytest.raises(EncodeError):
        untyped.note.cast(object())
    with pytest.raises(EncodeError, match="the answer of unfit"):
        await untyped.unfit()


async def test_names_are_taken_once_and_free_after_a_failed_start():
    class Fails(Actor):
        async def on_start(self) -> None:
            raise ValueError("not today")

    node = Node("n", listen=False)
    await node.start()
    with pytest.raises(ValueError, match="not today"):
        await node.spawn(Fails(), name="x")
    probe = Probe()
    await node.spawn(probe, name="x")
    with pytest.raises(ValueError, match="already"):
        await node.spawn(Probe(), name="x")
    await node.stop()
    await node.stop()
    assert probe.seen == ["start", "stop"]


async def test_actors_stop_in_reverse_order():
    order = []

    class Ordered(Actor):
        async def on_stop(self) -> None:
            order.append(self.ref.name)
            raise ValueError("does not keep the others from stopping")

    node = Node("n", listen=False)
    await node.start()
    for name in "abc":
        await node.spawn(Ordered(), name=name)
    await node.stop()
    assert order == ["c", "b", "a"]
