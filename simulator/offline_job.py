"""Offline batch on one simulated engine: continuous batching with chunked prefill and a prefix cache, in any order.

The scanner chooses which request starts (``policies/offline/scanner.py``), the back ends say how long a step takes
(``policies/offline/step_time.py``), and the engine's own memory says what is cached. What a batch's steps compute and read
does not depend on how long they take, so one simulation gives the seconds on every back end. Steps in which all sequences
only decode are taken together, up to the next sequence that ends.

Prompts are computed in the order in which they started, so a shared prefix is there before the others that share it need it.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..policies.offline.admission import OfflineFit
from ..policies.offline.density import Costs
from ..policies.offline.order import Unit
from ..policies.offline.prefix_tree import PrefixTree
from ..policies.offline.scanner import SIDES, DualScanner
from ..policies.offline.step_time import StepTime
from ..policies.offline.step_tokens import MOST, StepTokens
from .offline_cache import PrefixCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine that all orders share.

    ``memory`` is in positions of KV. ``weights`` is the seconds of reading the parameters once. ``clocks`` are back ends by
    name. ``max_tokens`` is the most tokens of a step.
    """

    costs: Costs
    memory: int
    weights: float
    clocks: dict[str, StepTime]
    max_tokens: int = MOST


class OfflineJob:
    """A run of a batch.

    ``outputs`` are the true tokens of each answer, ``expected`` their estimates. ``pace`` is the density that steps aim at
    (``StepTokens``); None means that all take as many tokens as they can. Raises ValueError for a request that does not fit
    even into empty memory.
    """

    def __init__(
        self,
        engine: Engine,
        tree: PrefixTree,
        outputs: Sequence[int],
        expected: Sequence[float],
        units: Sequence[Unit],
        *,
        target: float,
        pace: float | None = None,
        share: float | None = None,
    ) -> None:
        for request in range(tree.count):
            if (tokens := tree.length[request] + outputs[request]) > engine.memory:
                raise ValueError(f"request {request} has {tokens} tokens, and memory {engine.memory} positions; give more")
        self.engine = engine
        self.outputs = outputs
        self.expected = expected
        self._length = tree.length
        self.cache = PrefixCache(tree, engine.memory)
        self.scanner = DualScanner(units, self._need, engine.memory, target, share=share)
        self.admission = OfflineFit(self.scanner)
        self.pace(pace)
        self._clocks = list(engine.clocks.values())
        self._seconds = [0.0] * len(self._clocks)
        self._prompts: deque[list[int]] = deque()  # [request, tokens with KV, tokens to compute]
        self._began: dict[int, int] = {}  # decoding sequence -> the step after which it began
        self._ends: dict[int, int] = {}  # decoding sequence -> the step after which it ends
        self._next: list[tuple[int, int]] = []  # heap of (step, request), with outdated entries
        self._made: dict[int, int] = {}  # stopped sequence -> tokens that it had generated
        self._context = 0  # positions of all decoding sequences
        self._full = False  # nothing more fits until a sequence ends
        self.step = 0
        self.compute = self.memory = 0.0  # seconds at full speed
        self.computed = self.found = self.again = (
            0  # prompt tokens computed, found in the cache, computed again after a stop
        )
        self.timeline = array("d")  # triples: steps, and their compute and memory seconds

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds so far, by back end."""
        return dict(zip(self.engine.clocks, self._seconds, strict=True))

    def pace(self, target: float | None) -> None:
        """Set the density that steps aim at from now on."""
        self._tokens = StepTokens(self.engine.costs, target, self.engine.weights, self.engine.max_tokens)

    def replace(self, units: Sequence[Unit], expected: Sequence[float], target: float, share: float | None = None) -> None:
        """Continue with another order of the requests that have not started, better estimates, and another density."""
        self.expected, self._full = expected, False
        self.scanner.replace(units, target, share)

    def run(self, awaited: set[int] | None = None) -> None:
        """Run until everything is done, or all of ``awaited``."""
        awaits = awaited is not None
        while (self.scanner.waiting or self._prompts or self._ends) and not (awaits and not awaited):
            if self.cache.held + len(self._ends) > self.engine.memory:
                self._stop()
            elif self._prompts or self._admit():
                self._one()
            else:
                self._many()
            while self._next and self._next[0][0] <= self.step:
                request = heapq.heappop(self._next)[1]
                if self._ends.get(request) == self.step:
                    self._finish(request)
                    if awaited is not None:
                        awaited.discard(request)

    # admission

    def _need(self, request: int) -> float:
        """Return the positions that a request counts for if it starts now; more than fit, if pages are short."""
        made = self._made.get(request, 0)
        new = self._length[request] - self.cache.cached(request) + made
        more = round(max(self.expected[request] - made, 0.25 * made))
        held = self.cache.held
        return self.admission.need(new, more, held, self.step, alone=not held)

    def _admit(self) -> bool:
        if self._full:
            return False
        admission = self.scanner.admit()
        if admission is None:
            self._full = True
            return False
        request = admission.request
        found = self.cache.begin(request)
        made = self._made.get(request, 0)
        new = max(self._length[request] - found, 1)
        self.cache.grow(made)
        if made:
            self.again += new + made
        else:
            self.found += found
            self.computed += new
        self._prompts.append([request, found, new + made])
        more = round(max(self.expected[request] - made, 0.25 * made))
        self.admission.started(request, self._length[request] - found + made, more, self.step)
        return True

    # steps

    def _one(self) -> None:
        """Simulate a step in which prompts are computed."""
        costs, decoding = self.engine.costs, len(self._ends)
        memory = costs.read * (self._context + decoding)
        left = self._tokens.tokens(decoding, memory) - decoding
        compute, started = costs.answer(decoding), []
        while left > 0 and (self._prompts or self._admit()):
            prompt = self._prompts[0]
            taken = min(left, prompt[2])
            compute += costs.prompt(taken, prompt[1])
            prompt[1] += taken
            prompt[2] -= taken
            left -= taken
            if not prompt[2]:
                started.append(self._prompts.popleft())
        self._pass(1, compute, memory)
        for request, context, _ in started:
            self._began[request] = self.step
            self._ends[request] = end = self.step + self.outputs[request] - self._made.get(request, 0)
            self._context += context
            heapq.heappush(self._next, (end, request))

    def _many(self) -> None:
        """Simulate steps in which all sequences only decode, until one ends or memory is full."""
        decoding = len(self._ends)
        room = (self.engine.memory - self.cache.held) // decoding
        while self._ends.get(self._next[0][1]) != self._next[0][0]:
            heapq.heappop(self._next)
        steps = min(self._next[0][0] - self.step, room)
        costs = self.engine.costs
        self._pass(steps, costs.answer(decoding), costs.read * (self._context + decoding))

    def _pass(self, steps: int, compute: float, memory: float) -> None:
        """Advance by some steps. The first one reads for ``memory`` seconds; each decoding sequence grows by a token."""
        decoding = len(self._ends)
        growth = self.engine.costs.read * decoding
        if steps == 1:
            for number, clock in enumerate(self._clocks):
                self._seconds[number] += clock.seconds(compute, memory)
        else:
            for number, clock in enumerate(self._clocks):
                self._seconds[number] += clock.run(compute, memory, growth, steps)
            memory += growth * (steps - 1) / 2.0
        self.step += steps
        self.compute += compute * steps
        self.memory += memory * steps
        self._context += decoding * steps
        self.cache.grow(decoding * steps)
        self.timeline.extend((steps, compute * steps, memory * steps))

    # ends

    def _leave(self, request: int, *, keep: bool) -> int:
        """Remove a decoding sequence. Return the tokens that it has generated in all."""
        del self._ends[request]
        self.admission.ended(request)
        made = self.step - self._began.pop(request) + self._made.pop(request, 0)
        self._context -= self._length[request] + made
        self.cache.end(request, made, keep=keep)
        self._full = False
        return made

    def _finish(self, request: int) -> None:
        self._leave(request, keep=True)
        self.scanner.finished(request)
        self.cache.grow(0)

    def _stop(self) -> None:
        """Stop the newest decoding sequence on the side that exceeds its share more. Memory is full."""
        worse, better = sorted(SIDES, key=self.scanner.over, reverse=True)
        request = next(one for side in (worse, better) for one in self.scanner.newest(side) if one in self._ends)
        self._made[request] = self._leave(request, keep=False)
        self.scanner.retracted(request)
