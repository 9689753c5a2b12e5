"""Parameters and KV out of one pool: what one gives back the other can take."""

from __future__ import annotations

from blockwright.policies.memory.packed_tensor import PackedTensor, TensorPlace
from blockwright.policies.memory.worker_memory import WorkerMemory
from blockwright.policies.model.chain import KvLayout
from blockwright.policies.model.runs import Span

CHUNK = 64 * 1024
LAYOUT = KvLayout(1, 8, "float32", 4)
SPAN = Span.of(0, LAYOUT.key, [(b"a0",), (b"a1",), (b"a2",)], [b"l0", b"l1", b"line"])


def memory(chunks: int, chunk: int = CHUNK) -> WorkerMemory:
    """Four slots fit a chunk."""
    made = WorkerMemory(chunks * chunk, chunk, chunk // 4)
    made.add_layout(LAYOUT)
    return made


def page(made: WorkerMemory, token_hash: bytes = b"") -> int:
    handles = made.take_pages([SPAN], "")
    assert handles is not None
    if token_hash:
        made.pages.publish(handles[0], token_hash)
    return handles[0]


def one(nbytes: int, id: bytes = b"") -> list[PackedTensor]:
    return [PackedTensor(id or bytes([nbytes % 251]), nbytes)]


def test_parameters_push_cached_pages_out_but_not_pages_in_use() -> None:
    made = memory(4)
    used, cached = page(made), page(made, b"hash")
    made.pages.release(cached, "a")
    assert made.load(b"big", "app", one(4 * CHUNK)) is None
    assert made.load(b"fits", "app", one(3 * CHUNK - 5)) == [TensorPlace(0, True)]
    edit = made.take_edits()[-1]
    assert (edit.arena, len(edit.chunks)) == ("parameters", 3)
    assert made.parameter_bytes == 3 * CHUNK
    made.check({used: 1})


def test_a_component_is_loaded_once_and_goes_with_its_last_holder() -> None:
    made = memory(4)
    assert made.load(b"c", "one", one(10, b"t")) == [TensorPlace(0, True)]
    assert made.residence.hold(b"c", "two") == [TensorPlace(0, False)]
    assert made.residence.hold(b"d", "two") is None
    assert made.release(b"c", "one") is None
    assert made.release(b"c", "one") is None
    assert made.release(b"c", "two") == [b"t"]
    assert made.free_bytes == made.total_bytes
    assert made.take_edits()[-1].back
    made.check({})


def test_holes_between_components_do_not_refuse_a_load_that_fits() -> None:
    made = memory(8)
    for name in (b"a", b"b", b"c", b"d"):
        assert made.load(name, "app", one(2 * CHUNK, name)) is not None
    for name in (b"a", b"c"):
        made.release(name, "app")
    assert made.load(b"big", "app", one(4 * CHUNK)) is not None
    made.check({})


def test_the_size_of_a_chunk_is_configured() -> None:
    made = memory(4, 2 << 20)
    assert made.load(b"c", "app", one((2 << 20) + 1)) == [TensorPlace(0, True)]
    assert made.parameter_bytes == 4 << 20
    assert made.pages_of([SPAN], "") == 2 * 4 // 3


def test_pages_of_all_spans_are_taken_or_none() -> None:
    made = memory(1)
    assert made.take_pages([SPAN, SPAN], "") is None
    assert made.free_bytes == made.total_bytes
    assert made.take_pages([SPAN], "") is not None
