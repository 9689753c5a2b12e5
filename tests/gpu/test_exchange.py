"""Pages that were exported by one executor and imported by another are what that one would have computed: every logit after
them is the same, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.gpu.backend import Backend
from blockwright.gpu.errors import ExecutorError
from blockwright.gpu.select import open_backend
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import Edit, ImportGroup, PageImport, SetPages, SweepPlan
from blockwright.tests.cap import CAP
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.gpu.rig import Rig

PAGES, PAGE = 5, 8
PROMPT = list(prompt_of(PAGES * PAGE + 3, seed=5))
MakeCheckpoint = Callable[..., Path]


def slots_of(edits: list[Edit]) -> list[list[int]]:
    """Of each page."""
    return [edit.slots for edit in edits if isinstance(edit, SetPages)]


def decoded(rig: Rig, start: int) -> list[object]:
    """Tokens of row 0 from ``start`` on, with the log-probabilities of the whole vocabulary."""
    found: list[object] = []
    count = len(PROMPT) - start
    for _ in range(4):
        result = rig.run([(0, start, count)], [0])
        found.append((result.tokens, [entry and sorted(entry.top) for entry in result.logprobs]))
        start, count = start + count, 1
    return found


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_the_same_logits_in_float32(checkpoint: MakeCheckpoint, make_backend: Callable[..., Backend], kind: str) -> None:
    move(checkpoint(kind), make_backend)


def test_the_same_logits_in_bfloat16(checkpoint: MakeCheckpoint, make_backend: Callable[..., Backend]) -> None:
    move(checkpoint("llama"), lambda: make_backend("bfloat16"))


def move(path: Path, make: Callable[[], Backend]) -> None:
    source, target = Rig(make(), path), Rig(make(), path)
    params = SamplingParams(temperature=0.0, logprobs=source.checkpoint.config.vocabulary)
    edits = source.admit(0, PROMPT, params, 64)
    source.run([(0, 0, PAGES * PAGE)], [], edits)
    leave = slots_of(edits)[:PAGES]
    arena = next(arena for arena in source.executor.committed() if arena.startswith("kv-"))
    layers = len(leave[0])
    memory = bytearray(source.executor.pages.size(arena, PAGES * layers))
    source.executor.pages.export([(arena, [slot for page in reversed(leave) for slot in page])], memory)
    target.generate(1, prompt_of(20, seed=9), 3)  # its slots are others
    edits = target.admit(0, PROMPT, params, 64)
    enter = slots_of(edits)[:PAGES]
    places = [page * layers + layer for page in range(PAGES) for layer in range(layers)]
    group = ImportGroup(arena, 0, places, [slot for page in reversed(enter) for slot in page])
    target.executor.pages.put(7, memoryview(memory))
    target.executor.execute(SweepPlan(next(target.numbers), edits=edits, imports=[PageImport(7, [group])]))
    assert leave != enter
    assert decoded(target, PAGES * PAGE) == decoded(source, PAGES * PAGE)


def test_what_did_not_come_cannot_be_written(checkpoint: MakeCheckpoint) -> None:
    rig = Rig(open_backend("torch", "float32", 1, CAP), checkpoint("llama"))
    arena = next(arena for arena in rig.executor.committed() if arena.startswith("kv-"))
    with pytest.raises(ExecutorError, match="pages 3 are to be written and did not come"):
        rig.executor.execute(SweepPlan(1, imports=[PageImport(3, [])]))
    rig.executor.pages.put(3, bytes(rig.executor.pages.size(arena, 2)))
    with pytest.raises(ExecutorError, match="less than they should have"):
        rig.executor.execute(SweepPlan(1, imports=[PageImport(3, [ImportGroup(arena, 0, [2], [0])])]))
    with pytest.raises(ExecutorError, match="does not exist"):
        rig.executor.pages.export([("kv-none", [1])], bytearray(10))
    rig.executor.pages.put(4, b"")
    rig.executor.execute(SweepPlan(1, imports=[PageImport(4, [])]))  # it is forgotten
    with pytest.raises(ExecutorError, match="did not come"):
        rig.executor.execute(SweepPlan(1, imports=[PageImport(4, [])]))


def test_slots_that_moved_are_read_where_they_are_now(
    checkpoint: MakeCheckpoint, make_backend: Callable[..., Backend]
) -> None:
    stays, moves = Rig(make_backend(), checkpoint("llama")), Rig(make_backend(), checkpoint("llama"))
    params = SamplingParams(temperature=0.0, logprobs=stays.checkpoint.config.vocabulary)
    for rig in (stays, moves):
        edits = rig.admit(0, PROMPT, params, 64)
        rig.run([(0, 0, PAGES * PAGE)], [], edits)
    arena = next(arena for arena in moves.executor.committed() if arena.startswith("kv-"))
    listed = [edit for edit in edits if isinstance(edit, SetPages)]
    slots = [slot for edit in listed for slot in edit.slots]
    targets = [moves._slots.pop() for _ in slots]
    moves.executor.pages.move(arena, slots, targets)
    to = dict(zip(slots, targets, strict=True))
    rubbish = bytes(range(256)) * (moves.executor.pages.size(arena, len(slots)) // 256)
    places = list(range(len(slots)))
    moves.executor.pages.put(1, rubbish)
    moved: list[Edit] = [SetPages(0, edit.layer, edit.page, [to[slot] for slot in edit.slots]) for edit in listed]
    imports = [PageImport(1, [ImportGroup(arena, 0, places, slots)])]
    moves.executor.execute(SweepPlan(next(moves.numbers), edits=moved, imports=imports))
    assert decoded(moves, PAGES * PAGE) == decoded(stays, PAGES * PAGE)
