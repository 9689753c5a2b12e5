"""KV that moves to host memory, or to another instance: what a drop of parameters is compared with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from overload_migration import MigrationPolicy
from overload_swapping import SwapPolicy

from blockwright.simulator.assembly import simulation_of
from blockwright.simulator.dispatch_spec import DispatchSpec
from blockwright.simulator.moving import KvMoves
from blockwright.simulator.simulation import ClusterSimulation, Note
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.parts import examples
from blockwright.tests.simulator.test_parameter_drops import COSTS, burst, described, run_through


def made(
    mode: str,
    arrivals: list[WorkloadRequest],
    count: int = 2,
    dispatch: str = "",
    *,
    host: float = 1e6,
    note: Note | None = None,
    **changes: Any,
) -> ClusterSimulation:
    spec = described(count, mode="off", **changes)
    spec = replace(spec, dispatch=DispatchSpec(policy=dispatch)) if dispatch else spec
    policy = partial(SwapPolicy, bandwidth=host) if mode == "swap" else MigrationPolicy
    return ClusterSimulation(spec, [COSTS], arrivals, note=note, policy=policy)


def run(mode: str, arrivals: list[WorkloadRequest], *rest: Any, **changes: Any) -> tuple[ClusterSimulation, KvMoves]:
    noted = list[dict[str, Any]]()
    simulation = made(mode, arrivals, *rest, note=noted.append, **changes)
    assert isinstance(simulation.policy, SwapPolicy | MigrationPolicy)
    run_through(simulation)
    assert [one for one in noted if "group" in one] == simulation.policy.moves.changes
    for place, instance in enumerate(simulation.instances):
        assert not instance.candidate(simulation.now).used_blocks, f"pages of instance {place} are still held"
    return simulation, simulation.policy.moves


def changes(moves: KvMoves, what: str) -> list[dict[str, Any]]:
    return [change for change in moves.changes if change["what"] == what]


def test_what_is_preempted_comes_back_from_host_memory() -> None:
    """One instance: the youngest leaves with its KV, returns before those who wait, and computes next to nothing again."""
    simulation, moves = run("swap", burst(0.0, 8), count=1)
    out, back = changes(moves, "swapped-out"), changes(moves, "swapped-in")
    assert len(out) == sum(request.preemptions for request in simulation.requests) > 0
    assert [one["request"] for one in back] == [one["request"] for one in out]
    assert moves.moved == 2 * sum(one["bytes"] for one in out)
    _, slow = run("swap", burst(0.0, 8), count=1, host=2e3)
    assert min(slow.stalls) > 1.9 * min(one["bytes"] for one in changes(slow, "swapped-out")) / 2e3
    state = simulation.instances[0].state
    swapped = state.counters["computed_tokens"]
    preempted = simulation_of(described(1, mode="off"), [COSTS], burst(0.0, 8))
    preempted.run()
    assert swapped < preempted.instances[0].state.counters["computed_tokens"]


def test_nobody_starts_before_those_who_are_swapped_out() -> None:
    simulation, moves = run("swap", burst(0.0, 8), count=1)
    for one in changes(moves, "swapped-out"):
        returned = next(c["at"] for c in changes(moves, "swapped-in") if c["request"] == one["request"])
        assert not [r for r in simulation.requests if one["at"] < r.started < returned]


def test_a_sequence_goes_where_there_is_room_and_loses_nothing() -> None:
    """Long answers at one instance, short ones at the other, which is soon empty."""
    arrivals = [WorkloadRequest(n, 0.001 * n, "m", 8, 32 if n % 2 else 8) for n in range(6)]
    simulation, moves = run("migrate", arrivals, dispatch="round-robin")
    moved = changes(moves, "migrated")
    assert moved
    assert all(one["seconds"] < 0.01 for one in moved), "it stands still while the last page is copied alone"
    assert not sum(request.preemptions for request in simulation.requests), "three of them do not fit"
    computed = sum(instance.state.counters["computed_tokens"] for instance in simulation.instances)
    needed = sum(demand.prompt + demand.output - 1 for demand in arrivals)
    assert computed - needed <= 8 * len(moved), "only what was not a whole page is computed again"


@given(
    mode=st.sampled_from(["swap", "migrate"]), seed=st.integers(0, 1000), count=st.sampled_from([1, 2, 3]),
    bandwidth=st.sampled_from([2e3, 2e4, 1e6]), latency=st.sampled_from([0.0, 0.01]),
)  # fmt: skip
@examples(12)
def test_nobody_is_lost(mode: str, seed: int, count: int, bandwidth: float, latency: float) -> None:
    arrivals = [d for n in range(3) for d in burst(4.0 * n, 10 * count, 10 * count * n, 8 + seed % 40, 4 + seed % 29)]
    run(mode, arrivals, count, bandwidth=bandwidth, host=bandwidth, latency=latency)
