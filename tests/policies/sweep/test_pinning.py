"""Holds in numbers: who awaits how much before whom, and words that come late for another attempt."""

from __future__ import annotations

from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.page_events import HoldPages, PageTarget
from blockwright.policies.sweep.page_pins import PagePin, PagePins

from ..sweep_world import submission
from .test_page_pins import PIPELINE, PROMPT, Dropped, running


def book(*holds: tuple[str, float, str, dict[str, int]]) -> PagePins:
    """Return holds of (request, arrival, account, slots that are awaited)."""
    made = PagePins()
    for request, arrival, account, awaited in holds:
        made.open(request, PagePin("head/gateway", 1, account, (0, arrival, request), 60.0, [], awaited))
    return made


def test_what_is_awaited_by_older_ones_alone_is_in_the_way() -> None:
    made = book(("a", 1.0, "x", {"k": 3}), ("b", 2.0, "x", {"k": 4, "m": 1}), ("c", 3.0, "y", {"k": 9}))
    assert made.awaited((0, 3.0, "c")) == {"k": 7, "m": 1}
    assert made.awaited((0, 1.0, "a")) == {}


def test_the_youngest_of_an_account_gives_way_to_its_own() -> None:
    made = book(("a", 1.0, "x", {}), ("b", 2.0, "x", {}), ("c", 3.0, "y", {}))
    assert made.youngest((0, 0.0, "")) == "c"
    assert made.youngest((0, 0.0, ""), "x") == "b"
    assert made.youngest((0, 2.0, "b"), "x") is None, "it is not younger than itself"


def test_what_has_come_is_awaited_no_more() -> None:
    hold = PagePin("head/gateway", 1, "x", (0, 1.0, "a"), 60.0, [], {"k": 5})
    hold.came("k", 2)
    assert hold.awaited == {"k": 3}
    hold.came("k", 9)
    assert hold.awaited == {"k": 0}


def held_by(where: Dropped, attempt: int, seconds: float = 60.0) -> HoldPages:
    of = where.submitted["r"]
    tokens = [*of.tokens[: of.prompt_length], *where.emitted["r"]]
    return HoldPages(
        of.gateway, "r", attempt, of.route, of.tenant, of.priority, of.arrival, page_hashes(tokens[:-1], 4), seconds, False
    )


def test_a_hold_of_an_earlier_attempt_that_comes_late_changes_nothing() -> None:
    where = running()
    state = where.workers["w0"].state
    state.apply(held_by(where, 3, 60.0), 0.0)
    state.apply(held_by(where, 2, 5.0), 0.0)
    hold = state.parts.page_pins.find("r")
    assert hold is not None
    assert (hold.attempt, hold.until) == (3, 60.0)
    state.apply(held_by(where, 4, 70.0), 0.0)
    assert (hold.attempt, hold.until) == (4, 70.0)


def test_a_guest_whose_attempt_ends_stays_until_its_home_returns_it() -> None:
    """Rows of it may be on their way, and its host must know whose they are."""
    where = Dropped()
    where.publish([PIPELINE])
    where.submit(submission("r", PROMPT, 40, PIPELINE.id, arrival=1.0))
    host = where.workers["w1"].state
    while not where.emitted.get("r"):
        assert any(where._move(kind, what) for kind, what in where.moves())
    (guest,) = host.parts.rows.live()
    host.apply(held_by(where, 1), where.now)
    assert host.parts.rows.live() == [guest]
    assert host.parts.rows.status[guest] == Status.RUNNING
    where.hold("r")
    where.run()
    assert host.parts.rows.live() == []
    host.check()


def test_pages_that_have_come_are_awaited_no_more() -> None:
    where = running()
    full = (len(PROMPT) + len(where.emitted["r"]) - 1) // 4
    where.hold("r")
    where.publish([PIPELINE])
    for worker in ("w0", "w1"):
        where.deliver(("head", worker))
    where.hold("r", PIPELINE.id, expects=True)
    hold = where.workers["w1"].state.parts.page_pins.find("r")
    assert hold is not None
    (arena,) = hold.awaited
    assert hold.awaited == {arena: full}, "one of the two layers"
    where.move("r", PIPELINE.id)
    while where.wire.get(("w0", "w1")):
        where.deliver(("w0", "w1"))
        where.turns("w1")
    assert hold.awaited == {arena: 0}


def test_a_copy_for_an_earlier_attempt_lets_no_page_go() -> None:
    where = running()
    state = where.workers["w0"].state
    state.apply(held_by(where, 3), 0.0)
    before, holding = where.held("w0"), state._pinning
    for attempt in (2, 4):
        holding.exported("r", attempt, [PageTarget("w1", 0, 3)])
        assert where.held("w0") == before > 0
    holding.exported("r", 3, [PageTarget("w1", 2, 3)])
    assert where.held("w0") == before // 2, "the layers that are computed elsewhere from now on"
    state.check()


def test_only_an_attempt_after_that_of_the_hold_has_pages_here() -> None:
    where = running()
    state = where.workers["w0"].state
    where.hold("r")
    where.hand_over("r", "base@w0")
    waits = state._pinning.waiting()
    assert len(waits) == 1
    hold = state.parts.page_pins.find("r")
    assert hold is not None
    hold.attempt = 2
    assert state._pinning.waiting() == []


def test_room_is_what_is_left_beside_older_holds_and_a_page_for_each_that_runs() -> None:
    where = running()
    where.hold("r")
    where.hold("r", PIPELINE.id, expects=True)
    state = where.workers["w1"].state
    hold = state.parts.page_pins.find("r")
    assert hold is not None
    (arena,) = hold.awaited
    allocator, pages = state.parts.memory.pages.allocator(arena), state.parts.memory.pages
    free = allocator.room + pages.idle.slots[arena]
    hold.awaited[arena] = free
    assert state.room("r")
    hold.awaited[arena] = free + 1
    assert not state.room("r")
    hold.awaited[arena] = free - 4
    older = PagePin("head/gateway", 1, "", (0, 0.5, "o"), 60.0, [], {arena: 4})
    state.parts.page_pins.open("o", older)
    assert state.room("r")
    older.awaited[arena] = 5
    assert not state.room("r"), "what an older one awaits comes first"
    older.age = (0, 9.0, "o")
    assert state.room("r"), "what a younger one awaits does not"


def test_beside_each_that_runs_a_page_is_left() -> None:
    where = running()
    where.hold("r")
    where.submit(submission("x", [50] * 4, 30, "base@w0", arrival=2.0))
    where.turns("w0", 2)
    state = where.workers["w0"].state
    hold, (arena,) = state.parts.page_pins.find("r"), state.parts.memory.pages.idle.slots
    assert hold is not None
    assert len(state.parts.queue.running) == 1
    free = state.parts.memory.pages.allocator(arena).room + state.parts.memory.pages.idle.slots[arena]
    hold.awaited[arena] = free - 3  # layers of a page
    assert state.room("r")
    hold.awaited[arena] = free - 2
    assert not state.room("r")
