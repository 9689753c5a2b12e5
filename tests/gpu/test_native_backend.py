"""The native back end as an object: errors, several at once, forked processes, an absent library."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from blockwright.gpu.backend import Batch
from blockwright.gpu.cpu.native import library as native_library
from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.errors import BackendError
from blockwright.gpu.tables import Tables
from blockwright.policies.model.chain import KvLayout
from blockwright.tests.gpu.native_oracle import Chain, NativeRig, Shape, aligned, spec_of


@pytest.fixture(scope="module")
def rig() -> NativeRig:
    return NativeRig(Chain(Shape(), torch.float32), max_tokens=50)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([(3, 0, 1)], "table row"),
        ([(-1, 0, 1)], "table row"),
        ([(0, 120, 9)], "position"),
        ([(0, -1, 2)], "position"),
        ([(0, 0, 3), (1, 0, 48)], "more tokens than were reserved"),
    ],
)
def test_a_batch_outside_the_tables_is_refused(rig: NativeRig, batch: list[tuple[int, int, int]], words: str) -> None:
    with pytest.raises(BackendError, match=words):
        rig.forward(batch)


def test_counts_must_add_up(rig: NativeRig) -> None:
    one = np.array([1], dtype=np.int32)
    for tokens in (0, 2):
        with pytest.raises(BackendError, match="do not add up"):
            rig.backend.forward(rig.body, Batch(one, one, one, torch.zeros(tokens, 48)))


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    rig = NativeRig(Chain(Shape(), torch.float32))
    rig.tables.tokens[0, 2] = 97
    with pytest.raises(BackendError, match="vocabulary"):
        rig.forward([(0, 0, 3)])
    rig.forward([(0, 0, 2)])


def test_wrong_arrays_are_refused(rig: NativeRig) -> None:
    one = np.array([1], dtype=np.int32)
    with pytest.raises(BackendError, match="width 48"):
        rig.backend.forward(rig.body, Batch(one, one, one, torch.zeros(1, 47)))
    with pytest.raises(BackendError, match="float32"):
        rig.backend.forward(rig.body, Batch(one, one, one, torch.zeros(1, 48, dtype=torch.bfloat16)))
    with pytest.raises(BackendError, match="int32"):
        rig.backend.forward(rig.body, Batch(one.astype(np.int64), one, one, torch.zeros(1, 48)))
    with pytest.raises(BackendError, match=r"logits\(\)"):
        rig.backend.forward(rig.head, Batch(one, one, one, torch.zeros(1, 48)))
    with pytest.raises(BackendError, match=r"forward\(\)"):
        rig.backend.logits(rig.body, torch.zeros(1, 48))
    with pytest.raises(BackendError, match="reserved"):
        rig.backend.logits(rig.head, torch.zeros(51, 48))
    with pytest.raises(BackendError, match="float32 logits"):
        rig.backend.argmax(torch.zeros(2, 4).T)


def test_what_cannot_be_composed_is_refused(rig: NativeRig) -> None:
    backend = NativeBackend("float32")
    with pytest.raises(BackendError, match="reserve"):
        backend.compose(rig.packed[:1], 0)
    backend.reserve(rig.tables, 16, 4)
    with pytest.raises(BackendError, match="arena"):
        backend.compose(rig.packed[1:2], 0)
    with pytest.raises(BackendError, match="KV layer 3"):
        rig.backend.compose(rig.packed[1:2], 3)
    with pytest.raises(BackendError, match="KV of bfloat16"):
        backend.add_arena(KvLayout(1, 16, "bfloat16", 16), aligned(64))
    other = NativeRig(Chain(Shape(), torch.bfloat16))
    with pytest.raises(BackendError, match="packed by a native back end"):
        backend.compose(other.packed[:1], 0)
    wide = NativeRig(Chain(Shape(hidden=64), torch.float32))
    with pytest.raises(BackendError, match="widths"):
        backend.compose([rig.packed[0], wide.packed[0]], 0)


@pytest.mark.parametrize("shape", [Shape(head_dim=7), Shape(heads=5), Shape(head_dim=1026)])
def test_heads_that_the_kernels_lack_are_refused(shape: Shape) -> None:
    with pytest.raises(BackendError, match="head_dim must be even"):
        NativeRig(Chain(shape, torch.float32))


def test_memory_for_packing_is_checked(rig: NativeRig) -> None:
    raw, parts = rig.chain.tensors[-1], rig.backend.parts(rig.packed[-1].spec)
    part = next(part for part in parts if part.role == "weight")
    need = part.nbytes
    with pytest.raises(BackendError, match=str(need)):
        rig.backend.pack(part, raw["weight"], aligned(need - 1))
    with pytest.raises(BackendError, match="aligned"):
        rig.backend.pack(part, raw["weight"], aligned(need + 1)[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_give_what_the_whole_tensor_gives(dtype: torch.dtype) -> None:
    backend = NativeBackend(str(dtype).removeprefix("torch."))
    chain = Chain(Shape(biases=True), dtype)
    for config, tensors in zip(chain.configs, chain.tensors, strict=True):
        for part in backend.parts(spec_of(config, None)):
            whole, sliced = aligned(part.nbytes).fill_(0xFF), aligned(part.nbytes).fill_(0xFF)
            backend.pack(part, tensors[part.role], whole)
            for first in range(0, part.shape[0], part.together):
                last = min(first + part.together, part.shape[0])
                begin, piece = part.piece(first, last)
                backend.pack(piece, tensors[part.role][first:last], sliced[begin : begin + piece.nbytes])
            assert torch.equal(whole, sliced), part.role


@pytest.mark.parametrize(("dtype", "threads", "name"), [("float16", 1, ""), ("float32", 0, ""), ("float32", 1, "mmx")])
def test_what_does_not_exist_is_refused(dtype: str, threads: int, name: str) -> None:
    with pytest.raises(BackendError):
        NativeBackend(dtype, threads, name)


def test_an_absent_library_is_a_backend_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "LIBRARY", Path("/elsewhere/_cpu.so"))
    with pytest.raises(BackendError, match="not built"):
        native_library.library.__wrapped__()


def test_slots_are_whole_kilobytes() -> None:
    backend = NativeBackend("bfloat16")
    assert backend.slot_bytes(KvLayout(2, 64, "bfloat16", 16)) == 8192
    assert backend.slot_bytes(KvLayout(1, 6, "bfloat16", 3)) == 1024


def test_several_back_ends_with_threads_work_side_by_side() -> None:
    chain = Chain(Shape(), torch.float32)
    rigs = [NativeRig(chain, threads) for threads in (1, 2, 3)]
    for start in range(0, 30, 10):
        first, *others = [rig.logits([(0, start, 10)]) for rig in rigs]
        assert all(torch.equal(first, other) for other in others)


def _threads() -> set[str]:
    return {path.name for path in Path("/proc/self/task").iterdir()}


def test_closing_ends_the_threads() -> None:
    before = _threads()
    backend = NativeBackend("float32", 4)
    made = _threads() - before  # those of tests before may end meanwhile
    assert len(made) == 3
    backend.close()
    assert not made & _threads()


def test_a_forked_process_makes_its_own_threads() -> None:
    """What a worker is: forked from a server that imported the library and made nothing."""
    native_library.library()
    child = os.fork()
    if child == 0:
        try:
            backend = NativeBackend("float32", 2)
            backend.reserve(Tables(1, 16, 1, 16), 16, 1)
            best = backend.argmax(torch.eye(8))
            os._exit(0 if best.tolist() == list(range(8)) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_forked_later_can_close() -> None:
    """A fork copies the back end but not its threads; an exit there must not wait for them."""
    backend = NativeBackend("float32", 2)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        try:
            backend.close()
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
