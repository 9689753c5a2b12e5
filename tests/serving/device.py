"""A device of a simulated worker: obeys plans in virtual time and checks every position that attention reads.

What a real device computes stands here for itself: the hidden state of a token is (lineage of the components passed, hash of
the tokens before it, hash of the tokens up to it), KV is a copy of that, and a sampled token is a pure function of it. So
the right answer to a prompt is known in advance, and a page that is shared wrongly, freed early, written late or taken from
another sequence is an error at the position that reads it.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

import torch

from blockwright.actors.worker.device_thread import ExecutedPlan
from blockwright.policies.model.chain import Component, Kind, KvLayout, PageLayout
from blockwright.policies.plan.sweep_plan import (
    NO_SLOT,
    HiddenRows,
    MapGroup,
    PageImport,
    SetPages,
    Step,
    SweepPlan,
    SweepResult,
    WriteTokens,
)
from blockwright.policies.sweep.config import SweepConfig
from blockwright.tests.serving.parameters import SimulatedParameters

VOCABULARY = 97
DEFAULTS = SweepConfig(worker="", numerics="", budget=0)
CHUNK = DEFAULTS.memory_chunk  # bytes
SLOT = CHUNK // 2  # bytes
MODULUS = (1 << 61) - 1
ROOT = 1  # the history before the first token
OPERATION = 0.0002  # virtual seconds of what is no sweep
SWEEP, TOKEN = 0.002, 0.0001  # of a sweep, and of each of its tokens
HIDDEN = struct.Struct("<QQQ")
Hidden = tuple[int, int, int]  # lineage, history before the token, history with it


def follow(history: int, token: int) -> int:
    return (history * 1_000_003 + token + 7) % MODULUS


def deepen(lineage: int, component: bytes) -> int:
    return (lineage * 998_244_353 + crc32(component) + 1) % MODULUS


def sampled(lineage: int, history: int) -> int:
    return ((history ^ lineage) * 6_364_136_223_846_793_005 >> 31) % VOCABULARY


def answer(components: Sequence[Component], prompt: Sequence[int], most: int, stop: Sequence[int]) -> list[int]:
    """What a sequence must yield, whatever happens to workers."""
    lineage, history = 0, ROOT
    for component in components:
        lineage = deepen(lineage, component.id)
    for token in prompt:
        history = follow(history, token)
    tokens: list[int] = []
    while len(tokens) < most and (not tokens or tokens[-1] not in stop):
        tokens.append(sampled(lineage, history))
        history = follow(history, tokens[-1])
    return tokens


@dataclass(frozen=True, slots=True)
class Spec:
    """A component that can be loaded, as far as a worker looks."""

    component: Component
    delta: None = None
    tensors: dict[str, object] = field(default_factory=dict)  # none of them is in a file

    @property
    def name(self) -> bytes:
        """Under which it is resident."""
        return self.component.id


@dataclass(frozen=True, slots=True)
class SimulatedPart:
    """A packed tensor, as far as a worker looks."""

    id: bytes
    nbytes: int


class SimulatedBackend:
    """The sizes that a worker asks a back end for."""

    name = "native"
    numerics = "simulated"
    dtype = torch.float32
    slot_unit = SLOT
    chunk = CHUNK
    alignment = DEFAULTS.granule

    def slot_bytes(self, layout: PageLayout) -> int:
        return SLOT

    def parts(self, spec: Spec) -> list[SimulatedPart]:
        """A tensor of its own, and two that all components of its kind share; a chunk at most for each component."""
        component, kind = spec.component, spec.component.kind.encode()
        return [SimulatedPart(kind, 60), SimulatedPart(component.id, CHUNK - 256), SimulatedPart(kind + b" too", 100)]


class SimulatedPages:
    """KV and hidden states of slots as bytes, and back. ``kv``: the executor's."""

    def __init__(self, kv: dict[tuple[str, int], list[Hidden | None]]) -> None:
        self._kv = kv
        self._arrived: dict[int, bytes] = {}

    def export(self, groups: Sequence[tuple[str, Sequence[int]]], memory: bytearray) -> None:
        at = 0
        for arena, slots in groups:
            for slot in slots:
                held = self._kv[arena, slot]
                assert None not in held, "a page that is not full is sent"
                for number, state in enumerate(held):
                    HIDDEN.pack_into(memory, at + number * HIDDEN.size, *state)  # type: ignore[misc]
                at += SLOT
        assert at == len(memory), "pages have other sizes than was stated"

    def move(self, arena: str, slots: Sequence[int], targets: Sequence[int]) -> None:
        for slot, target in zip(slots, targets, strict=True):
            held = self._kv.pop((arena, slot), None)
            self._kv.pop((arena, target), None)
            if held is not None:  # else nothing has been written yet
                self._kv[arena, target] = held

    def put(self, number: int, pages: bytes) -> None:
        self._arrived[number] = pages

    def perform(self, imports: Sequence[PageImport]) -> None:
        for one in imports:
            pages = self._arrived.pop(one.number)
            for group in one.groups:
                size = _page_size(group.arena)
                for place, slot in zip(group.places, group.slots, strict=True):
                    at = group.offset + place * SLOT
                    self._kv[group.arena, slot] = list(HIDDEN.iter_unpack(pages[at : at + size * HIDDEN.size]))  # type: ignore[arg-type]


class SimulatedExecutor:
    """Obeys plans as ``gpu.executor.Executor`` does; what does not fit raises AssertionError."""

    def __init__(self) -> None:
        self._components: dict[bytes, Component] = {}
        self._runs: dict[int, tuple[list[Component], int]] = {}  # components, KV layer of the first attention
        self._arenas = {"parameters"}
        self._backed: dict[tuple[str, int], int] = {}  # (arena, chunk unit) -> chunk of the pool
        self._tokens: dict[int, list[int]] = {}  # by row
        self._slots: dict[tuple[int, int, int], int] = {}  # (row, layer, page) -> slot
        self._kv: dict[tuple[str, int], list[Hidden | None]] = {}  # (arena, slot) -> by offset; also hidden states at exits
        self.pages = SimulatedPages(self._kv)
        self.parameters = SimulatedParameters(self._backed, CHUNK)
        self._flights: dict[int, list[Hidden]] = {}
        self._departed: dict[tuple[int, int], bytes] = {}

    # components and runs

    def add_layout(self, layout: PageLayout) -> None:
        self._arenas.add(layout.key)

    def grow(self, max_length: int, kv_layers: int) -> Iterator[None]:
        """Its tables hold whatever is written."""
        return iter(())

    def rehearse(self, component_ids: Sequence[bytes], deltas: object) -> None:
        assert all(id in self._components for id in component_ids), "what is rehearsed is not loaded"

    def map(self, group: MapGroup) -> None:
        assert group.arena in self._arenas, f"arena {group.arena} does not exist"
        for unit, chunk in enumerate(group.chunks, group.offset):
            if group.back:
                assert self._backed.pop((group.arena, unit), None) == chunk, "a chunk is given back from where it is not"
                if group.arena == "parameters":
                    self._check_unused(unit)
                for slot in range(unit * CHUNK // SLOT, (unit + 1) * CHUNK // SLOT):
                    self._kv.pop((group.arena, slot), None)
            else:
                assert (group.arena, unit) not in self._backed, "memory is committed twice"
                assert chunk not in self._backed.values(), "a chunk is in use elsewhere"
                self._backed[group.arena, unit] = chunk

    def _check_unused(self, unit: int) -> None:
        for place in self.parameters.tensors.values():
            assert not place.start < (unit + 1) * CHUNK or not unit * CHUNK < place.stop, "a tensor's memory is given back"

    def load(self, spec: Spec, offsets: Sequence[int]) -> Iterator[None]:
        assert spec.component.id not in self._components, "a component is loaded twice"
        for part, offset in zip(SimulatedBackend().parts(spec), offsets, strict=True):
            place = range(offset, offset + part.nbytes)
            if part.id in self.parameters.tensors:
                assert self.parameters.tensors[part.id] == place, "a tensor is looked for where it is not"
                continue
            self.parameters.place(part.id, place)
            yield
        self._components[spec.component.id] = spec.component

    def unload(self, component_id: bytes, tensors: Sequence[bytes]) -> None:
        assert not any(component_id in [c.id for c in parts] for parts, _ in self._runs.values()), "a run needs it"
        self._components.pop(component_id, None)
        for id in tensors:
            self.parameters.forget(id)

    def compose(self, run: int, component_ids: Sequence[bytes], kv_layer: int) -> None:
        assert run not in self._runs, "a run is composed twice"
        self._runs[run] = ([self._components[id] for id in component_ids], kv_layer)

    def drop(self, run: int) -> None:
        del self._runs[run]

    # sweeps

    def put_flight(self, flight: int, hidden: memoryview, tokens: int, width: int) -> None:
        assert len(hidden) == tokens * HIDDEN.size, "a flight came with other rows than it says"
        self._flights[flight] = list(HIDDEN.iter_unpack(hidden))  # type: ignore[arg-type]

    def take_departure(self, number: int, index: int) -> memoryview:
        return memoryview(self._departed.pop((number, index)))

    def execute(self, plan: SweepPlan) -> SweepResult:
        for group in plan.memory:
            self.map(group)
        self.pages.perform(plan.imports)
        for edit in plan.edits:
            if isinstance(edit, WriteTokens):
                self._tokens.setdefault(edit.row, [])[edit.position :] = edit.tokens
            elif isinstance(edit, SetPages):
                for layer, slot in enumerate(edit.slots, edit.layer):
                    self._slots[edit.row, layer, edit.page] = slot
        hidden: dict[int, list[Hidden]] = {}  # by batch row
        for arrival in plan.arrivals:
            came = self._flights.pop(arrival.flight)
            for i in arrival.batch:
                hidden[i], came = came[: plan.count[i]], came[plan.count[i] :]
            assert not (arrival.batch and came), "a flight carries more tokens than its rows"
        for resumed in plan.resumed:
            self._resume(plan, resumed, hidden)
        drawn: dict[int, list[int]] = {}
        for step in plan.steps:
            self._step(plan, step, hidden, drawn)
        for kept in plan.kept:
            self._keep(plan, kept, hidden)
        for index, departure in enumerate(plan.departures):
            self._departed[plan.number, index] = b"".join(HIDDEN.pack(*h) for i in departure.batch for h in hidden[i])
        verified = [drawn[i][1:] for i in plan.verify]
        return SweepResult(plan.number, [drawn[i][0] for i in plan.sample], verified=verified)

    def _step(self, plan: SweepPlan, step: Step, hidden: dict[int, list[Hidden]], drawn: dict[int, list[int]]) -> None:
        components, layer = self._runs[step.run]
        rows = list(zip(step.batch, *plan.columns(step), strict=True))
        if step.draft:
            self._draft(plan, rows, components[-1].id, hidden)
            return
        for component in components:
            if component.kind is Kind.HEAD:
                for i in set(plan.sample) & set(step.batch):
                    drawn[i] = self._draw(plan, i, hidden[i], component.id)
                return
            for i, start, count in rows:
                part = slice(start - plan.start[i], start - plan.start[i] + count)
                if component.kind is Kind.EMBEDDING:
                    hidden.setdefault(i, [])[part] = self._embed(plan.row[i], start, count)
                lineage = deepen(hidden[i][part.start][0], component.id)
                hidden[i][part] = [(lineage, before, after) for _, before, after in hidden[i][part]]
                if component.kv is not None:
                    self._attend(component.kv, plan.row[i], layer, start, hidden[i][part])
            layer += component.kv is not None

    def _resume(self, plan: SweepPlan, rows: HiddenRows, hidden: dict[int, list[Hidden]]) -> None:
        """Read the hidden states of rows that begin at an exit. Attention and tokens show whether it is the right one."""
        for i in rows.batch:
            assert i not in hidden, "a row begins at two places"
            start, hidden[i] = plan.start[i], []
            for position, (_, before, after) in enumerate(self._embed(plan.row[i], start, plan.count[i]), start):
                held, place = self._at_exit(rows, plan.row[i], position)
                state = held[place]
                assert state is not None, "hidden states are read that were not written"
                assert state[1:] == (before, after), "hidden states of another sequence are read"
                hidden[i].append(state)

    def _keep(self, plan: SweepPlan, rows: HiddenRows, hidden: dict[int, list[Hidden]]) -> None:
        """Write the hidden states of rows that end at an exit, except for pages without a slot."""
        for i in rows.batch:
            for position, state in enumerate(hidden[i], plan.start[i]):
                if self._slots[plan.row[i], rows.column, position // _page_size(rows.arena)] != NO_SLOT:
                    held, place = self._at_exit(rows, plan.row[i], position)
                    held[place] = state

    def _at_exit(self, rows: HiddenRows, row: int, position: int) -> tuple[list[Hidden | None], int]:
        """Return the slot of a position's hidden state, and the place in it."""
        size = _page_size(rows.arena)
        slot = self._slots[row, rows.column, position // size]
        assert (rows.arena, slot * SLOT // CHUNK) in self._backed, "a slot without memory is used"
        return self._kv.setdefault((rows.arena, slot), [None] * size), position % size

    def _draft(
        self, plan: SweepPlan, rows: list[tuple[int, int, int]], head: bytes, hidden: dict[int, list[Hidden]]
    ) -> None:
        """Draw a draft of each row with an exit's head."""
        for i, start, _ in rows:
            lineage, _, history = hidden[i][start - plan.start[i]]
            self._tokens[plan.row[i]][start + 1 :] = [sampled(deepen(lineage, head), history)]

    def _draw(self, plan: SweepPlan, i: int, hidden: list[Hidden], head: bytes) -> list[int]:
        """Return the token drawn after a batch row, or, if it holds drafts, after each position until one differs."""
        tokens, end = self._tokens.setdefault(plan.row[i], []), plan.start[i] + plan.count[i]
        drawn: list[int] = []
        for at in range(plan.start[i] + 1 if i in plan.verify else end, end + 1):
            lineage, _, history = hidden[at - plan.start[i] - 1]
            drawn.append(sampled(deepen(lineage, head), history))
            if at == end or drawn[-1] != tokens[at]:
                tokens[at:] = [drawn[-1]]
                break
        return drawn

    def _embed(self, row: int, start: int, count: int) -> list[Hidden]:
        tokens = self._tokens[row]
        history = ROOT
        made = []
        assert len(tokens) >= start + count, "a position without a token is computed"
        for position, token in enumerate(tokens[: start + count]):
            before, history = history, follow(history, token)
            if position >= start:
                made.append((0, before, history))
        return made

    def _attend(self, layout: KvLayout, row: int, layer: int, start: int, hidden: list[Hidden]) -> None:
        """Write the KV of these positions and read that of all up to the last: each must follow the one before."""
        size = layout.page_size
        slots = self._slots
        kv = self._kv
        for position, state in enumerate(hidden, start):
            slot = slots[row, layer, position // size]
            assert (layout.key, slot * SLOT // CHUNK) in self._backed, "a slot without memory is written"
            kv.setdefault((layout.key, slot), [None] * size)[position % size] = state
        lineage = hidden[0][0]
        history = ROOT
        end = start + len(hidden)
        for page in range(-(-end // size)):
            held = kv.get((layout.key, slots[row, layer, page]), ())
            for state in held[: end - page * size]:
                assert state is not None, "attention reads a position that was not written"
                assert state[0] == lineage, "attention reads KV of other components"
                assert state[1] == history, "attention reads a position of another sequence"
                history = state[2]
        assert history == hidden[-1][2], "attention misses positions"


def _page_size(arena: str) -> int:
    """Return the tokens of a page of an arena, which its key ends with."""
    return int(arena.rpartition("-")[2])


class SimulatedDevice:
    """``DeviceThread`` without a thread: one thing after the other, each taking virtual time."""

    def __init__(
        self,
        random: Random,
        on_swept: Callable[[ExecutedPlan], None],
        on_fatal: Callable[[BaseException], None],
        lay_out: Callable[[str, memoryview], object],
    ) -> None:
        self.stalled = False  # what runs never ends
        self._executor, self._random = SimulatedExecutor(), random
        self._on_swept = on_swept
        self._on_fatal = on_fatal
        self._lay_out = lay_out
        self._loop = asyncio.get_running_loop()
        self._work: deque[tuple[float, Callable[[], None]]] = deque()
        self._stepwise: deque[tuple[Iterator[None], asyncio.Future[None]]] = deque()
        self._began: float | None = None  # when what runs began
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def turn_to(
        self,
        on_swept: Callable[[ExecutedPlan], None],
        on_fatal: Callable[[BaseException], None],
        lay_out: Callable[[str, memoryview], object],
    ) -> None:
        self._on_swept, self._on_fatal, self._lay_out = on_swept, on_fatal, lay_out

    def lateness(self) -> float:
        return self._loop.time() - self._began if self.stalled and self._began is not None else 0.0

    def sweep(self, plan: SweepPlan) -> None:
        seconds = (SWEEP + TOKEN * plan.tokens) * self._random.uniform(0.5, 2.0)
        self._give(seconds, lambda: self._sweep(plan))

    def call(self, operation: Callable[[SimulatedExecutor], object]) -> asyncio.Future[object]:
        future: asyncio.Future[object] = self._loop.create_future()

        def work() -> None:
            value = operation(self._executor)
            if not future.cancelled():
                future.set_result(value)

        self._give(OPERATION, work)
        return future

    def call_in_steps(self, operation: Callable[[SimulatedExecutor], Iterator[None]]) -> asyncio.Future[None]:
        """One at a time, as ``DeviceThread`` takes them."""
        future: asyncio.Future[None] = self._loop.create_future()

        def begin() -> None:
            self._stepwise.append((operation(self._executor), future))
            if len(self._stepwise) == 1:
                step()

        def step() -> None:
            steps, current = self._stepwise[0]
            if current.cancelled() or next(steps, self) is self:
                self._stepwise.popleft()
                if not current.cancelled():
                    current.set_result(None)
            if self._stepwise:
                self._give(OPERATION, step)

        self._give(OPERATION, begin)
        return future

    def _sweep(self, plan: SweepPlan) -> None:
        result = self._executor.execute(plan)
        departed = [
            self._lay_out(departure.worker, self._executor.take_departure(plan.number, index))
            for index, departure in enumerate(plan.departures)
        ]
        self._on_swept(ExecutedPlan(plan, result, plan.departures, departed))  # type: ignore[arg-type]

    def _give(self, seconds: float, work: Callable[[], None]) -> None:
        self._work.append((seconds, work))
        if self._began is None:
            self._begin()

    def _begin(self) -> None:
        self._began = self._loop.time()
        self._loop.call_later(self._work[0][0], self._end)

    def _end(self) -> None:
        if self.stalled or self._stopped:
            return
        _, work = self._work.popleft()
        try:
            work()
        except Exception as error:
            self._on_fatal(error)
            return
        self._began = None
        if self._work:
            self._begin()
