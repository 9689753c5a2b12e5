"""``zoo surrogate``: what it prints, how a block is named, and what it refuses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from blockwright.api.commands import CommandError
from blockwright.api.commands.cli import main
from blockwright.api.commands.zoo_surrogate import extent
from blockwright.tests.adapters import make_adapter
from blockwright.tests.claims import claim
from blockwright.tests.zoo.models import files
from blockwright.zoo.equivalence import probe
from blockwright.zoo.source import open_source
from blockwright.zoo.surrogate import row_time

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
NAMES = ["embedding", "attention 0", "feed-forward 0", "layer 1", "attention 2", "feed-forward 2", "head"]
BLOCKS = [("0123456789ab" + "0" * 20, 0, 3), ("0123456789ac" + "0" * 20, 3, 7)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of 16 x 32 tokens, and short timing."""
    for name, value in (("ROWS", 16), ("LENGTH", 32), ("TOKENS", 512), ("LEAST_POSITIONS", 64)):
        monkeypatch.setattr(probe, name, value)
    monkeypatch.setattr(row_time, "SECONDS", 0.0)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, checkpoint: Callable[..., Path]) -> Any:
    """``code, out, err = run("surrogate", "a", ...)`` with a zoo that has "a" and the adapter "lora"."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["zoo", *map(str, words), "--zoo", str(tmp_path / "zoo")])
        said = capsys.readouterr()
        return code, said.out, said.err

    call("add", checkpoint("llama"), "--name", "a")
    call("add", make_adapter(checkpoint("llama"), tmp_path / "lora"), "--name", "lora", "--base", "a")
    return call


@pytest.fixture
def text(tmp_path: Path) -> Path:
    draw, path = random.Random(1), tmp_path / "text"
    path.write_text(" ".join("".join(draw.choices("theinorsa", k=draw.randint(1, 7))) for _ in range(400)))
    return path


@claim("`zoo surrogate` makes a smaller block, and shows its similarity, size and time beside the block's", of="adaptive")
def test_a_surrogate_is_shown_stored_and_shown_again(run: Any, text: Path, tmp_path: Path) -> None:
    code, out, _ = run("surrogate", "a", "layer 1", "--text", text, "--threads", 1)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "layer 1 of a (components 3-4): half of the heads and columns removed, the rest repaired"
    assert lines[1].split() == ["BLOCK", "SURROGATE", "RATIO"]
    assert lines[2].split()[0] == "size"
    assert lines[2].split()[-1] == "0.50"
    assert lines[3].startswith("time of one row ")
    assert lines[4].startswith("similarity 0.")
    assert "nats; " in lines[5]
    assert lines[6].endswith(" with 1 threads")
    stored = files(tmp_path / "zoo")
    code, out, _ = run("surrogate", "a", "3-4", "--text", text, "--json")
    view = json.loads(out)
    jsonschema.validate(view, json.loads((SCHEMAS / "zoo-surrogate.json").read_text()))
    assert files(tmp_path / "zoo") == stored, "it is not made again"
    assert lines[7] == f"a chain with it: {view['source']}"
    assert [len(open_source(view["source"]).parts), view["first"], view["last"]] == [8, 3, 5]
    listed = run("list")[1].splitlines()
    assert listed[-2].split() == ["SURROGATE", "OF", "BLOCK", "MADE", "SIZE", "TIME", "SIMILARITY"]
    assert listed[-1].split()[:4] == ["a", "layer", "1", "pruned"]
    view = json.loads(run("list", "--json")[1])
    jsonschema.validate(view, json.loads((SCHEMAS / "zoo-list.json").read_text()))
    assert [(one["application"], one["name"]) for one in view["surrogates"]] == [("a", "layer 1")] * len(view["surrogates"])
    assert run("verify")[0] == 0
    run("remove", "lora"), run("remove", "a"), run("gc")
    assert files(tmp_path / "zoo").keys() == {"zoo.json"}


def test_a_block_of_the_zoo_is_narrowed_to_its_layers(run: Any, text: Path) -> None:
    run("remove", "lora")
    (block,) = json.loads(run("show", "a", "--json")[1])["blocks"]
    view = json.loads(run("surrogate", "a", block["id"][:12], "--text", text, "--json")[1])
    assert (view["first"], view["last"]) == (1, 7), "without the embedding and the head"


def test_how_a_block_is_named() -> None:
    wanted = {
        "0": (0, 1), "3": (3, 4), "2-5": (2, 6), "layer 0": (1, 3), "layer 1": (3, 4), "layers 0-2": (1, 6),
        "attention 2": (4, 5), "feed-forward 0": (2, 3), "feed-forward 1": (3, 4), BLOCKS[0][0]: (0, 3),
        BLOCKS[1][0][:12]: (3, 7),
    }  # fmt: skip
    assert {text: extent(text, NAMES, BLOCKS, "a") for text in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("7", "a has no 7; it has components 0 to 6 and layers 0 to 2"),
        ("2-7", "a has no 2-7; it has components 0 to 6 and layers 0 to 2"),
        ("5-3", "a has no 5-3; it has components 0 to 6 and layers 0 to 2"),
        ("layer 3", "a has no layer 3; it has components 0 to 6 and layers 0 to 2"),
        ("layers 1-9", "a has no layers 1-9; it has"),
        ("99999999999", "'99999999999' names no block; give a block's id or components as 'zoo show' prints them"),
        ("", "'' names no block; give a block's id"),
        ("../layer", "'../layer' names no block; give"),
        ("layer -1", "'layer -1' names no block; give"),
        ("0123456789a" + "b" * 3, "a has no block 0123456789abbb; there are: 0123456789ab, 0123456789ac"),
    ],
)
def test_what_names_no_block_is_refused(text: str, says: str) -> None:
    with pytest.raises(CommandError) as raised:
        extent(text, NAMES, BLOCKS, "a")
    assert str(raised.value).startswith(says)


@claim("A surrogate that cannot be made is refused in one sentence, and the zoo stays as it was", of="adaptive")
def test_what_cannot_be_made_is_refused(run: Any, text: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("the text")
    before = files(tmp_path / "zoo")
    refusals = [
        (("x", "0", "--text", text), "has no application 'x'; there are: a, lora"),
        (("a", "layer 7", "--text", text), "a has no layer 7; it has components 0 to 7 and layers 0 to 2"),
        (("a", "0", "--text", text), "0 of a has no heads and no columns to remove; name layers, such as 'layers 0-1'"),
        (("a", "7", "--text", text), "7 of a has no heads and no columns to remove"),
        (
            ("lora", "layer 0", "--text", text),
            "lora is an adapter, whose blocks are its base's with a change",
        ),
        (("a", "layer 0"), "there is no probe text; give --text FILE"),
        (("a", "layer 0", "--text", short), "short has 6 tokens; a comparison needs 512 (16 x 32); give a longer text"),
        (("a", "layer 0", "--text", tmp_path / "no"), "no cannot be read (No such file or directory); name a file"),
        (("a", "layer 0", "--text", text, "--threads", "-1"), "--threads is -1; give 1 to "),
        (("a", "layer 0", "--text", text, "--threads", "9999"), "--threads is 9999; give 1 to "),
    ]
    for words, says in refusals:
        code, out, err = run("surrogate", *words)
        assert (code, out) == (2, ""), words
        assert says in err, words
        assert err.count("\n") == 1
        assert files(tmp_path / "zoo") == before
