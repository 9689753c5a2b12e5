"""Model folders: a worker finds the files of a checkpoint by their content."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.actors.checkpoints import application_of
from blockwright.actors.worker.model_folders import ModelFolders
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.control.events import Application
from blockwright.policies.control.loads import LoadBlock
from blockwright.policies.requests.load_failure import without_folders
from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_family
from blockwright.tests.claims import claim
from blockwright.zoo.source import open_source

Checkpoints = Callable[..., Path]


def served(source: str | Path, base: str | Path = "") -> Application:
    checkpoint = open_source(source, base)
    return application_of("m", checkpoint, checkpoint.specs(16, "float32"), 64, 1)


def block_of(one: Application) -> LoadBlock:
    ids, deltas = [c.shared for c in one.components], [c.delta for c in one.components]
    return LoadBlock(one.files, 0, len(ids), ids, "m", list(one.hashes), one.base_files, deltas)


async def found(folders: ModelFolders, one: Application) -> set[Path]:
    """The folders of the files that a worker would read."""
    specs: list[ComponentSpec] = await folders.read(block_of(one), 16, "float32")
    refs = [ref for spec in specs for ref in (spec.delta.tensors if spec.delta is not None else spec.tensors).values()]
    return {Path(ref.path).parent for ref in refs}


@pytest.fixture
def model(checkpoint: Checkpoints, tmp_path: Path) -> Path:
    """A checkpoint on the head's machine."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "head" / "tiny"))


async def test_on_the_heads_machine_its_folder_is_taken_and_nothing_is_hashed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = served(model)
    monkeypatch.setattr(Checkpoint, "content", lambda self: pytest.fail("it is compared as it is loaded"))
    assert await found(ModelFolders(), one) == {model}


@claim("A worker finds model files by their content, in folders of its own", of="serving")
async def test_elsewhere_the_content_decides_and_not_the_name(
    model: Path, checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of that name has a fine-tune of the same shape."""
    one, own = served(model), tmp_path / "worker's models"
    shutil.copytree(checkpoint("llama", 1), own / "tiny")
    shutil.copytree(model, own / "zephyr")
    (own / "notes").mkdir()
    shutil.rmtree(model)
    folders = ModelFolders([str(own)], with_head=False)
    assert await found(folders, one) == {own / "zephyr"}
    monkeypatch.setattr(Checkpoint, "content", lambda self: pytest.fail("it was hashed once"))
    assert await found(folders, one) == {own / "zephyr"}


async def test_a_configured_folder_may_be_the_checkpoint_itself(model: Path, tmp_path: Path) -> None:
    one, copy = served(model), Path(shutil.copytree(model, tmp_path / "copy"))
    shutil.rmtree(model)
    assert await found(ModelFolders([str(copy)], with_head=False), one) == {copy}
    assert await found(ModelFolders(["/nowhere", str(copy)]), one) == {copy}, "the head's folder is gone on its own machine"


async def test_the_heads_path_is_a_hint_elsewhere_too_and_is_proved_there(model: Path, checkpoint: Checkpoints) -> None:
    """A file system that both have mounted, or another model under the same path."""
    one = served(model)
    assert await found(ModelFolders(with_head=False), one) == {model}
    shutil.rmtree(model)
    shutil.copytree(checkpoint("llama", 1), model)
    with pytest.raises(CheckpointError) as refused:
        await found(ModelFolders(with_head=False), one)
    assert str(refused.value) == (
        f"no folder here has the content {one.content.hex()}: '{model}' (it has another content); copy it there, or name "
        "the folder that holds it (--set model_folders=...)"
    )


@claim("Model files that no folder of a worker has are refused with all places that were tried", of="serving")
async def test_what_is_nowhere_is_refused_with_the_content_and_the_places(
    model: Path, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    one, own = served(model), tmp_path / "my models"
    shutil.copytree(checkpoint("llama", 1), own / "tiny")
    shutil.copytree(checkpoint("llama", num_hidden_layers=1), own / "other")
    shutil.rmtree(model)
    with pytest.raises(CheckpointError) as refused:
        await found(ModelFolders([str(own)], with_head=False), one)
    text = str(refused.value)
    assert text.startswith(f"no folder here has the content {one.content.hex()}: '{model}' (")
    assert f"'{own / 'tiny'}' (it has another content), '{own / 'other'}' (it has " in text
    shown = without_folders(text, [])
    assert str(tmp_path) not in shown
    assert "my models" not in shown
    assert "'tiny' (it has another content), 'other' (it has" in shown


async def test_a_file_that_changes_at_its_place_is_hashed_again(
    model: Path, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    one, own = served(model), tmp_path / "own"
    copy = Path(shutil.copytree(model, own / "copy"))
    shutil.rmtree(model)
    folders = ModelFolders([str(own)], with_head=False)
    assert await found(folders, one) == {copy}
    other = checkpoint("llama", 1) / "model.safetensors"
    shutil.copyfile(other, copy / "model.safetensors")
    os.utime(copy / "model.safetensors", ns=(1, 1))
    with pytest.raises(CheckpointError, match=r"'.*copy' \(it has another content\)"):
        await found(folders, one)
    second = Path(shutil.copytree(checkpoint("llama"), own / "second"))
    assert await found(folders, one) == {second}


async def test_an_adapter_is_found_over_its_own_base(model: Path, checkpoint: Checkpoints, tmp_path: Path) -> None:
    adapter = make_adapter(model, tmp_path / "head" / "lora", target_modules=["q_proj"])
    one, own = served(adapter, model), tmp_path / "own"
    assert one.base_content == served(model).content
    assert one.content not in (b"", one.base_content)
    shutil.copytree(checkpoint("llama", 1), own / "tiny")
    copies = {Path(shutil.copytree(model, own / "base")), Path(shutil.copytree(adapter, own / "lora"))}
    shutil.rmtree(tmp_path / "head")
    folders = ModelFolders([str(own)], with_head=False)
    assert await found(folders, one) == copies
    assert await found(folders, one) == copies


async def test_a_tier_is_found_in_the_folder_of_its_family(checkpoint: Checkpoints, tmp_path: Path) -> None:
    family = make_family(checkpoint("llama", num_hidden_layers=4), tmp_path / "family", {2: "shared"})
    tier, own = open_source(family).at_exit(2), tmp_path / "own"
    one = application_of("m", tier, tier.specs(16, "float32"), 64, 1)
    assert one.content != served(family).content
    copy = Path(shutil.copytree(family, own / "copy"))
    shutil.rmtree(family)
    assert await found(ModelFolders([str(own)], with_head=False), one) == {copy}
