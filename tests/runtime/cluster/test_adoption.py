"""What a head answers members that come back, word for word; the deaths themselves are in ``test_head_deaths.py``."""

from __future__ import annotations

import pytest

from blockwright.runtime import ManualClock, Node
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.tickets import MemberTicket, Tickets
from blockwright.runtime.node.head_follower import MemberTerms
from blockwright.tests.runtime.cluster.test_cluster import turns
from blockwright.transport.address import PeerId
from blockwright.transport.errors import ExpectedRefusal, HandshakeRefused
from blockwright.transport.handshake import ReturnRequest, is_over, obeyed, obeys, parse_admission, succeeds

SECRET = b"secret"


class Desk:
    """A head of epoch 5 that was started anew."""

    def __init__(self, orphan_grace: float = 60.0) -> None:
        self.clock = clock = ManualClock()
        self.launcher = launcher = InProcessLauncher(clock=clock)
        self.said: list[tuple[int, str]] = []
        self.head = ClusterHead(
            "head", launcher=launcher, clock=clock, epoch=5, orphan_grace=orphan_grace, secret=SECRET, unix=lambda: 100.0
        )
        self.head.on_superseded(lambda *said: self.said.append(said))

    def ask(self, name: str = "w0", incarnation: int = 2, epoch: int = 4, attempt: int = 1, ticket: str = "") -> object:
        node = PeerId(name, incarnation)
        text = ticket or Tickets(SECRET).issue(MemberTicket(node, "", True, "", 200))
        return self.head.returned(ReturnRequest(node, epoch, attempt, text), "")


@pytest.fixture
async def desk():
    made = Desk()
    await made.head.start()
    yield made
    await made.head.stop()


async def test_a_member_is_taken_back_as_what_it_was(desk: Desk) -> None:
    with pytest.raises(HandshakeRefused, match="head#5 is not ready to take members back"):
        desk.ask()
    await desk.head.adopting(0.0)
    admission = desk.ask(attempt=2)
    assert (admission.head, admission.own) == (PeerId("head", 5), PeerId("w0", 2))
    assert (admission.silence, admission.orphan_grace) == (2.5, 60.0)
    assert parse_admission(admission.pack()) == admission
    assert desk.head.members()["w0"].state == "starting"
    assert desk.head.admits(PeerId("w0", 2))


async def test_who_is_not_taken_back_is_told_why(desk: Desk) -> None:
    await desk.head.adopting(0.0)
    desk.ask(attempt=7)
    with pytest.raises(HandshakeRefused, match="w0#2 has asked again since"):
        desk.ask(attempt=7)
    with pytest.raises(HandshakeRefused, match="w0#1 is over: it was declared down") as refusal:
        desk.ask(incarnation=1, attempt=8)
    assert is_over(str(refusal.value), PeerId("w0", 1))
    with pytest.raises(HandshakeRefused, match="w0#3 is over: w0#2 has its name now"):
        desk.ask(incarnation=3)
    with pytest.raises(HandshakeRefused, match="w1#1 brings the ticket of w0#2"):
        desk.ask("w1", 1, ticket=Tickets(SECRET).issue(MemberTicket(PeerId("w0", 2), "", True, "", 200)))
    with pytest.raises(HandshakeRefused, match="the life of w0#2 is over: the ticket is not of this cluster"):
        desk.ask(ticket=Tickets(b"another").issue(MemberTicket(PeerId("w0", 2), "", True, "", 200)))
    assert desk.said == []


async def test_a_head_that_hears_of_a_later_one_ends_itself(desk: Desk) -> None:
    await desk.head.adopting(0.0)
    with pytest.raises(HandshakeRefused, match="not of this cluster"):
        desk.ask(epoch=9, ticket=Tickets(b"another").issue(MemberTicket(PeerId("w0", 2), "", True, "", 200)))
    assert desk.said == [], "anybody could say so"
    with pytest.raises(HandshakeRefused, match="head#5 is over"):
        desk.ask(epoch=9)
    assert desk.said == [(9, "head head#5 ends itself: w0#2 obeys the later head head#9, so head#5 is over")]
    assert desk.head.node.farewell == desk.said[0][1]
    with pytest.raises(HandshakeRefused, match="is stopping"):
        desk.ask(attempt=2)


async def test_an_earlier_head_that_asks_is_told_that_it_is_over(desk: Desk) -> None:
    with pytest.raises(HandshakeRefused) as refusal:
        desk.head.returned(ReturnRequest(PeerId("head", 4), 4, 1, "-"), "")
    assert str(refusal.value) == "here listens the later head head#5, so head#4 is over"
    assert obeyed(str(refusal.value)) == PeerId("head", 5)


async def test_a_head_that_reaches_itself_is_told_so_and_not_that_its_ticket_is_wrong(desk: Desk) -> None:
    with pytest.raises(ExpectedRefusal, match="here listens head#5 itself, and no later head"):
        desk.head.returned(ReturnRequest(PeerId("head", 5), 5, 1, "-"), "")
    assert desk.said == []


async def test_without_grace_nobody_is_taken_back() -> None:
    desk = Desk(orphan_grace=0.0)
    await desk.head.start()
    with pytest.raises(HandshakeRefused, match="takes no members of other heads"):
        desk.ask()
    await desk.head.stop()


def test_a_grace_needs_what_later_heads_know_members_by() -> None:
    with pytest.raises(ValueError, match="orphan_grace is 60 s, but no later head could know its members; give keys or a"):
        ClusterHead("head", launcher=InProcessLauncher(), orphan_grace=60.0)


def test_a_refusal_names_the_later_head() -> None:
    one = PeerId("w-1.a", 3)
    later, earlier = PeerId("head", 7), PeerId("head", 6)
    assert obeyed(f"refused: {obeys(one, later, earlier)}") == later
    assert obeyed(succeeds(later, earlier)) == later
    assert obeyed("refused: w0#1 has given head#6 up") is None


async def joined(desk: Desk) -> Node:
    """A node that has joined the head by itself, as its next life of the name "hand"."""
    admission = desk.head.join("hand")
    transport = desk.launcher.network.transport(admission.own)
    node = Node("hand", incarnation=admission.own.incarnation, transport=transport, clock=desk.clock)
    await node.start()
    node.peering.join(admission.head, desk.head.node.endpoint, MemberTerms(0.5, 2.5, admission.orphan_grace))
    node.peering.announce_ready()
    await turns()
    return node


@pytest.mark.parametrize("orphan_grace", [0.0, 60.0])
async def test_a_member_whose_life_is_over_may_enter_as_the_next_one(orphan_grace: float) -> None:
    desk = Desk(orphan_grace)
    await desk.head.start()
    node = await joined(desk)
    assert desk.head.members()["hand"].state == "up"
    desk.launcher.network.freeze("loop://hand-1")
    for _ in range(14):
        desk.clock.advance(0.25)
        await turns()
    assert desk.head.members()["hand"].state == "down"
    assert not node.life_over, "it has not heard of it"
    desk.launcher.network.members["loop://hand-1"].frozen = False
    for _ in range(8):
        desk.clock.advance(0.25)
        await turns()
    assert node.life_over
    assert node.closed.is_set()
    await node.stop()
    again = await joined(desk)
    assert str(again.id) == "hand#2"
    assert desk.head.members()["hand"].state == "up"
    assert not again.life_over
    await again.stop()
    await desk.head.stop()
