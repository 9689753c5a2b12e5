"""A profile of a tiny model is whole, sweeps are within what the model takes, and every channel carries bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.actors.profiling.links import CHANNELS, measure_links
from blockwright.actors.profiling.profile import HELD_OUT, profile, spread_of
from blockwright.actors.profiling.shapes import ROWS, RUNS, SWEEP_TOKENS, RowLengths, SweepShape, grid, held_out
from blockwright.actors.profiling.sweep_bench import SweepBench
from blockwright.gpu.errors import BackendError
from blockwright.gpu.select import open_backend
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.tests.claims import claim
from blockwright.zoo.source import open_source


@claim("`profile` measures sweeps, links and loads on the machine", of="prediction")
@pytest.mark.parametrize("longest", [64, 512, 100_000])
def test_sweeps_are_within_tables_and_those_held_out_are_others(longest: int) -> None:
    lengths = RowLengths.of(longest)
    known, unseen = grid(lengths), held_out(lengths, 60, seed=1)
    for shape in (*known, *unseen):
        rows = [row for row, _, _ in shape.batch]
        assert len({*rows}) == len(rows) <= ROWS
        assert sum(count for _, _, count in shape.batch) <= SWEEP_TOKENS
        assert all(start >= 0 and count and start + count <= lengths.of_row(row) for row, start, count in shape.batch)
    assert not {*known} & {*unseen}
    assert {shape.runs for shape in (*known, *unseen)} == {*RUNS}
    assert not all(shape.drawn for shape in known)


def test_a_profile_is_what_a_pace_table_may_be(checkpoint: Callable[..., Path]) -> None:
    turns: list[tuple[int, int]] = []
    source = open_source(checkpoint("llama"))
    backend = open_backend("auto", "float32", 1)
    with pytest.raises(BackendError, match=r"with 48 sequences needs \d+ bytes, and 1000000 are free here"):
        profile(backend, source, 4, 1_000_000, lambda *turn: None)
    found = profile(backend, source, 4, 1 << 30, lambda *turn: turns.append(turn))
    costs = Coefficients.from_table(found)
    assert costs.parameters == sum(ref.nbytes for _, roles in source.parts[1:] for ref in roles.values())
    assert costs.kv > 0 < costs.base + costs.step + costs.read
    assert len(found["held_out"]) == found["error"]["held_out"] == HELD_OUT
    assert 0 < found["error"]["mape"] <= found["error"]["worst"]
    assert found["loading"]["components"] == len(source.parts)
    assert turns == [(turn, 5) for turn in range(1, 6)]


def test_of_an_adapter_what_it_changes_is_measured(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, name = checkpoint("llama"), "base_model.model.model.layers.0.self_attn.q_proj"
    rows, width = load_file(base / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"].shape
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "target_modules": ["layers.0.self_attn.q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    terms = {f"{name}.lora_A.weight": torch.ones(2, width), f"{name}.lora_B.weight": torch.ones(rows, 2)}
    save_file(terms, tmp_path / "adapter_model.safetensors")
    one = SweepBench(open_backend("torch", "float32", 1), open_source(base), RowLengths(64, 32), 1 << 30)
    backend, settled = open_backend("torch", "float32", 1), list[str]()
    other = SweepBench(backend, open_source(tmp_path, base), RowLengths(64, 32), 1 << 30)
    monkeypatch.setattr(backend, "settle", lambda: settled.append("no kernel thread reads memory that goes"))
    assert (one.parameters, one.kv) == (other.parameters, other.kv)
    assert [load.nbytes for load in one.loads] == [load.nbytes for load in other.loads]
    assert other.time([SweepShape(((0, 8, 1), (1, 0, 9)))], 4, lambda *turn: None)[0][0] > 0
    assert settled


def test_the_spread_is_that_of_the_middle_half() -> None:
    assert spread_of([1.0, 1.0, 1.0, 1.1, 1.1, 1.2, 9.0]) == pytest.approx((1.2 - 1.0) / 1.1)


@claim("`profile` measures sweeps, links and loads on the machine", of="prediction")
async def test_every_channel_is_measured() -> None:
    found = await measure_links(large=1 << 20)
    assert found.keys() == CHANNELS.keys()
    assert all(0 < link["latency"] < 60 and link["bandwidth"] > 1e5 for link in found.values())
