"""The commands that read logs: messages of actors drawn as trees, and the replay of an event log."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...policies.nearest import nearest
from . import COMMANDS, CommandError
from .output import print_json

if TYPE_CHECKING:
    from ...actors.controller.event_log import ControlLog
    from ...actors.worker.event_log_file import EventLog, Header
    from ...policies.plan.sweep_plan import SweepPlan
    from ...policies.sweep.event_log import Difference, Entry
    from ...policies.sweep.state import SweepState

SECOND = [words[1] for words in map(str.split, COMMANDS) if words[0] == "trace" and words[1:]]
MOST_FIELDS = 20  # most fields of a difference that are shown
WIDTH = 160  # most characters of a value that are shown


def trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    parser.add_argument("--trace", metavar="ID", default="", help="only traces whose id begins with this")


def trace(arguments: argparse.Namespace) -> int:
    """Draw logs of messages as trees: caller and callee, time, duration, and result
    of each call.

    FILE is what a node wrote with Node(message_log=...). Give the files of several
    nodes to see calls between them.
    """
    from ...actors.worker.event_log_file import is_event_log
    from ...runtime.tracing.trace_reader import render

    try:
        for path in filter(is_event_log, arguments.files):
            raise CommandError(f"{path} is an event log; replay it: blockwright trace replay {path}", 2)
        for line in render(arguments.files, arguments.trace):
            print(line)
    except FileNotFoundError as error:
        raise CommandError(_no_file(str(error.filename)), 2) from None
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be read ({error.strerror}); name the log of a node", 2) from None
    except ValueError as error:
        raise CommandError(f"{', '.join(map(str, arguments.files))}: {error}", 2) from None
    return 0


def _no_file(name: str) -> str:
    """Return the error for a file that does not exist, which may be a misspelt second word of the command."""
    if nearest(name, SECOND):
        return f"there is no command {f'trace {name}'!r}, and no file {name}; did you mean trace {nearest(name, SECOND)}?"
    return f"there is no file {name}; name what Node(message_log=...) wrote"


def trace_replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--until", metavar="SWEEP", type=int, help="stop after this step (sweep) of a worker")
    parser.add_argument("--show", metavar="SWEEP", type=int, help="also print the plan of this step and the state after it")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def trace_replay(arguments: argparse.Namespace) -> int:
    """Replay the event log of a worker, and check that the same events lead to
    bitwise the same plans, or of the controller, to the same decisions.

    FILE is what a worker or the controller wrote to the folder of the setting
    event_log. The exit code is 0 if all plans or decisions and the final state
    agree, 1 if not (the first difference is printed, field by field), and 2 if the
    file cannot be read, or begins after the step of --until.
    """
    from ...actors.worker.event_log_file import EventLogError

    try:
        report = replay(arguments.file, until=arguments.until, show=arguments.show)
    except EventLogError as error:
        raise CommandError(str(error), 2) from error
    except OSError as error:
        raise CommandError(f"{arguments.file}: {error.strerror}; name a file of the setting event_log", 2) from error
    if report.header.machine == "control" and (arguments.until, arguments.show) != (None, None):
        sentence = "--until and --show name a step of a worker, and this is the log of the controller"
        raise CommandError(f"{arguments.file}: {sentence}; leave them out", 2)
    if report.later:
        sentence = f"--until {arguments.until}: nothing was compared, as this log begins with sweep {report.later}"
        raise CommandError(f"{sentence}; give that one or a later one", 2)
    if arguments.json:
        print_json(as_json(report))
    else:
        print("\n".join(as_lines(report)))
    return 0 if report.agrees else 1


@dataclass(slots=True)
class Report:
    """The outcome of a replay.

    ``sweeps`` to ``effects`` count what was replayed. ``byte``: offset of the entry that differs. ``wanted``: sweep to
    show. ``until``: last sweep to replay, if not all. ``later``: the first sweep of a log that begins after ``until``, so
    that nothing was compared; else 0.
    """

    file: Path
    header: Header
    wanted: int | None = None
    until: int | None = None
    later: int = 0
    sweeps: int = 0
    first: int = 0  # number of the first plan
    last: int = 0  # number of the last plan
    events: int = 0
    commits: int = 0
    effects: int = 0
    digests: int = 0
    event: str = ""  # kind and time of the last event of a controller
    complete: bool = False  # the whole file was replayed
    ended: bool = False  # the log was closed normally, and replayed to its end
    failed: str = ""  # error that ended the worker
    torn: int = 0  # bytes of a partial record at the end
    byte: int = 0
    differences: list[Difference] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        return not self.differences


def replay(path: Path, *, until: int | None = None, show: int | None = None) -> Report:
    """Replay up to the first difference, or until sweep ``until`` is planned. Raise EventLogError, OSError."""
    from ...actors.controller.event_log import ControlLog
    from ...actors.worker.event_log_file import EventLog, OtherMachineError

    try:
        log = EventLog(path)
    except OtherMachineError:
        return _replay_controller(ControlLog(path))
    return _replay_worker(log, until, show)


def _replay_controller(log: ControlLog) -> Report:
    from ...policies.control.event_log import ControlReplayer, Handled, Reached
    from ...policies.sweep.event_log import Ended

    report, machine = Report(log.path, log.header), log.begin(ControlReplayer)
    for report.byte, entry in log:
        match entry:
            case Handled(event, now, effects):
                report.events, report.effects = report.events + 1, report.effects + len(effects)
                report.event = f"{type(event).__name__} at {now:.3f} s"
            case Reached():
                report.digests += 1
            case Ended():
                report.ended = True
        report.differences = machine.feed(entry)
        if report.differences:
            break
    else:
        report.torn, report.complete = log.torn, True
    return report


def _replay_worker(log: EventLog, until: int | None, show: int | None) -> Report:
    from ...policies.plan.sweep_plan import SweepPlan
    from ...policies.sweep.event_log import Applied, Committed, Ended, Failed, Planned, Replayer

    report, machine = Report(log.path, log.header, show, until), log.begin(Replayer)
    for report.byte, entry in log:
        if until is not None and not report.sweeps and (number := _number(entry)) > max(until, 0):
            report.later = number
            break
        report.differences = machine.feed(entry)
        match entry:
            case Applied():
                report.events += 1
            case Committed():
                report.commits += 1
            case Failed():
                report.failed = entry.error
            case Ended():
                report.ended = True
            case Planned(plan=SweepPlan() as plan):
                report.first = report.first or plan.number
                report.sweeps, report.last = report.sweeps + 1, plan.number
                if plan.number == show:
                    report.shown = {"plan": _table(plan), "state": _summary(machine.state)}
        if report.differences or (until is not None and report.sweeps and report.last >= until):
            break
    else:
        report.differences = machine.end()
        report.torn, report.complete = log.torn, True
    return report


def _number(entry: Entry) -> int:
    """Return the number of the plan in an entry; 0 if there is none."""
    from ...policies.sweep.event_log import Planned

    return entry.plan.number if isinstance(entry, Planned) and entry.plan is not None else 0


def _table(plan: SweepPlan) -> dict[str, Any]:
    return asdict(plan)


def _summary(state: SweepState) -> dict[str, Any]:
    views = ("number", "open_plans", "waiting", "running")
    return {**{name: getattr(state, name) for name in views}, "free_bytes": state.parts.memory.free_bytes, **state.counters}


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as plain data (``docs/schemas/trace-replay.json``)."""
    found = [asdict(difference) for difference in report.differences]
    return {
        "file": str(report.file),
        **{name: getattr(report.header, name) for name in ("version", "machine", "worker", "incarnation", "part")},
        **{name: getattr(report, name) for name in ("sweeps", "last", "events", "commits", "effects")},
        **{name: getattr(report, name) for name in ("ended", "failed", "torn")},
        "agrees": report.agrees,
        "difference": {"byte": report.byte, "fields": found} if found else None,
        "shown": report.shown or None,
    }


def as_lines(report: Report) -> Iterator[str]:
    header = report.header
    yield f"{header.worker}, incarnation {header.incarnation}, part {header.part}, written by blockwright {header.version}"
    writer = "controller" if header.machine == "control" else "worker"
    done = f"{report.sweeps} sweeps (up to {report.last}), {report.events} events, {report.commits} commits replayed"
    agree = "all plans agree" if report.sweeps else "no plan was compared"
    if header.machine == "control":
        done = f"{report.events} events, {report.effects} effects, {report.digests + report.ended} digests replayed"
        agree = "all decisions agree" if report.events else "no decision was compared"
    yield f"{done}: {agree if report.agrees else 'DIFFERENT'}"
    if report.complete and report.until is not None and 0 < report.last < report.until:
        yield f"sweep {report.until} is not in this log, which ends with sweep {report.last}"
    if report.wanted is not None and not report.shown:
        yield f"sweep {report.wanted} was not replayed, so it is not shown; replayed were {report.first} to {report.last}"
    for name, part in report.shown.items():
        yield f"{name} of sweep {report.shown['plan']['number']}:"
        yield from (f"  {key:<12} {_short(value)}" for key, value in part.items())
    for difference in report.differences[:MOST_FIELDS]:
        yield f"  {difference.field}: recorded {_short(difference.recorded)}, replayed {_short(difference.replayed)}"
    if len(report.differences) > MOST_FIELDS:
        yield f"  and {len(report.differences) - MOST_FIELDS} more fields"
    if report.differences:
        place = f"event {report.events} ({report.event})" if header.machine == "control" else f"sweep {report.last}"
        yield f"  in {place}, the entry at byte {report.byte}"
    if report.failed:
        yield f"the worker failed here: {report.failed}"
    elif report.torn:
        yield f"the last {report.torn} bytes are a partial record: the {writer} was killed while writing, or still writes"
    elif report.complete and not report.ended:
        yield f"the log was not closed: the {writer} was killed or is still running"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
