"""Simulates a cluster in virtual time: latency, time to first token, throughput,
memory and preemptions for a workload on a number of instances, which run the
scheduler of the real workers.

CONFIG is a TOML or JSON file (docs/simulator.md). With --from, the workload is
what live workers logged (setting event_log), with the changes of --set; without
CONFIG the instances are like those workers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from blockwright.api.commands import CommandError

if TYPE_CHECKING:
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.simulator.description import Scenario
    from blockwright.simulator.recording import Recording
    from blockwright.simulator.simulation import ClusterSimulation
    from blockwright.simulator.workload import Demand

Outcomes = tuple[list[float], list[float]]  # seconds until the first and until the last token
STEPS = 200  # of the progress bar


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", type=Path, nargs="?")
    text = "event log of a worker; repeat it for more workers, and for the files of one in order"
    parser.add_argument("--from", dest="logs", metavar="LOG", type=Path, action="append", default=[], help=text)
    text = "another value for a field of CONFIG, like instances.0.count=4; may be repeated"
    parser.add_argument("--set", metavar="FIELD=VALUE", action="append", default=[], help=text)
    parser.add_argument("--log", metavar="FILE", type=Path, help="write every decision to FILE as a line of JSON")
    parser.add_argument("--json", metavar="FILE", help="store the figures; '-': print them instead of the table")


def run(arguments: argparse.Namespace) -> int:
    from blockwright.api.commands.simulate_report import document, show

    began = time.perf_counter()
    simulation, costs, recorded = _simulate(arguments)
    logs = [str(log) for log in arguments.logs]
    settings = {"config": str(arguments.config or ""), "from": logs, "set": arguments.set, "costs": costs}
    found = document(simulation, settings, recorded)
    if arguments.json == "-":
        print(json.dumps(found, indent=1))
        return 0
    show(found)
    seconds = time.perf_counter() - began
    print(f"simulated in {seconds:.1f} s, {found['seconds'] / seconds:,.0f} times real time", file=sys.stderr)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _simulate(arguments: argparse.Namespace) -> tuple[ClusterSimulation, dict[str, str], Outcomes | None]:
    """The simulation at its end; by name of instances what says how long their sweeps take; what was recorded."""
    from blockwright.api.program.progress import Bar
    from blockwright.simulator.overload import simulation_of

    scenario, costs, requests, recorded = _described(arguments)
    coefficients = [found for found, _ in costs]
    log = None
    try:
        log = arguments.log.open("w") if arguments.log else None
        simulation = simulation_of(scenario, coefficients, requests, note=_noting(log) if log else None)
        with Bar(len(requests), sys.stderr.isatty()) as bar:
            bar.begin("simulating")
            simulation.run(_steps(len(requests), bar.advance))
    except OSError as error:
        raise CommandError(f"{arguments.log} cannot be written ({error.strerror}); check --log", 2) from None
    finally:
        if log:
            log.close()
    return simulation, {spec.name: says for spec, (_, says) in zip(scenario.instances, costs, strict=True)}, recorded


def _described(
    arguments: argparse.Namespace,
) -> tuple[Scenario, list[tuple[Coefficients, str]], list[Demand], Outcomes | None]:
    """What is to run, from CONFIG, from logs, or from both; and what became of the requests of logs."""
    from blockwright.simulator.description import DescriptionError, DescriptionSource, changed, profile, read
    from blockwright.simulator.traces import TraceError
    from blockwright.simulator.workload import demands

    if arguments.config is None and not arguments.logs:
        raise CommandError("give CONFIG, or event logs with --from", 2)
    recording = _recorded(arguments.logs)
    try:
        if arguments.config is not None:
            scenario, source = read(arguments.config, arguments.set)
        else:
            source = DescriptionSource(arguments.logs[0], "")
            scenario = changed(recording.described(), arguments.set, source)
        costs = [
            (profile(spec, n, source), f"the profile {spec.profile}") if spec.profile else recording.coefficients(spec.name)
            for n, spec in enumerate(scenario.instances)
        ]
        if arguments.logs:
            return scenario, costs, recording.demands(scenario.workload), recording.outcomes(scenario.workload)
        return scenario, costs, demands(scenario.workload, scenario.models, scenario.seed, source.path.parent), None
    except (DescriptionError, TraceError) as error:
        raise CommandError(str(error), 2) from None


def _recorded(logs: list[Path]) -> Recording:
    from blockwright.actors.worker.event_log_file import EventLog, EventLogError
    from blockwright.simulator.recording import Recording

    recording = Recording()
    for path in logs:
        try:
            log = EventLog(path)
            recording.add(log.header.worker, log.began, (entry for _, entry in log))
        except EventLogError as error:
            raise CommandError(str(error), 2) from None
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}; check --from", 2) from None
    return recording


def _noting(log: IO[str]) -> Callable[[dict[str, Any]], None]:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return lambda entry: print(encode(entry), file=log)


def _steps(total: int, done: Callable[[int], None]) -> Callable[[], None]:
    """Tell a bar not of every request, which would take longer than to simulate it."""
    step, ended = max(1, total // STEPS), 0

    def one_more() -> None:
        nonlocal ended
        ended += 1
        if not ended % step or ended == total:
            done(step if not ended % step else ended % step)

    return one_more
