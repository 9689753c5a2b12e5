"""Replays the event log of a worker and checks that the same events lead to
bitwise the same plans.

FILE is what a worker wrote to the folder of the setting event_log. The exit
code is 0 if all plans and the final state agree, 1 if not (the first difference
is printed, field by field), and 2 if the file cannot be read, or begins after
the step of --until.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import CommandError


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--until", metavar="SWEEP", type=int, help="stop after this step (sweep) of the worker")
    parser.add_argument("--show", metavar="SWEEP", type=int, help="also print the plan of this step and the state after it")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    from ...actors.worker.event_log_file import EventLogError
    from .replay_report import as_json, as_lines, replay

    try:
        report = replay(arguments.file, until=arguments.until, show=arguments.show)
    except EventLogError as error:
        raise CommandError(str(error), 2) from error
    except OSError as error:
        raise CommandError(f"{arguments.file}: {error.strerror}; name a file of a worker's event_log", 2) from error
    if report.later:
        told = f"--until {arguments.until}: nothing was compared, as this log begins with sweep {report.later}"
        raise CommandError(f"{told}; give that one or a later one", 2)
    if arguments.json:
        print(json.dumps(as_json(report), indent=1))
    else:
        print("\n".join(as_lines(report)))
    return 0 if report.agrees else 1
