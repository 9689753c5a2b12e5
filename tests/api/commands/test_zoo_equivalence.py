"""``zoo equivalence``: tables, JSON and pictures of two applications, other tokenizers and widths, and what it refuses."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.api.commands import zoo_equivalence
from blockwright.api.commands.block_names import block_name
from blockwright.api.commands.cli import main
from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.zoo.equivalence.models import noisy
from blockwright.tests.zoo.models import WEIGHTS, files
from blockwright.zoo.equivalence import probe

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "zoo-equivalence.json"
Checkpoints = Callable[..., Path]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of 16 x 32 tokens."""
    for name, value in (("ROWS", 16), ("LENGTH", 32), ("TOKENS", 512), ("LEAST_POSITIONS", 64)):
        monkeypatch.setattr(probe, name, value)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """``code, out, err = run("a", "b", ...)``"""

    def call(*words: object, command: str = "equivalence") -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["zoo", command, *map(str, words), "--zoo", str(tmp_path / "zoo")])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def text(tmp_path: Path) -> Path:
    draw, path = random.Random(1), tmp_path / "text"
    path.write_text(" ".join("".join(draw.choices("theinorsa", k=draw.randint(1, 7))) for _ in range(400)))
    return path


@pytest.fixture
def near(checkpoint: Checkpoints, tmp_path: Path, run: Any) -> Path:
    """The zoo of "a" and "b", whose layers differ by a little noise."""
    a = checkpoint("llama")
    for name, folder in (("a", a), ("b", noisy(a, tmp_path / "b", 0.02))):
        assert run(folder, "--name", name, command="add")[0] == 0
    return tmp_path / "zoo"


def viewed(out: str) -> Any:
    view = json.loads(out)
    jsonschema.validate(view, json.loads(SCHEMA.read_text()))
    return view


@claim(
    "`zoo equivalence` says which blocks may answer for each other, and why others may not",
    of="adaptive",
)
def test_a_comparison_is_shown_stored_and_shown_again(near: Path, run: Any, text: Path, tmp_path: Path) -> None:
    code, out, _ = run("a", "b", "--text", text, "--kl", "0.004", "--png", tmp_path / "map.png")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "a (rows) and b: similarity in %; * counts, ! only looks alike"
    assert [line.rsplit(None, 8)[0].strip() for line in lines[2:4]] == ["embedding", "attention 0"]
    assert "99!" in lines[3], "the first attention only looks alike"
    assert "99*" in lines[5]
    told = [line for line in lines if " answered through blocks of " in line]
    assert [line.partition(":")[0] for line in told] == ["a answered through blocks of b", "b answered through blocks of a"]
    assert told[0].endswith("count (no prompts: the output may change by 0.004 nats)")
    refused = next(line for line in lines if "only looks alike: a swap moves the output by 0.0" in line)
    assert refused.split()[:2] == ["attention", "0"]
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    stored = files(near)
    assert sum(name.startswith("equivalences/") for name in stored) == 2
    view = viewed(run("a", "b", "--text", text, "--kl", "0.004", "--json")[1])
    assert files(near) == stored
    assert view["applications"] == ["a", "b"]
    assert view["tokens"] == 512
    (way, back) = view["replaced"]
    assert (way["application"], way["by"], back["by"]) == ("a", "b", "a")
    attention = next(one for one in way["pairs"] if one["name"] == "attention 2")
    assert (attention["first"], attention["last"], attention["counts"], attention["lost"]) == (5, 6, True, None)
    turned = viewed(run("b", "a", "--text", text, "--kl", "0.004", "--json")[1])
    assert turned["replaced"] == [back, way]
    assert files(near) == stored, "one comparison for both orders"
    assert run(command="verify")[1].startswith("whole: 2 applications, ")


def test_a_narrow_terminal_gets_whole_layers(near: Path, run: Any, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = viewed(run("a", "b", "--text", text, "--json")[1])
    full, layers = (zoo_equivalence.heat_map(view, whole_layers=whole) for whole in (False, True))
    assert layers.rows == ["embedding", "feed-forward 0", "feed-forward 1", "feed-forward 2"]
    assert [[full.values[i][j] for j in (0, 2, 4, 6)] for i in (0, 2, 4, 6)] == layers.values
    assert full.marks[2, 2] == layers.marks[1, 1]
    for width, wanted in ((full.width, full), (full.width - 1, layers)):
        monkeypatch.setattr(zoo_equivalence, "console_of", lambda _, width=width: type("Console", (), {"width": width}))
        assert len(run("a", "b", "--text", text)[1].splitlines()[1].split()) == len(wanted.columns)
    monkeypatch.setattr(zoo_equivalence, "console_of", lambda _: type("Console", (), {"width": 9}))
    assert run("a", "b", "--text", text)[1].startswith("a heat map of 4 columns is wider than this terminal; --png")


@claim("Lost answers decide where a model knows enough of them, and the change of its output elsewhere", of="adaptive")
def test_answers_of_prompts_are_counted(near: Path, run: Any, tmp_path: Path) -> None:

    unknown = [{"prompt": f"say {i} {i * i} =", "answer": f"{i % 7}"} for i in range(90)]
    (tmp_path / "data").write_text("\n".join(map(json.dumps, unknown)))
    code, out, _ = run("a", "b", "--data", tmp_path / "data")
    assert code == 0
    assert "of 90 prompts right, too few to count losses: KL decides)" in out
    way = viewed(run("a", "b", "--data", tmp_path / "data", "--json")[1])["replaced"][0]
    assert (way["prompts"], way["right"]) == (90, 0)


def relabelled(base: Path, folder: Path, order: list[int]) -> Path:
    """Make a copy whose token ``i`` is the base's ``order[i]``."""
    shutil.copytree(base, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    by_old = {old: new for new, old in enumerate(order)}
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word: by_old[id] for word, id in vocabulary.items()}
    for one in tokenizer["added_tokens"]:
        one["id"] = by_old[one["id"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    tensors = load_file(base / WEIGHTS)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][torch.tensor(order)]
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return folder


@claim("Models with other tokenizers are compared on the tokens that both have", of="adaptive")
def test_other_tokenizers_are_compared_on_shared_tokens(near: Path, run: Any, text: Path, tmp_path: Path) -> None:
    order = random.Random(3).sample(range(269), 269) + list(range(269, 384))
    other = relabelled(tmp_path / "b", tmp_path / "c", order)
    assert run(other, "--name", "c", command="add")[0] == 0
    same, permuted = (viewed(run("a", name, "--text", text, "--json")[1]) for name in ("b", "c"))
    assert same["tokens"] - 32 < permuted["tokens"] <= same["tokens"], "blanks in front of a row have no end of their own"
    found = {(one["first"], one["last"]): one for one in permuted["replaced"][0]["pairs"]}
    assert (0, 1) not in found, "embeddings of other tokens are not exchanged"
    for one in same["replaced"][0]["pairs"]:
        two = found[one["first"], one["last"]]
        assert two["kl"] == pytest.approx(one["kl"], abs=1e-6), "the block is the same"
        assert two["similarity"] == pytest.approx(one["similarity"], abs=0.02), "without ids that are no token"
    back = permuted["replaced"][1]["pairs"]
    assert [one["similarity"] for one in back] == [one["similarity"] for one in permuted["replaced"][0]["pairs"]]


def test_blocks_of_other_widths_need_a_stitch(near: Path, run: Any, text: Path, tmp_path: Path) -> None:
    wide = make_checkpoint(tmp_path / "wide", hidden_size=96)
    assert run(wide, "--name", "wide", command="add")[0] == 0
    view = viewed(run("a", "wide", "--text", text, "--threshold", "0", "--json")[1])
    pairs = view["replaced"][0]["pairs"]
    assert {one["refused"] for one in pairs} == {"their widths differ: a stitch has to join them"}
    assert {one["kl"] for one in pairs} == {None}
    assert len(pairs) == 3 * 3 + 2


@claim("A comparison that cannot be made is refused in one sentence, and the zoo stays as it was", of="adaptive")
def test_what_cannot_be_compared_is_refused(
    near: Path, run: Any, text: Path, checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tmp_path / "short"
    short.write_text("the text")
    latin = tmp_path / "latin"
    latin.write_bytes(b"\xff\xfe\xe9")
    strange = make_checkpoint(tmp_path / "strange", seed=3)
    tokenizer = json.loads((strange / "tokenizer.json").read_text())
    tokenizer["model"] = {"type": "WordLevel", "vocab": {f"word{i}": i for i in range(300)}, "unk_token": "word0"}
    tokenizer["added_tokens"] = []
    (strange / "tokenizer.json").write_text(json.dumps(tokenizer))
    low = make_checkpoint(tmp_path / "low", seed=4, max_position_embeddings=31)
    for name, folder in (("strange", strange), ("low", low), ("lora", make_adapter(checkpoint("llama"), tmp_path / "l"))):
        more = ("--base", "a") if name == "lora" else ()
        assert run(folder, "--name", name, *more, command="add")[0] == 0
    before = files(near)
    refusals = [
        (("a", "x", "--text", text), "has no application 'x'; there are: a, b, lora, low, strange"),
        (("a", "a", "--text", text), "a and a are the same 8 components, which need no comparison; name another model"),
        (("a", "lora", "--text", text), "lora is an adapter, whose blocks are its base's with a change; name whole models"),
        (("a", "low", "--text", text), "low takes 31 tokens; a comparison needs rows of "),
        (("a", "b"), "there is no probe text; give --text FILE, or --data FILE with answers, or --data demo"),
        (("a", "b", "--text", short), "short has 6 tokens; a comparison needs 512 (16 x 32); give a longer text"),
        (("a", "b", "--text", latin), "latin is not UTF-8 text; save it as UTF-8"),
        (("a", "b", "--text", tmp_path / "no"), "no cannot be read (No such file or directory); name a file"),
        (("a", "b", "--data", tmp_path / "no"), "no cannot be read (No such file or directory); name a file, or demo"),
        (("a", "b", "--text", text, "--damage", "101"), "damage is 101; give a number from 0 to 100"),
        (("a", "b", "--text", text, "--png", tmp_path / "no" / "x"), "lies in no folder; make"),
        (("a", "strange", "--data", "demo"), "share 3; a comparison needs 16; name models with related tokenizers"),
        (("a", "strange", "--text", text), "share 3; a comparison needs 16; name models with related tokenizers"),
    ]
    for words, expected in refusals:
        code, out, err = run(*words)
        assert (code, out) == (2, ""), words
        assert expected in err
        assert err.count("\n") == 1
    assert files(near) == before


def test_progress_says_how_much_is_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 6.0, 7.0, 20.0, 21.0, 27.0])
    monkeypatch.setattr(zoo_equivalence.time, "monotonic", lambda: next(clock))
    shown = zoo_equivalence.ComparisonProgress()
    for what, done in (("similarity", 100), ("similarity", 1100), ("similarity", 1200), ("similarity", 2000)):
        shown.show(what, done, 2000)
    shown.show("damage", 10, 2000)
    shown.show("damage", 1010, 2000)
    assert capsys.readouterr().err.splitlines() == [
        "similarity: 1,100 of 2,000 tokens; left of this step: 4 s",
        "damage: 1,010 of 2,000 tokens; left of this step: 6 s",
    ]


def test_names_of_blocks() -> None:
    names = ["embedding", "attention 0", "feed-forward 0", "layer 1", "attention 2", "feed-forward 2", "head"]
    found = [block_name(names, *extent) for extent in ((1, 2), (1, 3), (3, 4), (1, 6), (0, 3), (4, 7), (0, 7), (6, 7))]
    assert found == [
        "attention 0",
        "layer 0",
        "layer 1",
        "layers 0-2",
        "layer 0, from the embedding",
        "layer 2, to the head",
        "layers 0-2, from the embedding to the head",
        "head",
    ]
