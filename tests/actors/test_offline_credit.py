"""What workers say of the offline requests that they take: all of it in heartbeats, in reports what has changed."""

from __future__ import annotations

from blockwright.actors.worker.offline_credit import OfflineCredit
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.offline_capacity import decode_capacities
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.policies.sweep.offline_world import CHUNK, commit, offline, online, world
from blockwright.tests.policies.sweep_world import chain, replica


def test_reports_say_what_has_changed_while_offline_sequences_are_here() -> None:
    state = world(60).workers["w0"].state
    credit = OfflineCredit(state)
    assert credit.changed_for("g0") is None
    state.apply(offline("o", [5] * 6, 3), 0.0)
    first = credit.changed_for("g0")
    assert first is not None
    assert credit.changed_for("g0") is None, "as it said before"
    assert credit.changed_for("g1") == first, "another gateway has not heard it"
    plan = state.plan(0.0)
    assert plan is not None
    commit(state, plan)
    second = credit.changed_for("g0")
    assert second is not None
    assert second != first
    rooms, _ = decode_capacities(credit.beat(None))
    assert rooms == second
    assert credit.changed_for("g1") is None, "the heartbeat has told it"
    while (plan := state.plan(0.0)) is not None:
        commit(state, plan)
    assert credit.changed_for("g0") is not None, "once more when they have gone"
    assert credit.changed_for("g0") is None
    state.apply(online("a", [1] * 6, 3), 0.0)
    assert credit.changed_for("g0") is None, "no offline sequence is here"


def test_applications_that_are_alike_are_told_of_together_and_apart_where_they_are_not() -> None:
    models = [chain(f"m{n}") for n in range(4)] + [chain("other", own_from=0, heads=64)]
    routes = [replica("w0", one) for one in models]
    config = SweepConfig(
        worker="w0", numerics="fake", budget=80 * CHUNK, page_size=4, chunk_size=8, sweep_tokens=32, max_rows=8
    )
    state = SweepState(config)
    state.apply(RoutesChanged(1, models, routes, routes), 0.0)
    rooms = state.offline_capacities()
    assert [one.applications for one in rooms] == [("m0", "m1", "m2", "m3"), ("other",)]
    assert decode_capacities(OfflineCredit(state).beat(None))[0] == rooms
    state.apply(RoutesChanged(2, models[1:], routes[1:], routes[1:]), 0.0)
    assert [one.applications for one in state.offline_capacities()] == [("m1", "m2", "m3"), ("other",)]
    assert state.fork().offline_capacities() == state.offline_capacities()
