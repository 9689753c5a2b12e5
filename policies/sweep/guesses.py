"""Guesses of hidden states at a border of a pipeline: what later stages compute with one, until its verdict comes.

Before the slow block at the end of its stage, a home computes the block's surrogate and sends these states as a guess. Then
it computes the block and compares. Where both are alike, it notifies all later stages that the guess stands: their results
count, what they wrote stays, and the pages behind stay private from then on. Where they are not, it sends the true states,
by which the later stages know that the guess fell, and compute the same positions again. A token that was drawn on a guess
is held at the last stage until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..plain import Plain, from_plain, to_plain
from ..plan.sweep_plan import Departure, GuessPlan, SweepPlan, SweepResult, TokenLogprob

LEAST = 0.95  # mean cosine of vocabulary probabilities from which a guess stands
NEVER = 2.0  # no cosine is as large: no guess stands


@dataclass(frozen=True, slots=True)
class OpenGuess:
    """A guess for a guest at position ``start`` whose verdict is not known, or whose results are not.

    ``tokens`` and ``logprobs`` are what was drawn on it; they count once ``done`` and ``stands`` are True.
    """

    start: int
    done: bool = False  # its position has been computed
    stands: bool = False
    fell: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class GuessTable:
    """The guesses for the guests of one worker, by sequence: one at a time, as a row returns before it leaves again."""

    def __init__(self) -> None:
        self.wanted = True  # False if no device makes them, as in forecasts
        self._open: dict[int, OpenGuess] = {}

    def come(self, s: int, start: int) -> None:
        """Record that a guess has arrived. Its verdict may have come before."""
        known = self._open.get(s)
        if known is None or known.start != start:
            self._open[s] = OpenGuess(start)

    def fall(self, s: int, start: int) -> None:
        """Record that true hidden states have arrived, which a guess for this position did not meet."""
        known = self._open.get(s)
        if known is not None and known.start == start:
            self._change(s, replace(known, fell=True))

    def accept(self, s: int, start: int) -> OpenGuess | None:
        """Record that a guess stands; return it if its results are known, and so count now."""
        known = self._open.get(s)
        known = known if known is not None and known.start == start else OpenGuess(start)
        return self._change(s, replace(known, stands=True))

    def compute(self, s: int, start: int, tokens: list[int], logprobs: list[TokenLogprob]) -> OpenGuess | None:
        """Record what was drawn on a guess; return it if it stands, and so counts now."""
        known = self._open.get(s)
        if known is None or known.start != start:
            return None  # the sequence has left meanwhile
        return self._change(s, replace(known, done=True, tokens=tokens, logprobs=logprobs))

    def _change(self, s: int, guess: OpenGuess) -> OpenGuess | None:
        """Keep a guess until it is computed and decided; return it then if it stands."""
        if guess.done and (guess.stands or guess.fell):
            del self._open[s]
            return guess if guess.stands else None
        self._open[s] = guess
        return None

    def stop(self) -> None:
        """Make no guesses from now on."""
        self.wanted = False

    def end(self, s: int) -> None:
        """Forget the guess of a sequence that has left."""
        self._open.pop(s, None)

    @property
    def open(self) -> dict[int, OpenGuess]:
        """The guesses without verdict or results, by sequence."""
        return self._open

    def fork(self) -> GuessTable:
        return self.restore(self.snapshot())

    def snapshot(self) -> dict[str, Plain]:
        return {"wanted": self.wanted, "open": [[s, to_plain(guess)] for s, guess in self._open.items()]}

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> GuessTable:
        table = cls()
        table.wanted = data["wanted"]
        table._open = {s: from_plain(OpenGuess, guess) for s, guess in data["open"]}
        return table

    def check(self, guests: set[int]) -> None:
        """Raise AssertionError unless guesses are of guests, and none that is decided and computed is kept."""
        assert self._open.keys() <= guests, "a guess is kept for a sequence that is no guest"
        assert not any(one.done and (one.stands or one.fell) for one in self._open.values()), "a decided guess is kept"


def accepted(guess: GuessPlan, likeness: list[float]) -> list[bool]:
    """Return for each row of a guess that was sent whether it stands. Without a measurement none does."""
    if not likeness:
        return [False] * len(guess.sent.batch)
    return [one >= guess.least for one in likeness]


def standing(plan: SweepPlan, result: SweepResult) -> set[int]:
    """Return the batch rows of a plan whose guesses stand."""
    found: set[int] = set()
    for place, guess in enumerate(plan.guesses):
        likeness = result.likeness[place] if result.likeness else []
        found.update(i for i, stands in zip(guess.sent.batch, accepted(guess, likeness), strict=True) if stands)
    return found


def left_to_send(departure: Departure, stand: set[int]) -> list[int]:
    """Return the places in a departure of the rows whose true hidden states are sent: all but those whose guesses stand."""
    return [place for place, i in enumerate(departure.batch) if i not in stand]


def part_of(departure: Departure, places: list[int]) -> Departure:
    """Return a departure with these rows of it."""
    batch, rows = [departure.batch[place] for place in places], [departure.rows[place] for place in places]
    return Departure(departure.worker, departure.home, departure.width, batch, rows)
