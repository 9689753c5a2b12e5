"""Progress of a cluster's start, as the controller publishes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """The controller's published progress, after every event that changes it."""

    workers_up: bool = False  # True if all workers are up
    serves: bool = False  # every deployed application has a route in force
    whole: bool = False  # every planned route is in force
    version: int = 0  # version of the last publication of routes
    preparing: tuple[
        str, ...
    ] = ()  # workers that prove their bits and compile kernels, and how far each is; long ones alone
    warnings: tuple[str, ...] = ()  # for the user, although the cluster serves
    fatal: str = ""  # why the cluster cannot serve
