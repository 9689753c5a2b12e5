"""The command ``upgrade status``: which members of a server are of which release, and what is left to roll."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from ...policies.cluster.rolling import RunningRelease, numerics_apart, roll_of
from . import CommandError
from .connection import add_url, connected
from .output import print_json

DONE, LEFT = "rolled", "to roll"


def upgrade_status_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def upgrade_status(arguments: argparse.Namespace) -> int:
    """Show the release of a server's head, gateways and workers, which of them are
    left to roll to the newest, and which could not be.

    Roll the head first, then the gateways, then the workers: start one of the new
    release, then stop one of the old with SIGTERM, which drains it.
    """
    with connected(arguments) as session:
        cluster = session.get("/admin/cluster", holds="workers")
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
