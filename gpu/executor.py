"""Model executor: obeys plans over a device (``gpu/device.py``).

The only owner of a worker's device, packed components and runs. Used by the worker's device thread alone. Decides nothing:
memory, rows and order come from the plan. Reads no token and no tensor: what a plan does with them belongs to the device. A
plan that does not fit the executor's state raises ``ExecutorError``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..policies.memory.residence import VIRTUAL
from ..policies.model.chain import HiddenLayout, Kind, PageLayout
from ..policies.plan.sweep_plan import Arrival, HiddenRows, MapGroup, Step, SweepPlan, SweepResult
from .device import Arena, Device, Ticket
from .errors import ExecutorError
from .guesses import Guessed, SweepGuesses
from .model.config import ComponentSpec, pools
from .parameters import ResidentParameters
from .sweep_columns import Rows, SweepColumns

PARAMETERS = "parameters"
REHEARSAL = -1  # number of a run that is composed only to test whether it can be


@dataclass(frozen=True, slots=True)
class ComposedRun:
    """A composed run: a body that passes hidden states on, a head that ends the chain, or both."""

    components: tuple[bytes, ...]
    kv_layer: int  # KV layer of its first attention
    width: int  # width of the hidden states that the run reads and writes
    body: Any | None
    head: Any | None
    deltas: dict[int, dict[int, bytes]] = field(default_factory=dict)  # by number: ids of the attached deltas, by place
    out: int = 0  # width of the hidden states that a stitch writes, which is its body; 0: no stitch
    pools: bool = False  # its head has no logits: its rows are pooled

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


class Executor:
    """The executor of one device (see the module)."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.backend = device.backend
        self.tables, self.pages = device.tables, device.pages
        self._arenas: dict[str, Arena] = {PARAMETERS: device.arena(PARAMETERS, VIRTUAL * device.sizes.budget)}
        self._pool: set[int] = set()  # ids of the chunks in use
        self.parameters = ResidentParameters(device.backend, self._arenas[PARAMETERS], device.slice_bytes)
        self._runs: dict[int, ComposedRun] = {}
        self._flights: dict[int, ArrivedActivations] = {}
        self.guessed: Guessed = lambda plan, step, departure, hidden: None  # takes a guess while its plan goes on

    def enter(self) -> None:
        """Prepare the calling thread for the device; see ``Device.enter``."""
        self.device.enter()

    def check(self) -> None:
        """Raise an error if the device has failed for good."""
        self.device.check()

    # memory

    def add_layout(self, layout: PageLayout) -> str:
        """Reserve the arena of a layout, unless it exists. Return its key, which is the same on every worker."""
        key = layout.key
        if key not in self._arenas:
            arena = self.device.arena(key, self.device.sizes.budget)
            self.device.add_layout(layout, arena)
            self._arenas[key] = arena
        return key

    def map(self, group: MapGroup) -> None:
        """Commit chunks of the pool to an arena, or take them back."""
        arena = self._arenas.get(group.arena)
        if arena is None:
            raise ExecutorError(
                f"arena {group.arena!r} does not exist (there are: {', '.join(self._arenas)}); add its layout"
            )
        chunks = set(group.chunks)
        if group.back:
            if not chunks <= self._pool:
                raise ExecutorError(f"chunks {sorted(chunks - self._pool)[:4]} are given back but were not in use")
            self.device.settle()
            arena.give_back(group.offset, group.chunks)
            self._pool -= chunks
        else:
            if chunks & self._pool or len(chunks) != len(group.chunks):
                raise ExecutorError(f"chunks {sorted(chunks & self._pool)[:4]} are committed to {group.arena} but in use")
            arena.commit(group.offset, group.chunks)
            self._pool |= chunks

    def committed(self) -> dict[str, int]:
        """Return the bytes in use, by arena."""
        return {key: arena.committed * arena.chunk for key, arena in self._arenas.items()}

    # components and runs

    def load(self, spec: ComponentSpec, offsets: Sequence[int]) -> Iterator[None]:
        """Make a component resident, or the delta of an adapted one, step by step (``gpu/parameters.py``)."""
        self.device.add_width(_width(spec))
        if spec.component.kind is Kind.STITCH:
            self.device.add_width(spec.component.width_out)
        return self.parameters.load(spec, offsets)

    def unload(self, component_id: bytes, tensors: Sequence[bytes]) -> None:
        """Drop a component or a delta, and packed tensors that nothing else needs. Stop its loading, if under way.

        Their chunks may be given back then. No run may name it. A component that never began to load is no error, since
        loads are stopped at any point.
        """
        runs = [run for run, composed in self._runs.items() if component_id in composed.names]
        if runs:
            raise ExecutorError(f"component {component_id.hex()} is part of runs {runs}; drop them first")
        self.device.settle()
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
            out=parts[0].spec.component.width_out if parts[0].spec.component.kind is Kind.STITCH else 0,
            pools=pools(parts[-1].spec.config),
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
        if len(components) > 1 and any(component.kind is Kind.STITCH for component in components):
            raise ExecutorError(f"run {run} has a stitch among {len(components)} components; a stitch is a run of its own")
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
        self.device.settle()  # a late thread may still read what is attached to it
        del self._runs[run]

    def rehearse(self, component_ids: Sequence[bytes], delta_ids: Mapping[int, bytes]) -> None:
        """Compose loaded components and deltas, by place, and drop the runs again: one, or several around stitches.

        What the device cannot do fails here, while the application can still be refused. Raises BackendError and
        ExecutorError.
        """
        known = self.parameters.components
        stitches = [i for i, id in enumerate(component_ids) if id in known and known[id].spec.component.kind is Kind.STITCH]
        borders = sorted({0, *stitches, *(i + 1 for i in stitches), len(component_ids)})
        for first, last in pairwise(borders):
            self.compose(REHEARSAL, component_ids[first:last], 0)
            try:
                if inside := {place - first: id for place, id in delta_ids.items() if first <= place < last}:
                    self.attach(REHEARSAL, 1, inside)
            finally:
                self.drop(REHEARSAL)

    def grow(self, max_length: int, kv_layers: int) -> Iterator[None]:
        """Grow the tables for sequences of this length and number of layers, for a model that needs larger ones.

        Rows keep their content, and runs their numbers. Afterwards one run is renewed in each step; until its turn comes,
        each serves sequences as long as before.
        """
        if (yield from self.device.grow(max_length, kv_layers)):
            for number in list(self._runs):
                yield
                self._renew(number)

    def _renew(self, number: int) -> None:
        """Compose a run again for tables that have grown, if it still exists."""
        if (former := self._runs.get(number)) is not None:
            self.device.settle()  # a late thread may still read what is replaced
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

    def progress(self) -> int:
        """Return a number that changes while a plan is executed. Any thread may ask."""
        return self.device.progress()

    def execute(self, plan: SweepPlan) -> SweepResult:
        """Execute a plan, and return its result when it has ended."""
        return self.submit(plan).wait()

    def submit(self, plan: SweepPlan) -> Ticket:
        """Give a plan to the device: table edits, memory, arrivals, steps in order with sampling, departures.

        The device may still be busy with it, and with plans before it. Plans end in the order in which they were submitted.
        """
        columns = SweepColumns(plan)
        self.device.begin(columns)
        for group in plan.memory:
            self.map(group)
        self.pages.perform(plan.imports)
        for arrival in plan.arrivals:
            self._arrive(columns, arrival)
        for resumed in plan.resumed:
            self.device.take_hidden(self._hidden_layout(plan, resumed), resumed.column, columns.rows(resumed.batch))
        wanted, drawn = set(plan.sample), set[int]()
        guesses = SweepGuesses(columns, self.device, self.guessed)
        for step in plan.steps:
            if step.guess:
                self._guess(guesses, step)
            else:
                drawn.update(self._step(columns, step, wanted))
        if lacking := wanted - drawn:
            raise ExecutorError(f"plan {plan.number} samples batch rows {sorted(lacking)[:4]} that no step took to a head")
        for kept in plan.kept:
            self.device.put_hidden(self._hidden_layout(plan, kept), kept.column, columns.rows(kept.batch))
        for departure in plan.departures:
            self.device.depart(departure.width, columns.rows(departure.batch))
        ticket = self.device.end()
        if plan.guesses:
            ticket.wait().likeness = guesses.likeness
        return ticket

    def _guess(self, guesses: SweepGuesses, step: Step) -> None:
        """Have a step of a guess computed, or its likeness measured."""
        run = self._runs.get(step.run)
        if run is None:
            raise ExecutorError(f"a guess names run {step.run}, which is not composed; compose it first")
        if step.head:
            guesses.compare(step, run.head, run.width)
        else:
            guesses.step(step, run.body, run.width)

    def _arrive(self, columns: SweepColumns, arrival: Arrival) -> None:
        waiting = self._flights.pop(arrival.flight, None)
        if waiting is None:
            number = columns.plan.number
            raise ExecutorError(f"plan {number} awaits flight {arrival.flight}, which did not come; put it first")
        if not arrival.batch:
            return
        at = columns.rows(arrival.batch)
        if waiting.tokens != at.tokens:
            raise ExecutorError(f"flight {arrival.flight} carries {waiting.tokens} tokens for batch rows of other counts")
        self.device.arrive(waiting.width, at, waiting.hidden)

    def _hidden_layout(self, plan: SweepPlan, rows: HiddenRows) -> HiddenLayout:
        layout = self.pages.layout(rows.arena)
        if not isinstance(layout, HiddenLayout):
            raise ExecutorError(f"plan {plan.number} names arena {rows.arena!r} for hidden states; it holds KV")
        return layout

    def _step(self, columns: SweepColumns, step: Step, wanted: set[int]) -> list[int]:
        """Have a step computed. Return the batch rows after which a token is drawn in it."""
        run, plan = self._runs.get(step.run), columns.plan
        device = self.device
        if run is None:
            raise ExecutorError(f"plan {plan.number} names run {step.run}, which is not composed; compose it first")
        if unknown := set(step.delta) - run.deltas.keys() - {0}:
            raise ExecutorError(
                f"plan {plan.number} names deltas {sorted(unknown)} of run {step.run}, which are not attached"
            )
        at: Rows | None = None
        if run.out:
            device.stitch(run.body, run.width, run.out, columns.rows_of(step))
            return []
        if run.body is not None:
            device.step(run.body, run.width, at := columns.rows_of(step), step.delta)
        if run.head is None:
            return []
        if run.pools:
            device.pool(run.head, run.width, at or columns.rows_of(step))
            return [n for n in step.batch if n in wanted]
        if step.draft:
            device.draft(run.head, run.width, at or columns.rows_of(step), step.delta, step.place)
            return []
        drawn = [n for n in step.batch if n in wanted]
        met = dict(zip(step.batch, step.delta, strict=True)) if step.delta else {}
        if drawn:
            device.sample(run.head, run.width, columns.rows(drawn), [met[n] for n in drawn] if met else [])
        if plan.score and (scored := [n for n in plan.score if n in step.batch]):
            device.score(run.head, run.width, columns.rows(scored), [met[n] for n in scored] if met else [])
        return drawn


def _width(spec: ComponentSpec) -> int:
    """Return the width of the hidden states that a component reads, or writes if it reads none."""
    return spec.component.width_in or spec.component.width_out
