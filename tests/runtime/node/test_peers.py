"""What nodes do about each other: greeting, heartbeats, monitors, fences, links, garbage."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.runtime import Actor, Down, MailboxFull, ManualClock, Node, NodeDown, endpoint
from blockwright.runtime.base import envelope
from blockwright.runtime.base.codec import pack
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples
from blockwright.transport.address import PeerId
from blockwright.transport.errors import PeerGone, QueueFull
from blockwright.transport.loopback import Network
from blockwright.transport.wire import Traffic


class Echo(Actor):
    @endpoint(concurrent=True)
    async def wait(self) -> None:
        await asyncio.Event().wait()

    @endpoint
    async def echo(self, n: int) -> int:
        return n


class Rig:
    """A head and two workers on one network, without a cluster: ``greet`` stands for the address book."""

    def __init__(self) -> None:
        self.network, self.clock = Network(), ManualClock()
        self.nodes: dict[str, Node] = {}

    async def add(self, name: str, incarnation: int = 1) -> Node:
        transport = self.network.transport(PeerId(name, incarnation))
        node = Node(name, incarnation=incarnation, transport=transport, clock=self.clock)
        await node.start()
        await node.spawn(Echo(), name="echo")
        self.nodes[str(node.id)] = node
        return node

    async def meet(self, a: Node, b: Node) -> None:
        a.peering.greet(b.id, b.endpoint)
        await turns()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def rig():
    made = Rig()
    yield made
    await made.stop()


@pytest.fixture
async def pair(rig):
    a, b = await rig.add("a"), await rig.add("b")
    await rig.meet(a, b)
    return a, b


async def test_a_greeting_makes_both_known(pair):
    a, b = pair
    assert a.peers()["b"].incarnation == 1
    assert b.peers()["a"].endpoint == a.endpoint
    assert await a.ref("b/echo").echo(1) == 1
    assert await b.ref("a/echo").echo(2) == 2


async def test_heartbeats_carry_a_payload(rig, pair, caplog):
    a, b = pair
    b.heartbeat = lambda: {"sweep": 7, "nested": {"lag": 0.5}}
    rig.clock.advance(0.6)
    await turns()
    assert a.peers()["b"].payload == {"sweep": 7, "nested": {"lag": 0.5}}
    assert a.peers()["b"].heartbeat_at is not None
    b.heartbeat = lambda: 1 / 0
    a.peers()["b"].heartbeat_at = None
    rig.clock.advance(0.6)
    await turns()
    assert a.peers()["b"].payload == {}
    assert a.peers()["b"].heartbeat_at is not None
    assert "ZeroDivisionError" in caplog.text


async def test_heartbeats_are_reported_one_by_one_and_an_error_of_a_callback_stops_nothing(rig, pair, caplog):
    a, b = pair
    b.heartbeat = lambda: {"sweep": 7}
    heard = []
    a.on_heartbeat(lambda peer: 1 / 0)
    undo = a.on_heartbeat(lambda peer: heard.append((str(peer.id), peer.payload)))
    for _ in range(2):
        rig.clock.advance(0.5)
        await turns()
    assert heard == [("b#1", {"sweep": 7})] * 2
    assert "a callback failed at a heartbeat of b#1" in caplog.text
    undo()
    rig.clock.advance(0.5)
    await turns()
    assert len(heard) == 2


async def test_a_lost_peer_fails_calls_at_once_and_fires_monitors_once(rig, pair):
    a, b = pair
    downs: list[Down] = []
    a.monitor("b", downs.append)
    a.monitor("b", downs.append)()  # undone
    calls = [asyncio.create_task(a.ref("b/echo").wait()) for _ in range(3)]
    await turns()
    rig.network.cut(b.endpoint)
    await turns()
    for call in calls:
        with pytest.raises(NodeDown, match="b#1 is down: disconnected"):
            await call
    with pytest.raises(NodeDown, match="disconnected"):
        await a.ref("b/echo").echo(1)
    with pytest.raises(NodeDown):
        a.link("b")
    a.peering.declare_down(Down("b", 1, "again"))
    assert downs == [Down("b", 1, "disconnected")]
    assert a.peers() == {}


async def test_monitoring_what_is_not_up_fires_soon(rig, pair):
    a, _ = pair
    downs: list[Down] = []
    a.monitor("mars", downs.append)
    await turns()
    assert downs == [Down("mars", 0, "not up")]
    a.peering.declare_down(Down("b", 1, "hung"))
    a.monitor("b", downs.append)
    await turns()
    assert downs[1:] == [Down("b", 1, "hung")]


async def test_a_monitor_that_raises_does_not_stop_the_next(pair, caplog):
    a, _ = pair
    downs: list[Down] = []
    a.monitor("b", lambda down: 1 / 0)
    a.monitor("b", downs.append)
    a.peering.declare_down(Down("b", 1, "killed"))
    assert len(downs) == 1
    assert "ZeroDivisionError" in caplog.text


async def test_work_for_a_dead_caller_is_cancelled(rig, pair):
    a, b = pair
    call = asyncio.create_task(a.ref("b/echo").wait())
    await turns()
    (delivery,) = b.table.current["a"].inbound.values()
    rig.network.cut(a.endpoint)
    await turns()
    assert delivery.task.cancelled() or delivery.task.done()
    call.cancel()


async def test_a_fenced_incarnation_is_not_let_in_again(rig, pair):
    a, b = pair
    a.peering.declare_down(Down("b", 1, "hung"))
    b.table.current["a"].lost = False
    seen = a.dropped["fenced"]
    b.send_heartbeat()
    b.peering.greet(PeerId("a", 1), a.endpoint)
    await turns()
    assert a.dropped["fenced"] > seen
    assert a.peers() == {}
    seen = a.dropped["fenced"]
    a.parts.inbound.on_shared(b.id, b"", b"what lay in its memory, which is not held any more", [])
    assert a.dropped == {"fenced": seen + 1}


async def test_a_new_incarnation_replaces_the_old_one(rig, pair):
    a, _ = pair
    downs: list[Down] = []
    a.monitor("b", downs.append)
    second = await rig.add("b", 2)
    await rig.meet(second, a)
    assert downs == [Down("b", 1, "replaced by incarnation 2")]
    assert a.ref("b/echo").incarnation == 2
    assert await a.ref("b/echo").echo(5) == 5
    with pytest.raises(NodeDown, match="current incarnation is 2"):
        await a.ref("b/echo#1").echo(5)
    rig.nodes["b#1"].send_heartbeat()
    await turns()
    assert a.dropped["fenced"] == 1


async def test_strangers_are_not_heard(rig, pair):
    a, _ = pair
    c = await rig.add("c")
    c._transport.connect(a.id, a.endpoint)
    c._transport.send(a.id, pack([envelope.CAST, 1, "echo", "echo", b"", [1], {}]))
    await turns()
    assert a.dropped["stranger"] == 1
    assert "c" not in a.peers()


@claim("A message is handled at most once", of="actor-runtime")
async def test_nothing_is_obeyed_twice(rig, pair):
    a, b = pair
    cast = pack([envelope.CAST, 7, "echo", "echo", b"", [1], {}])
    late = pack([envelope.CALL, 6, "echo", "echo", 1.0, b"", [1], {}])
    for message in (cast, cast, late):
        b._transport.send(a.id, message)
    await turns()
    assert a.dropped["duplicate"] == 2
    assert a.table.current["b"].inbound == {}


async def test_only_the_head_is_obeyed(rig, pair):
    a, b = pair
    for message in ([envelope.STOP], [envelope.DOWN, "b", 1, "x"], [envelope.BOOK, [["c", 1, "loop://c-1"]]]):
        b.peering.notify(b.table.current["a"], message)
    await turns()
    assert a.dropped["garbage"] == 3
    assert not a.closed.is_set()
    assert set(a.peers()) == {"b"}


async def test_a_node_obeys_its_head(rig):
    head = await rig.add("head")
    a = await rig.add("a")
    b = await rig.add("b")
    a.peering.join(head.id, head.endpoint)
    b.peering.join(head.id, head.endpoint)
    await turns()
    to_a = head.table.current["a"]
    head.peering.notify(to_a, [envelope.BOOK, [["a", 1, a.endpoint], ["b", 1, b.endpoint]]])
    await turns()
    assert set(a.peers()) == {"head", "b"}
    head.peering.notify(to_a, [envelope.DOWN, "b", 1, "hung"])
    await turns()
    assert set(a.peers()) == {"head"}
    head.peering.notify(to_a, [envelope.BOOK, [["b", 1, b.endpoint]]])  # an old book does not bring it back
    await turns()
    assert set(a.peers()) == {"head"}
    head.peering.notify(to_a, [envelope.DOWN, "a", 1, "hung"])
    await turns()
    assert a.closed.is_set()
    assert not b.closed.is_set()
    rig.network.cut(head.endpoint)
    await turns()
    assert b.closed.is_set()


async def test_links(pair):
    a, b = pair
    got: list[tuple] = []
    b.on_link(Traffic.ACTIVATION, lambda node, header, buffers: got.append((node, header, [bytes(x) for x in buffers])))
    link = a.link("b")
    for i in range(3):
        link.send(Traffic.ACTIVATION, b"%d" % i, [b"payload", memoryview(b"more")])
    link.send(Traffic.KV, b"nobody listens", [])
    await turns()
    assert got == [("a", b"%d" % i, [b"payload", b"more"]) for i in range(3)]
    assert b.inspect().dead_letters == {"NoReceiver": 1}
    a.peering.declare_down(Down("b", 1, "hung"))
    with pytest.raises(PeerGone):
        link.send(Traffic.KV, b"", [])
    with pytest.raises(NodeDown):
        a.link("mars")


async def test_a_link_receiver_that_raises_is_not_the_end(pair, caplog):
    a, b = pair
    b.on_link(Traffic.KV, lambda *_: 1 / 0)
    a.link("b").send(Traffic.KV, b"", [])
    await turns()
    assert "ZeroDivisionError" in caplog.text
    assert b.dead_letters == {"ReceiverFailed": 1}
    assert await a.ref("b/echo").echo(1) == 1


async def test_a_way_that_is_full_is_the_callers_error(pair, monkeypatch):
    a, _ = pair

    def full(*_: object) -> None:
        raise QueueFull("12 messages wait")

    monkeypatch.setattr(a._transport, "send", full)
    with pytest.raises(MailboxFull, match="12 messages wait"):
        await a.ref("b/echo").echo(1)
    a.ref("b/echo").echo.cast(1)
    assert a.dead_letters["QueueFull"] == 1
    a.send_heartbeat()


async def test_a_cast_to_a_node_that_has_ended_is_no_warning(pair, caplog):
    a, _ = pair
    caplog.set_level(logging.INFO)
    a.ref("mars/echo").echo.cast(1)
    a.peering.declare_down(Down("b", 1, "hung"))
    a.ref("b/echo").echo.cast(1)
    a.ref("b/echo#1").echo.cast(1)
    message = [
        (line.levelname, line.message.rpartition("dropped: ")[2]) for line in caplog.records if "cast" in line.message
    ]
    assert message == [("WARNING", "node mars is not known"), *[("INFO", "node b#1 is down: hung")] * 2]
    assert a.dead_letters["NodeDown"] == 3


tags = st.integers(-1, 18)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**40)
    | st.floats()
    | st.sampled_from(["echo", "a", "b", "", "x#1"])
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(-3, 9), inner, max_size=2),
    max_leaves=12,
)
OF_TYPE = {
    int: st.integers(-3, 2**40),
    str: st.sampled_from(["echo", "wait", "a", "b", "", "x#1"]) | st.text(max_size=5),
    float: st.floats(),
    bool: st.booleans(),
    bytes: st.binary(max_size=30),
    list: st.lists(values, max_size=3),
    dict: st.dictionaries(st.text(max_size=4) | st.integers(-3, 9), values, max_size=2),
    object: values,
}
shaped = st.sampled_from(sorted(envelope._SHAPES)).flatmap(
    lambda tag: st.tuples(st.just(tag), *[OF_TYPE[kind] for kind in envelope._SHAPES[tag]])
)
messages = (
    st.binary(max_size=60)
    | st.tuples(tags, st.lists(values, max_size=8)).map(lambda m: pack([m[0], *m[1]]))
    | shaped.map(lambda m: pack(list(m)))
)


@examples(60)
@given(st.lists(messages, min_size=1, max_size=20))
def test_garbage_does_no_harm(bodies):
    """Whatever a peer sends, the node goes on, and answers another peer."""

    async def main() -> None:
        rig, faults = Rig(), []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        a, b, c = [await rig.add(name) for name in "abc"]
        await rig.meet(a, b)
        await rig.meet(a, c)
        for body in bodies:
            b._transport.send(a.id, body, [b"frame"])
        await turns(40)
        assert await c.ref("a/echo").echo(1) == 1
        await rig.stop()
        assert faults == []

    asyncio.run(main())


async def test_link_messages_may_come_before_the_greeting(rig):
    """They have a connection of their own. What they cause is sent back, so their sender is met at once."""
    a, b = await rig.add("a"), await rig.add("b")
    b.peering._know(a.id, a.endpoint)
    assert not b.table.current["a"].met
    b.parts.inbound.on_link(a.id, [memoryview(b"x")])
    assert b.table.current["a"].met
    await turns()
    assert a.peers()["b"].met
