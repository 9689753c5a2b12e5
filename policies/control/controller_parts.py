"""Interfaces between the parts of the controller's state machine: on demand, drops, scaling, failures.

Types only. With them no part imports the whole, which imports all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from .events import Effect, KvCapacity, Loaded, LoadFailed, LoadRefused
from .residency import PlannedRoute, Residency, Served
from .routes import Routes
from .worker_record import WorkerRecord


class Pipelines(Protocol):
    """``DroppedGroup``, as other parts see it."""

    @property
    def workers(self) -> Collection[str]: ...

    @property
    def applications(self) -> Collection[str]: ...


class DroppedParameters(Protocol):
    """``ParameterDrops``, as other parts see it."""

    @property
    def groups(self) -> Mapping[str, Pipelines]: ...

    def forget(self, application: str) -> None: ...

    def let_come(self, workers: Sequence[str]) -> None: ...

    def group_of(self, worker: str) -> Pipelines | None: ...

    def refused(self, news: LoadRefused, *, late: bool) -> bool: ...

    def failed(self, worker: str, application: str) -> None: ...

    def coming_back(self, application: str, now: float) -> float: ...


class ControllerParts(Protocol):
    """``ControllerState``, as its parts see it."""

    on_demand: bool
    served: dict[str, Served]
    residency: dict[str, Residency]
    workers: dict[str, WorkerRecord]
    table: Routes
    touched: dict[str, None]
    after: list[Effect]

    @property
    def overload(self) -> DroppedParameters: ...

    def current(self, name: str, incarnation: int) -> bool: ...

    def news(self, event: Loaded | LoadFailed | KvCapacity) -> None: ...

    def end_extras(self, which: Callable[[PlannedRoute], bool]) -> None: ...

    def offer(self, name: str, *, anew: bool = True) -> None: ...

    def catalog(self) -> None: ...

    def vacate(self, served: Served, *, forget: bool = False) -> None: ...
