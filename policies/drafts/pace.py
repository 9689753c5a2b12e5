"""The pace of answers with drafts: the mean tokens that such a sequence gains in the time of a step without drafts.

A round counts as many steps as it costs, by the cost model that chose it, so that drafts which do not pay gain nothing. It
is learned for each application and kind of request, and forecasts divide the tokens to come by it. Whole numbers, so that
every machine and every replay counts alike. Old tokens count less: both counts are halved when there are many.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..plain import Plain
from .acceptance import UNIT
from .options import DraftOptions

LEAST = 16  # tokens before which nothing is known
FULL = 4096  # tokens at which counts are halved


class Pace:
    """The tokens of one application and kind of request, and the steps that they took, in ``UNIT``."""

    def __init__(self, tokens: int = 0, steps: int = 0) -> None:
        self.tokens, self.steps = tokens, steps

    def record(self, tokens: int, steps: int) -> None:
        """Record tokens that were gained, and the steps for them, in ``UNIT``."""
        self.tokens += tokens
        self.steps += steps
        if self.tokens >= FULL:
            self.tokens >>= 1
            self.steps >>= 1

    def steps_for(self, tokens: int) -> int:
        """Return the steps that this number of tokens takes, rounded up; a step for each as long as nothing is known."""
        if self.tokens < LEAST:
            return tokens
        return -(-tokens * self.steps // (self.tokens * UNIT))


class RowPace:
    """The part of a sequence that is recorded: its first ``counted`` tokens; 0: none yet. ``price``: of the open round."""

    def __init__(self, pace: Pace, counted: int = 0, price: int = 0) -> None:
        self.pace = pace
        self.counted = counted
        self.price = price


class PaceTable:
    """The paces of one worker, by application and kind of request, and the sequences that they are learned from."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Pace]] = {}  # by application, then by kind
        self._rows: dict[int, RowPace] = {}  # by sequence
        self._kinds: dict[int, tuple[str, str]] = {}  # sequence -> application, kind

    def add(self, s: int, application: str, options: DraftOptions) -> None:
        """Add a sequence that drafts."""
        self._kinds[s] = application, kind_of(options)
        self._rows[s] = RowPace(self._pace(*self._kinds[s]))

    def remove(self, s: int) -> None:
        """Forget a sequence that has left, or drafts no more."""
        self._rows.pop(s, None)
        self._kinds.pop(s, None)

    def forget(self, application: str) -> None:
        """Forget an application that is gone and has no sequences."""
        self._seen.pop(application, None)

    def find(self, application: str, options: DraftOptions) -> Pace | None:
        """Return the pace of requests like this one, or None if there were none yet."""
        return self._seen.get(application, {}).get(kind_of(options))

    def count_plain(self, s: int, length: int) -> None:
        """Record the tokens that a sequence of ``length`` tokens has drawn without drafts since it was last recorded.

        The prompt and the token that its prefill draws are not recorded.
        """
        row = self._rows[s]
        if row.counted:
            row.pace.record(length - row.counted, (length - row.counted) * UNIT)
        row.counted = length

    def begin(self, s: int, length: int, price: int) -> None:
        """Record that a sequence of ``length`` tokens begins a round, which costs ``price`` steps in ``UNIT``."""
        self.count_plain(s, length)
        self._rows[s].price = price

    def end(self, s: int, tokens: int) -> None:
        """Record the tokens of a round."""
        row = self._rows[s]
        row.pace.record(tokens, row.price)
        row.counted += tokens

    def _pace(self, application: str, kind: str) -> Pace:
        return self._seen.setdefault(application, {}).setdefault(kind, Pace())

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> PaceTable:
        return self.restore(self.snapshot())

    def snapshot(self) -> dict[str, Plain]:
        return {
            "seen": {
                application: {kind: [pace.tokens, pace.steps] for kind, pace in kinds.items()}
                for application, kinds in self._seen.items()
            },
            "rows": [[s, *self._kinds[s], row.counted, row.price] for s, row in self._rows.items()],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> PaceTable:
        table = cls()
        for application, kinds in data["seen"].items():
            table._seen[application] = {kind: Pace(tokens, steps) for kind, (tokens, steps) in kinds.items()}
        for s, application, kind, counted, price in data["rows"]:
            table._kinds[s] = application, kind
            table._rows[s] = RowPace(table._pace(application, kind), counted, price)
        return table

    def check(self, sequences: Iterable[int]) -> None:
        """Raise AssertionError unless these sequences are known and no others."""
        assert {*sequences} == self._rows.keys() == self._kinds.keys(), "a pace is learned from a sequence that has left"


def kind_of(options: DraftOptions) -> str:
    """Return the kind of request that its draft options make it: sources and number of drafts."""
    sources = ["prediction"] * bool(options.prediction) + ["prompt"] * options.prompt + options.tiers + [options.drafter]
    return f"{options.tokens} {' '.join(sources)}"
