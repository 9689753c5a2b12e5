"""The command ``simulate``: a cluster in virtual time, from a description, from logs, or from both.

``simulate_report.py`` makes the output.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from . import CommandError, command_errors
from .output import FiguresFile, FittedTable, print_json, print_tables

if TYPE_CHECKING:
    from ...policies.plan.coefficients import Coefficients
    from ...simulator.description import DescriptionSource, Scenario
    from ...simulator.recording import Recording
    from ...simulator.simulation import ClusterSimulation
    from ...simulator.workload import WorkloadRequest
    from .simulate_report import Target

Outcomes = tuple[list[float], list[float]]  # seconds until the first and the last token
STEPS = 200  # steps of the progress bar
MOST = 1000  # most simulations in one call
OF_LOGS = ("start", "speed", "count")  # workload fields that apply with --from


@dataclass(frozen=True, slots=True)
class Described:
    """A described simulation, from CONFIG, from logs, or from both."""

    scenario: Scenario
    source: DescriptionSource
    costs: Sequence[tuple[Coefficients, str]]  # for each entry of instances: coefficients, and their source
    requests: list[WorkloadRequest]
    recorded: Outcomes | None  # recorded outcomes of the requests in logs


def simulate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", type=Path, nargs="?")
    text = "event log of a worker; repeat it for all files of all workers"
    parser.add_argument("--from", dest="logs", metavar="LOG", type=Path, action="append", default=[], help=text)
    text = "another value for a field of CONFIG, like instances.0.count=4, or several, a row each (=1,2,4); may be repeated"
    parser.add_argument("--set", metavar="FIELD=VALUE", action="append", default=[], help=text)
    text = "what has to be met, like 'ttft p99 < 1'; of several values of --set it names the largest load (a field of"
    text += " workload or models, a delay), or else the smallest; the exit code is 1 if nothing meets all; may be repeated"
    parser.add_argument("--target", metavar="TARGET", action="append", default=[], help=text)
    parser.add_argument("--log", metavar="FILE", type=Path, help="write every decision to FILE as a line of JSON")
    parser.add_argument("--json", metavar="FILE", help="store the figures; '-': print them instead of the table")
    text = "draw the course of the run to FILE: requests that run and wait, KV memory, time to first token"
    parser.add_argument("--svg", metavar="FILE", help=text)


def simulate(arguments: argparse.Namespace) -> int:
    """Simulate a cluster in virtual time: latency, time to first token, throughput,
    memory and preemptions for a workload on a number of instances, which run the
    scheduler of the real workers.

    CONFIG is a TOML or JSON file (docs/simulator.md). With --from, the workload is
    what live workers logged (setting event_log), with the changes of --set; without
    CONFIG the instances are like those workers.
    """
    from .simulate_report import document, parse_target, picture, show

    targets = [parse_target(text) for text in arguments.target]
    combined = combinations(arguments.set)
    stored = FiguresFile("--json", arguments.json) if arguments.json not in (None, "-") else None
    drawn = FiguresFile("--svg", arguments.svg) if arguments.svg is not None else None
    if len(combined) > 1:
        return _run_several(arguments, combined, targets, stored)
    arguments.set = combined[0]
    began = time.perf_counter()
    simulation, costs, recorded = _simulate(arguments)
    logs = [str(log) for log in arguments.logs]
    settings = {"config": str(arguments.config or ""), "from": logs, "set": arguments.set, "costs": costs}
    found = document(simulation, settings, recorded)
    if drawn is not None:
        drawn.write(picture(found))
    code = 0 if all(target.met(found) for target in targets) else 1
    if arguments.json == "-":
        print_json(found)
        return code
    show(found)
    for target in targets:
        print(f"{target.text}: {'met' if target.met(found) else 'not met'}")
    seconds = time.perf_counter() - began
    print(f"simulated in {seconds:.1f} s, {found['seconds'] / seconds:,.0f} times real time", file=sys.stderr)
    if stored is not None:
        stored.store(found)
    return code


def combinations(changes: Sequence[str]) -> list[list[str]]:
    """Return the changes of each simulation. ``field=1,2`` and ``field=[1,2]`` are two values. Raise CommandError."""
    choices = [[f"{change.partition('=')[0]}={value}" for value in _values(change.partition("=")[2])] for change in changes]
    count = 1
    for one in choices:
        count *= len(one)
    if count > MOST:
        raise CommandError(f"--set describes {count:,} simulations; give at most {MOST:,} combinations of values", 2)
    return [list(one) for one in itertools.product(*choices)]


def _values(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        parts = [part.strip() for part in text.split(",")]
        return parts if len(parts) > 1 and all(parts) else [text]
    if isinstance(found, list) and found and not any(isinstance(one, list | dict) for one in found):
        return [one if isinstance(one, str) else json.dumps(one) for one in found]
    return [text]


def _run_several(
    arguments: argparse.Namespace, combined: list[list[str]], targets: list[Target], stored: FiguresFile | None
) -> int:
    """Simulate each combination of values, and print a row for each."""
    from .simulate_report import document, rows, varied, verdict

    if arguments.log:
        raise CommandError("--log writes the decisions of one simulation; give one value to each --set", 2)
    if arguments.svg is not None:
        raise CommandError("--svg draws one simulation; give one value to each --set", 2)
    found = []
    for changes in combined:
        arguments.set = changes
        simulation, costs, recorded = _simulate(arguments)
        logs = [str(log) for log in arguments.logs]
        settings = {"config": str(arguments.config or ""), "from": logs, "set": changes, "costs": costs}
        found.append(document(simulation, settings, recorded))
    met = [all(target.met(one) for target in targets) for one in found]
    if arguments.json == "-":
        print_json(found)
        return 0 if any(met) else 1
    head, *table = rows(combined, found, targets)
    print_tables(FittedTable(head, table, numbers=len(head) - len(varied(combined)) - bool(targets)), width=160)
    if targets:
        print(verdict(combined, found, targets))
    if stored is not None:
        stored.store(found)
    return 0 if any(met) else 1


def _simulate(arguments: argparse.Namespace) -> tuple[ClusterSimulation, dict[str, str], Outcomes | None]:
    """Return the finished simulation, the source of the sweep costs by name of instances, and the recorded outcomes."""
    from ...simulator.assembly import simulation_of
    from ...simulator.control_step import ClusterFatalError
    from ...simulator.instances import NoCapacityError
    from ..program.progress import Bar

    described = _described(arguments)
    requests = described.requests
    log = None
    try:
        log = arguments.log.open("w") if arguments.log else None
        costs = [found for found, _ in described.costs]
        simulation = simulation_of(described.scenario, costs, requests, note=_noting(log) if log else None)
        with Bar(len(requests), sys.stderr.isatty()) as bar:
            bar.begin("simulating")
            simulation.run(_steps(len(requests), bar.advance))
    except NoCapacityError as error:
        raise CommandError(str(described.source.error(["instances", error.entry, "memory"], str(error))), 2) from None
    except ClusterFatalError as error:
        raise CommandError(f"the simulated cluster ends: {error}") from None
    except OSError as error:
        raise CommandError(f"{arguments.log} cannot be written ({error.strerror}); check --log", 2) from None
    finally:
        if log:
            log.close()
    says = {spec.name: says for spec, (_, says) in zip(described.scenario.instances, described.costs, strict=True)}
    return simulation, says, described.recorded


def _described(arguments: argparse.Namespace) -> Described:
    from ...simulator.description import DescriptionError, DescriptionSource, changed, read
    from ...simulator.traces import TraceError
    from ...simulator.workload import demands

    if arguments.config is None and not arguments.logs:
        raise CommandError("give CONFIG, or event logs with --from", 2)
    recording = _recorded(arguments.logs)
    with command_errors(DescriptionError, TraceError):
        if arguments.logs:
            _check_changes(arguments.set)
        if arguments.config is not None:
            scenario, source = read(arguments.config, arguments.set)
        else:
            source = DescriptionSource(Path("--set"), "")
            scenario = changed(recording.described(), arguments.set, source)
        if not arguments.logs:
            costs = _costs(scenario, source, None)
            requests = demands(scenario.workload, scenario.models, scenario.seed, source.path.parent)
            return Described(scenario, source, costs, requests, None)
        costs = _costs(scenario, source, recording)
        requests = recording.demands(scenario.workload)
        for name in {demand.model: None for demand in requests}.keys() - {model.name for model in scenario.models}:
            raise source.error(["models"], f"lack {name!r}, which the logs have requests for; describe it, too")
        return Described(scenario, source, costs, requests, recording.outcomes(scenario.workload))


def _costs(scenario: Scenario, source: DescriptionSource, recording: Recording | None) -> list[tuple[Coefficients, str]]:
    """Return the sweep costs of each entry of instances, from its profile or else from the logs. Raise DescriptionError."""
    from ...simulator.description import profile

    if recording is None:
        if scenario.workload.arrivals == "log":
            raise source.error(["workload", "arrivals"], "is 'log'; give event logs with --from, or another one")
        for n, spec in enumerate(scenario.instances):
            if not spec.profile:
                raise source.error(["instances", n, "profile"], "is empty; name a file that blockwright profile stored")
    return [
        (profile(spec, n, source), f"the profile {spec.profile}")
        if recording is None or spec.profile
        else recording.coefficients(spec.name)
        for n, spec in enumerate(scenario.instances)
    ]


def _check_changes(changes: Sequence[str]) -> None:
    """Raise CommandError for a workload field that has no effect with --from.

    Requests of logs arrive as recorded: accepting a rate and ignoring it would mislead.
    """
    for change in changes:
        field, _, name = change.partition("=")[0].partition(".")
        if field == "workload" and name not in OF_LOGS:
            heeded = ", ".join(f"workload.{one}" for one in OF_LOGS)
            raise CommandError(
                f"--set {field}{'.' * bool(name)}{name} changes nothing with --from; of the workload set {heeded}", 2
            )


def _recorded(paths: list[Path]) -> Recording:
    from ...actors.worker.event_log_file import EventLog, EventLogError
    from ...simulator.recording import Recording

    recording, logs = Recording(), dict[tuple[str, float, int, int], EventLog]()
    try:
        for path in paths:
            log = EventLog(path)
            header = log.header
            # sorts a worker's files in the order in which they were written
            place = header.worker, header.written, header.incarnation, header.part
            if place in logs:
                raise CommandError(f"{path} and {logs[place].path} are the same part of a log; name it once with --from", 2)
            logs[place] = log
        for _, log in sorted(logs.items(), key=itemgetter(0)):
            log.begin(partial(recording.add, log.header.worker, entries=(entry for _, entry in log)))
    except EventLogError as error:
        raise CommandError(str(error), 2) from None
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}; check --from", 2) from None
    return recording


def _noting(log: IO[str]) -> Callable[[dict[str, Any]], None]:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return lambda entry: print(encode(entry), file=log)


def _steps(total: int, done: Callable[[int], None]) -> Callable[[], None]:
    """Return a callback that updates a bar in steps: an update for each request would take longer than the simulation."""
    step, ended = max(1, total // STEPS), 0

    def one_more() -> None:
        nonlocal ended
        ended += 1
        if not ended % step or ended == total:
            done(step if not ended % step else ended % step)

    return one_more
