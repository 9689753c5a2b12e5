"""Acceptance statistics: how often the draft at each place of a round is accepted once the ones before it are.

Whole numbers, so that every machine and every replay counts alike. Old rounds count less: all counts are halved when one
is full.
"""

from __future__ import annotations

from ..plain import Plain
from .options import LARGEST

FULL = 64  # rounds after which counts are halved
PRIOR = 4  # rounds that the acceptance of others is worth in the one of a sequence
UNIT = 1 << 16  # one, in fixed point


class Acceptance:
    """The acceptance of one source of drafts, for a sequence or for an application. ``prior``: what it begins with."""

    def __init__(self, prior: Acceptance | None = None) -> None:
        self.prior = prior
        self.reached = [0] * LARGEST  # rounds that verified a draft at this place, after all before it had stood
        self.stood = [0] * LARGEST  # rounds in which it stood, too

    def fork(self, prior: Acceptance | None) -> Acceptance:
        copy = Acceptance(prior)
        copy.reached, copy.stood = self.reached.copy(), self.stood.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {"reached": self.reached.copy(), "stood": self.stood.copy()}

    @classmethod
    def restore(cls, data: dict[str, Plain], prior: Acceptance | None) -> Acceptance:
        seen = cls(prior)
        seen.reached, seen.stood = list(data["reached"]), list(data["stood"])
        return seen

    def record(self, drafted: int, accepted: int) -> None:
        """Record a round."""
        if self.reached[0] >= FULL:
            self.reached = [count >> 1 for count in self.reached]
            self.stood = [count >> 1 for count in self.stood]
        for place in range(min(drafted, accepted + 1)):
            self.reached[place] += 1
            self.stood[place] += place < accepted

    def chances(self, places: int) -> list[int]:
        """Return for each of the first ``places`` the chance in ``UNIT`` that its draft stands if the ones before it do.

        A place that no round has reached is taken to be like the one before it, and the first for a half.
        """
        found: list[int] = []
        before = self.prior.chances(places) if self.prior is not None else []
        for place in range(places):
            expected = before[place] if before else found[-1] if found else UNIT >> 1
            found.append((PRIOR * expected + UNIT * self.stood[place]) // (PRIOR + self.reached[place]))
        return found

    def expected(self, drafts: int) -> list[int]:
        """Return the mean number of tokens in ``UNIT`` that a round yields, with no drafts up to ``drafts`` of them."""
        stands, means = UNIT, [UNIT]
        for chance in self.chances(drafts):
            stands = stands * chance // UNIT
            means.append(means[-1] + stands)
        return means
