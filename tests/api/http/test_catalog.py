"""Tokenizers: one for each base's folder, however many adapters of it come, and never in the way of prompts."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.http import catalog as module
from blockwright.api.http.catalog import Catalog, ServedModel
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.tests.api.fake_port import FakePort


@pytest.fixture
async def loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Catalog, FakePort, list[Path]]]:
    """A catalog, its port, and the folders that were read."""
    read: list[Path] = []
    load = module.load_model

    def noted(files: CheckpointFiles, *rest: Any) -> ServedModel:
        read.append(files.folders[0])
        return load(files, *rest)

    monkeypatch.setattr(module, "load_model", noted)
    port = FakePort(folder, lambda generation: ())
    found = Catalog(port, 1 << 20)
    yield found, port, read
    found.close()


async def test_twenty_adapters_of_one_base_share_its_tokenizer(
    loads: tuple[Catalog, FakePort, list[Path]], folder: Path
) -> None:
    """Each was added at a time of its own; a base that has changed is read again, one that was only written again is not."""
    catalog, port, read = loads
    infos = [replace(port.infos[0], id=f"a{n}", created=n) for n in range(20)]
    port.infos = infos
    models = await asyncio.gather(*[catalog.load(info) for info in infos])
    assert len({id(model) for model in models}) == len(read) == 1
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text)
    port.infos = [*infos, same := replace(infos[0], id="same", created=98), late := replace(infos[0], id="late", created=99)]
    assert await catalog.load(same) is models[0]
    (folder / "tokenizer.json").write_text(text + " ")
    assert await catalog.load(late) is not models[0]
    (folder / "tokenizer.json").write_text(text)
    assert len(read) == 2


async def test_a_folder_that_was_tried_is_read_once_and_holds_up_no_prompt(
    loads: tuple[Catalog, FakePort, list[Path]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, port, read = loads
    model = await catalog.load(port.infos[0])
    catalog.forget()
    gate, load = threading.Event(), module.load_model

    def held(files: CheckpointFiles, *rest: Any) -> ServedModel:
        assert gate.wait(60)
        return load(files, *rest)

    monkeypatch.setattr(module, "load_model", held)
    monkeypatch.setattr(module, "identity", lambda files: ((("another", b""),),))
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
        module.load_model(CheckpointFiles(empty))
    assert caplog.messages == []
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer.json"))
    module.load_model(CheckpointFiles(bare))
    assert ["has no tokenizer.json" in message for message in caplog.messages] == [True]
