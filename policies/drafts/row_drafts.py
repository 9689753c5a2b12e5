"""The drafts of one sequence: where they come from, how many there are, and when none are tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..plain import Plain, from_plain, to_plain
from .acceptance import Acceptance
from .length import FIRST_PAUSE, LONGEST_PAUSE, MISSED, best_length
from .options import LARGEST, PREDICTION, PROMPT, DraftOptions
from .prompt_lookup import TokenIndex, agreement, continuation

NEAR = 8  # tokens of a prediction within which a single equal token says where the answer goes on


class RowDrafts:
    """The drafts of one sequence.

    ``pause``: tokens that are drawn one by one before drafts are looked for again, set by ``draft`` when it returns none.
    ``source``: the source of the last drafts.
    """

    def __init__(self, options: DraftOptions, prompt_length: int, application: str, priors: dict[str, Acceptance]) -> None:
        self.options, self.application = options, application
        self.pause, self.source = 0, ""
        self._misses = 0  # lookups in sequence that found nothing
        self._rest = FIRST_PAUSE  # the next pause after the policy has said 0
        self._probes = False  # the last pause was the policy's: one draft shows whether it still is right
        self._acceptance = {source: Acceptance(prior) for source, prior in priors.items()}
        self._own, self._predicted = TokenIndex(), TokenIndex()
        self._cursor = 0  # place in the prediction that the answer is at; its length: the answer has left it
        self._missed = 0  # tokens since the last that was the predicted one
        self._read = prompt_length  # tokens of the sequence that the cursor has seen

    def draft(self, tokens: Sequence[int], length: int, most: int, others: int, cost: Callable[[int], int]) -> list[int]:
        """Return drafts of the tokens behind the ``length`` known ones, at most ``most``.

        If there are none, ``pause`` tokens are to be drawn first.
        ``others`` and ``cost`` as in ``best_length``.
        """
        found = self._look_up(tokens, length, min(most, LARGEST))
        if not found:
            self.pause = 1 << min(self._misses, MISSED.bit_length() - 1)
            self._misses += 1
            return []
        self._misses = 0
        if self.options.tokens:
            return found[: self.options.tokens]
        count = best_length(self._acceptance[self.source], len(found), others, cost)
        if count:
            self._rest = FIRST_PAUSE
        elif self._probes:
            count = 1
        else:
            self.pause = self._rest
            self._rest = min(2 * self._rest, LONGEST_PAUSE)
        self._probes = not count
        return found[:count]

    def record(self, drafted: int, accepted: int) -> None:
        """Record a verified round of the last drafts."""
        own = self._acceptance[self.source]
        own.record(drafted, accepted)
        if own.prior is not None:
            own.prior.record(drafted, accepted)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self, priors: dict[str, Acceptance]) -> RowDrafts:
        """Return a copy whose acceptance begins with ``priors``. Its indexes are built anew when they are needed."""
        copy = RowDrafts(self.options, self._read, self.application, priors)
        copy._acceptance = {source: seen.fork(priors[source]) for source, seen in self._acceptance.items()}
        copy.pause, copy.source, copy._misses = self.pause, self.source, self._misses
        copy._rest, copy._probes = self._rest, self._probes
        copy._cursor, copy._missed = self._cursor, self._missed
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "options": to_plain(self.options),
            "application": self.application,
            "acceptance": {source: seen.snapshot() for source, seen in self._acceptance.items()},
            "source": self.source,
            "counts": [
                self.pause, self._misses, self._rest, int(self._probes), self._cursor, self._missed, self._read,
            ],
        }  # fmt: skip

    @classmethod
    def restore(cls, data: dict[str, Plain], priors: dict[str, Acceptance]) -> RowDrafts:
        options = from_plain(DraftOptions, data["options"])
        pause, misses, rest, probes, cursor, missed, read = data["counts"]
        drafts = cls(options, read, data["application"], priors)
        drafts._acceptance = {
            source: Acceptance.restore(seen, priors[source]) for source, seen in data["acceptance"].items()
        }
        drafts.source, drafts.pause, drafts._misses = data["source"], pause, misses
        drafts._rest, drafts._probes = rest, bool(probes)
        drafts._cursor, drafts._missed = cursor, missed
        return drafts

    # lookup ----------------------------------------------------------------------------------------------------------

    def _look_up(self, tokens: Sequence[int], length: int, most: int) -> list[int]:
        if predicted := self.options.prediction:
            place = self._place(tokens, length)
            if place < len(predicted):
                self.source = PREDICTION
                return predicted[place : place + most]
        if self.options.prompt:
            self._own.extend(tokens, length)
            if (place := self._own.find(tokens, tokens, length)) >= 0:
                self.source = PROMPT
                return continuation(tokens, place, length, most)
        return []

    def _place(self, tokens: Sequence[int], length: int) -> int:
        """Return the place in the prediction that follows the known tokens; its length: they have left it.

        A token that differs from the predicted one is taken for a replacement. If the next one differs, too, the answer
        goes on where its last two tokens are, or the last one nearby: otherwise a common token would lead astray.
        """
        predicted = self.options.prediction
        self._predicted.extend(predicted, len(predicted))
        for end, token in enumerate(tokens[self._read : length], self._read + 1):
            at = self._cursor
            self._cursor = min(at + 1, len(predicted))
            if at < len(predicted) and predicted[at] == token:
                self._missed = 0
                continue
            self._missed += 1
            if self._missed > 1:
                place = self._predicted.find(predicted, tokens, end, self._cursor)
                if place == self._cursor - self._missed:
                    continue  # just before the first token that differed, in a text that repeats itself
                near = abs(place - self._cursor) <= NEAR
                if place >= 0 and (near or agreement(predicted, place - 1, tokens, end - 1) > 1):
                    self._cursor, self._missed = place, 0  # if the next one differs there, it is a replacement there
        self._read = length
        return self._cursor
