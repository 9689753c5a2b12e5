"""Settings as text: the file is a configuration, the table is that of the documentation, and nobody's key is shown."""

import json
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import pytest

from blockwright.actors.settings.settings import Settings
from blockwright.api.commands.cli import main
from blockwright.api.settings.options import make_settings, read_config
from blockwright.api.settings.text import Entry, as_toml, entries
from blockwright.tests.claims import claim

ROOT = Path(__file__).parents[3]
CHANGED = Settings(
    applications={"base": "/m/base", 'or"g/x': "C:\\x"},
    workers=4,
    memory=2 << 30,
    pipelines={"base": 2},
    check=True,
    pace="p",
)


def as_tables() -> str:
    """Return the tables of docs/serving.md: Markdown with a heading and a table for each group."""
    return "\n\n".join(
        "\n".join([f"### {group}", "", "| name | default | meaning |", "| --- | --- | --- |", *map(_row, members)])
        for group, members in groupby(entries(), attrgetter("group"))
    )


def _row(entry: Entry) -> str:
    name = f"{entry.name}.NAME" if isinstance(entry.default, dict) else entry.name
    default = "" if entry.default in ("", {}) else json.dumps(entry.default, ensure_ascii=False).strip('"')
    return f"| `{name}` | {default} | {entry.meaning} |"


@pytest.mark.parametrize("settings", [Settings(), CHANGED], ids=["defaults", "changed"])
def test_the_text_is_a_configuration_of_the_same_settings(tmp_path: Path, settings: Settings) -> None:
    config = tmp_path / "c.toml"
    config.write_text(as_toml(settings))
    assert Settings(**read_config(config)) == settings


def test_it_tells_what_differs_and_no_keys() -> None:
    text = as_toml(Settings(workers=4, api_keys={"secret": "tenant"}))
    assert "# worker processes\nworkers = 4  # default: 1\n" in text
    assert "# 1 given, not shown\n[api_keys]\n" in text
    assert "secret" not in text
    assert "tenant\n" not in text


def test_every_setting_has_a_meaning() -> None:
    assert [entry.name for entry in entries() if len(entry.meaning) < 10] == []
    assert f"\n{as_tables()}\n" in (ROOT / "docs" / "serving.md").read_text()


@claim("Settings are in short groups, which the settings file has as headings", of="command-line")
def test_settings_are_in_short_groups() -> None:
    groups = [(group, len([*members])) for group, members in groupby(entries(), attrgetter("group"))]
    assert all(group for group, _ in groups)
    assert len({group for group, _ in groups}) == len(groups) >= 10, "a group is in one piece"
    assert max(size for _, size in groups) <= 14


@claim("Settings are in short groups, which the settings file has as headings", of="command-line")
def test_the_file_has_the_groups_as_headings() -> None:
    text = as_toml(Settings())
    assert "\n\n# Overload\n# --------\n\n" in text
    assert text.index("# Overload\n") < text.index("\noverload = ") < text.index("# Offline batches\n")


def test_the_command_shows_what_is_in_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--show-settings"]) == 0
    assert capsys.readouterr().out == as_toml(Settings())
    config = tmp_path / "c.toml"
    config.write_text("port = 1\nworkers = 3")
    assert main(["serve", "/m/a", "--config", str(config), "--port", "7", "--show-settings"]) == 0
    assert capsys.readouterr().out == as_toml(make_settings("/m/a", config=str(config), flags={"port": "7"}))
