"""Files that a person names for a server or a batch: a pipe, a device or an endless file there is refused at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.changes_file import ChangesFile
from blockwright.actors.cost_file import check_costs
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.network import NetworkSettings
from blockwright.actors.settings.settings import Settings
from blockwright.actors.tagger.model_file import TaggerFileError, read_tagger
from blockwright.api.batches.local_files import BatchFileError, BatchInput
from blockwright.api.http.listening import tls
from blockwright.api.settings.options import read_config, read_keys


def settings(path: Path, name: str) -> Settings:
    values: dict[str, Any] = {name: str(path)}
    return Settings(applications={"tiny": "tiny"}, **values)


READERS: dict[str, Callable[[Path], object]] = {
    "config": read_config,
    "keys": read_keys,
    "pace": lambda path: check_costs(settings(path, "pace").worker),
    "profile": lambda path: check_costs(settings(path, "profile").worker),
    "tagger": read_tagger,
    "certificate": lambda path: tls(NetworkSettings(tls_cert=str(path), tls_key=str(path))),
    "batch": BatchInput,
}


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "an endless file"])
@pytest.mark.parametrize("what", READERS)
def test_other_files_are_refused(tmp_path: Path, what: str, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a folder":
        path.mkdir()
    elif what in ("batch", "certificate"):
        pytest.skip("a batch is read line by line, and a certificate by OpenSSL")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    said = {"a folder": "Is a directory", "an endless file": "it has 1099511627776 bytes, more than 67108864"}
    with pytest.raises((SettingsError, TaggerFileError, BatchFileError)) as raised:
        READERS[what](path)
    assert said.get(kind, f"it is {kind}, not a regular file") in str(raised.value)


def test_changes_that_are_a_pipe_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "changes")
    (fault,) = ChangesFile(tmp_path / "changes").read().faults
    assert "it is a pipe, not a regular file" in fault
