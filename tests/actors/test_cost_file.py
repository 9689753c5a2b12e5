"""Files of costs that the settings name."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.actors.cost_file import check_costs
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.workers import WorkerSettings


@pytest.mark.parametrize("name", ["pace", "profile"])
def test_what_is_no_file_of_costs_is_named_by_its_setting(name: str, tmp_path: Path) -> None:
    check_costs(WorkerSettings())
    with pytest.raises(
        SettingsError, match=rf"{name}: .*none.json cannot be used \(No such file or directory\); give a JSON"
    ):
        check_costs(WorkerSettings(**{name: str(tmp_path / "none.json")}))  # type: ignore[arg-type]
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(
        SettingsError, match=rf"{name}: .*bad.json cannot be used \(.*\); give a JSON file of seconds, or none"
    ):
        check_costs(WorkerSettings(**{name: str(tmp_path / "bad.json")}))  # type: ignore[arg-type]
