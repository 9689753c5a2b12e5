"""The draft policy of one sequence: the source of its next drafts, their number, and pauses in which none are tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..plain import Plain, from_plain, to_plain
from .acceptance import UNIT, Acceptance
from .length import FIRST_PAUSE, LONGEST_PAUSE, MISSED, Cost, best_length
from .options import GRAMMAR, LARGEST, MODEL, PREDICTION, PROMPT, TIER, DraftOptions
from .prompt_lookup import TokenIndex, agreement, continuation

TURN = 32  # rounds after which another source than the best has a turn, if there is one
NEAR = 8  # tokens of a prediction within which a single equal token says where the answer goes on


def keys(options: DraftOptions) -> Iterable[str]:
    """Return the names under which the acceptance of each source is kept: a tier and another model count by model id."""
    return (PREDICTION, PROMPT, *options.tiers, *([options.drafter] if options.drafter else []))


class Offer:
    """The drafts that one source has for a round: at most ``limit``, at this cost. ``tokens``: of a text; else empty."""

    def __init__(self, key: str, limit: int, cost: Cost, tokens: list[int]) -> None:
        self.key = key
        self.limit = limit
        self.cost = cost
        self.tokens = tokens


class RowDrafts:
    """The drafts of one sequence.

    ``pause``: tokens that are drawn one by one before drafts are looked for again, set by ``draft`` when it returns none.
    ``source``: the source of the last drafts. ``drafter``: the id of the tier or model that draws them, if one does.
    ``forcing``: the sequence has a grammar whose forced tokens are drafts, too; it is asked for drafts at each token.
    """

    def __init__(
        self,
        options: DraftOptions,
        prompt_length: int,
        application: str,
        priors: dict[str, Acceptance],
        *,
        forcing: bool = False,
    ) -> None:
        self.options, self.application = options, application
        self.forcing = forcing
        self._forced: list[int] = []  # tokens that must follow the first ``_forced_at`` ones
        self._forced_at = 0
        self._quiet = 0  # tokens below which no other drafts are looked for
        self.pause = 0
        self.source = ""
        self.drafter = ""
        self.price = UNIT  # of the last drafts' round, in steps without drafts
        self._misses = 0  # lookups in sequence that found nothing
        self._rest = FIRST_PAUSE  # the next pause after the policy has said 0
        self._probes = False  # the last pause was the policy's: one draft shows whether it still is right
        self._rounds = 0  # rounds since another source than the best had a turn
        self._turn = 0  # number of such turns
        self._acceptance = {key: Acceptance(priors[key]) for key in keys(options)}
        self._own, self._predicted = TokenIndex(), TokenIndex()
        self._cursor = 0  # place in the prediction that the answer is at; its length: the answer has left it
        self._missed = 0  # tokens since the last that was the predicted one
        self._read = prompt_length  # tokens of the sequence that the cursor has seen

    def force(self, length: int, tokens: list[int]) -> None:
        """Note the tokens that must follow the first ``length`` ones."""
        self._forced_at, self._forced = length, tokens

    def draft(
        self,
        tokens: Sequence[int],
        length: int,
        limit: int,
        others: int,
        cost: Cost,
        tiers: Mapping[str, Cost] | None = None,
        model: Offer | None = None,
    ) -> list[int]:
        """Return drafts of the tokens behind the ``length`` known ones, at most ``limit``; zeros if they are drawn later.

        If there are none, ``pause`` tokens are to be drawn first.
        ``others`` and ``cost`` as in ``best_length``. ``tiers``: the tiers that can draft here, with the cost of theirs.
        ``model``: the offer of another model that can.
        """
        if not self.forcing:
            return self._guess(tokens, length, limit, others, cost, tiers, model)
        found = self._forced[: max(limit, 0)] if self._forced_at == length else []
        if found:
            self.source, self.drafter = GRAMMAR, ""
            self.price = UNIT
            return found
        if self.options.any and length >= self._quiet:
            found = self._guess(tokens, length, limit, others, cost, tiers, model)
            self._quiet = length + self.pause
        self.pause = 1
        return found

    def _guess(
        self,
        tokens: Sequence[int],
        length: int,
        limit: int,
        others: int,
        cost: Cost,
        tiers: Mapping[str, Cost] | None,
        model: Offer | None,
    ) -> list[int]:
        """Return drafts that may stand, as ``draft`` does."""
        limit = min(limit, LARGEST)
        source, found = self._look_up(tokens, length, limit)
        offers = [Offer(source, len(found), cost, found)] if found else []
        if limit > 0 and tiers:
            offers += [Offer(tier, limit, price, []) for tier, price in tiers.items()]
        if model is not None and min(limit, model.limit) > 0:
            offers.append(Offer(model.key, min(limit, model.limit), model.cost, []))
        if not offers:
            self.pause = 1 << min(self._misses, MISSED.bit_length() - 1)
            self._misses += 1
            return []
        self._misses = 0
        offer, count = self._choose(offers, others)
        if self.options.tokens:
            return self._take(offer, count)
        if count:
            self._rest = FIRST_PAUSE
        elif self._probes:
            offer, count = offers[self._turn % len(offers)], 1
            self._turn += 1
        else:
            self.pause = self._rest
            self._rest = min(2 * self._rest, LONGEST_PAUSE)
        self._probes = not count
        return self._take(offer, count)

    def forget_misses(self) -> None:
        """Take the next lookup for the first: a source that had nothing to offer will have something."""
        self._misses = 0

    def _choose(self, offers: list[Offer], others: int) -> tuple[Offer, int]:
        """Return the offer that makes the sweep yield most tokens a second, and the number of its drafts; 0: none gains."""
        counts = [self._count(offer, others) for offer in offers]
        if len(offers) == 1:
            return offers[0], counts[0]
        self._rounds += any(counts)
        if self._rounds >= TURN:
            self._rounds = 0
            self._turn += 1
            place = self._turn % len(offers)
            return offers[place], max(1, counts[place])
        best = offers[0]
        best_count = counts[0]
        best_yield = 0
        best_time = 1
        for offer, count in zip(offers, counts, strict=True):
            tokens = others * UNIT + self._acceptance[offer.key].expected(count)[count]
            time = max(1, offer.cost(count))
            if tokens * best_time > best_yield * time:
                best = offer
                best_count = count
                best_yield = tokens
                best_time = time
        return best, best_count

    def _count(self, offer: Offer, others: int) -> int:
        if self.options.tokens:
            return min(self.options.tokens, offer.limit)
        return best_length(self._acceptance[offer.key], offer.limit, others, offer.cost)

    def _take(self, offer: Offer, count: int) -> list[int]:
        """Return ``count`` drafts of an offer, which is the source of the next round."""
        self.drafter = "" if offer.tokens else offer.key
        self.source = offer.key if not self.drafter else MODEL if offer.key == self.options.drafter else TIER
        if count:
            self.price = offer.cost(count) * UNIT // max(1, offer.cost(0))
        return offer.tokens[:count] if offer.tokens else [0] * count

    def record(self, drafted: int, accepted: int) -> None:
        """Record a verified round of the last drafts. Forced ones always stand, which says nothing of others."""
        if self.source == GRAMMAR:
            return
        own = self._acceptance[self.drafter or self.source]
        own.record(drafted, accepted)
        if own.prior is not None:
            own.prior.record(drafted, accepted)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self, priors: dict[str, Acceptance]) -> RowDrafts:
        """Return a copy whose acceptance begins with ``priors``. Its indexes are built anew when they are needed."""
        copy = RowDrafts(self.options, self._read, self.application, priors, forcing=self.forcing)
        copy._forced_at, copy._forced = self._forced_at, self._forced.copy()
        copy._quiet = self._quiet
        copy._acceptance = {key: seen.fork(priors[key]) for key, seen in self._acceptance.items()}
        copy.pause = self.pause
        copy.source = self.source
        copy.drafter = self.drafter
        copy._misses = self._misses
        copy._rest = self._rest
        copy._probes = self._probes
        copy._rounds = self._rounds
        copy._turn = self._turn
        copy._cursor = self._cursor
        copy._missed = self._missed
        copy.price = self.price
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "options": to_plain(self.options),
            "application": self.application,
            "acceptance": {key: seen.snapshot() for key, seen in self._acceptance.items()},
            "source": self.source,
            "drafter": self.drafter,
            "price": self.price,
            "forcing": self.forcing,
            "forced": [self._forced_at, self._quiet, *self._forced],
            "counts": [
                self.pause, self._misses, self._rest, int(self._probes), self._rounds, self._turn, self._cursor,
                self._missed, self._read,
            ],
        }  # fmt: skip

    @classmethod
    def restore(cls, data: dict[str, Plain], priors: dict[str, Acceptance]) -> RowDrafts:
        options = from_plain(DraftOptions, data["options"])
        pause, misses, rest, probes, rounds, turn, cursor, missed, read = data["counts"]
        drafts = cls(options, read, data["application"], priors, forcing=data["forcing"])
        drafts._forced_at, drafts._quiet = data["forced"][:2]
        drafts._forced = list(data["forced"][2:])
        drafts._acceptance = {key: Acceptance.restore(seen, priors[key]) for key, seen in data["acceptance"].items()}
        drafts.source = data["source"]
        drafts.drafter = data["drafter"]
        drafts.pause = pause
        drafts._misses = misses
        drafts._rest = rest
        drafts._probes = bool(probes)
        drafts._rounds = rounds
        drafts._turn = turn
        drafts._cursor = cursor
        drafts._missed = missed
        drafts.price = data["price"]
        return drafts

    # lookup ----------------------------------------------------------------------------------------------------------

    def _look_up(self, tokens: Sequence[int], length: int, limit: int) -> tuple[str, list[int]]:
        """Return the best drafts that a text has, with its source."""
        if predicted := self.options.prediction:
            place = self._place(tokens, length)
            if place < len(predicted):
                return PREDICTION, predicted[place : place + limit]
        if self.options.prompt:
            self._own.extend(tokens, length)
            if (place := self._own.find(tokens, tokens, length)) >= 0:
                return PROMPT, continuation(tokens, place, length, limit)
        return "", []

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
