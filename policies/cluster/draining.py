"""Draining: which workers can be spared, since every application has a route that does not pass them.

Pure. That a worker takes nothing new and is emptied follows elsewhere (``actors/controller/scaling.py``).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence


def needed_by(worker: str, routes: Mapping[str, Sequence[Container[str]]]) -> str:
    """An application all of whose routes pass the worker; "" where it can be spared. ``routes``: by application the workers
    of each that serves; one without any loses none."""
    return next((name for name, own in routes.items() if own and all(worker in workers for workers in own)), "")


def spare(load: Mapping[str, float], routes: Mapping[str, Sequence[Container[str]]]) -> dict[str, float]:
    """Of all workers with what they have to do those that can be spared, one at a time."""
    return {worker: work for worker, work in load.items() if not needed_by(worker, routes)}
