"""Guests that are away: when their place is no longer kept, and who takes it."""

from __future__ import annotations

from blockwright.policies.sweep.events import Flight, LeaseRevoked
from blockwright.policies.sweep.return_timeouts import ReturnTimeouts
from blockwright.tests.policies.sweep_world import World, chain, pipeline, replica, submission


def test_a_countdown_is_one_and_a_half_times_the_mean_of_its_home() -> None:
    return_timeouts = ReturnTimeouts()
    for guest, seconds in ((1, 2.0), (2, 4.0)):
        return_timeouts.leave(guest, "w0", 10.0)
        return_timeouts.come(guest, 10.0 + seconds)
    return_timeouts.leave(1, "w0", 20.0)
    return_timeouts.leave(2, "w0", 21.0)
    return_timeouts.leave(3, "w9", 0.0)
    assert return_timeouts.overdue(24.4) == []
    assert return_timeouts.overdue(24.5) == [1]
    assert return_timeouts.overdue(25.5) == [1, 2], "who left first comes first; of w9 nobody knows how long it takes"
    return_timeouts.come(1, 26.0)
    return_timeouts.end(2)
    assert return_timeouts.overdue(99.0) == []


def test_short_absences_are_no_reason_to_compute_anything_again() -> None:
    return_timeouts = ReturnTimeouts()
    return_timeouts.leave(1, "w0", 0.0)
    return_timeouts.come(1, 0.001)
    return_timeouts.leave(1, "w0", 0.001)
    assert return_timeouts.overdue(0.9) == []
    assert return_timeouts.overdue(1.1) == [1]
    return_timeouts.lose("w0")
    assert return_timeouts.overdue(1.1) == [], "another life may be slower"


def test_copies_go_their_own_ways() -> None:
    return_timeouts = ReturnTimeouts()
    return_timeouts.leave(1, "w0", 0.0)
    return_timeouts.come(1, 2.0)
    return_timeouts.leave(2, "w0", 2.0)
    for copy in (return_timeouts.fork(), ReturnTimeouts.restore(return_timeouts.snapshot())):
        assert copy.snapshot() == return_timeouts.snapshot()
        copy.end(2)
        assert copy.overdue(9.0) == []
        assert return_timeouts.overdue(9.0) == [2]
    return_timeouts.check({1, 2})


def crowded(arrival: float) -> World:
    """A guest that takes nearly all memory of ``w1``, and whose home falls silent once rows have come back; then a local
    sequence that came at ``arrival`` (the guest at 5) wants to start."""
    crossing, local = chain("crossing"), chain("local", own_from=0)
    world = World(["w0", "w1"], [crossing, local], [pipeline(["w0", "w1"], crossing), replica("w1", local)], budget=10 << 15)
    world.submit(submission("guest", [1, 2, 3] * 10, 36, "crossing@w0+w1", arrival=5.0))
    home, host = world.workers["w0"], world.workers["w1"]
    while len(world.emitted["guest"]) < 4:
        for worker in (home, host):
            world.start_plan(worker)
            world.end_plan(worker)
        for pair in [pair for pair, messages in world.wire.items() if messages]:
            world.deliver(pair)
        world.now += 0.01
    while host.open or world.start_plan(host):
        world.end_plan(host)
    world.submit(submission("here", [4, 5, 6, 7], 16, "local@w1", arrival=arrival))
    world.start_plan(host)
    assert not host.state.running, "the guest is expected back"
    world.now += 2.0
    world.start_plan(host)
    return world


def test_an_older_sequence_gets_the_place_of_a_guest_that_is_overdue() -> None:
    world = crowded(arrival=1.0)
    assert [type(message) for message in world.wire["w1", "w0"]] == [LeaseRevoked]
    world.run()
    assert list(world.finished) == ["here", "guest"]
    assert not world.returned
    world.assert_quiet()


def test_rows_on_their_way_with_those_of_an_overdue_guest_are_answered() -> None:
    """Its lease stays until its home returns it: a flight that lacked one would be lost for all."""
    route = pipeline(["w0", "w1"], chain("crossing"))
    world = World(["w0", "w1"], [chain("crossing"), chain("local")], [route, replica("w1", chain("local"))], budget=10 << 15)
    home, host = world.workers["w0"], world.workers["w1"]
    for i in range(3):
        world.submit(submission(f"g{i}", [i] * 6, 12, route.id, arrival=5.0))
    while not all(len(world.emitted[f"g{i}"]) > 2 for i in range(3)):
        assert any(world._move(kind, what) for kind, what in world.moves())
        world.now += 0.01
    while any((kind, what) != ("plan", home) and world._move(kind, what) for kind, what in world.moves()):
        pass
    world.start_plan(home)
    world.end_plan(home)
    flight = world.wire["w0", "w1"][-1]
    assert isinstance(flight, Flight)
    world.now += 2.0
    world.submit(submission("here", [4, 5, 6, 7], 8, "local@w1", arrival=1.0))
    world.start_plan(host)
    revoked = world.wire["w1", "w0"][-1]
    assert isinstance(revoked, LeaseRevoked)
    assert len(flight.rows) == 2
    assert revoked.lease in [row.lease for row in flight.rows]
    world.run()
    assert set(world.finished) == {"here", "g0", "g1", "g2"}
    assert not world.returned
    world.assert_quiet()


def test_a_younger_one_waits_however_late_the_guest_is() -> None:
    world = crowded(arrival=9.0)
    assert not world.workers["w1"].state.running
    world.run()
    assert world.finished == {"here": "length", "guest": "length"}
    assert not world.returned
    world.assert_quiet()
