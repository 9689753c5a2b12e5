"""What a predictor is asked and told. Standard library and policies only."""

from __future__ import annotations

from dataclasses import dataclass

from ...policies.sweep.events import Submission

NODE = "predictors"  # where the predictors of a host are


def predictor_of(worker: str) -> str:
    """Address of the predictor of a worker."""
    return f"{NODE}/predictor-{worker}"


@dataclass(frozen=True, slots=True)
class Query:
    """dispatcher -> predictor of a route's home: what if ``submission`` came there now, on the route of this id?

    forecast: when its first and last token would be is wanted, too; delays: and what the others would lose, which takes
    twice as long.
    """

    submission: Submission
    route: str
    forecast: bool = True
    delays: bool = True
