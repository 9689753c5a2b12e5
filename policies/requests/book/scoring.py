"""Scoring of answers that variants gave, by the listed chain (``policies/adaptive/similarity.py``): an offline request of
the gateway's own, while no worker of a route of that chain has a request.

It gives way as soon as another request is there, whose plans and tokens are then as without it.
"""

from __future__ import annotations

from dataclasses import replace

from ...adaptive.similarity import OWNER, ServedAnswer, Similarity, compared, idle_home, is_scored, varied_spans
from ...plan.sampling import SamplingParams
from ...sweep.events import PromptScored
from ..dispatch import workers_of
from ..request_ownership import request_of
from .parts import BookParts
from .record import RequestRecord
from .values import Generation


def score_later(parts: BookParts, record: RequestRecord) -> None:
    """Take the answer of a request that has ended, if variants gave tokens of it and it is among the share."""
    if not (parts.scoring.share and record.variants and is_scored(request_of(record.id), parts.scoring.share)):
        return
    progress, switches = record.progress, record.history.switches
    first = switches[0].source if switches else record.application
    chains = [(0, first), *((one.position, one.target) for one in switches)]
    virtual = progress.virtual
    tokens = progress.tokens[virtual:]
    spans = varied_spans(record.variants, chains, progress.begins - virtual, len(tokens))
    if spans:
        variant = [*record.variants][-1]
        answer = ServedAnswer(
            record.id, record.model, record.generation.application, variant, tuple(tokens), tuple(spans),
            record.generation.salt,
        )  # fmt: skip
        parts.scoring.add(answer)


def next_scoring(parts: BookParts, now: float) -> Generation | None:
    """Return the request by which the next answer is scored, if it can be now."""
    scoring, table = parts.scoring, parts.table
    if not len(scoring) or parts.draining or _waits(parts):
        return None
    homes = {
        name: idle_home([(route.home, workers_of(route)) for route in table.routes.get(name, ())], _busy(parts))
        for name, model in scoring.listed().items()
        if table.models.get(model) == name and not table.absent(name)
    }
    answer = scoring.first(homes, now)
    if answer is None:
        return None
    chain = table.chains[answer.listed]
    return Generation(
        id=f"similarity-{answer.request}-{answer.tried}", application=answer.model, max_tokens=1, stop_tokens=[],
        prompt=[*answer.tokens[: chain.max_length - 1]], sampling=SamplingParams(temperature=0.0, prompt_logprobs=0),
        key=OWNER, salt=answer.salt, offline=True, home=scoring.home, adaptive=False,
    )  # fmt: skip


def gives_way(parts: BookParts, now: float) -> bool:
    """Return whether the answer that is being scored gives way now: to a request, or because it takes too long."""
    scoring = parts.scoring
    if scoring.current is None:
        return False
    return parts.draining or scoring.is_late(now) or _waits(parts) or scoring.home in _busy(parts)


def take_scores(parts: BookParts, news: PromptScored) -> None:
    """Take the scores of the answer in turn, and show them with its request."""
    answer = parts.scoring.current
    if answer is None:
        return
    found = compared(answer, [(one.logprob, one.rank) for one in news.entries])
    parts.scoring.end(found)
    _show(parts, answer.request, found)


def _show(parts: BookParts, request: str, found: Similarity) -> None:
    view = parts.past.get(request)
    if view is not None:
        parts.past[request] = replace(view, chains=[{**chain, "similarity": found.view()} for chain in view.chains])


def _waits(parts: BookParts) -> bool:
    """Return whether a request waits here that clients wait for."""
    return any(not parts.active[request].offline for request in parts.queue.in_order(parts.queue.applications()))


def _busy(parts: BookParts) -> set[str]:
    """Return the workers with a request, but for the one that scores."""
    own = f"similarity-{parts.scoring.current.request}-" if parts.scoring.current is not None else ""
    return {
        worker
        for worker, running in parts.table.on.items()
        if any(not (own and request.startswith(own)) for request in running)
    }
