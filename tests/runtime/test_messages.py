"""What is promised of each message: order, at most once, an outcome, nothing shared by mistake, nothing vanishes."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from blockwright.runtime import Actor, DeadlineExceeded, EncodeError, NodeDown, RemoteError, RuntimeFault, endpoint
from blockwright.runtime.base import envelope
from blockwright.runtime.base.codec import pack
from blockwright.runtime.supervisor import Child
from blockwright.tests.claims import claim
from blockwright.transport.errors import QueueFull


class Log(Actor):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.gate = asyncio.Event()
        self.kept: list[object] = []

    @endpoint
    async def normal(self, sender: str, number: int) -> int:
        self.seen.append((sender, number))
        if random.random() < 0.2:
            await asyncio.sleep(0)
        return number

    @endpoint(urgent=True)
    async def urgent(self, sender: str, number: int) -> int:
        self.seen.append((sender, number))
        return number

    @endpoint
    async def hold(self) -> None:
        await self.gate.wait()

    @endpoint
    async def change(self, numbers: list[int], table: dict[str, int]) -> None:
        numbers.append(9)
        table["x"] = 9

    @endpoint
    async def write(self, array: np.ndarray) -> None:
        array[0] = 9

    @endpoint
    async def keep(self, numbers: list[int], array: np.ndarray, data: bytes) -> None:
        self.kept += [numbers, array, data]
        await self.gate.wait()

    @endpoint
    async def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    @endpoint(concurrent=True)
    async def left_behind(self, address: str) -> None:
        """Starts work that outlives the message."""

        async def later() -> None:
            await self.gate.wait()
            try:
                self.kept.append(await self.node.ref(address).urgent("later", 1, timeout=5.0))
            except RuntimeFault as fault:
                self.kept.append(fault)

        self.task = asyncio.create_task(later())


@claim("Messages keep their order for each sender and lane, and urgent ones overtake", of="actor-runtime")
async def test_first_in_first_out_per_sender_and_lane(sides):
    log = Log()
    await sides.spawn(log)
    refs = {name: sides.caller.ref(f"{sides.callee.name}/actor", Log) for name in ("a", "b")}
    rng, calls = random.Random(7), []
    for number in range(300):
        sender, lane = rng.choice("ab"), rng.choice(["normal", "urgent"])
        method = getattr(refs[sender], lane)
        if rng.random() < 0.5:
            method.cast(f"{sender}-{lane}", number)
        else:
            calls.append(asyncio.create_task(method(f"{sender}-{lane}", number)))
            await asyncio.sleep(0)
    await asyncio.gather(*calls)
    await sides.turns()
    assert len(log.seen) == 300
    for sender in {sender for sender, _ in log.seen}:
        numbers = [number for s, number in log.seen if s == sender]
        assert numbers == sorted(numbers)


@claim("A message is handled at most once", of="actor-runtime")
@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_what_a_transport_repeats_is_handled_once(sides):
    log = Log()
    await sides.spawn(log)
    messages = [
        pack([envelope.CALL, 5, "actor", "normal", 5.0, b"", ["a", 1], {}]),
        pack([envelope.CAST, 6, "actor", "normal", b"", ["a", 2], {}]),
        pack([envelope.OPEN, 7, "actor", "normal", 5.0, 0.0, b"", ["a", 3], {}, 8, 800]),
    ]
    for body in [messages[0], *messages, *messages]:
        sides.caller._transport.send(sides.callee.id, body)
    await sides.turns()
    assert log.seen == [("a", 1), ("a", 2)]
    assert sides.callee.dropped["duplicate"] == 4
    assert sides.callee.table.current["a"].casts_seen == 1


@claim("Messages that reach no receiver are counted by cause and logged", of="actor-runtime")
@pytest.mark.parametrize("sides", ["remote"], indirect=True)
@pytest.mark.parametrize("leaving", [False, True])
async def test_casts_to_a_peer_that_dies_are_counted_unless_it_confirmed_them(sides, leaving, caplog):
    sides.caller.peering.leaving = leaving
    ref = await sides.spawn(Log())
    for number in range(3):
        ref.normal.cast("a", number)
    await sides.turns()
    sides.clock.advance(0.6)  # a heartbeat
    await sides.turns()
    for number in range(4):
        ref.normal.cast("a", number)
    sides.network.cut(sides.callee.endpoint)
    await sides.turns()
    assert sides.caller.dead_letters == {"Unconfirmed": 4}
    assert ("4 casts to" in caplog.text) is not leaving, "who stops does not warn that others go"


@claim("A call ends in its value or a typed error, whenever the peer dies", of="actor-runtime", headline=True)
@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_every_call_ends_whenever_the_peer_dies(sides):
    """Cut at each moment of a call's life, also between the break and its declaration."""
    for moment in range(12):
        name = f"n{moment}"
        log = Log()
        ref = await sides.spawn(log, name)
        calls = [asyncio.create_task(ref.normal("a", n)) for n in range(3)] + [asyncio.create_task(ref.hold())]
        await sides.turns(moment)
        peer = sides.caller.table.current["b"]
        sides.caller.peering.fail_calls(peer, "test")
        log.gate.set()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(end is None or isinstance(end, int | NodeDown) for end in ended)
        assert peer.pending == {}
        await sides.turns()


async def test_a_late_answer_reaches_no_other_call(sides):
    log = Log()
    ref = await sides.spawn(log)
    late = asyncio.create_task(ref.hold(timeout=0.9))
    await sides.turns()
    if sides.network is not None:  # the cancellation is lost on its way, so the answer does come
        sides.callee.parts.inbound._incoming.on_cancel = lambda *_: None
    sides.clock.advance(0.95)  # before the heartbeat that would end work whose cancellation was lost
    with pytest.raises(DeadlineExceeded):
        await late
    log.gate.set()
    await sides.turns()
    assert await ref.normal("a", 5) == 5
    if sides.network is not None:
        assert sides.caller.dead_letters == {"LateAnswer": 1}


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_a_cancellation_is_sent_again_while_the_way_is_full(sides, monkeypatch):
    log = Log()
    ref = await sides.spawn(log)
    call = asyncio.create_task(ref.hold())
    await sides.turns()
    send, refused = sides.caller._transport.send, []

    def full(*message):
        if len(refused) < 3:
            refused.append(message)
            raise QueueFull("full")
        send(*message)

    monkeypatch.setattr(sides.caller._transport, "send", full)
    call.cancel()
    for _ in range(4):
        await sides.turns()
        sides.clock.advance(0.02)
    await sides.turns()
    assert len(refused) == 3
    assert sides.callee.table.current["a"].inbound == {}


async def test_work_left_behind_has_time_of_its_own(sides):
    """A task that an endpoint started does not inherit the deadline of a call that was answered long ago."""
    log = Log()
    ref = await sides.spawn(log)
    await ref.left_behind(f"{sides.callee.name}/actor", timeout=2.0)
    sides.clock.advance(10.0)
    log.gate.set()
    await log.task
    assert log.kept == [1]


@pytest.mark.parametrize("sides", ["encoded", "remote"], indirect=True)
async def test_a_callee_that_changes_its_arguments_changes_copies(sides):
    ref = await sides.spawn(Log())
    numbers = [1]
    table = {"x": 1}
    array = np.arange(3)
    await ref.change(numbers, table)
    assert (numbers, table) == ([1], {"x": 1})
    with pytest.raises(RemoteError, match="read-only"):
        await ref.write(array)


@pytest.mark.parametrize("sides", ["encoded"], indirect=True)
@pytest.mark.parametrize("changed", ["list", "array", "bytes", "nothing"])
async def test_a_caller_that_changes_what_it_sent_is_found_out(sides, changed):
    log = Log()
    ref = await sides.spawn(log)
    numbers = [1]
    array = np.zeros(200)
    data = bytearray(300)
    call = asyncio.create_task(ref.keep(numbers, array, data))
    await asyncio.sleep(0)
    if changed == "list":
        numbers.append(2)
    elif changed == "array":
        array[0] = 5
    elif changed == "bytes":
        data[0] = 5
    await sides.turns()
    log.gate.set()
    if changed == "nothing":
        await call
    else:
        with pytest.raises(EncodeError, match="was changed while it was being served"):
            await call
    assert log.kept[0] == [1]
    assert not log.kept[1].any()
    assert not any(log.kept[2])


@claim("Arrays and tensors travel out of band, and on one host in shared memory", of="actor-runtime")
async def test_tensors_are_arguments_and_answers(sides):
    ref = await sides.spawn(Log())
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert torch.equal(await ref.tensor(tensor), tensor * 2)


class _Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Raising(Actor):
    @endpoint
    async def go(self, what: str) -> None:
        if what == "wordless":
            raise _Wordless()
        if what == "pytest":
            pytest.fail("from inside")
        raise FileNotFoundError("no file \udcff")


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("wordless", "_Wordless", "cannot be made"),
        ("pytest", "Failed", "from inside"),
        ("file", "FileNotFoundError", "no file"),
    ],
)
async def test_whatever_an_endpoint_raises_reaches_its_caller(sides, what, kind, text):
    ref = await sides.spawn(Raising())
    for _ in range(2):
        with pytest.raises(RemoteError, match=text) as caught:
            await ref.go(what)
        assert caught.value.kind == kind


async def test_another_thread_gets_the_remedy(sides):
    ref = await sides.spawn(Raising())
    loop = asyncio.get_running_loop()
    wrong = (
        lambda: asyncio.run(ref.go("file")),
        lambda: asyncio.run(anext(sides.caller.ref(f"{sides.callee.name}/actor").items().__aiter__())),
        lambda: ref.go.cast("file"),
    )
    for use in wrong:
        with pytest.raises(RuntimeError, match=r"outside of the event loop .* asyncio\.run_coroutine_threadsafe"):
            await asyncio.to_thread(use)
    with pytest.raises(RemoteError):
        await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(ref.go("file"), loop).result(60))


@pytest.mark.parametrize("wrong", [None, -1, -0.5, float("nan"), "5", True, [1.0]])
async def test_what_is_no_time_is_refused_by_name(sides, wrong):
    ref, any_ref = await sides.spawn(Raising()), sides.caller.ref(f"{sides.callee.name}/actor")
    kind = ValueError if isinstance(wrong, int | float) and not isinstance(wrong, bool) else TypeError

    async def refused(name: str, ask: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(kind) as caught:
            await ask()
        assert str(caught.value).startswith(f"{name}={wrong!r} ")
        assert "give seconds, 0 or more" in str(caught.value)

    await refused("timeout", lambda: ref.go("file", timeout=wrong))
    await refused("timeout", lambda: any_ref.go("file", timeout=wrong))
    await refused("timeout", lambda: anext(any_ref.go("file", timeout=wrong).__aiter__()))
    await refused("patience", lambda: sides.caller.spawn(Raising, name="b", on=sides.callee.name, patience=wrong))
    await refused("drain", lambda: sides.caller.stop_actor(ref, drain=wrong))
    await refused("drain", lambda: sides.callee.stop_actors(wrong))
    await refused("wait", lambda: sides.caller.lookup("x", wait=wrong))
    await refused("wait", lambda: sides.caller.register("x", ref, wait=wrong))
    with pytest.raises(kind, match="drain="):
        Child(name="x", actor=Raising, drain=wrong)
    with pytest.raises(kind, match="patience="):
        Child(name="x", actor=Raising, patience=wrong)


async def test_odd_numbers_are_times(sides):
    ref = await sides.spawn(Raising())
    for odd in (5, math.inf, np.float32(1.5), np.int64(3), Fraction(1, 2)):
        with pytest.raises(RemoteError):
            await ref.go("file", timeout=odd)
    with pytest.raises(DeadlineExceeded, match="no time is left"):
        await ref.go("file", timeout=0)
