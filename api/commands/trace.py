"""The command ``trace``."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import CommandError


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
            raise CommandError(f"{path} is the event log of a worker; replay it: blockwright trace replay {path}", 2)
        for line in render(arguments.files, arguments.trace):
            print(line)
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}", 2) from error
    except ValueError as error:
        raise CommandError(f"{', '.join(map(str, arguments.files))}: {error}", 2) from None
    return 0
