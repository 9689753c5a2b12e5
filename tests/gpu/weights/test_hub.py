"""Hub ids, with a client that is faked: config.json comes first and is judged, and only then anything large."""

from __future__ import annotations

import contextvars
import json
import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from blockwright.api.settings.options import model_id
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint import Checkpoint, locate
from blockwright.gpu.weights.hub import PROGRESS
from blockwright.tests.claims import claim
from blockwright.tests.gpu.weights.test_checkpoint import MakeCheckpoint
from blockwright.tests.waiting import PATIENCE


class Hub:
    """Repositories by name: folders, or errors. ``asked``: what was fetched, in order."""

    def __init__(self, **repositories: Path | Exception) -> None:
        self.repositories, self.asked = repositories, list[str]()
        self.sizes: list[int] | Exception = [3 << 29, 1 << 29]

    def _folder(self, repo: str) -> Path:
        found = self.repositories[repo.partition("/")[2]]
        if isinstance(found, Exception):
            raise found
        return found

    def file(self, repo: str, name: str, revision: str | None = None) -> str:
        self.asked.append(f"{repo}@{revision}: {name}")
        path = self._folder(repo) / name
        if not path.exists():
            raise EntryNotFoundError(f"no {name}")
        return str(path)

    def snapshot(self, repo: str, revision: str | None = None, allow_patterns: list[str] | None = None) -> str:
        assert allow_patterns is not None
        assert "*.bin" not in allow_patterns
        self.asked.append(f"{repo}@{revision}: all")
        return str(self._folder(repo))

    def model_info(self, name: str, revision: str | None = None, files_metadata: bool = False) -> Any:
        assert files_metadata
        if isinstance(self.sizes, Exception):
            raise self.sizes
        files = [SimpleNamespace(rfilename=f"model-{n}.safetensors", size=size) for n, size in enumerate(self.sizes)]
        return SimpleNamespace(siblings=[*files, SimpleNamespace(rfilename="pytorch_model.bin", size=1 << 40)])


@pytest.fixture(name="hub")
def hub_(checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(name=checkpoint("llama"), nothing=OSError("no such\nrepository"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub.file)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: SimpleNamespace(model_info=hub.model_info))
    return hub


def refusal(source: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(source)
    return str(caught.value)


def test_config_comes_first_and_the_size_is_said(
    hub: Hub, checkpoint: MakeCheckpoint, caplog: pytest.LogCaptureFixture
) -> None:
    assert Checkpoint.open("owner/name").path == checkpoint("llama")
    assert hub.asked == ["owner/name@None: config.json", "owner/name@None: all"]
    assert caplog.messages == ["owner/name has 2.0 GiB of weights, which need as much memory; fetching what the cache lacks"]
    assert "OSError: no such repository" in refusal("owner/nothing")


@pytest.mark.parametrize(
    ("free", "memory", "dtype", "says"),
    [
        (
            1 << 30,
            8 << 30,
            "bfloat16",
            "2.0 GiB of weights, of which 2.0 GiB are to be fetched, and the disk of .* has 1.0 GiB free",
        ),
        (8 << 30, 1 << 30, "bfloat16", "2.0 GiB of weights, which need 2.0 GiB of memory, and this machine has 1.0 GiB"),
        (8 << 30, (1 << 30) - 4096, "float32", "which need 1.0 GiB of memory, and this machine has 1.0 GiB"),
        (8 << 30, 1 << 30, "float32", ""),
        (2 << 30, 2 << 30, "bfloat16", ""),
    ],
)
def test_what_has_no_room_is_refused_before_it_is_fetched(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, memory: int, dtype: str, says: str
) -> None:
    folder = shutil.copytree(hub.repositories["name"], tmp_path / "copy")  # type: ignore[arg-type]
    answer = json.loads((folder / "config.json").read_text())
    answer.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(answer | {"dtype": dtype}))
    hub.repositories["name"] = folder
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    monkeypatch.setattr("os.sysconf", lambda name: memory // 4096 if name == "SC_PHYS_PAGES" else 4096)
    if not says:
        Checkpoint.open("owner/name")
        assert hub.asked[-1].endswith(": all")
        return
    assert re.search(says, refusal("owner/name"))
    assert not hub.asked[-1].endswith(": all")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (LocalEntryNotFoundError, "(no answer: the hub cannot be reached, and the cache lacks it)"),
        (GatedRepoError, "(gated: accept its terms on its page, and give a token of that account in HF_TOKEN)"),
        (RepositoryNotFoundError, "(not found: the hub has none of that name, or it is private and HF_TOKEN has no access)"),
        (RevisionNotFoundError, "(not found: it has no such revision)"),
    ],
)
def test_usual_failures_have_words_of_ours(hub: Hub, kind: type[Exception], says: str) -> None:
    hub.repositories["nothing"] = kind.__new__(kind)  # its constructor wants an answer of the hub
    assert says in refusal("owner/nothing")


def test_the_progress_of_a_fetch_is_reported_to_its_caller(
    hub: Hub, checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("blockwright.gpu.weights.hub.TELL_EVERY", 0.001)
    blobs = tmp_path / "models--owner--name" / "blobs"
    seen = list[str]()
    heard = threading.Event()
    blobs.mkdir(parents=True)
    (blobs / "config").write_bytes(bytes(1 << 10))
    hub.sizes = [8 << 10]

    def snapshot(repo: str, revision: str | None = None, allow_patterns: list[str] | None = None) -> str:
        (blobs / "weights.incomplete").write_bytes(bytes(3 << 10))
        assert heard.wait(PATIENCE)
        (blobs / "weights.incomplete").write_bytes(bytes(8 << 10))
        return str(checkpoint("llama"))

    def hear(sentence: str) -> None:
        seen.append(sentence)
        if "fetched" in sentence:
            heard.set()

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    context = contextvars.copy_context()
    context.run(PROGRESS.set, hear)
    context.run(Checkpoint.open, "owner/name")
    assert "owner/name: 4.0 KiB of 8.0 KiB (50 %) fetched" in seen
    assert seen[-1] == "owner/name is fetched: 8.0 KiB came"
    seen.clear()
    hub.sizes = []
    context.run(Checkpoint.open, "owner/name")
    assert seen == [], "it was all there"


def test_a_revision_is_handed_on_and_no_part_of_the_model_id(hub: Hub) -> None:
    hub.sizes = OSError("offline")
    Checkpoint.open("owner/name@v1.0")
    assert hub.asked == ["owner/name@v1.0: config.json", "owner/name@v1.0: all"]
    assert model_id("owner/name@v1.0") == "owner/name"


@claim("A hub model is judged by its configuration before anything large is fetched", of="checkpoints")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": ["Mamba2ForCausalLM"]}, "Mamba2ForCausalLM, which is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized (awq)"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_large_is_fetched(
    hub: Hub, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    hub.repositories["large"] = tmp_path
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert words in refusal("owner/large")
    assert hub.asked == ["owner/large@None: config.json"]


def test_an_adapter_has_no_config(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["adapter"] = tmp_path
    assert locate("owner/adapter") == tmp_path
    assert hub.asked[-1] == "owner/adapter@None: all"
