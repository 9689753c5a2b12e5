"""What a predictor is asked and told. Standard library and policies only."""

from __future__ import annotations

from dataclasses import dataclass

from blockwright.policies.sweep.events import Submission

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorFigures:
    """Of one predictor, since its start. Seconds."""

    worker: str
    following: bool  # it has a replica
    priced: bool  # and knows what sweeps cost, without which there are no forecasts
    in_flight: int  # requests on their way to the worker
    resyncs: int  # times that it began anew with a snapshot after its first
    disagreements: int  # of these: the replica had planned other sweeps than the worker, or failed
    batches: int  # of the feed
    lag: float  # sum over batches: from the oldest entry of each until the replica had it
    answers: int
    forecasts: int
    forecast_seconds: float  # sum over forecasts
    forecast_p50: float  # of the last ones
    forecast_p99: float
