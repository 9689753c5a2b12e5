"""The load of a simulated instance, from the effects of its sweep machine: its requests, and what they have left to do.

Tokens are counted as a gateway counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..plan.sweep_plan import SweepPlan, SweepResult
from ..sweep.events import GatewayNews, GivenBack, Preempted, Progressed, Submission, TokensEmitted
from ..sweep.state import SweepState
from .lengths import LengthSpread

STOP: Final = 1  # the token that ends an answer before its limit
FAR: Final = 1 << 62
Accept = Callable[[str, str, int, int], int]  # (model, request, position of the first draft, drafts) -> drafts that stand
News = tuple[str, str]  # (request, outcome): "started", "first", "preempted", "finished", or why it was given back


class InstanceLoad:
    """The load of one instance (see the module).

    ``state``: the machine that gets requests; for a pipeline, its home. ``accept``: tells which drafts stand.
    """

    def __init__(self, state: SweepState, accept: Accept | None = None) -> None:
        self._state = state
        self._accept = accept
        self.totals: dict[str, int] = {}  # requests here -> most tokens
        self.needs: dict[str, int] = {}  # those not running -> blocks they need
        self.starting = 0  # number of running requests that prefill
        self.stops: dict[str, int] = {}  # requests that will draw a stop token -> tokens at that point
        self.outstanding = self.waiting_blocks = 0
        self.spread = LengthSpread()
        self._behind: dict[str, int] = {}  # requests that prefill -> reported positions
        self._silent: set[str] = set()  # requests without a token yet

    def enter(self, submission: Submission, ends: int) -> None:
        """Add a request. ``ends``: tokens at which it draws ``STOP``; 0: its limit ends it."""
        if ends:
            self.stops[submission.request] = ends
        self.totals[submission.request] = submission.max_length
        self.outstanding += submission.max_length
        self._behind[submission.request] = 0
        self._silent.add(submission.request)
        self.spread.begin(submission.request, submission.prompt_length, submission.expected)
        self._queue(submission.request, len(submission.tokens))

    def result(self, state: SweepState, plan: SweepPlan) -> SweepResult:
        """Return the result of a plan, at the home or at the last worker of a pipeline."""
        verified = self._verified(state, plan) if plan.verify else []
        return SweepResult(plan.number, self._drawn(state, plan), verified=verified)

    def _drawn(self, state: SweepState, plan: SweepPlan) -> list[int]:
        """Return the tokens of a plan's sampled rows; of rows with drafts, the first ones."""
        if not self.stops:
            return [0] * len(plan.sample)
        batch = state.batch(plan.number)
        submissions = state.parts.rows.submission
        stops = self.stops
        count = plan.count
        if plan.verify:
            verify = set(plan.verify)
            count = [1 if i in verify else n for i, n in enumerate(count)]
        lengths = [(submissions[batch[i]].request, plan.start[i] + count[i] + 1) for i in plan.sample]
        return [STOP if stops.get(request, 0) == length else 0 for request, length in lengths]

    def _verified(self, state: SweepState, plan: SweepPlan) -> list[list[int]]:
        """Return, for each row with drafts, the tokens behind its first one: a token behind each draft that stands.

        No draft is a stop token, so none stands at its position.
        """
        assert self._accept is not None, "drafts are verified, and nothing tells which of them stand"
        rows = state.parts.rows
        batch = state.batch(plan.number)
        found = []
        for i in plan.verify:
            s = batch[i]
            request = rows.submission[s].request
            position = plan.start[i] + 1
            model = rows.route[s].route.application
            accepted = self._accept(model, request, position, plan.count[i] - 1)
            end = self.stops.get(request, FAR)  # the stop token is at the position before
            tokens = [0] * min(accepted, end - 1 - position)
            if tokens and position + len(tokens) == end - 1:
                tokens[-1] = STOP
            found.append(tokens)
        return found

    def beginning(self) -> set[int]:
        """Return the sequences whose next tokens must be reported, because they prefill."""
        rows = self._state.parts.rows
        return {s for request in self._behind if request not in self.needs and (s := rows.find(request)) is not None}

    def withdraw(self, request: str) -> int:
        """Remove a request that goes on elsewhere; return the positions it had computed when it last ran."""
        s = self._state.parts.rows.find(request)
        assert s is not None, "a request goes that is not here"
        self.starting -= request in self._behind and request not in self.needs
        computed = self._behind.pop(request, self._state.parts.rows.length[s] - 1)
        self._end(request, computed)
        return computed

    def without_stop(self, plan: SweepPlan) -> int:
        """Return the number of sweeps with these rows before one of them draws its stop token."""
        batch = self._state.batch(plan.number)
        submissions = self._state.parts.rows.submission
        stops = self.stops
        lengths = zip(batch, plan.start, strict=True)
        return min([stops.get(submissions[s].request, FAR) - start - 2 for s, start in lengths])

    def record(self, effects: Sequence[GatewayNews]) -> list[News]:
        """Update the load by what the machine reports; return the news."""
        news: list[News] = []
        behind = self._behind
        for effect in effects:
            if type(effect) is TokensEmitted and not effect.finish and effect.request not in behind:
                self.outstanding -= len(effect.tokens)  # most effects are of this kind
            else:
                self._note(effect, news)
        assert self.totals or (self.outstanding, self.waiting_blocks) == (0, 0), "the load is counted wrongly"
        return news

    def _queue(self, request: str, tokens: int) -> None:
        blocks = -(-tokens // self._state.config.page_size)
        self.waiting_blocks += blocks - self.needs.get(request, 0)
        self.needs[request] = blocks

    def _note(self, effect: GatewayNews, news: list[News]) -> None:
        rows = self._state.parts.rows
        if isinstance(effect, TokensEmitted):
            request, length = effect.request, effect.position + len(effect.tokens)
            self.starting -= request in self._behind and request not in self.needs
            self.outstanding -= length - 1 - self._behind.pop(request, effect.position - 1)
            if request in self._silent:
                self._silent.remove(request)
                news.append((request, "first"))
            if effect.finish:
                self.spread.end(request, length)
                self._end(request, length - 1)
                news.append((request, "finished"))
        elif isinstance(effect, Progressed):
            request = effect.request
            if request in self.needs and effect.computed == effect.cached:  # else it was preempted, and a chunk of it ends
                self.waiting_blocks -= self.needs.pop(request)
                self.starting += 1
                news.append((request, "started"))
            s = rows.find(request)
            before = self._behind.get(request, rows.length[s] - 1 if s is not None else 0)
            self.outstanding += before - effect.computed
            self._behind[request] = effect.computed
        elif isinstance(effect, Preempted):
            s = rows.find(effect.request)
            assert s is not None, "a sequence was preempted that is not here"
            self.starting -= effect.request in self._behind and effect.request not in self.needs
            self._queue(effect.request, rows.length[s])
            news.append((effect.request, "preempted"))
        elif isinstance(effect, GivenBack):
            self.starting -= effect.request in self._behind and effect.request not in self.needs
            self._end(effect.request, self._behind.pop(effect.request, None))
            news.append((effect.request, effect.reason))

    def _end(self, request: str, computed: int | None) -> None:
        """Remove a request. ``computed``: reported positions; None: it expired between tokens, where none are counted."""
        self.spread.leave(request)
        self.waiting_blocks -= self.needs.pop(request, 0)
        self._silent.discard(request)
        total = self.totals.pop(request)
        self.stops.pop(request, None)
        if computed is not None:
            self.outstanding -= total - computed
        else:
            rows = self._state.parts.rows
            lengths = {r: rows.length[s] - 1 for r in self.totals if (s := rows.find(r)) is not None}
            self.outstanding = sum([n - self._behind.get(r, lengths.get(r, n)) for r, n in self.totals.items()])
