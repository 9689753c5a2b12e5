"""The dual scanner: which request of an offline batch starts next, from a list of units read from both ends at once.

After BlendServe (section "Dual scanner and memory partition"): units are sorted by density, so the left end is
compute-heavy and the right end memory-heavy. KV memory is divided between the two sides so that what runs together is as
dense as the whole batch: ``M_left * rho_left + M_right * rho_right = M * rho_root``, with the densities of the units under
the two pointers. When both pointers are in one unit, one pointer reads on over what is left, with all memory. With a
single unit this is an engine that admits requests in a given order: every baseline runs through it.

A machine of events, each O(1). It counts positions of KV by estimate (*need*: uncached prompt and half of the answer, the
average that a sequence holds). The owner of the pages has the last word and retracts requests that do not fit. A request
is a number.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .order import Unit

Side = Literal["left", "right"]
SIDES: tuple[Side, Side] = ("left", "right")
LIKE = 1e-6  # densities that differ by less have no mixture to aim for


@dataclass(frozen=True, slots=True)
class OfflineAdmission:
    """A request to start now. ``need``: positions of KV that it counts for on its ``side``."""

    request: int
    side: Side
    need: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannerUse:
    """Positions of KV of a worker's two sides by estimate, their limits, and the running sequences."""

    left: float
    right: float
    left_most: float
    right_most: float
    left_running: int
    right_running: int


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} of an offline batch's scanner is {value!r}; give a number above 0")


def left_share(left: float, right: float, target: float) -> float:
    """Return the fraction of KV memory for the left side, by the densities of both sides and the target."""
    if abs(left - right) < LIKE:
        return 0.5
    return min(max((target - right) / (left - right), 0.0), 1.0)


class _Pointer:
    """One side: its position in the units, requests given back to it, and running ones."""

    __slots__ = ("at", "returned", "running", "unit", "use")

    def __init__(self, unit: int, at: int) -> None:
        self.unit, self.at = unit, at  # the unit it reads, and the place of the next request in it
        self.returned: deque[int] = deque()  # requests given back, the first to run again first
        self.running: dict[int, float] = {}  # request -> positions that it counts for
        self.use = 0.0


class DualScanner:
    """The dual scanner of one worker.

    units: by density, the densest first; every request is in one of them. need: positions of KV of a request that would
    start now (infinite: it cannot). memory: positions. target: density of the whole batch, which stays fixed while the
    batch runs: aiming at 1 would pack better now and leave a one-sided rest. share: fraction of the memory for the left
    side, instead of one by densities. Raises ValueError if memory or target is not above 0, or share is outside 0 to 1.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        need: Callable[[int], float],
        memory: float,
        target: float,
        *,
        share: float | None = None,
    ) -> None:
        _check(memory=memory)
        self.memory, self._need = memory, need
        self._sides: dict[Side, _Pointer] = {side: _Pointer(0, 0) for side in SIDES}
        self._first: deque[int] = deque()
        self._latest: Side = "left"
        self.admitted = self.retractions = self.finishes = 0  # counted from the beginning
        self.replace(units, target, share)

    # the list of units

    def replace(
        self,
        units: Sequence[Unit],
        target: float | None = None,
        share: float | None = None,
        *,
        first: Iterable[int] = (),
        kept: Callable[[int], bool] = lambda request: False,
    ) -> None:
        """Replace the units: by an order from better estimates, or a part that grew or shrank.

        Running requests stay and count on their side. ``units`` must have no running request, and must have all that are
        to run (see ``pending``), except requests given back for which ``kept`` is true. first: requests read before the
        units, by either side. With a target the partition aims at that from now on, or is the given share.
        """
        if target is not None:
            _check(target=target)
            if share is not None and not 0.0 <= share <= 1.0:
                raise ValueError(f"share of an offline batch's left side is {share!r}; give a number from 0 to 1")
            self.target, self._share = target, share
        self._units = [unit for unit in units if len(unit.requests)]
        self._left = sum(len(unit.requests) for unit in self._units)
        last = len(self._units) - 1
        left, right = self._sides["left"], self._sides["right"]
        left.unit, left.at = 0, 0
        right.unit, right.at = last, len(self._units[last].requests) - 1 if self._units else -1
        self._first = deque([*filter(kept, self._first), *first])
        for pointer in (left, right):
            pointer.returned = deque(filter(kept, pointer.returned))
        self._divide()

    def pending(self) -> list[int]:
        """Return the requests that have not started, from left to right; given-back ones are at their side's end."""
        left, right = self._sides["left"], self._sides["right"]
        found = [*left.returned, *self._first]
        if self._left:
            for number in range(left.unit, right.unit + 1):
                requests = self._units[number].requests
                begin = left.at if number == left.unit else 0
                end = right.at + 1 if number == right.unit else len(requests)
                found += requests[begin:end]
        return [*found, *reversed(right.returned)]

    def ahead(self) -> list[int]:
        """Return the pending requests that are read before the units."""
        return [*self._sides["left"].returned, *self._first, *reversed(self._sides["right"].returned)]

    @property
    def waiting(self) -> int:
        """The number of requests that have not started."""
        return self._left + len(self._first) + sum(len(pointer.returned) for pointer in self._sides.values())

    @property
    def met(self) -> bool:
        """True if both pointers are in one unit, or nothing is left to read: one side reads, with all memory."""
        return self._sides["left"].unit >= self._sides["right"].unit

    # events

    def admit(self, limit: float = math.inf) -> OfflineAdmission | None:
        """Return the next request that fits, on the side that was not served last if it has room; None if none does.

        limit: bound of its positions, unless nothing is running. A side with nothing running gets one request as soon as
        memory has room for it, and an empty memory always gets one.
        """
        total = self._sides["left"].use + self._sides["right"].use
        for side in self._turns():
            if (request := self._next(side)) is None:
                continue
            need, pointer = self._need(request), self._sides[side]
            alone = not pointer.running
            if total and alone and total + need > self.memory:
                return None  # the other side gives way, or this one would never begin
            part = alone or pointer.use < self._most[side]
            if not self._running_any() or (part and need <= min(self.memory - total, limit)):
                self._take(side, request, need)
                return OfflineAdmission(request, side, need)
        return None

    def peek(self) -> int | None:
        """Return the request that would be tried first, whether it fits or not; None if none waits."""
        for side in self._turns():
            if (request := self._next(side)) is not None:
                return request
        return None

    def finished(self, request: int) -> None:
        """Remove a finished request; its memory is free."""
        self._forget(self._side_of(request), request)
        self.finishes += 1

    def retracted(self, request: int) -> None:
        """Take back a request that was stopped to make room; it is the first to start again on its side."""
        side = self._side_of(request)
        self._forget(side, request)
        self.returned(side, request)
        self.retractions += 1

    def returned(self, side: Side, request: int) -> None:
        """Put a request that ran elsewhere first on a side."""
        self._sides[side].returned.appendleft(request)

    def resize(self, memory: float) -> None:
        """Set the positions of memory. Raises ValueError if they are not above 0."""
        _check(memory=memory)
        self.memory = memory
        self._divide()

    # looking

    def side(self, request: int) -> Side | None:
        """Return the side of a running request, or None."""
        return next((side for side in SIDES if request in self._sides[side].running), None)

    def over(self, side: Side) -> float:
        """Return the positions by which a side exceeds its limit; negative: free ones."""
        return self._sides[side].use - self._most[side]

    def running(self, side: Side) -> int:
        """Return the number of running sequences of a side."""
        return len(self._sides[side].running)

    def newest(self, side: Side) -> Iterator[int]:
        """Iterate over a side's running requests, the last started first: the order in which they are stopped."""
        return reversed(self._sides[side].running)

    def use(self) -> ScannerUse:
        """Return the use of both sides, see ``ScannerUse``."""
        left, right = self._sides["left"], self._sides["right"]
        return ScannerUse(
            left=left.use,
            right=right.use,
            left_most=self._most["left"],
            right_most=self._most["right"],
            left_running=len(left.running),
            right_running=len(right.running),
        )

    def check(self) -> None:
        """Raise AssertionError unless counts match the running requests, and none runs or waits twice."""
        for pointer in self._sides.values():
            assert math.isclose(pointer.use, sum(pointer.running.values()), rel_tol=1e-9, abs_tol=1e-3), "use is miscounted"
        left, right = (self._sides[side] for side in SIDES)
        assert not left.running.keys() & right.running.keys(), "a request runs on both sides"
        waiting = self.pending()
        assert len(waiting) == self.waiting == len({*waiting}), "a request waits twice"
        assert not {*waiting} & (left.running.keys() | right.running.keys()), "a request runs and waits"

    # parts

    def _divide(self) -> None:
        """Divide memory between the sides, by the units under the pointers."""
        if self.met:
            self._most: dict[Side, float] = {"left": self.memory, "right": self.memory}
            return
        share = self._share
        if share is None:
            left, right = (self._units[self._sides[side].unit].rho for side in SIDES)
            share = left_share(left, right, self.target)
        self._most = {"left": share * self.memory, "right": (1.0 - share) * self.memory}

    def _turns(self) -> tuple[Side, Side]:
        """Return the order in which sides are tried: first the one that did not start a request last."""
        return ("right", "left") if self._latest == "left" else ("left", "right")

    def _next(self, side: Side) -> int | None:
        """Return the request at a pointer. After the pointers have met, the left one reads on."""
        pointer = self._sides[side]
        if pointer.returned:
            return pointer.returned[0]
        if self._first:
            return self._first[0]
        if not self._left or (self.met and side == "right"):
            return None
        return self._units[pointer.unit].requests[pointer.at]

    def _running_any(self) -> bool:
        return bool(self._sides["left"].running or self._sides["right"].running)

    def _take(self, side: Side, request: int, need: float) -> None:
        pointer = self._sides[side]
        pointer.running[request] = need
        pointer.use += need
        self.admitted += 1
        self._latest = side
        if pointer.returned:
            pointer.returned.popleft()
            return
        if self._first:
            self._first.popleft()
            return
        self._left -= 1
        if side == "left":
            pointer.at += 1
            if pointer.at == len(self._units[pointer.unit].requests):
                pointer.unit, pointer.at = pointer.unit + 1, 0
                self._divide()
        else:
            pointer.at -= 1
            if pointer.at < 0:
                pointer.unit -= 1
                pointer.at = len(self._units[pointer.unit].requests) - 1
                self._divide()

    def _side_of(self, request: int) -> Side:
        if (side := self.side(request)) is None:
            raise KeyError(f"request {request} of an offline batch is not running")
        return side

    def _forget(self, side: Side, request: int) -> None:
        pointer = self._sides[side]
        pointer.use -= pointer.running.pop(request)
        if not pointer.running:
            pointer.use = 0.0  # sums of fractions leave crumbs
