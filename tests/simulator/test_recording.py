"""Event logs of live workers as a workload: when requests came, how long answers became; and workers like those."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blockwright.policies.plan.cost import cost
from blockwright.simulator.description import DescriptionError, DescriptionSource, WorkloadSpec, changed
from blockwright.simulator.recording import Recording
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.traces import TraceError
from blockwright.tests.claims import claim
from blockwright.tests.policies.event_tape import Driver, Tape, drive, make_state
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
    coefficients, says = recording.coefficients("w0")
    assert says == f"a fit to {len(recording.sweeps['w0'])} sweeps of its log"
    assert coefficients.base == pytest.approx(0.5, rel=0.05), "each sweep took 0.1 s, and 0.4 s passed until the next"
    simulation = ClusterSimulation(scenario, [coefficients], recording.demands(ALL))
    simulation.run()
    assert [request.failed for request in simulation.requests] == [""] * 8
    assert simulation.instances[0].total_blocks == recording.workers["w0"].parts.memory.pages_of(
        recording.workers["w0"].parts.routes.all_in_force()[0].spans, ""
    )
    assert recording.coefficients("w1") == (coefficients, says.replace("its log", "the logs of others"))
    with pytest.raises(DescriptionError, match="the log of 'w1' has no sweep with a time, and no other log has one; give"):
        Recording().coefficients("w1")


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        (3, r"the mean of 1 sweep of its log, too few to fit anything: \S+ s, whatever is in it"),
        (16, r"a fit to \d+ sweeps of its log, too few to fit more than \S+ s and \S+ s a token"),
        (200, r"a fit to \d+ sweeps of its log"),
    ],
)
def test_a_log_of_few_sweeps_is_fitted_with_fewer_terms(turns: int, says: str) -> None:
    """All its sweeps together take as long as they did, from end to end."""
    machine = Tape(make_state())
    drive(machine, machine.state, 4, turns)
    made = Recording()
    made.add("w0", machine.began, machine.entries)
    coefficients, said = made.coefficients("w0")
    assert re.fullmatch(says, said)
    assert sum(cost(plan, coefficients) for plan, _ in made.sweeps["w0"]) == pytest.approx(made.busy["w0"])
    scenario = changed(made.described(), [], DescriptionSource(Path("log"), ""))
    simulation = ClusterSimulation(scenario, [coefficients], made.demands(ALL))
    simulation.run()
    assert all(request.ended > 0 for request in simulation.requests)


@claim("Event logs of a production run are simulated again, also with other settings", of="simulator")
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
    simulation = ClusterSimulation(scenario, [made.coefficients("w0")[0]], made.demands(ALL))
    simulation.run()
    first, last = made.outcomes(ALL)
    assert [one.first - one.demand.at for one in simulation.requests] == pytest.approx(first, abs=1.0)
    assert [one.ended - one.demand.at for one in simulation.requests] == pytest.approx(last, abs=1.0)
    assert max(last) > 9


@claim("Event logs of a production run are simulated again, also with other settings", of="simulator")
def test_what_another_setting_would_have_done(recording: Recording) -> None:
    """One row at a time instead of four: the last request ends later."""
    ended = []
    for rows in (4, 1):
        scenario = changed(recording.described(), [f"instances.0.max_rows={rows}"], DescriptionSource(Path("log"), ""))
        simulation = ClusterSimulation(scenario, [recording.coefficients("w0")[0]], recording.demands(ALL))
        simulation.run()
        ended.append(max(request.ended for request in simulation.requests))
    assert ended[1] > 2 * ended[0]
