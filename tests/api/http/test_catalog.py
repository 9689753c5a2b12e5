"""Tokenizers: one for each base's folder, however many adapters of it come, and never in the way of prompts."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from blockwright.api.http import catalog as module
from blockwright.api.http.catalog import Catalog, ServedModel
from blockwright.api.text.chat_template import Rendering
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


def adapter_folder(folder: Path, **files: Any) -> Path:
    """A folder of an adapter with these files; a value that is no text is written as JSON."""
    folder.mkdir()
    for name, value in {"adapter_config": {}, **files}.items():
        file = folder / (f"{name}.jinja" if name == "chat_template" else f"{name}.json")
        file.write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def load(*folders: Path) -> ServedModel:
    return module.load_model(CheckpointFiles(*folders))


CHAT = [{"role": "user", "content": "hi"}]
WHOLE = Rendering(begin=True, proceed=False, variables={}, longest=1000)


def rendered(model: ServedModel) -> str:
    assert model.template is not None
    return model.template.render(CHAT, WHOLE)


async def test_an_adapters_own_texts_count_and_its_base_has_the_rest(
    loads: tuple[Catalog, FakePort, list[Path]], folder: Path, tmp_path: Path
) -> None:
    catalog, port, _ = loads
    template = "[{{ messages[0].content }}]{{ eos_token }}"
    own = {
        "template": adapter_folder(tmp_path / "template", chat_template=template),
        "inline": adapter_folder(tmp_path / "inline", tokenizer_config={"chat_template": template, "eos_token": "<unk>"}),
        "numbers": adapter_folder(tmp_path / "numbers", generation_config={"eos_token_id": 7, "temperature": 0.3}),
        "none": adapter_folder(tmp_path / "none"),
    }
    base = port.infos[0]
    port.infos = [base, *(replace(base, id=name, created=1, adapter=str(path)) for name, path in own.items())]
    made = {info.id: await catalog.load(info) for info in port.infos}
    assert rendered(made["tiny"]) == rendered(made["numbers"]) == rendered(made["none"]) == "<s><user>hi\n<assistant>"
    assert rendered(made["template"]) == "[hi]</s>"
    assert rendered(made["inline"]) == "[hi]<unk>"
    assert made["none"] is made["tiny"]
    assert made["template"].codec is made["numbers"].codec is made["tiny"].codec
    assert (made["inline"].stop_tokens, made["tiny"].stop_tokens, made["numbers"].stop_tokens) == ([2, 0], [2], [7, 2])
    assert (made["numbers"].defaults.temperature, made["tiny"].defaults.temperature) == (0.3, 1.0)
    assert made["inline"].codec.named["bos_token"] == "<s>", "what its configuration does not name"


async def test_adapters_with_copies_of_their_bases_tokenizer_share_it(
    loads: tuple[Catalog, FakePort, list[Path]], folder: Path, tmp_path: Path
) -> None:
    """As trainers save them: the same tokenizer, written again, and a template of each adapter's own."""
    catalog, port, _ = loads
    base, settings = port.infos[0], json.loads((folder / "tokenizer_config.json").read_text())
    text = (folder / "tokenizer.json").read_text()
    for n in range(5):
        other = {**settings, "chat_template": f"{n}", "name_or_path": f"/tmp/{n}", "model_max_length": n}
        adapter_folder(tmp_path / str(n), tokenizer=text, tokenizer_config=dict(sorted(other.items())))
    port.infos = [base, *(replace(base, id=str(n), created=1, adapter=str(tmp_path / str(n))) for n in range(5))]
    models = [await catalog.load(info) for info in port.infos]
    assert [rendered(model) for model in models[1:]] == [str(n) for n in range(5)]
    assert len({id(model.codec) for model in models}) == 1


def tokenizer_with(folder: Path, *added: str) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(list(added))
    return tokenizer.to_str()


async def test_an_adapters_tokens_have_to_fit_in_its_bases_vocabulary(
    serve: Any, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"eos_token": "</s>", "pad_token": "[PAD]"}
    pad = adapter_folder(tmp_path / "pad", tokenizer=tokenizer_with(folder, "[PAD]"), tokenizer_config=settings)
    model = load(pad, folder)
    assert model.codec.encode("[PAD]", special=False) == [269]
    assert "token '[PAD]' has the id 269, but the vocabulary ends at 268" in caplog.messages[-1]
    more = adapter_folder(
        tmp_path / "more", tokenizer=tokenizer_with(folder, "[PAD]", "<|call|>"), tokenizer_config=settings
    )
    says = "the adapter's token '<|call|>' has the id 270, but the vocabulary of its base ends at 268"
    with pytest.raises(CheckpointError, match=re.escape(says)):
        load(more, folder)
    client, port = await serve(settings={"app_roots": str(tmp_path)})
    for base in ({"base": "tiny"}, {}):
        answer = await client.post("/admin/apps", json={"name": "a", "path": str(more), **base})
        assert answer.status == 400
        assert says in (await answer.json())["error"]["message"]
    assert port.added == []
    assert (await client.post("/admin/apps", json={"name": "a", "path": str(pad), "base": "tiny"})).status == 200


def test_a_whole_checkpoint_with_tokens_beyond_its_vocabulary_is_warned_of(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "tokenizer.json").write_text(tokenizer_with(folder, "<|call|>"))
    assert load(copy).codec.encode("<|call|>", special=False) == [269]
    assert "'<|call|>' has the id 269" in caplog.messages[0]


def test_the_end_token_of_the_tokenizer_joins_those_of_the_configuration(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert (load(copy).stop_tokens, caplog.messages) == ([2], [])
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<unk>"}))
    assert load(copy).stop_tokens == [2, 0]
    assert "eos_token '<unk>' (0) ends an answer besides the eos_token_id [2]" in caplog.messages[0]
    (copy / "generation_config.json").write_text('{"eos_token_id": null}')
    assert (load(copy).stop_tokens, len(caplog.messages)) == ([0], 1)


def test_fields_that_are_not_applied_are_named_once(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "generation_config.json").write_text('{"num_beams": 4, "typical_p": 0.9, "use_cache": false, "top_k": 3}')
    load(copy)
    (message,) = caplog.messages
    assert "generation_config.json: num_beams, typical_p would change answers and is not applied" in message
