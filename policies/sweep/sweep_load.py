"""The estimated cost of a sweep while it is put together, and the backfill budget of offline rows in it.

The costs are those of the model in ``plan/cost.py``.
"""

from __future__ import annotations

from ..model.runs import LocalRoute, Run
from ..plan.coefficients import Coefficients
from ..plan.cost import KNEE
from .local_routes import LocalRoutes

TURNAROUND = 300_000  # nanoseconds that the device waits for a plan that was not made ahead


class SweepLoad:
    """The load of one sweep.

    seconds: estimated time of all added rows. fixed: the time it takes at least, however few its rows.
    """

    def __init__(self, costs: Coefficients, routes: LocalRoutes) -> None:
        self._costs, self._routes = costs, routes
        self.seconds = self.fixed = 0.0
        self._tokens: dict[int, int] = {}  # tokens of each run, by number
        self._passes: dict[str, list[tuple[int, float, float, bool]]] = {}  # by route id: (number, shares, head) of each run

    def price(self, local: LocalRoute, tokens: int, drawn: int, near: int, far: int) -> float:
        """Return the seconds that rows of a route would add.

        Args:
            local: the route.
            tokens: of all rows.
            drawn: rows after which a token is drawn.
            near: positions that decoding rows attend to.
            far: positions that tokens of prompts attend to.
        """
        c = self._costs
        seconds = c.row * drawn + (0.0 if self._tokens else c.base)
        for number, share, kv, head in self._runs(local):
            count = drawn if head else tokens
            if count:
                before = self._tokens.get(number, 0)
                if not before:
                    seconds += c.step + c.read * share
                over = max(0, before + count - KNEE) - max(0, before - KNEE)
                seconds += share * (c.token * count + c.beyond * over) + kv * (c.context * near + c.prefill * far)
        return seconds

    def price_round(self, local: LocalRoute, head: Run, start: int, count: int, passes: int) -> float:
        """Return the seconds that a row would add whose ``count`` drafts from position ``start`` on ``head`` draws.

        The runs below ``head`` pass one position after the other, the first with the rows that are there. The runs above
        it pass them together. ``passes``: the further passes below ``head`` that the sweep makes for other rows anyway.
        """
        c = self._costs
        if not count:
            return self.price(local, 1, 1, start + 1, 0)
        parameters = c.parameters or sum([run.nbytes for run in local.runs]) or 1.0
        positions = c.kv or sum([run.kv_bytes for run in local.runs]) or 1.0
        near, far = attended(start, count + 1)
        stepwise = (count + 1) * (start + 1) + count * (count + 1) // 2  # positions attended to one after the other
        new = max(0, count - passes)  # further passes that the sweep would not make without this row
        further = new * c.step, new * c.read + count * c.token  # of a run, and of all parameters
        seconds = c.row * (2 * count + 1) + (0.0 if self._tokens else c.base)
        seconds += further[0] + further[1] * head.nbytes / parameters
        for number, run in zip(self._routes.numbers(local.route.id), local.runs, strict=True):
            share, kv = run.nbytes / parameters, run.kv_bytes / positions
            before, below = self._tokens.get(number if c.parameters else -1, 0), run.depth < head.depth
            if not before:
                seconds += c.step + c.read * share
            if below:
                seconds += further[0] + further[1] * share + kv * c.context * stepwise
            tokens = 1 if below else count + 1
            over = max(0, before + tokens - KNEE) - max(0, before - KNEE)
            seconds += share * (c.token * tokens + c.beyond * over)
            if not below:
                seconds += kv * (c.context * near + c.prefill * far)
        return seconds

    def price_drafts(self, local: LocalRoute, start: int, lead: int, count: int) -> float:
        """Return the seconds that a draft row of a route would add to draw ``count`` drafts.

        It passes ``lead`` positions from ``start`` on together, and one after each draft but the last.
        """
        c = self._costs
        if not count:
            return 0.0
        parameters = c.parameters or sum([run.nbytes for run in local.runs]) or 1.0
        positions = c.kv or sum([run.kv_bytes for run in local.runs]) or 1.0
        near, far = attended(start, lead)
        end, further = start + lead, count - 1
        stepwise = further * end + further * (further + 1) // 2
        seconds = c.row * count
        for number, run in zip(self._routes.numbers(local.route.id), local.runs, strict=True):
            share, kv = run.nbytes / parameters, run.kv_bytes / positions
            before = 0 if run.head else self._tokens.get(number if c.parameters else -1, 0)
            tokens = 1 if run.head else lead
            seconds += further * (c.step + share * (c.read + c.token))
            seconds += 0.0 if before else c.step + c.read * share
            over = max(0, before + tokens - KNEE) - max(0, before - KNEE)
            seconds += share * (c.token * tokens + c.beyond * over)
            seconds += kv * (c.context * (near + stepwise) + c.prefill * far)
        return seconds

    def add(self, local: LocalRoute, tokens: int, drawn: int, near: int, far: int) -> None:
        """Add rows of a route; arguments as in ``price``."""
        self.seconds += self.price(local, tokens, drawn, near, far)
        self.fixed += 0.0 if self._tokens else self._costs.base
        for number, share, _, head in self._runs(local):
            if count := drawn if head else tokens:
                if number not in self._tokens:
                    self.fixed += self._costs.step + self._costs.read * share
                self._tokens[number] = self._tokens.get(number, 0) + count

    def _runs(self, local: LocalRoute) -> list[tuple[int, float, float, bool]]:
        found = self._passes.get(local.route.id)
        if found is None:
            c = self._costs
            if c.parameters:
                numbers = self._routes.numbers(local.route.id)
                found = [
                    (number, run.nbytes / c.parameters, run.kv_bytes / c.kv if c.kv else 0.0, run.head)
                    for number, run in zip(numbers, local.runs, strict=True)
                ]
            else:  # without sizes, a sweep is one pass of its rows
                found = [(-1, 1.0, 1.0, False)]
            self._passes[local.route.id] = found
        return found


class BackfillBudget:
    """The backfill budget: how much longer offline rows may make a sweep.

    load: the load so far. online: whether online requests wait for the sweep. delay: by which fraction answers may then
    become slower. alone: seconds that the sweep may take otherwise; None: unknown, twice the cost of the first row. The
    first row always fits such a sweep, together with whatever adds no more than ``delay``.

    ``delay`` is a fraction of the sweep's ``fixed`` seconds, not of all: a longer sweep finds more tokens waiting at its
    end. Where requests bring r tokens a second of t seconds each, sweeps of b fixed seconds take s = b + t * r * s, which
    is b / (1 - t * r). With d * b more in each, s is 1 + d times that; with d * s more it is 1 / (1 - d / (1 - t * r))
    times.
    """

    def __init__(self, load: SweepLoad, delay: float, alone: float | None, *, online: bool) -> None:
        self._load = load
        self._delay = delay
        self._alone = alone
        self._first = not online
        self._left = delay * load.fixed

    @property
    def over(self) -> bool:
        """True if nothing more fits."""
        return not self._first and self._left <= 0

    def takes(self, local: LocalRoute, position: int) -> bool:
        """Add a decoding row if it fits; return whether it did."""
        price = self._price(local, position, 1)
        if price > self._left:
            return False
        self._add(local, position, 1, price)
        return True

    def fitting(self, local: LocalRoute, start: int, count: int) -> int:
        """Return how many of ``count`` tokens of a prompt fit, from position ``start`` on."""
        if count <= 0 or self._price(local, start, 1) > self._left:
            return 0
        if self._price(local, start, count) <= self._left:
            return count
        low, high = 1, count  # the first fits, the second does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._price(local, start, middle) <= self._left else (low, middle)
        return low

    def add(self, local: LocalRoute, start: int, count: int) -> None:
        """Add a chunk of a prompt."""
        self._add(local, start, count, self._price(local, start, count))

    def _add(self, local: LocalRoute, start: int, count: int, price: float) -> None:
        self._left -= price
        self._load.add(local, count, 1, *attended(start, count))

    def _price(self, local: LocalRoute, start: int, count: int) -> float:
        near, far = attended(start, count)
        if self._first:
            one = self._load.price(local, 1, 1, start + 1, 0)
            self._left = max(2 * one if self._alone is None else self._alone, one * (1 + self._delay))
            self._first = False
        return self._load.price(local, count, 1, near, far)


def attended(start: int, count: int) -> tuple[int, int]:
    """Return the positions that ``count`` tokens after ``start`` attend to: (as a decoding row, as a prompt)."""
    return (start + 1, 0) if count == 1 else (0, count * start + count * (count + 1) // 2)
