"""The command ``chaos``."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ...policies.nearest import suggestion
from . import CommandError
from .connection import add_url, connected
from .ps import pause

PATIENCE = 60.0  # seconds to wait for the worker's return
SLOW = 10.0  # seconds for which a worker is slow
STRETCH = 0.05  # seconds for which a slow worker runs, and then stops
LOOK = 0.05  # seconds between two queries of the server
LOCAL = ("127.0.0.1", "localhost", "::1")
View = Mapping[str, Any]


def chaos_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=["kill", "stop", "slow"], help="kill it, freeze it, or let it run only half of the time"
    )
    parser.add_argument("worker", metavar="WORKER", help="name of a worker, such as w0")
    parser.add_argument("--seconds", type=pause, metavar="SECONDS", help="how long slow lasts (10)")
    add_url(parser)


def chaos(arguments: argparse.Namespace) -> int:
    """Kill, stop or slow a worker of your own server and report what happens
    until it serves again.

    WORKER is a name from 'blockwright ps'. kill ends its process (SIGKILL); stop
    freezes it (SIGSTOP) until the server notices and replaces it; slow lets it run
    only half of the time, for --seconds. The server must run on this machine and
    belong to the same user.
    """
    if urlsplit(arguments.url).hostname not in LOCAL:
        raise CommandError(f"{arguments.url} is another machine; run it there", 2)
    if arguments.seconds is not None and arguments.what != "slow":
        raise CommandError(f"--seconds says how long slow lasts; leave it out of {arguments.what}", 2)
    with connected(arguments) as session:
        view = session.get("/admin/cluster", holds="workers")
        worker = found(view, arguments.worker)
        if arguments.what == "slow":
            seconds = SLOW if arguments.seconds is None else arguments.seconds
            print(f"{worker['id']} (pid {worker['pid']}) runs half of the time for {seconds:g} s", flush=True)
            with _refused(worker):
                slow(worker["pid"], seconds, os.kill, time.sleep)
            print(f"{worker['id']} runs at full speed again", flush=True)
            return 0
        with _refused(worker):
            os.kill(worker["pid"], signal.SIGKILL if arguments.what == "kill" else signal.SIGSTOP)
        print(
            f"{worker['id']} (pid {worker['pid']}) {'is killed' if arguments.what == 'kill' else 'is frozen (SIGSTOP)'}",
            flush=True,
        )
        seen = max((event["number"] for event in view["events"]), default=0)
        looks = (session.get("/admin/cluster", holds="workers") for _ in _times(PATIENCE))
        for line in follow(looks, worker["id"], seen):
            print(line, flush=True)
    return 0


def found(view: View, name: str) -> View:
    """Return the worker of that name, which has a process; raise CommandError."""
    workers = {worker["id"]: worker for worker in view["workers"]}
    if name not in workers:
        raise CommandError(f"there is no worker {name!r}; {suggestion(name, list(workers))}", 2)
    worker: View = workers[name]
    if not worker["pid"] or worker["state"] in ("down", "starting"):
        raise CommandError(f"worker {name} is {worker['state']}; wait until 'blockwright ps' shows it ready")
    return worker


def follow(looks: Iterator[View], worker: str, seen: int) -> Iterator[str]:
    """Yield the server's events after ``seen`` until the worker serves again; raise CommandError if it does not."""
    for view in looks:
        for event in view["events"]:
            if event["number"] > seen:
                seen = event["number"]
                # one for every model when a worker leaves and when it comes back: ps shows them
                if event["event"] == "routes":
                    continue
                yield f"{time.strftime('%H:%M:%S', time.localtime(event['at']))}  {event['text']}"
                if event["event"] == "ready" and event["subject"] == worker:
                    return
    raise CommandError(f"worker {worker} has not come back after {PATIENCE:g} s; see the server's log")


def slow(pid: int, seconds: float, kill: Callable[[int, int], None], sleep: Callable[[float], None]) -> None:
    """Stop and continue a process in turns. It runs again at the end, whatever happens."""
    try:
        for _ in range(round(seconds / (2 * STRETCH))):
            kill(pid, signal.SIGSTOP)
            sleep(STRETCH)
            kill(pid, signal.SIGCONT)
            sleep(STRETCH)
    finally:
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGCONT)


def _times(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
        time.sleep(LOOK)


@contextlib.contextmanager
def _refused(worker: View) -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        raise CommandError(f"worker {worker['id']} has no process {worker['pid']} here; is it on another machine?") from None
    except PermissionError:
        raise CommandError(f"process {worker['pid']} is another user's; run it as that user") from None
