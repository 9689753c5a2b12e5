"""Proof of batch invariance by the worker that will compute: it compares bits of its shapes on its own card, then serves.

Each shape of a component is computed with its own parameters, on random hidden states: all tokens at once, in chunks, token
by token behind a prefill, beside other rows, among many, and in pages of another size. Components that follow each other are
also computed together, as in a run. All bits must be equal. Before that everything that serving launches is launched once
(``first_launches.py``), so that what has to be compiled is compiled before anything is served, also for an application's
deltas. Both have a back end of their own on the same card, with tables, slots and scratch, which is dropped afterwards.

Legend: T tokens, N rows, D hidden width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..backend import Backend, Batch, Packed
from ..errors import BackendError
from ..model.config import EmbeddingConfig, HeadConfig, attention_of
from ..row_backend import RowPacked
from ..tables import Tables
from .backend import CudaBackend
from .deltas import CudaDelta
from .first_launches import FirstLaunches
from .synchronous import SynchronousCard

SECONDS = 60.0  # that all proofs of a worker may take, with the kernels' first compilation
HEAD_ROWS = 65  # most rows of a head, whose logits are long
DECODED = 4  # tokens that are computed one by one
BESIDE = 3  # tokens of another row
ROWS = 5  # of the tables
Place = tuple[int, int, int]  # table row, first position, tokens


@dataclass(frozen=True, slots=True)
class ProofSize:
    """The tokens of a proof, and the chunks in which they are computed again; what is left is the last chunk."""

    tokens: int
    chunks: tuple[int, ...]


ON_CARD = ProofSize(300, (1, 3, 17, 64, 65))  # both tiles of a product's rows, two segments of an attention
ON_HOST = ProofSize(12, (1, 3))


@dataclass(slots=True)
class ProofState:
    """The findings of a worker's proofs so far. ``differs``, ``unproved`` and ``late`` are sentences, "" for nothing."""

    shapes: int = 0  # proved
    steps: int = 0  # done, of all shapes
    seconds: float = 0.0
    began: float | None = None  # the time at which a step began that is under way
    running: str = ""  # what is computed now
    differs: str = ""
    unproved: str = ""
    late: str = ""  # which kernels were not launched in time

    def view(self) -> dict[str, Any]:
        """Return the state as plain data."""
        invariant = None if not self.shapes and not self.why else not self.why
        return {
            "invariant": invariant,
            "why": self.why,
            "shapes": self.shapes,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "running": self.running,
        }

    @property
    def seconds_now(self) -> float:
        """The seconds that the proofs have taken, with the step under way. Any thread may ask."""
        began = self.began
        return self.seconds + (0.0 if began is None else time.monotonic() - began)

    @property
    def why(self) -> str:
        """The reason why the law of bits is not proved."""
        return self.differs or self.unproved


class Prover:
    """Owner of a worker's proofs (see the module). ``open_twin`` opens a back end on the same card, for one proof.

    ``limit`` is the longest sequence of tokens that is computed. ``seconds`` bounds everything together. Without
    ``compares`` kernels are launched for the first time, and nothing is proved: bits are not promised.
    """

    def __init__(
        self,
        open_twin: Callable[[], Backend],
        size: ProofSize,
        limit: int,
        seconds: float = SECONDS,
        compares: bool = True,
    ) -> None:
        tokens = max(min(size.tokens, limit), DECODED + 1)
        self.outcome = ProofState()
        self._open = open_twin
        self._chunks, self._tokens = size.chunks, tokens
        self._seconds, self._compares = seconds, compares
        self._known: set[str] = set()  # what was launched or proved, or could not be

    def prove(self, components: Sequence[Packed], deltas: Sequence[Packed | None] = ()) -> Iterator[None]:
        """Launch what will serve these components, then prove their shapes, step by step; of both what is new.

        ``deltas`` are those of an application, one for each component, if it has any. Parameters must stay where they are.
        """
        state, packed = self.outcome, list[RowPacked]()
        for one in components:
            assert isinstance(one, RowPacked), "a card's weights are rows"
            packed.append(one)
        changes = dict[int, CudaDelta]()
        for place, delta in enumerate(deltas):
            if delta is not None:
                assert isinstance(delta, CudaDelta), "a card's deltas are padded rows"
                changes[place] = delta
        for first, some in _runs(packed):
            inside = {place - first: changes[place] for place in range(first, first + len(some)) if place in changes}
            key = f"{_shape(some)} {[(place, delta.changes) for place, delta in inside.items()]}"
            if self._is_new(key):
                launches = FirstLaunches(self._twin(), some, inside, self._tokens)
                yield from self._stepped(some, launches.steps(), self._left_uncompiled)
        for _, some in _runs(packed) if self._compares else ():
            if self._is_new(_shape(some)):
                proof = _Proof(self._twin(), some, self._tokens, self._chunks)
                yield from self._stepped(some, proof.steps(), self._left_unproved)
                state.shapes += proof.holds
        state.running = ""

    def _is_new(self, key: str) -> bool:
        known = key in self._known
        self._known.add(key)
        return not known

    def _twin(self) -> CudaBackend:
        backend = self._open()
        assert isinstance(backend, CudaBackend), "a card is prepared"
        return backend

    def _stepped(self, packed: Sequence[RowPacked], steps: Iterator[str], left: Callable[[str], None]) -> Iterator[None]:
        """Take all steps within the time. A step yields in what bits differ, or "". ``left``: takes why some were left."""
        state = self.outcome
        state.running = " and ".join(map(_name, packed))
        while True:
            if state.seconds >= self._seconds:
                left(f"{self._seconds:.0f} seconds were over")
                return
            state.began = time.monotonic()
            try:
                found = next(steps)
            except StopIteration:
                return
            except (BackendError, torch.OutOfMemoryError) as error:
                left(str(error))
                return
            finally:
                state.seconds, state.began = state.seconds_now, None
            state.steps += 1
            if found:
                state.differs = state.differs or f"bits of {state.running} differ {found}"
            yield

    def _left_unproved(self, why: str) -> None:
        state = self.outcome
        state.unproved = state.unproved or f"bits of {state.running} could not be compared: {why}"

    def _left_uncompiled(self, why: str) -> None:
        state = self.outcome
        state.late = state.late or f"kernels of {state.running} are compiled when a request first needs them: {why}"


def _runs(packed: Sequence[RowPacked]) -> list[tuple[int, list[RowPacked]]]:
    """Return each component, and each two that follow each other in a run, with the place of the first."""
    found = [(place, [one]) for place, one in enumerate(packed)]
    for place, (one, following) in enumerate(pairwise(packed)):
        if not isinstance(following.spec.config, HeadConfig):
            found.append((place, [one, following]))
    return found


def _shape(packed: Sequence[RowPacked]) -> str:
    return " ".join(f"{one.spec.config} {one.spec.component.kv}" for one in packed)


class _Proof:
    """The proof of one component, or of two that follow each other. A step yields what makes its bits differ, or ""."""

    def __init__(self, backend: CudaBackend, packed: Sequence[RowPacked], tokens: int, chunks: Sequence[int]) -> None:
        self.holds = False  # all was compared, and equal
        self._backend, self._card = backend, SynchronousCard(backend)
        self._packed = packed
        self._chunks, self._tokens = chunks, tokens
        self._config = packed[0].spec.config
        width = packed[0].spec.component.width_in or packed[0].spec.component.width_out
        draw = np.random.default_rng(tokens)
        self._hidden_TD = torch.from_numpy(draw.standard_normal((tokens, width), dtype=np.float32)).to(backend.dtype)
        self._token_T = draw.integers(0, getattr(self._config, "vocabulary", 1), tokens)

    def steps(self) -> Generator[str, None, None]:
        page = next((kv.page_size for one in self._packed if (kv := one.spec.component.kv) is not None), 16)
        run, *parts = self._compose(page)
        yield ""
        if isinstance(self._config, HeadConfig):
            compared = self._head(run)
        else:
            compared = self._together(run, parts) if parts else self._alone(run, page)
        differs = ""
        for found in compared:
            differs = differs or found
            yield found
        self.holds = not differs

    def _together(self, run: Any, parts: Sequence[Any]) -> Iterator[str]:
        """Compare a run of two components with a run of each."""
        last = self._tokens - 1
        whole = self._computed(run, [(0, 0, self._tokens)])
        yield ""
        apart = self._hidden_TD
        for part in parts:
            apart = self._computed(part, [(1, 0, self._tokens)], apart)
        yield self._compare(whole, apart, "between one run and two")
        yield self._compare(whole[last:], self._computed(run, [(0, last, 1)]), "between prefill and decode")

    def _alone(self, run: Any, page: int) -> Iterator[str]:
        last = self._tokens - DECODED
        whole = self._computed(run, [(0, 0, self._tokens)])
        yield ""
        yield self._compare(whole, self._in_chunks(run, 1), "between chunks and one prefill")
        parts = [self._computed(run, [(2, 0, last)])]
        parts += [self._computed(run, [(2, at, 1)]) for at in range(last, self._tokens)]
        yield self._compare(whole, torch.cat(parts), "between prefill and decode")
        beside = self._computed(run, [(4, 0, BESIDE), (3, 0, self._tokens), (1, self._tokens - 1, 1)])
        yield self._compare(whole, beside[BESIDE : BESIDE + self._tokens], "beside other rows")
        single = self._computed(run, [(3, at, 1) for at in range(self._tokens)])
        yield self._compare(whole, single, "among many rows")
        if attention_of(self._config) is not None:
            self._copy_pages(page)
            other = page // 2 if page > 1 else 2
            (run,) = self._compose(other)
            yield self._compare(whole, self._in_chunks(run, 0), f"between pages of {page} and {other} tokens")

    def _head(self, run: Any) -> Iterator[str]:
        rows = min(self._tokens, HEAD_ROWS)
        whole = self._card.logits(run, self._hidden_TD[:rows])
        for count in (1, *self._chunks):
            if count < rows:
                found = self._card.logits(run, self._hidden_TD[rows - count : rows].clone())
                yield self._compare(whole[rows - count :], found, f"between {count} and {rows} rows")

    def _compose(self, page: int) -> list[Any]:
        """Return a run over all components, and of several one over each, with slots of their own in pages of this size."""
        backend, placed = self._backend, list[RowPacked]()
        tables = Tables(ROWS, self._tokens, len(self._packed), page)
        count = tables.slots.size
        tables.slots.reshape(-1)[:] = np.random.default_rng(7).permutation(count)
        tables.tokens[:] = self._token_T
        backend.reserve(tables, self._tokens + BESIDE + 1, HEAD_ROWS)
        for one in self._packed:
            if (kv := one.spec.component.kv) is not None:
                layout = replace(kv, page_size=page)
                component = replace(one.spec.component, kv=layout)
                one = RowPacked(replace(one.spec, component=component), one.weights)
                memory = torch.full((count * backend.slot_bytes(layout),), 0xFF, dtype=torch.uint8, device=_device(one))
                backend.add_arena(layout, memory)
            placed.append(one)
        runs = [backend.compose(placed, 0)]
        if len(placed) > 1:
            runs += [backend.compose([one], place) for place, one in enumerate(placed)]
        return runs

    def _copy_pages(self, page: int) -> None:
        """Take a page out of the arena and put it back, as an exchange does, so that these kernels are there, too."""
        kv = self._packed[0].spec.component.kv
        assert kv is not None, "an attention has KV"
        layout = replace(kv, page_size=page)
        memory = torch.empty(1, self._backend.slot_bytes(layout), dtype=torch.uint8)
        self._backend.export(layout, [0], memory)
        self._backend.import_(layout, [0], memory)

    def _in_chunks(self, run: Any, row: int) -> torch.Tensor:
        parts, at = [], 0
        for count in (*self._chunks, self._tokens):
            if (count := min(count, self._tokens - at)) > 0:
                parts.append(self._computed(run, [(row, at, count)]))
                at += count
        return torch.cat(parts)

    def _computed(self, run: Any, places: Sequence[Place], source_TD: torch.Tensor | None = None) -> torch.Tensor:
        row_N, start_N, count_N = (np.array(column, dtype=np.int32) for column in zip(*places, strict=True))
        given_TD = self._hidden_TD if source_TD is None else source_TD
        hidden_TD = torch.cat([given_TD[start : start + count] for _, start, count in places])
        self._card.forward(run, Batch(row_N, start_N, count_N, hidden_TD))
        return hidden_TD

    def _compare(self, want: torch.Tensor, found: torch.Tensor, what: str) -> str:
        same = torch.equal(want.contiguous().view(torch.uint8), found.contiguous().view(torch.uint8))
        return "" if same else what


def _device(packed: RowPacked) -> torch.device:
    return next(iter(packed.weights.values())).device


def _name(packed: RowPacked) -> str:
    """Return the name of a shape for a person: "attention of width 4096"."""
    component = packed.spec.component
    kind = "embedding" if isinstance(packed.spec.config, EmbeddingConfig) else component.kind.name.lower()
    return f"{kind} of width {component.width_in or component.width_out}"
