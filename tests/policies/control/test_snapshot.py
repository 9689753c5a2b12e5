"""Copies of the controller's state machine: a restored one goes on alike, a fork leaves its origin alone, and equal states
have equal digests."""

from __future__ import annotations

from collections.abc import Callable

import msgpack
import pytest

from blockwright.policies.control.events import Event, WorkerHeartbeat
from blockwright.policies.control.snapshot import of_this_release
from blockwright.policies.control.state import ControllerState
from blockwright.policies.plain import Plain
from blockwright.tests.claims import claim
from blockwright.tests.policies.control.world import ControlWorld

STEPS = 120


def travelled(snapshot: dict[str, Plain]) -> dict[str, Plain]:
    """The snapshot as the file of a log has it."""
    return msgpack.unpackb(msgpack.packb(snapshot), strict_map_key=False)  # type: ignore[no-any-return]


class Twin:
    """A second state that hears what the world's own one hears, and has to answer the same."""

    def __init__(self, world: ControlWorld) -> None:
        self.world, self.state = world, world.state.fork()
        self.events = 0
        world.observe = self.heard

    def heard(self, event: Event, now: float, found: object) -> None:
        self.events += 1
        try:
            answer: object = self.state.handle(event, now)
        except (ValueError, KeyError) as error:
            answer = error
        assert repr(answer) == repr(found), event
        assert self.state.digest() == self.world.state.digest(), event


def world_at(seed: int, steps: int) -> ControlWorld:
    world = ControlWorld(seed)
    world.start()
    for _ in range(steps):
        world.step()
    return world


@claim("A restored controller goes on like the one of the snapshot: equal effects, equal digests", of="faults")
@pytest.mark.parametrize("seed", range(10))
def test_a_restored_state_goes_on_alike(seed: int) -> None:
    world = ControlWorld(seed)
    twin = Twin(world)
    world.start()
    for number in range(STEPS):
        if number % 30 == 20:
            before = world.state.digest()
            twin.state = ControllerState.restore(travelled(world.state.snapshot()))
            twin.state.check()
            assert twin.state.digest() == before
        world.step()
    assert twin.events > STEPS // 4


@pytest.mark.parametrize("seed", range(10))
def test_what_a_fork_handles_changes_nothing_in_its_origin(seed: int) -> None:
    """Nor the other way round: the fork is given to another world, which goes its own way."""
    world, origin = world_at(seed, STEPS), world_at(seed, STEPS)
    fork = world.state = origin.state.fork()
    before, heard = origin.state.snapshot(), world.count
    for _ in range(STEPS):
        world.step()
    fork.check()
    assert world.count > heard
    assert fork.digest() != origin.state.digest()
    assert origin.state.snapshot() == before
    after = fork.snapshot()
    for _ in range(STEPS):
        origin.step()
    assert fork.snapshot() == after


def test_equal_states_have_equal_digests_and_others_do_not() -> None:
    one, other = world_at(3, STEPS), world_at(3, STEPS)
    assert one.state.digest() == other.state.digest()
    assert len(one.state.digest()) == 16
    seen = {one.state.digest()}
    for number in range(20):
        worker, record = next((name, r) for name, r in one.state.workers.items() if r.alive)
        one.state.handle(WorkerHeartbeat(worker, record.incarnation, 0.0, number + 100, 0), one.now)
        seen.add(one.state.digest())
    assert len(seen) == 21


def test_a_snapshot_is_plain_and_names_equal_contents_once() -> None:
    snapshot = world_at(1, STEPS).state.snapshot()
    msgpack.packb(snapshot)
    values = [row for row in snapshot["rows"] if row[0] in ("Component", "Route", "Application", "Block")]
    assert len(values) == len(set(values)) > 20


def changed(change: Callable[[dict[str, Plain]], object]) -> dict[str, Plain]:
    snapshot = travelled(world_at(1, 20).state.snapshot())
    change(snapshot)
    return snapshot


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s["kinds"]["Served"].pop(), "a Served has application, rank"),
        (lambda s: s["kinds"]["Holdings"].append("more"), "and there it has .*, more"),
        (lambda s: s["kinds"].update(Popen=["args"]), "a Popen has , and there it has args"),
        (lambda s: s["rows"][-1].__setitem__(0, "Popen"), "Popen"),
        (lambda s: s.pop("rows"), "rows"),
    ],
)
def test_a_snapshot_of_another_release_is_refused(change: Callable[[dict[str, Plain]], object], says: str) -> None:
    with pytest.raises((ValueError, KeyError), match=says):
        ControllerState.restore(changed(change))


@pytest.mark.parametrize("seed", range(5))
def test_a_snapshot_of_a_neighbouring_release_is_understood(seed: int) -> None:
    """Each class has a field more there, and does not know some that it has here, which have their defaults."""
    world = world_at(seed, STEPS)
    for one in world.state.served.values():
        one.failure = None
    snapshot = travelled(world.state.snapshot())
    lacking = {"Served": "failure", "Holdings": "final"}
    world.state.holdings.final.clear()
    for name, attributes in snapshot["kinds"].items():
        rows = [row for row in snapshot["rows"] if row[0] == name]
        if name in lacking:
            place = attributes.index(lacking[name])
            del attributes[place]
            for row in rows:
                del row[1 + place]
        attributes.insert(0, "added_since")
        for row in rows:
            row.insert(1, 17.5)
    found = ControllerState.restore(of_this_release(snapshot, ControllerState(["w0"], 0.0)))
    found.check()
    assert found.digest() == world.state.digest()


def test_a_field_without_a_default_cannot_be_lacking() -> None:
    snapshot = changed(lambda s: s["kinds"]["Served"].__setitem__(0, "other"))
    with pytest.raises(ValueError, match="a Served has application, which a snapshot of another release lacks"):
        of_this_release(snapshot, ControllerState(["w0"], 0.0))


def test_the_rows_of_a_snapshot_name_one_another() -> None:
    """Restore an object that two parts share as one object: a change of the routes or of a record is seen by both."""
    state = ControllerState.restore(travelled(world_at(2, STEPS).state.snapshot()))
    assert state.served is state.holdings.served
    assert state.changed is state.holdings.changed
    assert all(state.table.planned[one.route.id] is one.route for one in state.holdings.plan.values() if one.served.shown)
    hops = [(name, hop) for name, here in state.residency.items() for hops in here.hops.values() for hop in hops]
    assert hops
    assert all(hop.residency is state.residency[name] and hop in hop.route.hops for name, hop in hops)
