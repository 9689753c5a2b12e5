"""Runs: what a token costs in one, exactly."""

from __future__ import annotations

from blockwright.policies.model.runs import run_of

from ..sweep_world import chain

PAGE, LAYERS = 4, 2


def test_the_bytes_of_a_run_are_of_its_products_and_of_one_position() -> None:
    """An embedding is looked up, not multiplied with; KV is counted for a position, not for a page."""
    parts = [one for block in chain("a", LAYERS, page_size=PAGE).blocks for one in block.components]
    position = next(one.kv.raw_bytes // PAGE for one in parts if one.kv is not None)
    body, head = run_of(0, parts[:-1], 3), run_of(5, parts[-1:], 9)
    assert (body.nbytes, body.kv_bytes, body.head) == (2 * LAYERS * 100, LAYERS * position, False)
    assert (head.nbytes, head.kv_bytes, head.head, head.depth, head.kv_layer) == (100, 0, True, 5, 9)
