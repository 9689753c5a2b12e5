"""Tables of ``blockwright ps --actors``, from ``/admin/actors``: nodes, and all actors as the supervision tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group

from .output import FittedTable
from .screen import Screenful, View
from .tables import milliseconds


def actors_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows in display order, independent of the process that answered; times in seconds."""
    nodes = sorted(body["nodes"], key=_by_name)
    rows = [{"node": node["name"], **actor} for node in nodes for actor in node["actors"]]
    return {
        "nodes": [
            {
                "name": node["name"],
                "incarnation": node["incarnation"],
                "lag": node["lag"],
                "actors": len(node["actors"]),
                "peers": len(node["peers"]),
                "dead_letters": sum(node["dead_letters"].values()),
                "dropped": sum(node["dropped"].values()),
            }
            for node in nodes
        ],
        "actors": _in_tree(rows),
    }


def _in_tree(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every actor after its supervisor, with its ``depth`` below the top.

    Actors without a supervisor are at the top: the head's first, then each node's own. Processes keep their places across
    restarts.
    """
    below: dict[str, list[dict[str, Any]]] = {}
    known = {_address(row) for row in rows}
    for row in rows:
        below.setdefault(row["supervisor"] if row["supervisor"] in known else "", []).append(row)
    below.get("", []).sort(key=lambda row: (row["name"].startswith("$"), _address(row) not in below, row["node"]))
    for children in below.values():
        if all(row["kind"] == "Process" for row in children):
            children.sort(key=_by_name)
    found: list[dict[str, Any]] = []
    waiting = [(0, row) for row in reversed(below.get("", []))]
    while waiting:
        depth, row = waiting.pop()
        found.append({**row, "depth": depth})
        waiting += [(depth + 1, child) for child in reversed(below.get(_address(row), []))]
    return found


def _by_name(row: Mapping[str, Any]) -> tuple[str, int]:
    """Return the sort key of a name, which puts w2 before w10."""
    name: str = row["name"]
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or -1)


def _address(row: Mapping[str, Any]) -> str:
    return f"{row['node']}/{row['name']}"


def _state(row: Mapping[str, Any]) -> str:
    missing = ", ".join(f"{name} down: {why}" for name, why in row["missing"].items())
    return row["ending"] or missing or row["current"] or "idle"


def _waiting(row: Mapping[str, Any]) -> int:
    depth: int = row["normal"]["depth"] + row["urgent"]["depth"]
    return depth


def actors_tables(view: View) -> Screenful:
    nodes = FittedTable(
        ("NODE", "LIFE", "ACTORS", "PEERS", "LAG", "DEAD LETTERS", "DROPPED"),
        [
            (
                node["name"],
                *(str(node[key]) for key in ("incarnation", "actors", "peers")),
                milliseconds(node["lag"]),
                *(str(node[key]) for key in ("dead_letters", "dropped")),
            )
            for node in view["nodes"]
        ],
        numbers=6,
    )
    actors = FittedTable(
        ("ACTOR", "KIND", "STATE", "FOR", "WAIT", "URGENT", "OLDEST", "BESIDE", "HANDLED", "FAILED", "RESTARTS"),
        [
            (
                f"{'  ' * row['depth']}{_address(row)}#{row['life']}",
                row["kind"],
                _state(row),
                milliseconds(row["current_age"] if row["current"] else None),
                str(row["normal"]["depth"]),
                str(row["urgent"]["depth"]),
                milliseconds(max(row["normal"]["oldest"], row["urgent"]["oldest"]) if _waiting(row) else None),
                *(str(row[key]) for key in ("beside", "handled", "failed", "restarts")),
            )
            for row in view["actors"]
        ],
        numbers=8,
        least=("BESIDE", "URGENT", "OLDEST", "FAILED", "FOR", "KIND"),
    )
    return Screenful(Group(nodes, ""), actors)
