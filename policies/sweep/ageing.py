"""Ageing: a waiting sequence rises by one service class for every few seconds of waiting, while a higher class waits.

So no class waits without end behind the higher ones: after two rises a sequence waits among the urgent ones, in their
order. It rises only while others of a higher class wait on the same worker; if all that waits is of one class, nothing
changes. Lines of batches never rise, as their gateway keeps them until there is room. A sequence that has risen
stays where it is, also after a preemption, from which on its next wait counts. What a request has waited before it came
to this worker (``Submission.waited``) counts, so that neither a death nor a move takes its rises from it.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from ..plain import Plain
from ..requests.urgency import BATCH, NORMAL, URGENT

CLASSES = (URGENT, NORMAL, BATCH)


class Ageing:
    """The waiting sequences of each class, longest wait first. ``seconds``: of waiting, for a rise; 0: none rises."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._order: dict[int, list[tuple[float, int]]] = {number: [] for number in CLASSES}
        self._since: dict[int, float] = {}  # the same by sequence

    def add(self, number: int, s: int, since: float) -> None:
        """Add a sequence of this class that waits. No-op for a line of a batch."""
        if number in self._order:
            insort(self._order[number], (since, s))
            self._since[s] = since

    def remove(self, number: int, s: int) -> None:
        """Remove a sequence that waits no more."""
        if s in self._since:
            order = self._order[number]
            del order[bisect_left(order, (self._since.pop(s), s))]

    @property
    def mixed(self) -> bool:
        """True if sequences of several classes wait and rise in time."""
        return self.seconds > 0 and sum(bool(order) for order in self._order.values()) > 1

    def due(self, now: float) -> int:
        """Return a sequence that rises now; -1: none does."""
        if not self.mixed:
            return -1
        highest = next(number for number in CLASSES if self._order[number])
        for number in CLASSES:
            order = self._order[number]
            if number > highest and order and order[0][0] + self.seconds <= now:
                return order[0][1]
        return -1

    def since(self, s: int) -> float:
        """Return the time from which the wait of a waiting sequence counts."""
        return self._since[s]

    def waits(self, number: int) -> int:
        """Return how many sequences of this class wait."""
        return len(self._order[number])

    def fork(self) -> Ageing:
        copy = Ageing(self.seconds)
        copy._order = {number: order.copy() for number, order in self._order.items()}
        copy._since = self._since.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        order = [[list(pair) for pair in self._order[number]] for number in CLASSES]
        return {"seconds": self.seconds, "order": order, "since": [[s, at] for s, at in self._since.items()]}

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> Ageing:
        made = cls(data["seconds"])
        for number, order in zip(CLASSES, data["order"], strict=True):
            made._order[number] = [(pair[0], pair[1]) for pair in order]
        made._since = {pair[0]: pair[1] for pair in data["since"]}
        return made

    def check(self, waiting: dict[int, int]) -> None:
        """Raise AssertionError unless it holds exactly these sequences. ``waiting``: the class of each."""
        found = {s: number for number, order in self._order.items() for _, s in order}
        assert found == {s: number for s, number in waiting.items() if number in self._order}, "a class is counted wrongly"
        assert all(order == sorted(order) for order in self._order.values()), "waiting sequences are out of order"
        assert self._since == {s: at for order in self._order.values() for at, s in order}, "a wait counts from two times"
