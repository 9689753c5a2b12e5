"""Draining: which workers can be spared, since every application has a route that does not pass them.

Pure. That a worker takes nothing new and is emptied follows elsewhere (``actors/controller/scaling.py``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence


def relied_on(routes: Iterable[tuple[Sequence[str], bool]]) -> list[Sequence[str]]:
    """Of an application's routes, as workers and whether they serve, those that it must not lose all of: those that serve,
    or, while none does, all that could."""
    known = list(routes)
    return [workers for workers, serves in known if serves] or [workers for workers, _ in known]


def needed_by(worker: str, routes: Mapping[str, Sequence[Container[str]]]) -> str:
    """An application all of whose routes pass the worker; "" where it can be spared. ``routes``: by application the workers
    of each that it relies on; one without any loses none."""
    return next((name for name, own in routes.items() if own and all(worker in workers for workers in own)), "")


def spare(load: Mapping[str, float], routes: Mapping[str, Sequence[Container[str]]]) -> dict[str, float]:
    """Of all workers with what they have to do those that can be spared, one at a time."""
    return {worker: work for worker, work in load.items() if not needed_by(worker, routes)}
