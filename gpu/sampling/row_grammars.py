"""The grammars of rows of the token table, with the states that the rows' tokens lead to.

A row's state is never stored nor sent: it follows from the grammar and the tokens behind the prompt, which the token table
has. A matcher knows which tokens it has consumed, and takes what is missing, or goes back where a draft did not stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...policies.drafts.options import MOST_FORCED
from ...policies.plan.grammar import CALLS, Grammar
from .grammars import GrammarStore
from .turn_scanner import CALLING, LOST, Place, TurnScanner, without

if TYPE_CHECKING:
    from llguidance import LLMatcher

MADE = "made"  # the mask can be applied
ALL = "all"  # all tokens are allowed, and none is needed
ENDED = "ended"  # the answer has ended before, and what is drawn now is dropped
OUTSIDE = "outside"  # the tokens before are not in the language; only drafts that do not stand may be so
OFF = "off"  # the mask cannot be made, so nothing may be drawn


def row_grammar(grammar: Grammar, store: GrammarStore) -> RowGrammar | RowCalls:
    """Return the grammar of one row."""
    return (RowCalls if grammar.form == CALLS else RowGrammar)(grammar, store)


class RowGrammar:
    """The grammar of one row of the tables, with the state that its tokens lead to.

    A mask costs the same however long the answer is, unless earlier tokens have changed.
    """

    __slots__ = ("_consumed", "_ends", "_grammar", "_matcher", "_same", "_store", "_words")

    def __init__(self, grammar: Grammar, store: GrammarStore) -> None:
        self._grammar, self._store = grammar, store
        self._matcher: LLMatcher | None = None  # None: no token has been drawn yet
        self._consumed: list[int] = []  # the tokens of the answer that the matcher has
        self._same = 0  # leading ones of them that are still in the table
        self._ends = frozenset(grammar.vocabulary.ends)
        self._words = -(-grammar.vocabulary.size // 32)

    def changed(self, place: int) -> None:
        """Note that the table's tokens from this place of the answer on have been written."""
        self._same = min(self._same, max(place, 0))

    def mask(self, output: np.ndarray, bits_W: np.ndarray) -> str:
        """Write the mask behind these tokens of the answer; return ``MADE``, or why there is none."""
        start = min(self._same, output.size)
        new = output[start:].tolist()
        if not self._ends.isdisjoint(new):
            return ENDED
        if bits_W.size != self._words:
            return OFF  # another vocabulary
        if self._matcher is None:
            self._matcher = self._store.matcher(self._grammar.key)
        if self._matcher is None:
            return OFF
        inside = self._follow(self._matcher, start, new)
        if inside:
            self._matcher.unsafe_compute_mask_ptr(bits_W.ctypes.data, bits_W.nbytes)
        if self._matcher.is_error() and not self._matcher.is_accepting():
            self._forget()  # perhaps behind a draft that does not stand
            return OFF
        if inside and self._grammar.to_the_end:
            _without_ends(self._ends, bits_W)
        return MADE if inside else OUTSIDE

    def forced(self, output: np.ndarray) -> list[int]:
        """Return the tokens that must follow these tokens of the answer, as the grammar leaves no choice; often none.

        They are drafts: the masks at their positions decide.
        """
        if not self._grammar.forced or self._matcher is None:
            return []
        start = min(self._same, output.size)
        new = output[start:].tolist()
        if not self._ends.isdisjoint(new) or not self._follow(self._matcher, start, new):
            return []
        found = _forced(self._matcher, self._ends)
        if found is None:
            self._forget()
        return found or []

    def _forget(self) -> None:
        """Forget the state, so that the next mask is made from the beginning."""
        self._matcher = None
        self._consumed.clear()
        self._same = 0

    def _follow(self, matcher: LLMatcher, start: int, new: list[int]) -> bool:
        """Bring the matcher to the state behind ``new``, which follow the ``start`` tokens that have not changed.

        Return whether the grammar allows them.
        """
        consumed = self._consumed
        common, count = 0, min(len(new), len(consumed) - start)
        while common < count and new[common] == consumed[start + common]:
            common += 1
        kept = start + common
        if kept < len(consumed):
            matcher.rollback(len(consumed) - kept)
            del consumed[kept:]
        if rest := new[common:]:
            consumed += rest[: matcher.try_consume_tokens(rest)]
        self._same = len(consumed)
        return len(consumed) == start + len(new)


class RowCalls:
    """The turn of one row of the tables, which is free until it opens a call, and behind the call again.

    The place in the turn behind each token is remembered, so that a draft may be taken back. A matcher holds the last call.
    """

    __slots__ = (
        *("_consumed", "_eaten", "_ends", "_grammar", "_matcher", "_opened", "_places", "_same", "_scanner", "_store"),
        "_words",
    )

    def __init__(self, grammar: Grammar, store: GrammarStore) -> None:
        self._grammar, self._store = grammar, store
        self._scanner: TurnScanner | None = None  # None: no token has been drawn yet
        self._consumed: list[int] = []  # the tokens of the answer that were followed
        self._places: list[Place] = []  # behind each of them
        self._matcher: LLMatcher | None = None  # of the call that ``_places`` end in
        self._opened = self._eaten = 0  # where its opening token is; how many behind it the matcher has
        self._same = 0  # leading tokens that are still in the table
        self._ends = frozenset(grammar.vocabulary.ends)
        self._words = -(-grammar.vocabulary.size // 32)

    def changed(self, place: int) -> None:
        """Note that the table's tokens from this place of the answer on have been written."""
        self._same = min(self._same, max(place, 0))

    def mask(self, output: np.ndarray, bits_W: np.ndarray) -> str:
        """Write the mask behind these tokens of the answer; return ``MADE``, or why there is none."""
        if bits_W.size != self._words:
            return OFF  # another vocabulary
        if self._scanner is None:
            self._scanner = self._store.scanner(self._grammar.key)
        if self._scanner is None:
            return OFF
        place = self._follow(self._scanner, output)
        if place is LOST:
            return OUTSIDE
        if place is not CALLING:
            forbidden = self._scanner.forbidden(place)
            if not forbidden.size:
                return ALL
            without(forbidden, bits_W)
            return MADE
        assert self._matcher is not None
        self._matcher.unsafe_compute_mask_ptr(bits_W.ctypes.data, bits_W.nbytes)
        if self._matcher.is_error() and not self._matcher.is_accepting():
            self._forget()  # perhaps behind a draft that does not stand
            return OFF
        if self._grammar.to_the_end:
            _without_ends(self._ends, bits_W)
        return MADE

    def forced(self, output: np.ndarray) -> list[int]:
        """Return the tokens that must follow these tokens of the answer, as a call leaves no choice; often none."""
        if not self._grammar.forced or self._scanner is None or self._follow(self._scanner, output) is not CALLING:
            return []
        assert self._matcher is not None
        found = _forced(self._matcher, self._ends)
        if found is None:
            self._forget()
        return found or []

    def _forget(self) -> None:
        """Forget the state, so that the next mask is made from the beginning."""
        self._matcher = None
        self._consumed.clear()
        self._places.clear()
        self._same = 0

    def _follow(self, scanner: TurnScanner, output: np.ndarray) -> Place:
        """Return the place behind these tokens, of which the first ``_same`` have not changed."""
        consumed, places = self._consumed, self._places
        start = min(self._same, output.size)
        new = output[start:].tolist()
        common, count = 0, min(len(new), len(consumed) - start)
        while common < count and new[common] == consumed[start + common]:
            common += 1
        if start + common < len(consumed):
            self._go_back(scanner, start + common)
        for token in new[common:]:
            places.append(self._behind(scanner, places[-1] if places else scanner.begin, token))
            consumed.append(token)
        self._same = len(consumed)
        return places[-1] if places else scanner.begin

    def _behind(self, scanner: TurnScanner, place: Place, token: int) -> Place:
        """Return the place behind one more token, and let the matcher of a call have it."""
        if place is not CALLING:
            place, begun = scanner.step(place, token)
            if place is CALLING:
                self._matcher = scanner.matcher(begun)
                self._opened, self._eaten = len(self._consumed), 0
        else:
            assert self._matcher is not None
            if scanner.lasts and token in self._ends and self._matcher.is_accepting():
                return scanner.behind_end
            if not self._matcher.try_consume_tokens([token]):
                return LOST
            self._eaten += 1
        closed = place is CALLING and not scanner.lasts and self._matcher is not None and self._matcher.is_accepting()
        return scanner.behind_call if closed else place

    def _go_back(self, scanner: TurnScanner, kept: int) -> None:
        """Forget all tokens but the first ``kept``."""
        consumed, places = self._consumed, self._places
        del consumed[kept:], places[kept:]
        if not places or places[-1] is not CALLING:
            self._matcher = None
            return
        if self._matcher is not None and self._opened < kept:
            if (more := self._eaten - (kept - 1 - self._opened)) > 0:
                self._matcher.rollback(more)
                self._eaten -= more
            return
        first = kept - 1  # the matcher is of a later call
        while first and places[first - 1] is CALLING:
            first -= 1
        _, begun = scanner.step(places[first - 1] if first else scanner.begin, consumed[first])
        self._matcher = scanner.matcher(begun)
        self._matcher.consume_tokens(consumed[first + 1 :])
        self._opened, self._eaten = first, kept - 1 - first


def _forced(matcher: LLMatcher, ends: frozenset[int]) -> list[int] | None:
    """Return the tokens that must come, up to an end; None: the matcher has failed."""
    found = matcher.compute_ff_tokens()
    if matcher.is_error():
        return None
    end = next((place for place, token in enumerate(found) if token in ends), len(found))
    return found[: min(end, MOST_FORCED)]


def _without_ends(end_tokens: frozenset[int], bits_W: np.ndarray) -> None:
    """Take the end tokens out of a mask that has others."""
    ends = [(end >> 5, 1 << (end & 31)) for end in end_tokens]
    taken = [int(bits_W[word]) & bit for word, bit in ends]
    for word, bit in ends:
        bits_W[word] = int(bits_W[word]) & ~bit
    if not bits_W.any():
        for (word, _), bit in zip(ends, taken, strict=True):
            bits_W[word] = int(bits_W[word]) | bit
