"""What ``blockwright ps --actors`` shows, from ``/admin/actors``: nodes and their actors, those with most to do first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group

from blockwright.api.commands.tables import View, milliseconds, table


def actors_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """Rows in the order in which they are shown; times in seconds."""
    nodes = body["nodes"]
    rows = [{"node": node["name"], **actor} for node in nodes for actor in node["actors"]]
    rows.sort(key=lambda row: (-_waiting(row), -row["current_age"], row["node"], row["name"]))
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
        "actors": rows,
    }


def _waiting(row: Mapping[str, Any]) -> int:
    depth: int = row["normal"]["depth"] + row["urgent"]["depth"]
    return depth


def actors_tables(view: View) -> Group:
    nodes = table(
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
    actors = table(
        ("ACTOR", "KIND", "NOW", "FOR", "WAIT", "URGENT", "OLDEST", "BESIDE", "HANDLED", "FAILED", "RESTARTS"),
        [
            (
                f"{row['node']}/{row['name']}#{row['life']}",
                row["kind"],
                row["ending"] or row["current"] or "-",
                milliseconds(row["current_age"] if row["current"] else None),
                str(row["normal"]["depth"]),
                str(row["urgent"]["depth"]),
                milliseconds(max(row["normal"]["oldest"], row["urgent"]["oldest"]) if _waiting(row) else None),
                *(str(row[key]) for key in ("beside", "handled", "failed", "restarts")),
            )
            for row in view["actors"]
        ],
        numbers=8,
    )
    return Group(nodes, "", actors)
