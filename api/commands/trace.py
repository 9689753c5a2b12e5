"""Draws logs of messages as trees: caller and callee, time, duration, and result
of each call.

FILE is what a node wrote with Node(message_log=...). Give the files of several
nodes to see calls between them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ...policies.nearest import nearest
from . import COMMANDS, CommandError

SECOND = [words[1] for words in map(str.split, COMMANDS) if words[0] == "trace" and words[1:]]


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    parser.add_argument("--trace", metavar="ID", default="", help="only traces whose id begins with this")


def run(arguments: argparse.Namespace) -> int:
    from ...actors.worker.event_log_file import is_event_log
    from ...runtime.tracing.trace_reader import render

    try:
        for path in filter(is_event_log, arguments.files):
            raise CommandError(f"{path} is the event log of a worker; replay it: blockwright trace replay {path}", 2)
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
