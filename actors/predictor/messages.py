"""Messages to predictors. Standard library and policies only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...policies.sweep.events import Submission

NODE = "predictors"  # node of the predictors of a host


def predictor_of(worker: str, node: str = NODE) -> str:
    """Return the address of the predictor of a worker. ``node``: its process."""
    return f"{node}/{name_of(worker)}"


def name_of(worker: str) -> str:
    """Return the name of the predictor of a worker."""
    return f"predictor-{worker}"


@dataclass(frozen=True, slots=True)
class CoverageAccount:
    """process of predictors -> new head: what the head before knew of it.

    labels: its starter's. places: worker -> the process with its predictor.
    """

    labels: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Query:
    """dispatcher -> predictor of a route's home: what if ``submission`` came there now, on the route of this id?

    forecast: whether its first and last token are to be forecast. delays: whether the delay of others is wanted too, which
    takes twice as long.
    """

    submission: Submission
    route: str
    forecast: bool = True
    delays: bool = True
