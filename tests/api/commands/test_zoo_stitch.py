"""``zoo stitch``: what it makes and stores, swaps that are judged with stitches, and what it refuses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from widened import widened

from blockwright.api.commands.cli import main
from blockwright.gpu.weights.checkpoint import CheckpointError
from blockwright.policies.adaptive.variants import Swap, variant_source
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.zoo.models import files
from blockwright.zoo.equivalence import probe
from blockwright.zoo.equivalence.records import stored_equivalences
from blockwright.zoo.equivalence.stitch_records import stored_stitches
from blockwright.zoo.source import open_source
from blockwright.zoo.zoo import Zoo

Run = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {"hidden_size": 32, "head_dim": 8, "intermediate_size": 48, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of 48 x 16 tokens."""
    for name, value in (("ROWS", 48), ("LENGTH", 16), ("TOKENS", 768), ("LEAST_POSITIONS", 64)):
        monkeypatch.setattr(probe, name, value)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    def call(*words: object, command: str = "stitch") -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["zoo", command, *map(str, words), "--zoo", str(tmp_path / "zoo")])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def text(path: Path, seed: int) -> Path:
    draw = random.Random(seed)
    path.write_text(" ".join("".join(draw.choices("theinorsa", k=draw.randint(1, 7))) for _ in range(700)))
    return path


@pytest.fixture
def widths(tmp_path: Path, run: Run) -> Path:
    """The zoo of "a" and the wider "b", which computes the same in another basis."""
    a = make_checkpoint(tmp_path / "a", **SMALL)
    for name, folder in (("a", a), ("b", widened(a, tmp_path / "b", 48))):
        assert run(folder, "--name", name, command="add")[0] == 0
    return tmp_path / "zoo"


def chains(root: Path) -> Sequence[tuple[str, ...]]:
    return [Zoo(root).chain(name).components for name in "ab"]


@claim("`zoo stitch` joins models of different widths; `zoo equivalence` then judges swaps with stitches", of="adaptive")
def test_stitches_are_made_stored_and_used(widths: Path, run: Run, tmp_path: Path) -> None:
    before = files(widths)
    code, out, err = run("a", "b", "--text", text(tmp_path / "text", 1), "--steps", 1, "--json")
    assert code == 0, err
    view = json.loads(out)
    assert [(one["from"], one["to"], len(one["points"])) for one in view["directions"]] == [("a", "b", 5), ("b", "a", 5)]
    first = view["directions"][0]["points"][0]
    assert (first["behind"], first["before"]) == ("embedding", "attention 0")
    for one in (one for direction in view["directions"] for one in direction["points"]):
        assert one["trained"]["loss"] <= one["least_squares"]["loss"]
        assert one["trained"]["similarity"] >= one["least_squares"]["similarity"] > 0.999
    added = {name.partition("/")[0]: 0 for name in files(widths).keys() - before.keys()}
    for name in files(widths).keys() - before.keys():
        added[name.partition("/")[0]] += 1
    assert added == {"components": 10, "stitches": 2, "tensors": 12}, "a matrix for a direction, and a bias for a point"
    stored = files(widths)
    assert "better than least squares at" in run("a", "b", "--text", tmp_path / "text", "--steps", 1)[1]
    assert files(widths) == stored, "they are there, and not made again"
    assert run(command="verify")[1].startswith("whole: 2 applications, ")
    assert run(command="gc")[1].startswith("deleted 0 files")

    code, out, err = run("a", "b", "--text", text(tmp_path / "probe", 2), "--json", command="equivalence")
    assert code == 0, err
    pairs = json.loads(out)["replaced"][0]["pairs"]
    assert all(one["counts"] and one["kl"] < 1e-3 for one in pairs), "a block in another basis does the same"
    known = stored_equivalences(Zoo(widths), *chains(widths))
    assert known is not None
    layer = next(one for one in known.pairs if (one.first, len(one.block)) == (3, 2))
    there, back = (stored_stitches(Zoo(widths), *ways) for ways in (chains(widths), chains(widths)[::-1]))
    assert there is not None
    assert back is not None
    ends = {one.left: one.component for one in there.stitches}[3], {one.left: one.component for one in back.stitches}[5]
    assert layer.replacement == (ends[0], *layer.equivalent, ends[1])
    assert run(command="verify")[1].startswith("whole: 2 applications, ")

    assert run("b", command="remove")[0] == 0
    run(command="gc")
    left = files(widths)
    assert not [name for name in left if name.startswith(("stitches/", "equivalences/"))]
    assert not {f"components/{one}.json" for one in ends} & left.keys(), "stitches go with the models that they join"


@claim("Stitches that cannot be made are refused in one sentence, and the zoo stays as it was", of="adaptive")
def test_what_cannot_be_stitched_is_refused(widths: Path, run: Run, tmp_path: Path) -> None:
    twin, strange = make_checkpoint(tmp_path / "twin", seed=3, **SMALL), make_checkpoint(tmp_path / "strange", seed=4)
    tokenizer = json.loads((strange / "tokenizer.json").read_text())
    tokenizer["model"] = {"type": "WordLevel", "vocab": {f"word{i}": i for i in range(300)}, "unk_token": "word0"}
    tokenizer["added_tokens"] = []
    (strange / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name, folder in (("twin", twin), ("strange", strange)):
        assert run(folder, "--name", name, command="add")[0] == 0
    short = tmp_path / "short"
    short.write_text("the text")
    given = text(tmp_path / "text", 1)
    before = files(widths)
    for words, expected in [
        (("a", "x", "--text", given), "has no application 'x'; there are: a, b, strange, twin"),
        (("a", "a", "--text", given), "a and a are the same 6 components"),
        (("a", "twin", "--text", given), "a and twin are 32 wide, both: their blocks need no stitch"),
        (("a", "strange", "--text", given), "a and strange have different tokenizers"),
        (("a", "b"), "there is no text to train on; give --text FILE, or --data FILE, or --data demo"),
        (
            ("a", "b", "--text", short),
            "short has 6 tokens; the training of stitches needs 768 (48 x 16); give a longer text",
        ),
        (("a", "b", "--text", tmp_path / "no"), "no cannot be read (No such file or directory); name a file"),
    ]:
        code, out, err = run(*words)
        assert (code, out) == (2, ""), words
        assert expected in err
        assert err.count("\n") == 1
    assert files(widths) == before


def test_a_stitch_of_other_models_is_refused(widths: Path, run: Run, tmp_path: Path) -> None:
    assert run("a", "b", "--text", text(tmp_path / "text", 1), "--steps", 0)[0] == 0
    there = stored_stitches(Zoo(widths), *chains(widths))
    assert there is not None
    (own, other), enter = chains(widths), there.by_point
    source = variant_source(str(widths / "chains" / "a"), [Swap(3, 5, (there.stitches[2].component, *other[3:5]))])
    with pytest.raises(CheckpointError, match="a: the mlp gives states of width 48 and the head at 6 takes 32"):
        open_source(source)
    stitch = enter[there.stitches[0].point].component
    with pytest.raises(
        CheckpointError, match="the stitch gives states of width 48 and the mlp at 3 takes 32; name a stitch"
    ):
        open_source(variant_source(str(widths / "chains" / "a"), [Swap(1, 2, (own[1], stitch))]))


def test_a_damaged_stitch_is_found_by_verify(widths: Path, run: Run, tmp_path: Path) -> None:
    assert run("a", "b", "--text", text(tmp_path / "text", 1), "--steps", 0)[0] == 0
    document = next((widths / "stitches").glob("*.json"))
    document.write_bytes(document.read_bytes().replace(b'"tokens"', b'"tokenz"'))
    code, out, _ = run(command="verify")
    assert code == 1
    assert f"{document}: expected" in out
    assert run("a", "b", "--text", tmp_path / "text", "--steps", 0)[0] == 0, "they are made again"
    assert run(command="verify")[0] == 0
