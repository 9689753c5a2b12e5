"""Tables: edits land where they say, and nowhere else."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from blockwright.gpu import tables as module
from blockwright.gpu.errors import ExecutorError
from blockwright.gpu.tables import Tables
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import Edit, SetPages, SetSampling, WriteTokens


def test_edits() -> None:
    tables = Tables(rows=3, max_length=20, kv_layers=4, page_size=8)
    assert tables.tokens.shape == (3, 20)
    assert tables.slots.shape == (3, 5, 3)
    assert tables.tokens.dtype == tables.slots.dtype == np.int32
    params = SamplingParams(seed=5)
    tables.apply([WriteTokens(1, 18, [7, 8]), SetPages(2, 1, 2, [5, 6, 9]), SetSampling(0, 4, params)])
    tables.apply([WriteTokens(1, 18, [3])])
    assert tables.tokens[1, 18:].tolist() == [3, 8]
    assert np.count_nonzero(tables.tokens) == 2
    assert tables.slots[2, :, 2].tolist() == [0, 5, 6, 9, 0]
    assert np.count_nonzero(tables.slots) == 3
    assert tables.sampling[0] is params
    assert tables.prompt_length.tolist() == [4, 0, 0]
    assert tables.sampling[1].temperature == 0.0


def grown(tables: Tables, max_length: int, kv_layers: int) -> bool:
    steps = tables.grow(max_length, kv_layers)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def test_grown_tables_keep_what_they_hold() -> None:
    tables = Tables(rows=3, max_length=20, kv_layers=2, page_size=8)
    params = SamplingParams()
    tables.apply([WriteTokens(1, 0, [7, 8]), SetPages(1, 0, 2, [5, 6]), SetPages(2, 1, 0, [9])])
    tables.apply([SetSampling(row, 2, params) for row in (1, 2)])
    assert not grown(tables, 20, 2)
    assert grown(tables, 10, 3), "deeper, and no shorter"
    assert (tables.tokens.shape, tables.slots.shape) == ((3, 20), (3, 4, 3)), "one layer more is for hidden states"
    assert grown(tables, 100, 1)
    assert (tables.tokens.shape, tables.slots.shape) == ((3, 100), (3, 4, 13))
    assert tables.tokens[1, :3].tolist() == [7, 8, 0]
    assert (tables.slots[1, :, 2].tolist(), tables.slots[2, :, 0].tolist()) == ([5, 6, 0, 0], [0, 9, 0, 0])
    tables.apply([WriteTokens(0, 99, [1]), SetPages(0, 2, 12, [1])])


def test_tables_grow_in_slices_and_take_edits_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(3)
    monkeypatch.setattr(module, "SLICE", 256)
    one, other = (Tables(rows=40, max_length=64, kv_layers=3, page_size=8) for _ in range(2))

    def edit() -> None:
        row, page = random.randrange(40), random.randrange(8)
        edits = [WriteTokens(row, page * 8, [random.randrange(99)] * 8), SetPages(row, 1, page, [random.randrange(99)] * 2)]
        for tables in (one, other):
            tables.apply([*edits, SetSampling(row, 4, SamplingParams())])
            tables.append(np.array([row]), np.array([page]), np.array([7]))

    for _ in range(200):
        edit()
    in_use = np.count_nonzero(one.prompt_length) * (64 + 3 * 8) * 4
    steps = 0
    for _ in one.grow(100, 4):
        assert one.tokens.shape == (40, 64)
        steps += 1
        edit()
    assert steps >= in_use // 256 - 1
    assert grown(other, 100, 4)
    assert np.array_equal(one.tokens, other.tokens)
    assert np.array_equal(one.slots, other.slots)


def test_a_growth_that_another_overtakes_or_that_is_given_up_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 64)
    tables = Tables(rows=3, max_length=64, kv_layers=2, page_size=8)
    tables.apply([SetSampling(0, 4, SamplingParams()), WriteTokens(0, 0, [1, 2])])
    given_up, overtaken = tables.grow(90, 2), tables.grow(90, 2)
    next(given_up)
    given_up.close()
    assert tables.max_length == 64
    next(overtaken)
    assert grown(tables, 100, 2)
    assert list(overtaken) == []
    tables.apply([WriteTokens(0, 99, [3])])
    assert (tables.max_length, tables.tokens[0, [0, 1, 99]].tolist()) == (100, [1, 2, 3])


@pytest.mark.parametrize(
    "edit",
    [
        WriteTokens(3, 0, [1]),
        WriteTokens(0, 19, [1, 2]),
        WriteTokens(0, -1, [1]),
        SetPages(0, 4, 0, [1, 2]),
        SetPages(0, 0, 3, [1]),
    ],
)
def test_edits_outside_are_refused(edit: Edit) -> None:
    with pytest.raises(ExecutorError, match="outside"):
        Tables(rows=3, max_length=20, kv_layers=4, page_size=8).apply([edit])
