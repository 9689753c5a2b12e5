"""How far a cluster is, as its controller tells whoever started it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """What the controller publishes of itself, after every event that changes it."""

    workers_up: bool = False  # all of them
    serves: bool = False  # every deployed application has a route in force
    whole: bool = False  # every planned route is in force
    version: int = 0  # of the last publication of routes
    warnings: tuple[str, ...] = ()  # what whoever started the cluster should hear, though it serves
    fatal: str = ""  # why the cluster cannot serve
