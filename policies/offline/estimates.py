"""How long the answers of a batch will be: from a few requests that run first.

After BlendServe (section "Output length sampling"): requests below the same node of the prefix tree answer alike, so an estimate
is the mean of the samples below the nearest node above a request that has some. One in a hundred is sampled; every large subtree
directly below the root has at least one sample. Where the tagger has an estimate for each request, a mean becomes a ratio: what
samples took by what was estimated for them (the ratio estimator; Cochran, "Sampling Techniques", chapter 6).

Pure: which requests are drawn comes from numbers that are passed in.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from blockwright.policies.offline.prefix_tree import PrefixTree

PROBABILITY = 0.01  # that a request is a sample
LARGE = 100  # requests below a child of the root from which on it has at least one sample


def choose_samples(
    tree: PrefixTree, numbers: Sequence[float], probability: float = PROBABILITY, fixed: Sequence[int] = ()
) -> list[int]:
    """Requests that run first, ascending: those whose number (uniform in [0, 1), one for each request) is below
    ``probability``, and where a child of the root has ``LARGE`` requests and none of these, that with its least number.
    With probability 0 there are none. Requests with a ``fixed`` length teach nothing and are never drawn."""
    raise NotImplementedError


class Estimates:
    """Lengths of answers, by request, in tokens: the truth where it is known, else an estimate.

    ``limits``: most tokens of each answer; what counts until there is a sample. ``fixed``: lengths that are known beforehand,
    0 where not (or empty). ``hints``: estimates of a tagger, above 0 (or empty).
    """

    def __init__(
        self, tree: PrefixTree, limits: Sequence[int], *, fixed: Sequence[int] = (), hints: Sequence[float] = ()
    ) -> None:
        raise NotImplementedError

    def finished(self, request: int, length: int) -> None:
        """A request's answer has so many tokens; from now on it counts as a sample. Costs the request's depth in nodes."""
        raise NotImplementedError

    def output(self, request: int) -> float:
        """Tokens of the answer of one request, as far as is known now: between 1 and its limit."""
        raise NotImplementedError

    def outputs(self) -> array[float]:
        """``output`` of all requests ('d'), in one pass over the tree."""
        raise NotImplementedError
