"""The commands ``upgrade status`` and ``upgrade head``: which members of a server are of which release, what is left to
roll, and the head's own roll.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from ...policies.cluster.rolling import RunningRelease, numerics_apart, roll_of
from . import CommandError
from .connection import add_url, connected
from .output import print_json

DONE, LEFT = "rolled", "to roll"
SECONDS, LOOK = 120.0, 0.2  # seconds for another head to take over, and between two looks


def upgrade_status_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def upgrade_status(arguments: argparse.Namespace) -> int:
    """Show the release of a server's head, gateways and workers, which of them are
    left to roll to the newest, and which could not be.

    Roll the head first (upgrade head), then the gateways, then the workers: start
    one of the new release, then stop one of the old with SIGTERM, which drains it.
    """
    cluster = _seen(arguments)
    if not isinstance(cluster.get("releases"), list) or not cluster["releases"]:
        raise CommandError(
            f"the server at {arguments.url} does not say which releases run there; upgrade it to one that rolls, with a stop"
        )
    view = roll_view(cluster)
    if arguments.json:
        print_json(view)
    else:
        print("\n".join(roll_lines(view)))
    return 0


def upgrade_head_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser)


def upgrade_head(arguments: argparse.Namespace) -> int:
    """Replace a server's head by one of the release that is installed now.

    Run this on the server's machine as the server's user, once the new release is
    installed in place of the one that serve was started from. Workers and gateway
    processes go on; the new head adopts them. What is started later is of the new
    release, too. The server reads its configuration file again.
    """
    former = dict(_seen(arguments))
    pid, epoch = keeper_of(former), former["succession"]["epoch"]
    try:
        os.kill(pid, signal.SIGUSR2)
    except PermissionError:
        raise CommandError(f"process {pid} is another user's; run this as the user who started the server") from None
    end = time.monotonic() + SECONDS
    while (now := _taken_over(arguments, epoch)) is None:
        if time.monotonic() > end:
            raise CommandError(f"no other head has taken over within {SECONDS:g} s; what serve prints says why")
        time.sleep(LOOK)
    print(f"the head is of release {_release(now)} (before: {_release(former)})")
    return 0


def keeper_of(cluster: Mapping[str, Any]) -> int:
    """Return the process that starts a server's heads, from the body of ``/admin/cluster``. Raises CommandError."""
    from ...runtime.cluster.process_watch import begun_at

    known = cluster.get("succession") or {}
    pid = known.get("keeper", 0)
    if not pid:
        raise CommandError("all of this server would end with its head; start it with orphan_grace above 0 to roll the head")
    if begun_at(pid) != known["keeper_begun"]:
        raise CommandError(f"the server is process {pid} of another machine; run this there")
    return int(pid)


def _seen(arguments: argparse.Namespace) -> dict[str, Any]:
    with connected(arguments) as session:
        found: dict[str, Any] = session.get("/admin/cluster", holds="workers")
    return found


def _taken_over(arguments: argparse.Namespace, former: int) -> dict[str, Any] | None:
    """Return the cluster of a head that is not of the former epoch, or None as long as there is none."""
    try:
        cluster = _seen(arguments)
    except CommandError:  # between two heads
        return None
    return cluster if cluster["succession"]["epoch"] != former else None


def _release(cluster: Mapping[str, Any]) -> str:
    return next((str(one["release"]) for one in cluster["releases"] if one["role"] == "head"), "") or "unknown"


def roll_view(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a roll from the body of ``/admin/cluster`` (``docs/schemas/upgrade-status.json``)."""
    names = ("name", "role", "release", "protocol")
    roll = roll_of([RunningRelease(*(str(one[name]) for name in names)) for one in cluster["releases"]])
    left = {one.name for one in roll.left}
    return {
        "release": roll.release,
        "members": [{**dataclasses.asdict(one), "state": LEFT if one.name in left else DONE} for one in roll.members],
        "left": [one.name for one in roll.left],
        "refused": [dict(one) for one in cluster.get("refused_releases", [])],
        "numerics": numerics_apart({one["id"]: one.get("numerics", "") for one in cluster["workers"]}),
    }


def roll_lines(view: Mapping[str, Any]) -> list[str]:
    """Return the state of a roll for people."""
    rows: list[tuple[str, ...]] = [("NAME", "ROLE", "RELEASE", "PROTOCOL", "STATE")]
    rows += [tuple(one[key] or "?" for key in ("name", "role", "release", "protocol", "state")) for one in view["members"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    left, members = view["left"], view["members"]
    some = f"left to roll to {view['release']}: {', '.join(left)} ({len(left)} of {len(members)})"
    lines += ["", some if left else f"all {len(members)} run {view['release']}"]
    for one in view["refused"]:
        who = f"{one['name'] or 'a node'} ({one['release'] or 'no release said'})"
        lines.append(f"could not be rolled: {who}: {one['why']}")
    if view["numerics"]:
        groups = "; ".join(f"{', '.join(workers)}: {numerics}" for numerics, workers in view["numerics"].items())
        rule = "a sequence stays on workers of its own while one is left, then it is computed again"
        lines.append(f"numerics differ ({groups}): {rule}")
    return lines
