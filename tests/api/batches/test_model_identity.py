"""Identities of models: another one for whatever changes an answer, the same for what does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.actors.changes_file import ChangesFile
from blockwright.actors.settings.settings import Settings
from blockwright.api.batches.model_identity import model_identities
from blockwright.tests.adapters import make_adapter

DEMO = Path(__file__).parents[3] / "examples" / "demo-checkpoint"


def copied(folder: Path) -> Path:
    made = folder / "demo"
    shutil.copytree(DEMO, made)
    return made


def one(path: Path, **more: object) -> str:
    return model_identities(Settings(applications={"demo": str(path)}, **more))["demo"]  # type: ignore[arg-type]


def json_field(name: str, **fields: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        found = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(found | fields))

    return change


def weights(folder: Path) -> None:
    path = next(folder.glob("*.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1  # the lowest bits of a number
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "change",
    [weights, json_field("generation_config.json", temperature=0.5), json_field("tokenizer_config.json", chat_template="x")],
    ids=["weights", "sampling defaults", "chat template"],
)
def test_what_changes_answers_changes_the_identity(tmp_path: Path, change: Callable[[Path], None]) -> None:
    before = one(DEMO)
    folder = copied(tmp_path)
    assert one(folder) == before, "a copy is the same model"
    change(folder)
    assert one(folder) != before


def test_settings_that_shape_answers_are_in_it_and_others_are_not() -> None:
    before = one(DEMO)
    assert one(DEMO, workers=2, memory=64 << 20, chunk_size=16) == before
    assert one(DEMO, dtype="float32") != before
    assert one(DEMO, max_model_len=64) != before


def test_the_model_that_requests_without_one_get_is_the_first() -> None:
    both = {"demo": str(DEMO), "other": str(DEMO)}
    assert list(model_identities(Settings(applications=both))) == ["demo", "other"]
    assert list(model_identities(Settings(applications=both, default_model="other"))) == ["other", "demo"]


def test_adapters_of_a_folder_have_identities(tmp_path: Path) -> None:
    make_adapter(DEMO, tmp_path / "ann")
    settings = Settings(applications={"demo": str(DEMO)}, adapters=str(tmp_path))
    found = model_identities(settings)
    assert list(found) == ["demo", "ann"]
    assert found["ann"] != found["demo"]
    file = ChangesFile.of(settings.models)
    assert file is not None
    file.remove("demo", "ann")
    assert next(iter(model_identities(settings))) == "ann", "an operator made it the default"


def test_the_identity_of_a_choice_has_all_tiers_and_the_rule(tmp_path: Path) -> None:
    path = copied(tmp_path)

    def both(**more: object) -> tuple[str, str]:
        found = model_identities(Settings(applications={"demo": str(path)}, **more))  # type: ignore[arg-type]
        return found["demo"], found["demo:auto"]

    (path / "exits.json").write_text(json.dumps({"exits": [{"layers": 4}, {"layers": 5}]}))
    top, auto = both()
    assert both() == (top, auto)
    assert both(theta={"demo": 0.5}) != (top, auto)
    assert both(auto_tokens=8) != (top, auto)
    (path / "exits.json").write_text(json.dumps({"exits": [{"layers": 4}, {"layers": 5, "auto": {"theta": 0.7}}]}))
    assert both()[0] == top
    assert both()[1] != auto
    assert both(auto_tokens=8) == both(), "the stored rule has its own"
