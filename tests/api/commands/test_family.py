"""The commands of model families: an export that transformers opens, a plan by measured times, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.actors.profiling.tier_plan import TierPlan
from blockwright.api.commands.cli import main
from blockwright.api.commands.family import plan_lines
from blockwright.tests.checkpoints import make_family
from blockwright.tests.gpu.reference import greedy, load, prompt_of

Checkpoints = Callable[..., Path]


def test_an_export_is_opened_by_transformers(
    checkpoint: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, out = make_family(checkpoint("llama"), tmp_path / "f", {2: "low"}), tmp_path / "new" / "two"
    assert main(["family", "export", str(family), "--tier", "2", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 2 of 3 layers, ")
    assert load(out).config.num_hidden_layers == 2
    assert len(greedy(out, prompt_of(9), 4)) == 4
    assert load(family).config.num_hidden_layers == 3, "transformers opens a family as its top tier"


@pytest.mark.parametrize(
    ("exits", "tier", "says"),
    [
        ({1: "shared"}, "2", "{f} has no exit after 2 layers; there are: 1"),
        (
            {},
            "3",
            "--tier: the exit is after 3 layers, which are all of the model: that is the top tier already; leave it out",
        ),
        ({}, "7", "--tier: the exit is after 7 layers, but the model has 3; give 1 to 2"),
        ({1: "shared"}, "1", "{out} is there already; name a folder that is not"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    checkpoint: Checkpoints,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    exits: dict[int, str],
    tier: str,
    says: str,
) -> None:
    folder = make_family(checkpoint("llama"), tmp_path / "f", exits) if exits else checkpoint("llama")
    (tmp_path / "out").mkdir()
    assert main(["family", "export", str(folder), "--tier", tier, str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "blockwright: " + says.format(f=folder, out=tmp_path / "out")


def test_a_plan_measures_every_depth_and_each_model(
    checkpoint: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which depth is equal is the machine's; the times are in order of the depths, and a whole copy is not below them."""
    small = checkpoint("llama", num_hidden_layers=1, vocab_size=320)
    assert main(["family", "plan", str(checkpoint("llama")), "--models", str(small)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("a prompt of 512 tokens, ")
    assert [line.split()[0] for line in said[2:6]] == ["LAYERS", "1", "2", "3"]
    assert said[-1].startswith(str(small))


def test_the_table_of_a_plan() -> None:
    found = TierPlan(1024, {1: 0.1, 2: 0.2, 4: 0.4}, (0.15, 0.4, 0.5), (2, 4, None))
    assert plan_lines(["small", "equal", "slow"], found) == [
        "LAYERS    SECONDS  OF ALL",
        "     1     0.1000     25%",
        "     2     0.2000     50%",
        "     4     0.4000    100%",
        "",
        "MODEL    SECONDS  AS FAST AS",
        "small     0.1500  2 of 4 layers",
        "equal     0.4000  all layers, so no lower tier",
        "slow      0.5000  all layers, so no lower tier",
    ]
