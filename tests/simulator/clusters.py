"""Small clusters for tests: a scenario from a table, run with or without jumps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.simulator.assembly import simulation_of
from blockwright.simulator.control_step import ControlStep
from blockwright.simulator.description import DescriptionSource, Scenario, scenario
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest, demands

PACE = Coefficients(base=0.01, token=1e-4, context=1e-6)


def described(
    *,
    workload: dict[str, Any] | None = None,
    instances: dict[str, Any] | None = None,
    models: int | list[dict[str, Any]] = 1,
    entries: Mapping[str, dict[str, Any]] | None = None,
    **more: Any,
) -> Scenario:
    """Two instances with room for 40 pages of 4 tokens and 6 sequences; 60 requests of about 20 + 20 tokens.

    ``entries``: one instance of each name, with what differs there.
    """
    requests = {"rate": 40.0, "count": 60, "input_tokens": 20, "output_tokens": 20, "law": "exponential", "most_input": 60}
    kind = {"name": "i", "count": 2, "profile": "p", "blocks": 40, "page_size": 4, "max_rows": 6, "sweep_tokens": 32}
    every = {**kind, "chunk_size": 16, **(instances or {})}
    table = {
        "workload": {**requests, "most_output": 60, **(workload or {})},
        "models": [{"name": f"m{n}", "kv_bytes": 8, "context": 150} for n in range(models)]
        if isinstance(models, int)
        else models,
        "instances": [{**every, "name": name, "count": 1, **one} for name, one in entries.items()] if entries else [every],
        **more,
    }
    return scenario(table, DescriptionSource(Path("test.toml"), ""))


def run(
    described: Scenario,
    *,
    jumps: bool = True,
    arrivals: list[WorkloadRequest] | None = None,
    tape: list[ControlStep] | None = None,
) -> tuple[ClusterSimulation, list[dict[str, Any]]]:
    """The simulation at its end, its machines checked, and its log."""
    log: list[dict[str, Any]] = []
    if arrivals is None:
        arrivals = demands(described.workload, described.models, described.seed, Path())
    costs = [PACE] * len(described.instances)
    simulation = simulation_of(described, costs, arrivals, jumps=jumps, note=log.append, tape=tape)
    simulation.run()
    for instance in simulation.instances:
        instance.state.check()
    return simulation, log
