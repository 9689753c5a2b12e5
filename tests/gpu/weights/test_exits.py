"""Exits: what exits.json and exits.safetensors may say, what is refused with which remedy, tiers and their exports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.export import export
from blockwright.policies.model.confidence import Threshold
from blockwright.policies.model.tiers import tier_source
from blockwright.tests.checkpoints import make_family
from blockwright.tests.claims import claim
from blockwright.zoo.source import open_source

Checkpoints = Callable[..., Path]


@pytest.fixture(scope="module")
def family(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family(checkpoint("llama"), tmp_path_factory.mktemp("family") / "f", {1: "low", 2: "shared"})


def ids(one: Checkpoint) -> list[bytes]:
    return [spec.component.id for spec in one.specs(16, "float32")]


def test_a_tier_is_the_first_layers_and_a_head(family: Path) -> None:
    top = Checkpoint.open(family)
    assert [*top.exits] == [1, 2]
    low, high = top.at_exit(1), top.at_exit(2)
    assert (low.config.layers, high.config.layers, len(low), len(high)) == (1, 2, 4, 6)
    assert ids(low)[:-1] == ids(top)[:3]
    assert ids(low)[-1] != ids(top)[-1] == ids(high)[-1], "a head of its own, and the top's"
    assert ids(open_source(tier_source(str(family), 1))) == ids(low)
    with pytest.raises(CheckpointError, match=r"has no exit after 3 layers; there are: 1, 2"):
        top.at_exit(3)


@claim("A tier is exported as an ordinary checkpoint of the same components, in every supported architecture", of="families")
@pytest.mark.parametrize("architecture", ["llama", "llama-tied", "phi3", "gpt-neox", "gemma2", "qwen2-windows"])
def test_an_export_has_the_components_of_its_tier(checkpoint: Checkpoints, tmp_path: Path, architecture: str) -> None:
    folder = make_family(checkpoint(architecture, num_hidden_layers=4), tmp_path / "f", {1: "shared", 3: "own"})
    for layers in (1, 3):
        tier = open_source(tier_source(str(folder), layers))
        out = Checkpoint.open(export(tier, tmp_path / str(layers)))
        assert ids(out) == ids(tier)
        assert (out.config, out.generation) == (tier.config, tier.generation)
        assert [part for part, _ in out.parts] == [part for part, _ in tier.parts]
    with pytest.raises(CheckpointError, match="is there already; name a folder that is not"):
        export(tier, tmp_path / "1")
    assert {path.name for path in (tmp_path / "1").iterdir()} >= {"tokenizer.json", "config.json", "generation_config.json"}
    assert not (tmp_path / "1" / "exits.json").exists()


def test_exits_of_a_setting_have_the_head_of_the_top(checkpoint: Checkpoints, family: Path) -> None:
    plain = Checkpoint.open(checkpoint("llama"))
    tiers = plain.with_shared_exits([1, 2], "exits.m")
    assert ids(tiers.at_exit(1)) == [*ids(plain)[:3], ids(plain)[-1]]
    assert ids(open_source(tier_source(str(checkpoint("llama")), 1))) == ids(tiers.at_exit(1))
    with pytest.raises(CheckpointError, match=r"exits.m is given, but .* has exits of its own; leave exits.m out"):
        Checkpoint.open(family).with_shared_exits([1], "exits.m")


def test_an_exit_may_have_a_rule_for_auto(family: Path, tmp_path: Path) -> None:
    ruled = with_files(family, tmp_path / "f")
    (ruled / "exits.json").unlink()
    (ruled / "exits.json").write_text(exits(LOW | {"auto": {"theta": 0.9, "measure": "margin", "tokens": 8}}, HIGH))
    assert Checkpoint.open(ruled).thresholds == {1: Threshold(theta=0.9, measure="margin", tokens=8)}
    assert Checkpoint.open(family).thresholds == {}


def exits(*entries: Any, **more: Any) -> str:
    return json.dumps({"version": 1, "exits": list(entries), **more})


LOW, HIGH = {"layers": 1, "head": "low"}, {"layers": 2, "head": "shared"}
REFUSED = [
    (exits(HIGH, LOW), r"exit 2 is after 1 layer, but follows one after 2; sort the exits"),
    (exits(LOW, LOW), r"exit 2 is after 1 layer like the one before it; leave one of them out"),
    (
        exits(LOW, {"layers": 3}),
        r"exit 2 is after 3 layers, which are all of the model: that is the top tier already",
    ),
    (exits(LOW, {"layers": 4}), r"exit 2 is after 4 layers, but the model has 3; give 1 to 2"),
    (exits({"layers": 0}), r"exit 1: layers is 0, not an integer from 1"),
    (exits({"layers": "1"}), r"exit 1: layers is '1', not an integer from 1"),
    (exits({"head": "low"}), r"exit 1 lacks layers"),
    (exits({"layers": 1, "head": ""}), r"head is '', not the name of a head"),
    (
        exits({"layers": 1, "head": "top"}),
        r"lacks tensor top.norm.weight \(there are: low.head.weight, low.norm.weight\)",
    ),
    (exits({"layers": 1, "haed": "low"}), r"there is no field haed; the fields are layers, head and auto"),
    (exits(LOW | {"auto": 0.5}), r"exit 1: auto is 0.5, not an object with theta, measure and tokens"),
    (exits(LOW | {"auto": {}}), r"exit 1: auto: theta is None, not a number from 0 to 2; blockwright family report"),
    (exits(LOW | {"auto": {"theta": 2.5}}), r"exit 1: auto: theta is 2.5, not a number from 0 to 2"),
    (exits(LOW | {"auto": {"theta": 1, "measure": "sum"}}), r"measure is 'sum', not one of mean, least, margin, entropy"),
    (exits(LOW | {"auto": {"theta": 1, "tokens": 257}}), r"tokens is 257, not a number from 1 to 256"),
    (exits(LOW | {"auto": {"theta": 1, "m": 3}}), r"auto: there is no field m; the fields are theta, measure, tokens"),
    (exits(HIGH), r"exits.safetensors is there, but exits.json names no head in it; remove it, or name its heads"),
    (exits(), r"exits is empty; name layers from 1 to 2, or leave it out"),
    (exits(LOW, tiers=2), r"there is no field tiers; the fields are version and exits"),
    (exits(LOW, version=2), r"is of version 2, this program reads 1; use a later release"),
    ('{"exits": {"layers": 1}}', r"exits is \{'layers': 1\}, not a list of objects with layers and head"),
    ('{"exits": [4]}', r"exits is \[4\], not a list of objects with layers and head"),
    ("[1]", r"holds a JSON list, not an object"),
    ("{", r"is not valid JSON \(line 1: .*\); write it again"),
    (" " * (1 << 20) + "{}", r"is too long \(1048578 bytes, more than 1048576\)"),
]


@claim("A folder with exits that cannot be served is refused by file, field and remedy", of="families")
@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_a_wrong_list_of_exits_is_refused(family: Path, tmp_path: Path, text: str, says: str) -> None:
    broken = with_files(family, tmp_path / "f")
    (broken / "exits.json").unlink()
    (broken / "exits.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=says):
        Checkpoint.open(broken)


def with_files(family: Path, target: Path) -> Path:
    """A folder with links to the files of another, each of which a test may replace."""
    target.mkdir()
    for file in family.iterdir():
        os.link(file, target / file.name)
    return target


def narrow(heads: dict[str, torch.Tensor]) -> None:
    heads["low.head.weight"] = heads["low.head.weight"][:, :-1].contiguous()


def without_norm(heads: dict[str, torch.Tensor]) -> None:
    del heads["low.norm.weight"]


def quantised(heads: dict[str, torch.Tensor]) -> None:
    heads["low.head.weight"] = heads["low.head.weight"].to(torch.int8)


def more(heads: dict[str, torch.Tensor]) -> None:
    heads["other.norm.weight"] = torch.ones(64)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            narrow,
            r"tensor low.head.weight has shape \[384, 63\] where the model asks for \[384, 64\]; save a head",
        ),
        (without_norm, r"lacks tensor low.norm.weight \(there are: low.head.weight\); save the head with it"),
        (quantised, r"low.head.weight is quantized \(I8\), which is not supported"),
        (more, r"tensor other.norm.weight belongs to no head of exits.json; name its head there, or remove it"),
    ],
)
def test_a_wrong_head_is_refused(
    family: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], says: str
) -> None:
    broken = with_files(family, tmp_path / "f")
    heads = load_file(family / "exits.safetensors")
    change(heads)
    (broken / "exits.safetensors").unlink()
    save_file(heads, broken / "exits.safetensors")
    with pytest.raises(CheckpointError, match=says):
        Checkpoint.open(broken)


def test_a_file_of_heads_that_is_missing_too_large_or_no_file_is_refused(family: Path, tmp_path: Path) -> None:
    broken = with_files(family, tmp_path / "f")
    file = broken / "exits.safetensors"
    raw = file.read_bytes()
    file.unlink()
    with pytest.raises(CheckpointError, match=r"has no exits.safetensors, but exits.json names the head 'low' in it; copy"):
        Checkpoint.open(broken)
    file.write_bytes(raw + b"\0")
    with pytest.raises(CheckpointError, match=rf"is too large: {len(raw) + 1} bytes where its header says {len(raw)}"):
        Checkpoint.open(broken)
    file.write_bytes(raw[:-1])
    with pytest.raises(CheckpointError, match="is truncated"):
        Checkpoint.open(broken)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CheckpointError, match="is a pipe; put the checkpoint's file there"):
        Checkpoint.open(broken)
    file.unlink()
    file.mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint.open(broken)
