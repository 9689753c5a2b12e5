"""Parameters and KV out of one pool: what one gives back the other can take."""

from __future__ import annotations

from blockwright.policies.memory.packed_tensor import PackedTensor, Shortage, TensorPlace, WantedComponent
from blockwright.policies.memory.worker_memory import WorkerMemory
from blockwright.policies.model.chain import KvLayout
from blockwright.policies.model.runs import Span
from blockwright.tests.claims import claim

CHUNK = 64 * 1024
LAYOUT = KvLayout(1, 8, "float32", 4)
SPAN = Span.of(0, LAYOUT.key, [(b"a0",), (b"a1",), (b"a2",)], [b"l0", b"l1", b"line"])


def memory(chunks: int, chunk: int = CHUNK) -> WorkerMemory:
    """Four slots fit a chunk."""
    made = WorkerMemory(chunks * chunk, chunk, chunk // 4)
    made.add_layout(LAYOUT)
    return made


def page(made: WorkerMemory, token_hash: bytes = b"") -> int:
    handles = made.allocate_pages([SPAN], "")
    assert handles is not None
    if token_hash:
        made.pages.publish(handles[0], token_hash)
    return handles[0]


def load(made: WorkerMemory, holder: str, id: bytes, tensors: list[PackedTensor], kept: int = 0) -> list[TensorPlace] | None:
    """One component, and nothing else changes where there is no room."""
    before = made.snapshot()
    answer = made.load(holder, [WantedComponent(id, tensors)], kept)
    if isinstance(answer, Shortage):
        assert made.snapshot() == before
        return None
    return answer[0]


def one(nbytes: int, id: bytes = b"") -> list[PackedTensor]:
    return [PackedTensor(id or bytes([nbytes % 251]), nbytes)]


@claim("Parameters and KV share one pool of memory, whose size in the system follows its accounts", of="serving")
def test_parameters_push_cached_pages_out_but_not_pages_in_use() -> None:
    made = memory(4)
    used, cached = page(made), page(made, b"hash")
    made.pages.release([cached], "a")
    assert load(made, "app", b"big", one(4 * CHUNK)) is None
    assert made.pages.cached == 1, "pages that cannot make room for it stay"
    assert load(made, "app", b"fits", one(3 * CHUNK - 5)) == [TensorPlace(0, True)]
    edit = made.take_edits()[-1]
    assert (edit.arena, len(edit.chunks)) == ("parameters", 3)
    assert made.parameter_bytes == 3 * CHUNK
    made.check({used: 1})


def test_a_component_is_loaded_once_and_goes_with_its_last_holder() -> None:
    made = memory(4)
    assert load(made, "one", b"c", one(10, b"t")) == [TensorPlace(0, True)]
    assert made.residence.hold(b"c", "two") == [TensorPlace(0, False)]
    assert made.residence.hold(b"d", "two") is None
    assert made.release([b"c"], "one") == made.release([b"c"], "one") == []
    assert made.release([b"c"], "two") == [(b"c", [b"t"])]
    assert made.free_bytes == made.total_bytes
    assert made.take_edits()[-1].back
    made.check({})


def test_holes_between_components_do_not_refuse_a_load_that_fits() -> None:
    made = memory(8)
    for name in (b"a", b"b", b"c", b"d"):
        assert load(made, "app", name, one(2 * CHUNK, name)) is not None
    for name in (b"a", b"c"):
        made.release([name], "app")
    assert load(made, "app", b"big", one(4 * CHUNK)) is not None
    made.check({})


def test_the_size_of_a_chunk_is_configured() -> None:
    made = memory(4, 2 << 20)
    assert load(made, "app", b"c", one((2 << 20) + 1)) == [TensorPlace(0, True)]
    assert made.parameter_bytes == 4 << 20
    assert made.pages_of([SPAN], "") == 2 * 4 // 3


def test_pages_of_all_spans_are_taken_or_none() -> None:
    made = memory(1)
    assert made.allocate_pages([SPAN, SPAN], "") is None
    assert made.free_bytes == made.total_bytes
    assert made.allocate_pages([SPAN], "") is not None


def test_all_components_of_a_load_or_none() -> None:
    made = memory(4)
    wanted = [WantedComponent(bytes([i]), one(2 * CHUNK, bytes([i]))) for i in range(3)]
    assert made.load("app", wanted, 0) == Shortage(6 * CHUNK, 2 * CHUNK, True)
    assert made.residence.components == []
    assert made.load("app", wanted[:2], 0) == [[TensorPlace(0, True)], [TensorPlace(2 * CHUNK, True)]]
    assert made.load("app", wanted, 0) == Shortage(2 * CHUNK, 2 * CHUNK, True)
    assert made.load("b", [WantedComponent(b"b", one(CHUNK, b"b"))], 0) == Shortage(CHUNK, CHUNK, False)


def test_half_empty_groups_of_pages_do_not_count_as_free() -> None:
    """Six slots of three layers: the second chunk holds slots of both pages, and goes only with both."""
    made = memory(4)
    used, cached = page(made), page(made, b"hash")
    made.pages.release([cached], "")
    assert load(made, "app", b"c", one(4 * CHUNK)) is None
    made.pages.release([used], "")
    assert load(made, "app", b"c", one(4 * CHUNK)) is not None


def test_what_is_kept_for_sequences_is_not_given_to_parameters() -> None:
    made = memory(8)
    kept = made.chunks_for([SPAN], "", 5)  # 15 slots of 3 layers, four in a chunk
    assert kept == 4
    assert load(made, "app", b"big", one(5 * CHUNK), kept) is None
    assert load(made, "app", b"fits", one(4 * CHUNK), kept) is not None
    assert made.pages_of([SPAN], "") >= 5


def test_a_share_of_an_account_counts_in_what_is_kept() -> None:
    made = WorkerMemory(8 * CHUNK, CHUNK, CHUNK // 4, shares={"t": 0.5})
    made.add_layout(LAYOUT)
    assert made.chunks_for([SPAN], "t", 4) == 6
    assert load(made, "app", b"c", one(2 * CHUNK), 6) is not None
    assert made.pages_of([SPAN], "t") == 4


def test_an_application_that_comes_to_others_leaves_a_part_to_kv() -> None:
    made = WorkerMemory(10 * CHUNK, CHUNK, CHUNK // 4, kv_reserve=0.5)
    assert load(made, "base", b"base", one(8 * CHUNK)) is not None, "alone it may have all"
    assert load(made, "a", b"a", one(CHUNK)) is not None
    assert load(made, "b", b"b", one(CHUNK, b"b")) is None, "half of what the base leaves stays"


def test_unloading_many_evicts_what_any_of_them_made_and_nothing_else() -> None:
    made = memory(8)
    other = Span.of(0, LAYOUT.key, [(b"b0",)], [b"other"])
    for id in (b"a0", b"a2", b"zz"):
        load(made, "app", id, one(100, id))
    pages = [page(made, b"one"), page(made, b"two")]
    kept = made.allocate_pages([other], "")
    assert kept is not None
    made.pages.publish(kept[0], b"one")
    for handle in (*pages, *kept):
        made.pages.release([handle], "")
    assert [id for id, _ in made.release([b"a0", b"a2", b"zz", b"none"], "app")] == [b"a0", b"a2", b"zz"]
    made.forget_pages([])
    assert list(made.pages.idle) == kept
