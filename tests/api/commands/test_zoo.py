"""The commands of a zoo: what they print, their exit codes, and the JSON that their schemas describe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from blockwright.actors.checkpoints import open_checkpoints
from blockwright.actors.settings.errors import SettingsError
from blockwright.api.commands import CommandError
from blockwright.api.commands.cli import main
from blockwright.api.commands.zoo import added_line, list_table, list_view, zoo_refusals
from blockwright.api.settings.options import make_settings
from blockwright.tests.adapters import make_adapter
from blockwright.tests.claims import claim
from blockwright.tests.zoo.models import doubled, tensor_files, variant
from blockwright.zoo.add import AddedModel
from blockwright.zoo.profiles import add_profile
from blockwright.zoo.zoo import Listing

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
Make = Callable[..., Path]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """``code, out, err = run("list", ...)``"""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["zoo", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def validated(name: str, text: str) -> Any:
    found = json.loads(text)
    jsonschema.validate(found, json.loads((SCHEMAS / f"{name}.json").read_text()))
    return found


@pytest.fixture
def zoo(checkpoint: Make, tmp_path: Path, run: Any) -> Path:
    """Of "base" and "tuned", which differ in one tensor of 28 KiB."""
    base = checkpoint("llama")
    tuned = variant(base, tmp_path / "tuned", {"layers.1.mlp.up_proj": doubled})
    code, out, _ = run("add", base, "--name", "base", "--zoo", tmp_path / "zoo")
    assert (code, out) == (0, "base: shares no blocks, +589.8 KiB\n")
    code, out, _ = run("add", tuned, "--name", "tuned", "--base", "base", "--zoo", tmp_path / "zoo")
    assert (code, out) == (0, "tuned: shares 95% of its blocks with base, +28.0 KiB\n")
    return tmp_path / "zoo"


@claim("`apps add` and `zoo add` say how much a model shares and how many bytes it adds", of="command-line")
def test_what_is_said_of_what_was_added() -> None:
    added = AddedModel("t", "base", 1000 << 20, 21 << 20, 3, False)
    assert added_line(added) == "t: shares 98% of its blocks with base, +21.0 MiB"
    assert added_line(AddedModel("t", "base", 1000, 0, 0, True)) == "t: is there already"
    assert added_line(AddedModel("t", "base", 1000, 10, 3, False, True)) == "t: on base; shares 99% of its blocks, +10 B"
    assert (
        added_line(AddedModel("t", "base", 1000, 9, 1, True)) == "t: is there already; 9 B were missing and are there again"
    )
    assert added_line(AddedModel("t", "", 1000, 1000, 3, False)) == "t: shares no blocks, +1000 B"
    assert added_line(AddedModel("t", "", 1000, 10, 3, False)) == "t: shares 99% of its blocks, +10 B", "with adapters alone"


def test_list_and_show(zoo: Path, run: Any) -> None:
    code, out, _ = run("list", "--zoo", zoo)
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["APPLICATION", "BASE", "SIZE", "OWNS", "SHARES"],
        ["base", "-", "589.8", "KiB", "28.0", "KiB", "95%"],
        ["tuned", "base", "589.8", "KiB", "28.0", "KiB", "95%"],
    ]
    outcome = validated("zoo-list", run("list", "--zoo", zoo, "--json")[1])
    assert [(one["id"], one["base"], one["own_bytes"]) for one in outcome["applications"]] == [
        ("base", None, 28672),
        ("tuned", "base", 28672),
    ]
    code, out, _ = run("show", "tuned", "--zoo", zoo)
    assert code == 0
    assert re.search(r"^\w{12} +0-3 +embedding, attention, mlp +base +[\d.]+ KiB$", out, re.MULTILINE)
    assert re.search(r"^\w{12} +4 +mlp +- +[\d.]+ KiB$", out, re.MULTILINE)
    device = {"cpu": "abacus", "threads": 2, "numerics": "native-beads-float32"}
    path = add_profile(zoo, "tuned", {"device": device, "error": {"mape": 0.05}})
    assert f"profile {path} (abacus, 2 threads, native-beads-float32)\n" in run("show", "tuned", "--zoo", zoo)[1]
    outcome = validated("zoo-show", run("show", "tuned", "--zoo", zoo, "--json")[1])
    assert [one["error"] for one in outcome["profiles"]] == [0.05]
    assert outcome["folder"] == str(zoo / "chains" / "tuned")
    assert [one["shared_with"] for one in outcome["blocks"]] == [["base"], [], ["base"]]


def test_verify(zoo: Path, run: Any) -> None:
    code, out, _ = run("verify", "--zoo", zoo)
    assert (code, out) == (0, "whole: 2 applications, 31 tensors, 621.6 KiB\n")
    path = zoo / sorted(tensor_files(zoo))[0]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    code, out, _ = run("verify", "--zoo", zoo)
    assert code == 1
    faults, last = out.splitlines()
    needed = "base, tuned|base|tuned"
    assert re.fullmatch(rf"{path}: expected the hash {path.stem}, found \w{{64}}; needed by ({needed})", faults)
    assert last.startswith("damaged: 2 applications, 31 tensors, ")
    code, out, _ = run("verify", "--zoo", zoo, "--json")
    (fault,) = validated("zoo-verify", out)["faults"]
    assert (code, fault["file"]) == (1, str(path))


def test_remove_and_gc(zoo: Path, run: Any) -> None:
    assert run("remove", "tuned", "--zoo", zoo) == (
        0,
        "tuned: removed; 'blockwright zoo gc' deletes what no other model needs\n",
        "",
    )
    assert run("gc", "--zoo", zoo)[:2] == (0, "deleted 2 files, 29.1 KiB\n")
    assert run("gc", "--zoo", zoo)[:2] == (0, "deleted 0 files, 0 B\n")


def test_mistakes_are_exit_code_2(zoo: Path, checkpoint: Make, run: Any, tmp_path: Path) -> None:
    said = {
        ("remove", "tunde"): "has no application 'tunde'; there are: base, tuned",
        ("show", "../base"): "an application cannot be called '../base'; give at most 100 letters",
        ("add", tmp_path, "--name", "x"): f"has no config.json; did you mean {tmp_path / 'tuned'}?",
        ("add", checkpoint("llama"), "--name", "tuned"): "has another application tuned, added from ",
        ("add", checkpoint("llama"), "--name", "x", "--base", "y"): "has no application 'y'",
    }
    for words, text in said.items():
        code, out, err = run(*words, "--zoo", zoo)
        assert (code, out) == (2, "")
        assert err.startswith("blockwright: ")
        assert text in err


def test_what_is_damaged_or_refused_by_the_disk_is_exit_code_1(zoo: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = zoo / "chains" / "base" / "chain.json"
    chain.write_bytes(chain.read_bytes().replace(b"llama", b"LLAMA", 1) + b" ")
    code, _, err = run("list", "--zoo", zoo)
    assert code == 1
    assert err.startswith(f"blockwright: {chain} is damaged: expected ")


def test_a_reader_that_closes_the_output_is_no_fault_of_the_zoo() -> None:
    with pytest.raises(BrokenPipeError), zoo_refusals():
        raise BrokenPipeError(32, "Broken pipe")
    with pytest.raises(CommandError, match=r"^the zoo: No space left on device$"), zoo_refusals():
        raise OSError(28, "No space left on device")


def test_serving_from_a_zoo_is_serving_its_folders(zoo: Path) -> None:
    both = {name: str(zoo / "chains" / name) for name in ("base", "tuned")}
    assert make_settings(None, zoo=str(zoo)).models.applications == both
    assert make_settings("tuned", zoo=str(zoo)).models.applications == {"tuned": both["tuned"]}
    assert make_settings("tuned", zoo=str(zoo), apps=["x=/y"]).models.applications == {"tuned": both["tuned"], "x": "/y"}
    with pytest.raises(SettingsError, match="the model id 'base' is given twice"):
        make_settings(None, zoo=str(zoo), apps=["base=/y"])
    with pytest.raises(SettingsError, match="has no application 'tunde'; there are: base, tuned"):
        make_settings("tunde", zoo=str(zoo))


def test_the_list_fits_a_narrow_terminal() -> None:
    """What an application owns and shares stays; its base goes first, then its size."""
    name = "demo-of-the-foundation-with-a-long-name"
    table = list_table(list_view([Listing(name, "", 9 << 20, 0), Listing("dates", name, 9 << 20, 88 << 10)]))
    for width, columns in ((120, "APPLICATION BASE SIZE OWNS SHARES"), (60, "APPLICATION OWNS SHARES")):
        console = Console(width=width, highlight=False)
        with console.capture() as captured:
            console.print(table)
        lines = captured.get().splitlines()
        assert lines[0].split() == columns.split()
        assert lines[-1].rstrip().endswith("88.0 KiB  99.05%")


def test_an_adapter_alone_gets_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    settings = make_settings(str(tmp_path / "lora"))
    with pytest.raises(SettingsError, match=r"lora is an adapter, but no whole checkpoint is served; .* --app lora=.*lora$"):
        open_checkpoints(settings)


def test_an_adapter_is_read_over_what_it_was_trained_on(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Of equal shapes, so that the first one would do."""
    base = checkpoint("llama")
    other = variant(base, tmp_path / "other", {"up_proj": doubled})
    adapter = make_adapter(other, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for named, expected in (("acme/other", "o"), (str(base), base.name), (str(other) + "/", "o")):
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": named}))
        opened = open_checkpoints(make_settings(str(base), apps=[f"o={other}", f"a={adapter}"]))
        assert opened.bases == {"a": expected}
        assert opened.checkpoints["a"].path == opened.checkpoints[expected].path
    for named, says in ((None, "names none"), ("acme/unknown", "names 'acme/unknown', which is none of them")):
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": named}))
        settings = make_settings(str(base), apps=[f"o={other}", f"a={adapter}"])
        remedy = r"name its base: --set bases.a=NAME"
        with pytest.raises(SettingsError, match=rf"2 models may be its base \({base.name}, o\).* {says}; {remedy}"):
            open_checkpoints(settings)
        named_one = make_settings(str(base), apps=[f"o={other}", f"a={adapter}"], sets=["bases.a=o"])
        assert open_checkpoints(named_one).bases == {"a": "o"}
        alone = make_settings(str(base), apps=[f"copy={base}", f"a={adapter}"])
        assert open_checkpoints(alone).bases == {"a": base.name}, "two ids of one folder are one model"
