"""Drafts of simulated requests: how many there are in a round, and which of them stand.

The workers' scheduler drafts as it does live (``policies/drafts``): from a prediction of the whole answer, which is the
source without a cost of its own, or by a chain with a surrogate, which takes its part of the model's time. Simulated
tokens have no values, so whether a draft is the token that its model draws follows from the described acceptance
and the seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated

from ..policies.adaptive.speculation import drafting_chain
from ..policies.drafts.options import LARGEST, DraftOptions
from ..policies.prediction.instance import Instance
from ..policies.prediction.pipeline_instance import PipelineInstance
from .record import Most

_BYTES = 8  # of a drawn number


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpec:
    """The drafts of a model's requests."""

    tokens: Annotated[int, Most(LARGEST)] = 0  # drafts of a round; 0: chosen as it pays (``policies/drafts/length.py``)
    accepted: Annotated[float, Most(1)]  # probability that a draft stands, if the ones before it in its round do
    surrogate: Annotated[float, Most(1)] = 0.0  # bytes of a surrogate of all layers, as a part of theirs; 0: there is none

    def options(self, model: str, answer: int) -> DraftOptions:
        """Return the drafts of a request whose answer has at most this many tokens; every simulated token is 0."""
        if self.surrogate:
            return DraftOptions(tokens=self.tokens, model=drafting_chain(model))
        return DraftOptions(tokens=self.tokens, prediction=[0] * answer)


class DraftOutcomes:
    """The outcome of every draft (see the module). ``models``: the drafts of each model that has some.

    A function of the seed, the request and the position alone. So it is the same on every instance, in every batch, and
    however drafts are cut into rounds.
    """

    def __init__(self, seed: int, models: Mapping[str, DraftSpec]) -> None:
        self._key = blake2b(f"{seed} drafts".encode()).digest()
        self._limits = {name: round(spec.accepted * (1 << 8 * _BYTES)) for name, spec in models.items()}

    def __call__(self, model: str, request: str, position: int, drafts: int) -> int:
        """Return how many of ``drafts`` drafts of a request stand, the first of which is at ``position``."""
        limit = self._limits[model]
        for accepted in range(drafts):
            text = f"{request} {position + accepted}"
            drawn = blake2b(text.encode(), key=self._key, digest_size=_BYTES).digest()
            if int.from_bytes(drawn) >= limit:
                return accepted
        return drafts


def draft_figures(instances: Iterable[Instance | PipelineInstance]) -> dict[str, float]:
    """Return the figures of all drafts, as in ``docs/schemas/simulate.json``."""
    counters = [instance.state.counters for instance in instances]
    rounds, drafted, accepted = (
        sum(one.get(name, 0) for one in counters) for name in ("draft_rounds", "drafted_tokens", "accepted_tokens")
    )
    mean = round((rounds + accepted) / rounds, 6) if rounds else 0.0
    return {"rounds": rounds, "drafted": drafted, "accepted": accepted, "tokens_per_round": mean}
