"""Sweep on a card: what a plan needs is collected while its calls come, then queued behind one upload.

Owns the order of a sweep's work, and the draws of its heads: rows in groups whose logits fit scratch. Legend: N batch rows,
T drawn positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...policies.plan.sampling import SamplingParams
from ..sampling.verification import DrawnPositions
from ..sweep_columns import Ints, Rows, SweepColumns
from ..tables import Tables
from .backend import CudaBackend, hidden_name
from .card_draws import (
    CardDraws,
    DrawnGroup,
    SampledCall,
    is_of_host,
    plain,
    read_logprobs,
    simple_columns,
)
from .components import CudaRun
from .graphs import Graphs
from .host_draws import HostHeads, WaitingDraws
from .ops import BEST
from .plan_columns import PlanColumns
from .results import CudaTicket, PlanResults, ResultRing

PLAN = "plan"


@dataclass(frozen=True, slots=True)
class HeadTokens:
    """Tokens of a sweep that a head reads: their places in the hidden states, and what is drawn behind each.

    ``delta_T``: numbers of their deltas; empty: none has any.
    """

    index_T: Ints
    row_T: Ints
    position_T: Ints  # of the token that is drawn
    params: list[SamplingParams]
    delta_T: list[int]


class CardSweep:
    """One sweep of a device (see the module)."""

    def __init__(self, backend: CudaBackend, tables: Tables, columns: SweepColumns, graphs: Graphs) -> None:
        self._backend, self._tables = backend, tables
        self._of_plan, self._plan = columns, columns.plan
        self._verify = set(columns.plan.verify)
        self._graphs = graphs
        self.columns, self.results = PlanColumns(), PlanResults()
        self.work: list[Callable[[], object]] = []
        self._card = CardDraws(backend, tables, self.columns, self.results)
        self._waiting = WaitingDraws(backend, tables, HostHeads(backend), columns)
        self._outcome = self._waiting.draws.outcome
        index_E, value_E = backend.tables.edits(columns.plan.edits)
        if index_E.size:
            index, value = self.columns.add(index_E), self.columns.add(value_E)
            at, memory = self.columns.at, backend.tables.tokens
            self.work.append(lambda: backend.ops.edit(memory, at(index), at(value), index_E.size))

    def queue(self, ring: ResultRing) -> CudaTicket:
        """Queue everything, and return the ticket."""
        backend, streams = self._backend, self._backend.streams
        taken = ring.take(self.results)
        began, computed = streams.event(timed=True), streams.event(timed=True)
        with streams.current(backend.compute):
            began.record(backend.compute)
            if self.columns.nbytes:
                self.columns.send(backend.transfers, PLAN)
            for work in self.work:
                work()
            computed.record(backend.compute)
        ticket = CudaTicket(self._outcome, began, computed)
        ring.queue_copy(taken, self.results, ticket, computed)
        return ticket

    # draws

    def sample(self, run: CudaRun, at: Rows, delta: Sequence[int]) -> None:
        """Draw as ``Device.sample`` says."""
        first_N = [
            int(start) + (1 if n in self._verify else int(count))
            for n, start, count in zip(at.batch, at.start_N, at.count_N, strict=True)
        ]
        here, there = self._divided(run, at, first_N, [n in self._verify for n in at.batch])
        if here:
            self._sample(run, [at.batch[i] for i in here], [delta[i] for i in here] if delta else [])
        if there:
            rows, numbers = some_rows(at, there), [delta[i] for i in there] if delta else []
            self.work.append(lambda: self._waiting.sample(run, rows, numbers))

    def _sample(self, run: CudaRun, batch: list[int], delta: list[int]) -> None:
        of_plan, drawn = self._of_plan, DrawnPositions(self._plan, batch, self._verify)
        row_T = of_plan.row_N[drawn.batch_T]
        position_T = of_plan.start_N[drawn.batch_T] + drawn.place_T + 1
        index_T = (of_plan.offset_N[drawn.batch_T] + drawn.place_T).astype(np.int32)
        params = [self._tables.sampling[row] for row in row_T.tolist()]
        delta_T = np.repeat(delta, drawn.count_N).tolist() if delta else []
        tokens = HeadTokens(index_T, row_T, position_T, params, delta_T)
        spans = list(zip(batch, drawn.first_N.tolist(), drawn.count_N.tolist(), strict=True))
        first_N = drawn.first_N
        kept = np.stack([row_T[first_N], position_T[first_N], first_N, drawn.count_N], axis=1).astype(np.int32)
        token = self.results.room(4 * len(row_T))
        call = None
        if len(row_T) == len(spans):
            call = self._recorded(run, tokens, kept, token, spans)
        if call is None:
            groups = self._grouped(run, tokens, token)
            standing = self.results.room(4 * len(spans))
            self._keep(kept, token, standing)
            call = SampledCall(spans, groups, [p.logprobs for p in params], run.vocabulary, token, standing)
        self.results.readers.append(lambda region_B: call.read(region_B, self._outcome))

    def _recorded(
        self, run: CudaRun, tokens: HeadTokens, kept: Ints, token: int, spans: list[tuple[int, int, int]]
    ) -> SampledCall | None:
        """Draw one token for each row by a recorded graph; None if more than temperatures count, or there are too many."""
        if not all(plain(p) and p.logprobs < 0 for p in tokens.params):
            return None
        simple = simple_columns(tokens.params, tokens.position_T.tolist())
        columns = self._graphs.columns_of_head(tokens.index_T, kept, simple, tokens.delta_T)
        if columns is None:
            return None
        block, size = self.columns.add(columns.block), columns.block.size
        nbytes = 4 * len(spans)

        def queue() -> None:
            hidden, out = self._backend.scratch[hidden_name(run.width)], self.results.tensor(token, nbytes)
            self._graphs.head(run, columns, self.columns.tensor(block, size), hidden, out)

        self.work.append(queue)
        return SampledCall(spans, [], [-1] * len(spans), run.vocabulary, token)

    def draft(self, run: CudaRun, at: Rows, delta: Sequence[int], place: int) -> None:
        """Draw as ``Device.draft`` says: the draft at this place."""
        here, there = self._divided(run, at, (at.start_N + at.count_N).tolist(), [True] * len(at.batch))
        if here:
            rows = some_rows(at, here)
            params = [self._tables.sampling[row] for row in rows.row_N.tolist()]
            index_N, position_N = (rows.offset_N + rows.count_N - 1).astype(np.int32), rows.start_N + rows.count_N
            numbers = [delta[i] for i in here] if delta else []
            token = self.results.room(4 * len(here))
            self._grouped(run, HeadTokens(index_N, rows.row_N, position_N, params, numbers), token, wanted=False)
            targets = {row.batch: row.target for row in self._plan.draft_rows}
            written = [(row, i) for i, row in enumerate(rows.row_N.tolist())]
            written += [(int(self._of_plan.row_N[targets[n]]), i) for i, n in enumerate(rows.batch) if n in targets]
            kept = [(row, int(position_N[i]), i, 1) for row, i in written]
            self._keep(np.asarray(kept, dtype=np.int32), token, self.results.room(4 * len(kept)))
        if there:
            others, theirs = some_rows(at, there), [delta[i] for i in there] if delta else []
            self.work.append(lambda: self._waiting.draft(run, others, theirs, place))

    def score(self, run: CudaRun, at: Rows, delta: Sequence[int]) -> None:
        """Compute as ``Device.score`` says."""
        for i in range(len(at.batch)):
            some, numbers = some_rows(at, [i]), [delta[i]] if delta else []
            if self._tables.sampling[int(at.row_N[i])].prompt_logprobs > BEST:
                self._outcome.on_host += 1
                self.work.append(partial(self._waiting.score, run, some, numbers))
            else:
                self._score(run, some, numbers)

    def pool(self, run: CudaRun, at: Rows) -> None:
        """Pool as ``Device.pool`` says, on the host."""
        self._outcome.on_host += len(at.batch)
        self.work.append(lambda: self._waiting.pool(run, at))

    def _score(self, run: CudaRun, at: Rows, delta: list[int]) -> None:
        (n,) = at.batch
        row, first = int(at.row_N[0]), int(at.start_N[0])
        count = min(int(at.count_N[0]), int(self._tables.prompt_length[row]) - 1 - first)
        token_T = self._tables.tokens[row, first + 1 : first + 1 + count].copy()
        index_T = (int(at.offset_N[0]) + np.arange(count)).astype(np.int32)
        counts, together = [max(self._tables.sampling[row].prompt_logprobs, 0)] * count, self._backend.heads
        groups: list[DrawnGroup] = []
        for begin in range(0, count, together):
            some = slice(begin, begin + together)
            group = self._card.scored_group(begin, counts[some], run.vocabulary)
            head = self._head(run, index_T[some], delta * group.count)
            self.work.append(partial(self._want, run, head, group, self.columns.add(token_T[some])))
            groups.append(group)

        def read(region_B: Ints) -> None:
            found = read_logprobs(groups, token_T.tolist(), counts, run.vocabulary, region_B)
            self._outcome.scores[n] = [entry for entry in found if entry is not None]

        self.results.readers.append(read)

    def _want(self, run: CudaRun, head: Callable[[], int], group: DrawnGroup, tokens: int) -> None:
        self._card.queue_logprobs(group, head(), run.vocabulary, self.columns.at(tokens))

    def _grouped(self, run: CudaRun, tokens: HeadTokens, token: int, wanted: bool = True) -> list[DrawnGroup]:
        """Draw tokens group by group, which go to offset ``token`` of the results."""
        groups, together = [], self._backend.heads
        for first in range(0, len(tokens.index_T), together):
            some = slice(first, first + together)
            drawn = list(
                zip(tokens.row_T[some].tolist(), tokens.position_T[some].tolist(), tokens.params[some], strict=True)
            )
            group = self._card.group(first, drawn, run.vocabulary, wanted)
            head = self._head(run, tokens.index_T[some], tokens.delta_T[some])
            self.work.append(partial(self._draw, run, head, group, token + 4 * first))
            groups.append(group)
        return groups

    def _draw(self, run: CudaRun, head: Callable[[], int], group: DrawnGroup, token: int) -> None:
        self._card.queue(group, head(), run.vocabulary, self.results.at(token))

    def _keep(self, kept: Ints, token: int, standing: int) -> None:
        """Write the tokens that count to the tables, and how many to offset ``standing``; ``kept`` as in ``Ops.keep``."""
        drawn = self.columns.add(kept)

        def keep() -> None:
            tables, at = self._backend.tables, self.results.at
            address = self.columns.at(drawn)
            self._backend.ops.keep(tables.tokens, tables.token_stride, len(kept), address, at(token), at(standing))

        self.work.append(keep)

    def _head(self, run: CudaRun, index_T: Ints, delta_T: Sequence[int]) -> Callable[[], int]:
        """Add the columns of a head over single tokens; what is returned queues it and returns the address of the logits."""
        planned = self.columns.head(index_T, delta_T)
        return lambda: self._backend.head(run, *planned.on(self.columns))

    def _divided(
        self, run: CudaRun, at: Rows, position_N: Sequence[int], drafted_N: Sequence[bool]
    ) -> tuple[list[int], list[int]]:
        """Return the places of the rows that the card draws, and of the others, which are counted."""
        here, there = list[int](), list[int]()
        for i, row in enumerate(at.row_N.tolist()):
            of_host = is_of_host(self._tables, row, position_N[i], run.vocabulary, drafted_N[i])
            (there if of_host else here).append(i)
        self._outcome.on_host += len(there)
        return here, there


def some_rows(at: Rows, places: list[int]) -> Rows:
    """Return the rows at these places."""
    batch = [at.batch[i] for i in places]
    return Rows(batch, at.row_N[places], at.start_N[places], at.count_N[places], at.offset_N[places])
