"""Event logs of live workers as a workload: when requests came, how long answers became; and workers like those."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.simulator.description import DescriptionError, DescriptionSource, WorkloadSpec, changed
from blockwright.simulator.recording import Recording
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.traces import TraceError
from blockwright.tests.policies.event_tape import Driver, Tape, make_state
from blockwright.tests.policies.sweep_world import submission

ALL = WorkloadSpec(arrivals="log")


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Nine requests, of which one was cancelled before it began; the log was begun anew in the middle."""
    machine = Tape(make_state())
    driver = Driver(machine, machine.state)
    driver.submit(9)
    for _ in range(30):
        driver.turn()
    later = Tape(machine.state)
    driver.machine = later
    while driver.turn():
        continue
    made = Recording()
    for tape in (machine, later):
        made.add("w0", tape.began, tape.entries)
    return made


def test_requests_come_as_they_came_and_end_where_they_ended(recording: Recording) -> None:
    found = recording.demands(ALL)
    assert len(found) == 8
    assert {demand.output for demand in found} == {20}
    assert sorted(demand.prompt for demand in found) == [5, 6, 7, 8, 10, 11, 12, 13]
    assert all(len(demand.tokens) == demand.prompt and demand.model == "base" for demand in found)
    assert len(recording.demands(WorkloadSpec(arrivals="log", count=3, speed=2.0))) == 3
    with pytest.raises(TraceError, match="no request in the logs was answered after 100 s"):
        recording.demands(WorkloadSpec(arrivals="log", start=100.0))


def test_the_same_workers_are_simulated_with_times_fitted_to_their_sweeps(recording: Recording) -> None:
    scenario = changed(recording.described(), [], DescriptionSource(Path("log"), ""))
    spec, config = scenario.instances[0], recording.workers["w0"].config
    assert (spec.name, spec.page_size, spec.max_rows) == ("w0", config.page_size, config.max_rows)
    assert spec.memory == config.budget
    coefficients = recording.coefficients("w0")
    assert coefficients.base == pytest.approx(0.5, rel=0.05), "each sweep took 0.1 s, and 0.4 s passed until the next"
    simulation = ClusterSimulation(scenario, [coefficients], recording.demands(ALL))
    simulation.run()
    assert [request.failed for request in simulation.requests] == [""] * 8
    assert simulation.instances[0].total_blocks == recording.workers["w0"].parts.memory.pages_of(
        recording.workers["w0"].parts.routes.all_in_force()[0].spans, ""
    )
    with pytest.raises(DescriptionError, match="the log of 'w1' has 0 sweeps with times"):
        recording.coefficients("w1")


def test_what_was_is_what_is_simulated() -> None:
    """Requests that come in the middle of sweeps, of two priorities: their first and last tokens come when they did, but for
    parts of sweeps."""
    machine = Tape(make_state())
    driver = Driver(machine, machine.state)
    for number in range(12):
        prompt = [50 + number] * (4 + number)
        more = {"arrival": driver.now, "priority": number % 2}
        machine.apply(submission(f"r{number:02}", prompt, len(prompt) + 6 + number, driver.route.id, **more), driver.now)
        for _ in range(9):
            driver.turn()
    while driver.turn():
        continue
    made = Recording()
    made.add("w0", machine.began, machine.entries)
    scenario = changed(made.described(), [], DescriptionSource(Path("log"), ""))
    simulation = ClusterSimulation(scenario, [made.coefficients("w0")], made.demands(ALL))
    simulation.run()
    first, last = made.outcomes(ALL)
    assert [one.first - one.demand.at for one in simulation.requests] == pytest.approx(first, abs=1.0)
    assert [one.ended - one.demand.at for one in simulation.requests] == pytest.approx(last, abs=1.0)
    assert max(last) > 9


def test_what_another_setting_would_have_done(recording: Recording) -> None:
    """One row at a time instead of four: the last request ends later."""
    ended = []
    for rows in (4, 1):
        scenario = changed(recording.described(), [f"instances.0.max_rows={rows}"], DescriptionSource(Path("log"), ""))
        simulation = ClusterSimulation(scenario, [recording.coefficients("w0")], recording.demands(ALL))
        simulation.run()
        ended.append(max(request.ended for request in simulation.requests))
    assert ended[1] > 2 * ended[0]
