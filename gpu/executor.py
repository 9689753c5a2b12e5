"""Model executor: runs plans on the device.

The only owner of a worker's tables, arenas, packed components, runs and hidden states. Used by the worker's device thread
alone. Decides nothing: memory, rows and order come from the plan. A plan that does not fit the executor's state raises
``ExecutorError``. Legend: T tokens, N rows, D hidden width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..policies.memory.residence import VIRTUAL
from ..policies.model.chain import HiddenLayout, Kind, PageLayout
from ..policies.plan.sweep_plan import NOT_FINITE, HiddenRows, MapGroup, Step, SweepPlan, SweepResult, TokenLogprob
from .backend import SLICE, Backend, Batch
from .cuda.arena import MappedArena
from .errors import ExecutorError
from .exchange import PageExchange
from .hidden import HiddenStates
from .memory import Arena
from .model.config import ComponentSpec
from .parameters import ResidentParameters
from .sampling import rejection
from .sampling.sampler import choose, law, raw_logprobs, sample, score_prompt
from .sampling.verification import DrawnPositions, standing
from .tables import Tables

PARAMETERS = "parameters"
REHEARSAL = -1  # number of a run that is composed only to test whether it can be
SCORED_TOGETHER = 32  # prompt positions with logits in memory at a time


@dataclass(frozen=True, slots=True)
class ComposedRun:
    """A composed run: a body that passes hidden states on, a head that ends the chain, or both."""

    components: tuple[bytes, ...]
    kv_layer: int  # KV layer of its first attention
    width: int  # width of the hidden states that the run reads and writes
    body: Any | None
    head: Any | None
    deltas: dict[int, dict[int, bytes]] = field(default_factory=dict)  # by number: ids of the attached deltas, by place

    @property
    def names(self) -> set[bytes]:
        """The ids of all components and deltas that it computes with."""
        return {*self.components, *(id for inside in self.deltas.values() for id in inside.values())}


@dataclass(slots=True)
class ArrivedActivations:
    """Hidden states that arrived and wait for their plan."""

    hidden: Any  # bytes-like
    tokens: int
    width: int


@dataclass(slots=True)
class Sweep:
    """A plan being executed, with its columns as arrays."""

    plan: SweepPlan
    row_N: np.ndarray
    start_N: np.ndarray
    count_N: np.ndarray
    offset_N: np.ndarray  # first token of each batch row in the hidden states
    tokens: dict[int, int] = field(default_factory=dict)  # by batch row
    logprobs: dict[int, TokenLogprob | None] = field(default_factory=dict)
    verified: dict[int, tuple[list[int], list[TokenLogprob]]] = field(default_factory=dict)  # further ones of verified rows
    scores: dict[int, list[TokenLogprob]] = field(default_factory=dict)  # by batch row
    laws: dict[int, dict[int, np.ndarray]] = field(default_factory=dict)  # by batch row and place: a draft's, if it counts
    kernel_seconds: float = 0.0

    @classmethod
    def of(cls, plan: SweepPlan) -> Sweep:
        row_N, start_N, count_N = (np.asarray(c, dtype=np.int32) for c in (plan.row, plan.start, plan.count))
        offset_N = np.cumsum(count_N, dtype=np.int64) - count_N
        return cls(plan, row_N, start_N, count_N, offset_N)

    def columns(self, step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return start, count and offset of each row of a step, which computes a part of drafting and draft rows only."""
        start_N = self.start_N[step.batch]
        count_N = self.count_N[step.batch]
        offset_N = self.offset_N[step.batch]
        if step.place >= 0:
            drafting_N = np.isin(step.batch, self.plan.drafting)
            start_N[drafting_N] += step.place
            offset_N[drafting_N] += step.place
            count_N[drafting_N] = 1
        if step.place >= 0 and self.plan.draft_rows:
            leads = {row.batch: row.lead for row in self.plan.draft_rows}
            lead_N = np.asarray([leads.get(n, 0) for n in step.batch], dtype=np.int32)
            skipped_N = np.where(lead_N > 0, lead_N + step.place - 1 if step.place else 0, 0)
            start_N += skipped_N.astype(start_N.dtype)
            offset_N += skipped_N
            count_N = np.where(lead_N > 0, 1 if step.place else lead_N, count_N)
        return start_N, count_N, offset_N


class Executor:
    """The executor of one back end.

    ``rows`` is the number of table rows, ``max_length`` the tokens of a sequence, ``kv_layers`` the KV layers of the longest
    chain, ``max_tokens`` the tokens of a sweep. ``page_size`` is in tokens, ``budget`` and ``chunk`` are in bytes. With
    ``protect`` (for tests), touching memory that is not committed faults.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        rows: int,
        max_length: int,
        kv_layers: int,
        max_tokens: int,
        page_size: int,
        budget: int,
        chunk: int,
        protect: bool = False,
    ) -> None:
        self.backend = backend
        self.tables = Tables(rows, max_length, kv_layers, page_size)
        self._hidden = HiddenStates(max_tokens, backend.dtype)
        self._budget = budget
        self._chunk = chunk
        self._protect = protect
        open_memory = getattr(backend, "open_memory", None)
        self._memory = open_memory(chunk, budget // chunk) if open_memory is not None else None
        self._arenas: dict[str, Any] = {PARAMETERS: self._arena(PARAMETERS, VIRTUAL * budget)}
        self._pool: set[int] = set()  # ids of the chunks in use
        self.parameters = ResidentParameters(backend, self._arenas[PARAMETERS], SLICE)
        self.pages = PageExchange(backend)
        self._runs: dict[int, ComposedRun] = {}
        self._flights: dict[int, ArrivedActivations] = {}
        self._departed: dict[tuple[int, int], memoryview] = {}
        backend.reserve(self.tables, max_tokens, rows)

    # memory

    def add_layout(self, layout: PageLayout) -> str:
        """Reserve the arena of a layout, unless it exists. Return its key, which is the same on every worker."""
        key = layout.key
        if key not in self._arenas:
            arena = self._arena(key, self._budget)
            self.backend.add_arena(layout, arena.memory)
            self.pages.add_layout(layout)
            self._arenas[key] = arena
        return key

    def _arena(self, name: str, nbytes: int) -> Any:
        if self._memory is not None:
            return MappedArena(self._memory, name, nbytes)
        return Arena(name, nbytes, self._chunk, self._protect)

    def map(self, group: MapGroup) -> None:
        """Commit chunks of an arena, or give them back to the operating system."""
        arena = self._arenas.get(group.arena)
        if arena is None:
            raise ExecutorError(
                f"arena {group.arena!r} does not exist (there are: {', '.join(self._arenas)}); add its layout"
            )
        chunks = set(group.chunks)
        if group.back:
            if not chunks <= self._pool:
                raise ExecutorError(f"chunks {sorted(chunks - self._pool)[:4]} are given back but were not in use")
            self.backend.settle()
            arena.give_back(group.offset, group.chunks)
            self._pool -= chunks
        else:
            if chunks & self._pool or len(chunks) != len(group.chunks):
                raise ExecutorError(f"chunks {sorted(chunks & self._pool)[:4]} are committed to {group.arena} but in use")
            arena.commit(group.offset, group.chunks)
            self._pool |= chunks

    def committed(self) -> dict[str, int]:
        """Return the bytes in use, by arena."""
        return {key: arena.committed * self._chunk for key, arena in self._arenas.items()}

    # components and runs

    def load(self, spec: ComponentSpec, offsets: Sequence[int]) -> Iterator[None]:
        """Make a component resident, or a variant's delta, step by step (``gpu/parameters.py``)."""
        self._hidden.add_width(_width(spec))
        return self.parameters.load(spec, offsets)

    def unload(self, component_id: bytes, tensors: Sequence[bytes]) -> None:
        """Drop a component or a delta, and packed tensors that nothing else needs. Stop its loading, if under way.

        Their chunks may be given back then. No run may name it. A component that never began to load is no error, since
        loads are stopped at any point.
        """
        runs = [run for run, composed in self._runs.items() if component_id in composed.names]
        if runs:
            raise ExecutorError(f"component {component_id.hex()} is part of runs {runs}; drop them first")
        self.backend.settle()
        self.parameters.unload(component_id, tensors)

    def compose(self, run: int, component_ids: Sequence[bytes], kv_layer: int) -> None:
        """Make run ``run`` of consecutive loaded components; ``kv_layer`` is the KV layer of its first attention.

        A head may be its last component, or its only one.
        """
        if run in self._runs or not component_ids:
            raise ExecutorError(f"run {run} is {'already composed' if component_ids else 'empty'}; drop it or name another")
        missing = [id.hex() for id in component_ids if id not in self.parameters.components]
        if missing:
            raise ExecutorError(f"run {run} names {len(missing)} components that are not loaded, {missing[0]} first")
        self._check_chain(run, [self.parameters.components[id].spec for id in component_ids], kv_layer)
        self._runs[run] = self._composed(tuple(component_ids), kv_layer)

    def _composed(self, component_ids: tuple[bytes, ...], kv_layer: int) -> ComposedRun:
        parts = [self.parameters.components[id] for id in component_ids]
        heads = parts[-1].spec.component.kind is Kind.HEAD
        body = parts[:-1] if heads else parts
        return ComposedRun(
            components=component_ids,
            kv_layer=kv_layer,
            width=_width(parts[0].spec),
            body=self.backend.compose(body, kv_layer) if body else None,
            head=self.backend.compose(parts[-1:], kv_layer) if heads else None,
        )

    def attach(self, run: int, number: int, delta_ids: Mapping[int, bytes]) -> None:
        """Apply these loaded deltas to rows of ``number`` from now on, by place of their component in the run."""
        composed = self._runs.get(run)
        missing = [id.hex() for id in delta_ids.values() if id not in self.parameters.deltas]
        if composed is None or not number or number in composed.deltas or missing:
            why = f"delta {missing[0]} is not loaded" if missing else "the run is not composed, or has that number"
            raise ExecutorError(f"deltas {number} of run {run} cannot be attached: {why}")
        packed = {place: self.parameters.deltas[id] for place, id in delta_ids.items()}
        last = len(composed.components) - 1
        if composed.head is not None and last in packed:
            self.backend.attach(composed.head, number, {0: packed.pop(last)})
        elif composed.head is not None:
            self.backend.attach(composed.head, number, {})
        if composed.body is not None:
            self.backend.attach(composed.body, number, packed)
        composed.deltas[number] = dict(delta_ids)

    def detach(self, run: int, number: int) -> None:
        """Drop deltas of a run, so that they can be unloaded."""
        composed = self._runs[run]
        del composed.deltas[number]
        for part in (composed.body, composed.head):
            if part is not None:
                self.backend.detach(part, number)

    def _check_chain(self, run: int, specs: list[ComponentSpec], kv_layer: int) -> None:
        components = [spec.component for spec in specs]
        for place, component in enumerate(components[:-1]):
            if component.kind is Kind.HEAD:
                raise ExecutorError(f"run {run} has a head at place {place} of {len(components)}; a head ends a chain")
        for left, right in pairwise(components):
            if left.width_out != right.width_in:
                raise ExecutorError(f"run {run} joins widths {left.width_out} and {right.width_in}; its chain is wrong")
        layouts = [component.kv for component in components if component.kv is not None]
        for layout in layouts:
            if layout.key not in self._arenas:
                raise ExecutorError(f"run {run} needs arena {layout.key}, which does not exist; add its layout first")
        if kv_layer + len(layouts) > self.tables.kv_layers:
            raise ExecutorError(
                f"run {run} has KV layers up to {kv_layer + len(layouts)}, the tables have {self.tables.kv_layers}; "
                "raise kv_layers"
            )

    def drop(self, run: int) -> None:
        if run not in self._runs:
            raise ExecutorError(f"run {run} is not composed")
        self.backend.settle()  # a late thread may still read what is attached to it
        del self._runs[run]

    def rehearse(self, component_ids: Sequence[bytes], delta_ids: Mapping[int, bytes]) -> None:
        """Compose loaded components and deltas, by place, and drop the run again.

        What the device cannot do fails here, while the application can still be refused. Raises BackendError and
        ExecutorError.
        """
        self.compose(REHEARSAL, component_ids, 0)
        try:
            if delta_ids:
                self.attach(REHEARSAL, 1, delta_ids)
        finally:
            self.drop(REHEARSAL)

    def grow(self, max_length: int, kv_layers: int) -> Iterator[None]:
        """Grow the tables for sequences of this length and number of layers, for a model that needs larger ones.

        Rows keep their content, and runs their numbers. Afterwards one run is renewed in each step; until its turn comes,
        each serves sequences as long as before.
        """
        former = self.tables.tokens, self.tables.slots
        if (yield from self.tables.grow(max_length, kv_layers)):
            self.backend.reserve(self.tables, self._hidden.max_tokens, self.tables.rows)
            del former  # not before: a late thread may have read them until then
            for number in list(self._runs):
                yield
                self._renew(number)

    def _renew(self, number: int) -> None:
        """Compose a run again for tables that have grown, if it still exists."""
        if (former := self._runs.get(number)) is not None:
            self.backend.settle()  # a late thread may still read what is replaced
            self._runs[number] = self._composed(former.components, former.kv_layer)
            for deltas, inside in former.deltas.items():
                self.attach(number, deltas, inside)

    # sweeps

    def put_flight(self, flight: int, hidden: Any, tokens: int, width: int) -> None:
        """Accept hidden states from another worker: ``hidden`` is bytes-like, [tokens, width] in the model's type.

        They are kept by reference until a plan that names ``flight`` in its arrivals has read or dropped them.
        """
        expected = tokens * width * self.backend.dtype.itemsize
        if memoryview(hidden).nbytes != expected:
            raise ExecutorError(f"flight {flight} has {memoryview(hidden).nbytes} bytes, not {expected}; types differ")
        self._flights[flight] = ArrivedActivations(hidden, tokens, width)

    def take_departure(self, number: int, index: int) -> memoryview:
        """Return the hidden states of ``plan.departures[index]`` of executed plan ``number``, once only.

        They are bytes, rows in batch order.
        """
        departed = self._departed.pop((number, index), None)
        if departed is None:
            raise ExecutorError(f"departure {index} of plan {number} does not exist or was taken already")
        return departed

    def progress(self) -> int:
        """Return a number that changes while a plan is executed. Any thread may ask."""
        return self.backend.progress()

    def execute(self, plan: SweepPlan) -> SweepResult:
        """Execute a plan: memory, table edits, arrivals, steps in order with sampling, departures."""
        began = time.perf_counter()
        for group in plan.memory:
            self.map(group)
        self.pages.perform(plan.imports)
        self.tables.apply(plan.edits)
        sweep = Sweep.of(plan)
        self._check(sweep)
        for arrival in plan.arrivals:
            self._arrive(sweep, arrival.flight, arrival.batch)
        for resumed in plan.resumed:
            self._exchange(sweep, resumed, self.backend.take_hidden)
        wanted = set(plan.sample)
        for step in plan.steps:
            self._step(sweep, step, wanted)
        lacking = wanted - sweep.tokens.keys()
        if lacking:
            raise ExecutorError(f"plan {plan.number} samples batch rows {sorted(lacking)[:4]} that no step took to a head")
        for kept in plan.kept:
            self._exchange(sweep, kept, self.backend.put_hidden)
        for index, departure in enumerate(plan.departures):
            offset_N, count_N = sweep.offset_N[departure.batch], sweep.count_N[departure.batch]
            self._departed[plan.number, index] = self._hidden.read(departure.width, offset_N, count_N)
        return SweepResult(
            number=plan.number,
            tokens=[sweep.tokens[n] for n in plan.sample],
            logprobs=[sweep.logprobs[n] for n in plan.sample],
            scores=[sweep.scores[n] for n in plan.score],
            seconds=time.perf_counter() - began,
            kernel_seconds=sweep.kernel_seconds,
            verified=[sweep.verified[n][0] for n in plan.verify],
            verified_logprobs=[sweep.verified[n][1] for n in plan.verify],
        )

    def _check(self, sweep: Sweep) -> None:
        plan, limit = sweep.plan, self._hidden.max_tokens
        if plan.tokens > limit:
            raise ExecutorError(f"plan {plan.number} has {plan.tokens} tokens, the limit is {limit}; raise max_tokens")
        end_N = sweep.start_N + sweep.count_N
        longest, rows = self.tables.max_length, self.tables.rows
        outside_N = (sweep.start_N < 0) | (end_N > longest) | (sweep.row_N < 0) | (sweep.row_N >= rows)
        if (outside_N | (sweep.count_N < 1)).any():
            raise ExecutorError(f"plan {plan.number} has positions beyond {longest} or rows beyond {rows}, or an empty row")

    def _arrive(self, sweep: Sweep, flight: int, batch: list[int]) -> None:
        waiting = self._flights.pop(flight, None)
        if waiting is None:
            raise ExecutorError(f"plan {sweep.plan.number} awaits flight {flight}, which did not come; put it first")
        if not batch:
            return
        if waiting.tokens != int(sweep.count_N[batch].sum()):
            raise ExecutorError(f"flight {flight} carries {waiting.tokens} tokens for batch rows of other counts")
        self._hidden.write(waiting.width, sweep.offset_N[batch], sweep.count_N[batch], waiting.hidden)

    def _exchange(self, sweep: Sweep, rows: HiddenRows, copy: Callable[[HiddenLayout, int, Batch], None]) -> None:
        """Copy hidden states of some batch rows between the sweep and their slots."""
        layout = self.pages.layout(rows.arena)
        if not isinstance(layout, HiddenLayout):
            raise ExecutorError(f"plan {sweep.plan.number} names arena {rows.arena!r} for hidden states; it holds KV")
        offset_N, count_N = sweep.offset_N[rows.batch], sweep.count_N[rows.batch]
        with self._hidden.rows(layout.width, offset_N, count_N) as hidden_TD:
            copy(layout, rows.column, Batch(sweep.row_N[rows.batch], sweep.start_N[rows.batch], count_N, hidden_TD))

    def _step(self, sweep: Sweep, step: Step, wanted: set[int]) -> None:
        run = self._runs.get(step.run)
        if run is None:
            raise ExecutorError(f"plan {sweep.plan.number} names run {step.run}, which is not composed; compose it first")
        if unknown := set(step.delta) - run.deltas.keys() - {0}:
            raise ExecutorError(
                f"plan {sweep.plan.number} names deltas {sorted(unknown)} of run {step.run}, which are not attached"
            )
        if run.body is not None:
            start_N, count_N, offset_N = sweep.columns(step)
            with self._hidden.rows(run.width, offset_N, count_N) as hidden_TD:
                batch = Batch(sweep.row_N[step.batch], start_N, count_N, hidden_TD, _numbers(step.delta))
                began = time.perf_counter()
                self.backend.forward(run.body, batch)
                sweep.kernel_seconds += time.perf_counter() - began
        if run.head is not None and step.draft:
            self._draft(sweep, run, step)
        elif run.head is not None:
            met = dict(zip(step.batch, step.delta, strict=True)) if step.delta else {}
            self._sample(sweep, run, [n for n in step.batch if n in wanted], met)
            for n in sweep.plan.score:
                if n in step.batch:
                    self._score(sweep, run, n, met)

    def _sample(self, sweep: Sweep, run: ComposedRun, batch: list[int], met: dict[int, int]) -> None:
        """Draw the next token of these batch rows and write it behind their last position.

        ``met`` has the number of each row's deltas.
        """
        if not batch:
            return
        if sweep.plan.verify:
            self._sample_positions(sweep, run, batch, met)
            return
        row_N, count_N = sweep.row_N[batch], sweep.count_N[batch]
        position_N = sweep.start_N[batch] + count_N
        hidden_ND = self._hidden.pick(run.width, sweep.offset_N[batch] + count_N - 1)
        began = time.perf_counter()
        logits_NV = self.backend.logits(run.head, hidden_ND, _numbers([met[n] for n in batch] if met else []))
        tokens, logprobs = sample(logits_NV, row_N.tolist(), position_N.tolist(), self.tables, self.backend.argmax)
        sweep.kernel_seconds += time.perf_counter() - began
        sweep.tokens.update(zip(batch, tokens, strict=True))
        sweep.logprobs.update(zip(batch, logprobs, strict=True))
        self._append(row_N, position_N, tokens)

    def _sample_positions(self, sweep: Sweep, run: ComposedRun, batch: list[int], met: dict[int, int]) -> None:
        """Draw as ``_sample`` does, but after each position of rows with drafts, up to the first draft that differs."""
        verify = set(sweep.plan.verify)
        drawn = DrawnPositions(sweep.plan, batch, verify)
        row_T = sweep.row_N[drawn.batch_T]
        position_T = sweep.start_N[drawn.batch_T] + drawn.place_T + 1
        hidden_TD = self._hidden.pick(run.width, sweep.offset_N[drawn.batch_T] + drawn.place_T)
        began = time.perf_counter()
        numbers = _numbers([met[n] for n in drawn.batch_T.tolist()] if met else [])
        logits_TV = self.backend.logits(run.head, hidden_TD, numbers)
        tokens, logprobs = sample(logits_TV, row_T.tolist(), position_T.tolist(), self.tables, self.backend.argmax)
        for n, first, count in zip(batch, drawn.first_N.tolist(), drawn.count_N.tolist(), strict=True):
            if n in verify and rejection.applies(self.tables.sampling[int(sweep.row_N[n])]):
                self._judge(sweep, n, logits_TV[first : first + count], tokens, logprobs, first)
        sweep.kernel_seconds += time.perf_counter() - began
        last_N = drawn.first_N.copy()  # index of the last token of each row that counts
        for i, (n, first, count) in enumerate(zip(batch, drawn.first_N.tolist(), drawn.count_N.tolist(), strict=True)):
            sweep.tokens[n], sweep.logprobs[n] = tokens[first], logprobs[first]
            if n in verify:
                begin, end = int(sweep.start_N[n]) + 1, int(sweep.start_N[n]) + count
                counting = standing(tokens[first : first + count], self.tables.tokens[int(sweep.row_N[n]), begin:end])
                last_N[i] += counting - 1
                more = slice(first + 1, first + counting)
                sweep.verified[n] = tokens[more], [entry for entry in logprobs[more] if entry is not None]
        self._append(row_T[last_N], position_T[last_N], [tokens[i] for i in last_N.tolist()])

    def _judge(
        self,
        sweep: Sweep,
        n: int,
        logits_TV: torch.Tensor,
        tokens: list[int],
        logprobs: list[TokenLogprob | None],
        first: int,
    ) -> None:
        """Put the tokens of the rejection rule in the place of the drawn ones of a batch row, which begin at ``first``."""
        row = int(sweep.row_N[n])
        position = int(sweep.start_N[n]) + 1
        tables = self.tables
        count = len(logits_TV) - 1
        params = tables.sampling[row]
        own = tokens[first : first + len(logits_TV)]
        count = own.index(NOT_FINITE) if NOT_FINITE in own else count  # the positions behind it have no law
        all_TV = logits_TV.numpy()
        target = [law(all_TV[i], row, position + i, tables) for i in range(count)]
        drafts = tables.tokens[row, position : position + count].tolist()
        for i, token in enumerate(rejection.judge(target, drafts, sweep.laws.get(n, {}), params, position)):
            tokens[first + i] = token
            if params.logprobs >= 0:
                logprobs[first + i] = raw_logprobs(all_TV[i], token, params.logprobs)

    def _draft(self, sweep: Sweep, run: ComposedRun, step: Step) -> None:
        """Draw a draft of each row of a step as a token is drawn at its position, and write it to the table.

        The draft of a draft row is written to its target's row, too.
        """
        start_N, count_N, offset_N = sweep.columns(step)
        row_N, position_N = sweep.row_N[step.batch], start_N + count_N
        targets = {row.batch: row.target for row in sweep.plan.draft_rows}
        began = time.perf_counter()
        hidden_ND = self._hidden.pick(run.width, offset_N + count_N - 1)
        logits_NV = self.backend.logits(run.head, hidden_ND, _numbers(step.delta))
        tokens = choose(logits_NV, row_N.tolist(), position_N.tolist(), self.tables, self.backend.argmax)
        for i, (n, row, position) in enumerate(zip(step.batch, row_N.tolist(), position_N.tolist(), strict=True)):
            if rejection.applies(params := self.tables.sampling[row]):
                drawn_V = law(logits_NV[i].numpy(), row, position, self.tables)
                tokens[i] = rejection.draw_draft(drawn_V, params, position)
                sweep.laws.setdefault(targets.get(n, n), {})[step.place] = drawn_V
        sweep.kernel_seconds += time.perf_counter() - began
        self._append(row_N, position_N, tokens)
        if targets:
            target_N = np.asarray([sweep.row_N[targets.get(n, n)] for n in step.batch])
            self._append(target_N, position_N, tokens)

    def _append(self, row_N: np.ndarray, position_N: np.ndarray, tokens: list[int]) -> None:
        """Write drawn tokens to the table, where the next plan reads them."""
        inside_N = position_N < self.tables.max_length  # the token that fills a sequence is reported, but never read
        # read by the next plan, which needs a valid id even if nothing was drawn
        read_N = np.maximum(np.asarray(tokens, dtype=np.int32), 0)
        self.tables.append(row_N[inside_N], position_N[inside_N], read_N[inside_N])

    def _score(self, sweep: Sweep, run: ComposedRun, n: int, met: dict[int, int]) -> None:
        """Compute log-probabilities of the prompt tokens that follow the positions of batch row ``n``."""
        row = int(sweep.row_N[n])
        first = int(sweep.start_N[n])
        offset = int(sweep.offset_N[n])
        count = min(int(sweep.count_N[n]), int(self.tables.prompt_length[row]) - 1 - first)
        tokens = self.tables.tokens[row, first + 1 : first + 1 + count].tolist()
        together = min(SCORED_TOGETHER, self.tables.rows)
        sweep.scores[n] = scored = []
        began = time.perf_counter()
        for at in range(0, count, together):
            some = tokens[at : at + together]
            place_N = np.arange(offset + at, offset + at + len(some), dtype=np.int64)
            numbers = _numbers([met[n]] * len(some) if met else [])
            logits_NV = self.backend.logits(run.head, self._hidden.pick(run.width, place_N), numbers)
            scored += score_prompt(logits_NV, some, self.tables.sampling[row].prompt_logprobs)
        sweep.kernel_seconds += time.perf_counter() - began


def _width(spec: ComponentSpec) -> int:
    """Return the width of the hidden states that a component reads, or writes if it reads none."""
    return spec.component.width_in or spec.component.width_out


def _numbers(deltas: list[int]) -> np.ndarray | None:
    """Return delta numbers as back ends take them; None if no row has deltas."""
    return np.asarray(deltas, dtype=np.int32) if any(deltas) else None
