"""What was added and removed while a server ran: kept whole through crashes, and through entries that nobody can read."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.changes_file import NAME, Changes, ChangesFile
from blockwright.actors.gateway.port import NewApplication
from blockwright.actors.settings.models import ModelSettings
from blockwright.policies.cluster.adapter_base import WholeModel
from blockwright.tests.claims import claim


def stored(name: str, path: str, base: str = "", defaults: str = "") -> NewApplication:
    return NewApplication(name, path, base, defaults=defaults, on_demand=True)


BASE = WholeModel("base", "/m/base")


def test_where_it_lies(tmp_path: Path) -> None:
    assert ChangesFile.of(ModelSettings()) is None
    found = [ChangesFile.of(ModelSettings(adapters=str(tmp_path), apps_file=file)) for file in ("", "/x/apps.json")]
    assert [one.path for one in found if one is not None] == [tmp_path / NAME, Path("/x/apps.json")]


@claim("All adapters of a folder are served on demand, and changes survive a restart", of="fine-tunes")
def test_what_is_added_and_removed_is_read_again(tmp_path: Path) -> None:
    file = ChangesFile(tmp_path / "apps.json")
    assert file.read() == Changes()
    file.add(NewApplication("ann", "/a/ann", replace=True), BASE)
    file.add(NewApplication("org/v", "/a/v", defaults='{"system": "Grüße", "temperature": 0.2}'), None)
    file.remove("bob", "")
    ann, variant = (
        replace(stored("ann", "/a/ann", "base"), base_path="/m/base"),
        stored("org/v", "/a/v", "", '{"system": "Grüße", "temperature": 0.2}'),
    )
    assert ChangesFile(file.path).read().added["ann"] == ann
    assert json.loads(ChangesFile(file.path).read().added["org/v"].defaults) == json.loads(variant.defaults)
    assert ChangesFile(file.path).read().removed == {"bob"}
    file.add(NewApplication("bob", "/a/bob"), BASE)
    file.remove("ann", "bob")
    found = file.read()
    assert ([*found.added], found.removed, found.default) == (["org/v", "bob"], {"ann"}, "bob")
    file.remove("org/v", "")
    assert file.read().default == "bob"
    assert os.listdir(tmp_path) == ["apps.json"], "nothing is left beside it"


@pytest.mark.parametrize(
    "entry",
    [7, {}, {"path": "relative"}, {"path": "/a", "base": 3}, {"path": "/a", "base_path": 3}, {"path": "/a", "defaults": []}],
)
def test_an_entry_that_cannot_be_read_is_reported_and_kept(tmp_path: Path, entry: Any) -> None:
    path = tmp_path / "apps.json"
    path.write_text(json.dumps({"version": 1, "added": {"odd": entry, "ann": {"path": "/a"}}, "later": 1}))
    file = ChangesFile(path)
    found = file.read()
    assert [*found.added] == ["ann"]
    (fault,) = found.faults
    assert "the entry 'odd' is not served, but kept: " in fault
    file.add(NewApplication("bob", "/b"), None)
    raw = json.loads(path.read_text())
    assert (raw["added"]["odd"], raw["later"], [*raw["added"]]) == (entry, 1, ["odd", "ann", "bob"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "added": []}', "\udcff"])
def test_a_file_that_cannot_be_read_is_put_aside_before_it_is_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "apps.json"
    raw = text.encode("utf-8", "surrogateescape")
    path.write_bytes(raw)
    file = ChangesFile(path)
    (fault,) = file.read().faults
    assert "cannot be read" in fault
    assert path.read_bytes() == raw, "reading changes nothing"
    for name in ("ann", "bob"):
        file.add(NewApplication(name, f"/{name}"), None)
    assert [*file.read().added] == ["ann", "bob"]
    assert (tmp_path / "apps.json.unreadable-1").read_bytes() == raw


def test_a_crash_while_it_is_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ChangesFile(tmp_path / "apps.json")
    file.add(NewApplication("ann", "/ann"), None)
    before = file.path.read_text()
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space"):
                file.add(NewApplication("bob", "/bob"), None)
        assert file.path.read_text() == before
    assert os.listdir(tmp_path) == ["apps.json"]
