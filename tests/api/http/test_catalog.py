"""Tokenizers: one for each base's folder, however many adapters of it come, and never in the way of prompts."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.api.http import catalog as module
from blockwright.api.http.catalog import Catalog, ServedModel
from blockwright.gpu.errors import CheckpointError
from blockwright.tests.api.fake_port import FakePort


@pytest.fixture
async def loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Catalog, FakePort, list[Path]]]:
    """A catalog, its port, and the folders that were read."""
    read: list[Path] = []
    load = module.load_model

    def noted(path: Path) -> ServedModel:
        read.append(path)
        return load(path)

    monkeypatch.setattr(module, "load_model", noted)
    port = FakePort(folder, lambda generation: ())
    found = Catalog(port, 1 << 20)
    yield found, port, read
    found.close()


async def test_twenty_adapters_of_one_base_share_its_tokenizer(
    loads: tuple[Catalog, FakePort, list[Path]], folder: Path
) -> None:
    """Each was added at a time of its own; a base that was written again is read again."""
    catalog, port, read = loads
    infos = [replace(port.infos[0], id=f"a{n}", created=n) for n in range(20)]
    port.infos = infos
    models = await asyncio.gather(*[catalog.load(info) for info in infos])
    assert len({id(model) for model in models}) == len(read) == 1
    stat = os.stat(folder / "tokenizer.json")
    os.utime(folder / "tokenizer.json", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    port.infos = [*infos, late := replace(infos[0], id="late", created=99)]
    assert await catalog.load(late) is not models[0]
    assert len(read) == 2


async def test_a_folder_that_was_tried_is_read_once_and_holds_up_no_prompt(
    loads: tuple[Catalog, FakePort, list[Path]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, port, read = loads
    model = await catalog.load(port.infos[0])
    catalog.forget()
    gate, load = threading.Event(), module.load_model

    def held(path: Path) -> ServedModel:
        assert gate.wait(60)
        return load(path)

    monkeypatch.setattr(module, "load_model", held)
    monkeypatch.setattr(module, "identity", lambda path: (("another",),))
    trying = [asyncio.create_task(catalog.try_folder(folder)) for _ in range(4)]
    await asyncio.sleep(0)
    long = "word " * 2000
    assert await catalog.encode(model, long, special=False) == model.codec.encode(long, special=False)
    gate.set()
    await asyncio.gather(*trying)
    await catalog.load(replace(port.infos[0], id="new", created=7))
    assert len(read) == 2, "the first model, and what was tried"


def test_a_folder_that_is_refused_is_not_warned_of(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError):
        module.load_model(empty)
    assert caplog.messages == []
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer.json"))
    module.load_model(bare)
    assert ["has no tokenizer.json" in message for message in caplog.messages] == [True]
