"""Folders to write to are tried before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.topology import check_folders


@pytest.mark.parametrize("name", ["request_log", "tagger_folder", "event_log"])
def test_a_folder_is_made_or_refused_by_the_name_of_its_setting(name: str, tmp_path: Path) -> None:
    check_folders(Settings(**{name: str(tmp_path / "new")}))  # type: ignore[arg-type]
    assert (tmp_path / "new").is_dir()
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=rf"{name}: .*file cannot be used \(File exists\); name a folder to write to"):
        check_folders(Settings(**{name: str(tmp_path / "file")}))  # type: ignore[arg-type]
