"""Replicas that drop parameters in a burst and restore them: nobody is lost, memory grows, KV takes its time on links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.simulator.assembly import simulation_of
from blockwright.simulator.control import SimulatedControl
from blockwright.simulator.description import (
    DescriptionError,
    DescriptionSource,
    LoadingSpec,
    ProvisioningSpec,
    Scenario,
    scenario,
)
from blockwright.simulator.memory_drops import MemoryDrops
from blockwright.simulator.outage_spec import DeathSpec
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

COSTS = Coefficients(base=0.002, read=0.01, beyond=1e-4, context=1e-7)
PAGE = 4 * 64  # bytes, on all layers
MEMORY, WHOLE = 24 * PAGE + 12_800, 12_800  # 24 pages beside the parameters; 98 on the devices of a pipeline of two


def described(count: int = 2, *, bandwidth: float = 1e6, latency: float = 0.0, **overload: Any) -> Scenario:
    table = {
        "workload": {"arrivals": "log"},
        "models": [{"name": "m", "kv_bytes": 64, "parameters": WHOLE, "hidden_bytes": 8, "context": 150}],
        "instances": [
            {"name": "i", "count": count, "profile": "p", "memory": MEMORY, "memory_chunk": PAGE // 8, "page_size": 4,
             "max_rows": 64, "chunk_size": 16, "sweep_tokens": 32}
        ],
        "links": {"bandwidth": bandwidth, "latency": latency},
        "dispatch": {"policy": "prefix-aware"},
        "overload": {"mode": "drop", "layers": 8, **overload},
    }  # fmt: skip
    return scenario(table, DescriptionSource(Path("test.toml"), ""))


def burst(at: float, count: int, first: int = 0, prompt: int = 24, output: int = 24) -> list[WorkloadRequest]:
    """So many requests, one after the other, of which three fill a replica."""
    return [WorkloadRequest(first + n, at + 0.02 * n, "m", prompt, output) for n in range(count)]


class Run(NamedTuple):
    """A finished simulation, and its drops."""

    cluster: ClusterSimulation
    policy: MemoryDrops

    @property
    def changes(self) -> list[dict[str, Any]]:
        return self.policy.moves.changes


def run(described: Scenario, arrivals: list[WorkloadRequest]) -> Run:
    simulation = simulation_of(described, [COSTS], arrivals)
    assert isinstance(simulation.policy, SimulatedControl)
    assert simulation.policy.drops is not None
    run_through(simulation)
    return Run(simulation, simulation.policy.drops)


def run_through(simulation: ClusterSimulation) -> None:
    """Nobody is lost, and all machines are sound."""
    simulation.run()
    for request in simulation.requests:
        assert not request.failed
        assert request.demand.at < request.first <= request.ended, "a request was lost"
    for instance in simulation.serving:
        instance.state.check()
        for machine in getattr(instance, "machines", {}).values():
            machine.state.check()


def done(simulation: Run) -> list[dict[str, Any]]:
    """All changes, without calls for help."""
    return [change for change in simulation.changes if change["what"] != "lacking"]


def whats(simulation: Run) -> list[str]:
    return [change["what"] for change in done(simulation)]


LATER = [WorkloadRequest(30 + n, 3.0 + 0.4 * n, "m", 8, 60) for n in range(20)]  # somebody has to be there while it is quiet


@claim("The simulator drops and restores by the code of the live cluster", of="parameter-dropping")
def test_a_burst_drops_and_quiet_restores() -> None:
    simulation = run(described(), burst(0.0, 30) + LATER)
    assert whats(simulation) == ["drop", "dropped", "exchanged", "restore", "restored", "exchanged"]
    drop, dropped, exchanged, restore, restored, back = done(simulation)
    assert drop["bytes"] == WHOLE, "one whole copy goes"
    assert restore["at"] - exchanged["at"] >= 5.0
    assert dropped["stale"] > 3
    assert (restored["stale"] > 0) == (back["bytes"] > 0) is True
    assert restored["at"] - restore["at"] >= WHOLE / 2 / 1e6, "each member gets one half back"
    capacities = [reading.capacity // PAGE for reading in simulation.policy.readings]
    assert (capacities[0], max(capacities), capacities[-1]) == (48, 98, 48)
    off = simulation_of(described(mode="off"), [COSTS], burst(0.0, 30) + LATER)
    assert off.policy is None
    off.run()
    started = [sum(r.started - r.demand.at for r in s.requests[:30]) for s in (simulation.cluster, off)]
    assert started[0] < started[1], "those of the burst start sooner"
    assert simulation.cluster.digest() == run(described(), burst(0.0, 30) + LATER).cluster.digest()


def test_a_stale_sequence_pauses_for_its_own_exchange_shortest_first() -> None:
    """On a slow link: each member sends half the KV of its sequences, one after the other."""
    simulation = run(described(bandwidth=20e3, restore=False), burst(0.0, 14))
    assert whats(simulation)[:3] == ["drop", "dropped", "exchanged"]
    _, dropped, exchanged = done(simulation)[:3]
    assert exchanged["bytes"] % (PAGE // 2) == 0
    assert len(simulation.policy.moves.stalls) == dropped["stale"]
    seconds = exchanged["at"] - dropped["at"]
    assert max(simulation.policy.moves.stalls) == pytest.approx(seconds)
    assert exchanged["bytes"] / 20e3 / 2 <= seconds <= exchanged["bytes"] / 20e3
    assert simulation.policy.moves.stalls[0] == pytest.approx(min(simulation.policy.moves.stalls))
    assert sum(simulation.policy.moves.stalls) / len(simulation.policy.moves.stalls) < 0.75 * seconds


def test_without_an_exchange_kv_is_computed_again() -> None:
    simulation = run(described(exchange=False, restore=False), burst(0.0, 14))
    assert whats(simulation)[:3] == ["drop", "dropped", "exchanged"]
    assert simulation.policy.moves.stalls == []
    assert done(simulation)[2]["bytes"] == 0


@pytest.mark.nightly
def test_a_burst_during_a_restore_breaks_it_off() -> None:
    """On a link on which a restore takes seconds; what was loaded is dropped again."""
    arrivals = burst(0.0, 30) + LATER
    spec = described(bandwidth=1e3, throttled=0.85)
    quiet = next(c["at"] for c in run(spec, arrivals).changes if c["what"] == "restore")
    arrivals = [one for one in arrivals if one.at < quiet]
    again = run(spec, arrivals + burst(quiet + 3.0, 60, len(arrivals)))
    found = done(again)
    assert [c["what"] for c in found[:5]] == ["drop", "dropped", "exchanged", "restore", "resume"]
    trimmed, restores = found[5], [c for c in found if c["what"] == "restore"]
    assert (trimmed["what"], trimmed["group"]) == ("drop", "i-0+i-1")
    assert 0 < trimmed["bytes"] < WHOLE, "what had been loaded goes first"
    assert [c["bytes"] for c in restores] == [WHOLE] * len(restores)


@pytest.mark.nightly
def test_a_large_burst_makes_a_pipeline_of_four_where_that_is_not_too_many() -> None:
    arrivals = burst(0.0, 100, output=40)
    simulation = run(described(4), arrivals)
    drops = [c["group"] for c in simulation.changes if c["what"] == "drop"]
    assert drops == ["i-0+i-1", "i-2+i-3", "i-2+i-0+i-3+i-1"]
    assert max(r.capacity for r in simulation.policy.readings) > 2 * 98 * PAGE
    two = run(described(4, most=2), arrivals)
    assert {c["group"] for c in two.changes if c["what"] == "drop"} == {"i-0+i-1", "i-2+i-3"}
    assert any(c["what"] == "lacking" and "2 members at most" in c["why"] for c in two.changes)


def test_who_has_nothing_of_a_drop_does_not_wait_for_its_exchange() -> None:
    """On a link on which an exchange takes seconds."""
    found = done(run(described(4, bandwidth=1e3, most=2, restore=False), burst(0.0, 60, output=40)))
    assert [c["what"] for c in found[:4]] == ["drop", "dropped", "drop", "dropped"]
    assert [c["what"] for c in found[4:]] == ["exchanged", "exchanged"]
    assert found[3]["at"] < found[4]["at"] - 1.0


@given(
    seed=st.integers(0, 1000), count=st.sampled_from([1, 2, 3]), bandwidth=st.sampled_from([2e4, 1e6]),
    latency=st.sampled_from([0.0, 0.01]), exchange=st.booleans(), priorities=st.booleans(),
    quiet=st.sampled_from([0.3, 0.9]),
)  # fmt: skip
@examples(12)
def test_nobody_is_lost(
    seed: int, count: int, bandwidth: float, latency: float, exchange: bool, priorities: bool, quiet: float
) -> None:
    """Bursts one after the other, through drops and restores."""
    arrivals = [d for n in range(3) for d in burst(4.0 * n, 10 * count, 10 * count * n, 8 + seed % 40, 4 + seed % 29)]
    spec = described(count, bandwidth=bandwidth, latency=latency, exchange=exchange, priorities=priorities, quiet=quiet)
    run(spec, arrivals)


def killed(spec: Scenario, *deaths: tuple[str, float, float], disk: float = 2e4, stalls: bool = False) -> Scenario:
    """The scenario with deaths: (instance, at, seconds until it is up again)."""
    those = tuple(DeathSpec(instance=name, at=at, down=down, stalls=stalls) for name, at, down in deaths)
    return replace(spec, deaths=those, loading=LoadingSpec(disk=disk))


@claim("The simulator restores replicas when a worker of a pipeline dies", of="parameter-dropping")
def test_a_death_in_a_pipeline_brings_the_replicas_back() -> None:
    """In steady service: the survivor reads what it lacks, 6,400 bytes at 20,000 a second, while its requests wait."""
    spec = killed(described(restore=False), ("i-1", 3.0, 30.0))
    simulation = run(spec, [*burst(0.0, 14), WorkloadRequest(14, 2.9, "m", 8, 60)])
    assert whats(simulation) == ["drop", "dropped", "exchanged"]
    (last,) = simulation.cluster.requests[14:]
    assert (last.restarts, last.instance) == (1, "i-0")
    assert last.first < 3.0 < 3.32 < last.ended
    groups = simulation.policy.state.overload
    assert (groups.groups, groups.counts["rescue"]) == ({}, 1)


def test_a_stalled_member_of_a_pipeline_is_killed_by_the_controller_and_its_requests_go_on_at_the_other() -> None:
    spec = killed(described(restore=False), ("i-1", 3.0, 30.0), stalls=True)
    simulation = run(spec, [*burst(0.0, 14), WorkloadRequest(14, 2.9, "m", 8, 60)])
    assert whats(simulation) == ["drop", "dropped", "exchanged"]
    (last,) = simulation.cluster.requests[14:]
    assert (last.restarts, last.instance) == (1, "i-0")
    assert last.first < 3.0 < 13.0 + 0.32 < last.ended, "10 seconds without progress mean a hung worker"
    assert simulation.policy.state.overload.counts["rescue"] == 1


def scaled(spec: Scenario, **more: Any) -> Scenario:
    """The scenario with one instance at first, and more with the load."""
    rules = {"mode": "relief", "limit": 1.0, "start": 1, "window": 2.0, "cold_start": 0.3, "grace": 0.5, **more}
    return replace(spec, provisioning=ProvisioningSpec(**rules))


@claim("The simulator scales workers and drops parameters in one run, both by the code of the live cluster", of="simulator")
def test_a_burst_starts_a_second_worker_and_then_drops_parameters_of_both() -> None:
    """They are drained when they serve as replicas again, never before."""
    simulation = run(scaled(described(), limit=4.0), burst(0.0, 30) + LATER)
    assert whats(simulation) == ["drop", "dropped", "exchanged", "restore", "restored", "exchanged"]
    changes = [(change.what, change.place) for change in simulation.cluster.provisioner.changes]
    assert changes == [("starting", 1), ("active", 1), ("draining", 1), ("stopped", 1)]
    times = [change.at for change in simulation.cluster.provisioner.changes]
    drop, *_, restored, _ = done(simulation)
    assert times[1] <= drop["at"] < restored["at"] < times[2]
    capacities = [reading.capacity // PAGE for reading in simulation.policy.readings]
    assert (capacities[0], max(capacities), capacities[-1]) == (24, 98, 24)


@given(
    seed=st.integers(0, 1000), count=st.sampled_from([2, 3, 4]), bandwidth=st.sampled_from([2e4, 1e6]),
    most=st.sampled_from([2, 4]), disk=st.sampled_from([0.0, 2e4]), stalls=st.booleans(), scales=st.booleans(),
)  # fmt: skip
@examples(8)
def test_nobody_is_lost_where_workers_die(
    seed: int, count: int, bandwidth: float, most: int, disk: float, stalls: bool, scales: bool
) -> None:
    """At any time, and more often while a drop or a restore is under way; also where workers come and go with the load."""
    source = Random(seed)
    times = [(source.uniform(0, 12), 0.3 + source.uniform(0, 0.05), 5.3 + source.uniform(0, 0.5)) for _ in range(3)]
    deaths = [(f"i-{source.randrange(count)}", source.choice(some), source.choice([0.5, 3.0])) for some in times]
    arrivals = [d for n in range(3) for d in burst(4.0 * n, 10 * count, 10 * count * n, 8 + seed % 40, 4 + seed % 29)]
    spec = killed(described(count, bandwidth=bandwidth, quiet=0.9, most=most), *deaths, disk=disk, stalls=stalls)
    simulation = run(scaled(spec) if scales else spec, arrivals)
    simulation.policy.state.check()
    for instance in simulation.cluster.serving:
        assert not instance.candidate(simulation.cluster.now).used_blocks, "pages are still held"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mode": "shrink"}, "mode is 'shrink'; give one of: off, drop"),
        ({"layers": 1}, "layers is 1; give the layers of the model"),
        ({"layers": 32}, "kv_bytes is 64; give a multiple of 128"),
    ],
)
def test_what_cannot_be_dropped_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(DescriptionError, match=says):
        described(**change)
    with pytest.raises(DescriptionError, match="bandwidth is missing"):
        described(bandwidth=0.0)
