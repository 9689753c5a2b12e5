"""What is refused before a port is taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from blockwright.actors.config import Settings, SettingsError
from blockwright.api.serve.server import of_the_hub, preflight
from blockwright.gpu.errors import CheckpointError


def test_what_files_tell(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, torn := tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])
    (empty := tmp_path / "empty").mkdir()
    for source, told in ((torn, "is truncated: "), (empty, "has no config.json"), (tmp_path / "none", "neither a folder")):
        with pytest.raises(CheckpointError, match=told):
            preflight(Settings(applications={"x": str(folder), "y": str(source)}))
    with pytest.raises(SettingsError, match="max_model_len is 9999, but x handles 64 positions"):
        preflight(Settings(applications={"x": str(folder)}, max_model_len=9999))
    preflight(Settings(applications={"x": str(folder)}))


def test_of_the_hub_only_what_lies_here_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert of_the_hub("owner/name")
    preflight(Settings(applications={"x": "owner/name"}))
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert not of_the_hub("owner/name"), "a folder of that name"
    assert not of_the_hub("name")
