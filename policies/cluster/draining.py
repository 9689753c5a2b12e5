"""Draining: which workers can be spared, since every application has a route that does not pass them.

Pure. ``policies/control/scaling.py`` stops new work for the worker and empties it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence


def relied_on(routes: Iterable[tuple[Sequence[str], bool]]) -> list[Sequence[str]]:
    """Return the routes of an application that it must not lose all of: those in service, or else all that could serve.

    Routes are given as workers and whether they serve.
    """
    known = list(routes)
    return [workers for workers, serves in known if serves] or [workers for workers, _ in known]


def needed_by(worker: str, routes: Mapping[str, Sequence[Container[str]]]) -> str:
    """Return an application all of whose routes pass the worker; "" if the worker can be spared.

    ``routes``: by application, the workers of each route that it relies on; one without any loses none.
    """
    return next((name for name, own in routes.items() if own and all(worker in workers for workers in own)), "")


def spare(load: Mapping[str, float], routes: Mapping[str, Sequence[Container[str]]]) -> dict[str, float]:
    """Return the workers that can be spared, one at a time, with their load."""
    return {worker: work for worker, work in load.items() if not needed_by(worker, routes)}
