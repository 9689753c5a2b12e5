"""What is refused before a port is taken."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.api.serve.server import of_the_hub, preflight
from blockwright.gpu.errors import CheckpointError


def test_what_files_tell(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, torn := tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])
    (empty := tmp_path / "empty").mkdir()
    for source, outcome in (
        (torn, "is truncated: "),
        (empty, "has no config.json"),
        (tmp_path / "none", "neither a folder"),
    ):
        with pytest.raises(CheckpointError, match=outcome):
            preflight(Settings(applications={"x": str(folder), "y": str(source)}))
    with pytest.raises(SettingsError, match="max_model_len is 9999, but x handles 64 positions"):
        preflight(Settings(applications={"x": str(folder)}, max_model_len=9999))
    preflight(Settings(applications={"x": str(folder)}))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("adapters", "FILE", "^adapters: FILE is a file; name a folder that holds a folder for each model$"),
        ("app_roots", "HERE, FILE", "^app_roots: FILE is a file; name a folder"),
        ("adapters", "HERE/dates", "^adapters: HERE/dates is itself an adapter; .* --app NAME=HERE/dates$"),
        (
            "apps_file",
            "HERE/none/apps.json",
            "^apps_file: there is no folder HERE/none; make it, or name a file in another",
        ),
        ("apps_file", "FILE/apps.json", "^apps_file: there is no folder FILE; make it"),
        ("apps_file", "HERE", "^apps_file: HERE is a folder; name a file, like HERE/apps.json$"),
    ],
)
def test_places_that_cannot_be_what_a_setting_names(folder: Path, tmp_path: Path, name: str, value: str, says: str) -> None:
    (tmp_path / "dates").mkdir()
    (tmp_path / "dates" / "adapter_config.json").write_text("{}")
    (tmp_path / "file").write_text("")

    def put(text: str) -> str:
        return text.replace("FILE", f"{tmp_path}/file").replace("HERE", str(tmp_path))

    given: dict[str, Any] = {name: put(value)}
    with pytest.raises(SettingsError, match=put(says)):
        preflight(Settings(applications={"x": str(folder)}, **given))


def test_places_that_may_come_later(folder: Path, tmp_path: Path) -> None:
    later: dict[str, Any] = {
        "adapters": f"{tmp_path}/later",
        "app_roots": f"{tmp_path}/later",
        "apps_file": f"{tmp_path}/apps.json",
    }
    preflight(Settings(applications={"x": str(folder)}, **later))


def test_of_the_hub_only_what_lies_here_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert of_the_hub("owner/name")
    preflight(Settings(applications={"x": "owner/name"}))
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert not of_the_hub("owner/name"), "a folder of that name"
    assert not of_the_hub("name")
