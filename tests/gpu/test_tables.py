"""Tables: edits land where they say, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from blockwright.gpu.errors import ExecutorError
from blockwright.gpu.tables import Tables
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import Edit, SetPages, SetSampling, WriteTokens


def test_edits() -> None:
    tables = Tables(rows=3, max_length=20, kv_layers=4, page_size=8)
    assert tables.tokens.shape == (3, 20)
    assert tables.slots.shape == (3, 4, 3)
    assert tables.tokens.dtype == tables.slots.dtype == np.int32
    params = SamplingParams(seed=5)
    tables.apply([WriteTokens(1, 18, [7, 8]), SetPages(2, 1, 2, [5, 6, 9]), SetSampling(0, 4, params)])
    tables.apply([WriteTokens(1, 18, [3])])
    assert tables.tokens[1, 18:].tolist() == [3, 8]
    assert np.count_nonzero(tables.tokens) == 2
    assert tables.slots[2, :, 2].tolist() == [0, 5, 6, 9]
    assert np.count_nonzero(tables.slots) == 3
    assert tables.sampling[0] is params
    assert tables.prompt_length.tolist() == [4, 0, 0]
    assert tables.sampling[1].temperature == 0.0


def test_grown_tables_keep_what_they_hold() -> None:
    tables = Tables(rows=3, max_length=20, kv_layers=2, page_size=8)
    params = SamplingParams()
    tables.apply([WriteTokens(1, 0, [7, 8]), SetPages(1, 0, 2, [5, 6]), SetPages(2, 1, 0, [9])])
    tables.apply([SetSampling(row, 2, params) for row in (1, 2)])
    assert not tables.grow(20, 2)
    assert tables.grow(10, 3), "deeper, and no shorter"
    assert (tables.tokens.shape, tables.slots.shape) == ((3, 20), (3, 3, 3))
    assert tables.grow(100, 1)
    assert (tables.tokens.shape, tables.slots.shape) == ((3, 100), (3, 3, 13))
    assert tables.tokens[1, :3].tolist() == [7, 8, 0]
    assert (tables.slots[1, :, 2].tolist(), tables.slots[2, :, 0].tolist()) == ([5, 6, 0], [0, 9, 0])
    tables.apply([WriteTokens(0, 99, [1]), SetPages(0, 2, 12, [1])])


@pytest.mark.parametrize(
    "edit",
    [
        WriteTokens(3, 0, [1]),
        WriteTokens(0, 19, [1, 2]),
        WriteTokens(0, -1, [1]),
        SetPages(0, 3, 0, [1, 2]),
        SetPages(0, 0, 3, [1]),
    ],
)
def test_edits_outside_are_refused(edit: Edit) -> None:
    with pytest.raises(ExecutorError, match="outside"):
        Tables(rows=3, max_length=20, kv_layers=4, page_size=8).apply([edit])
