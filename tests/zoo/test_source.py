"""An application of a zoo is served as its folder would be: the same identities, numbers, texts and tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockwright.api.http.catalog import load_model
from blockwright.gpu.weights import checkpoint as weights
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.gpu.weights.loader import read_rows
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.checkpoints import PRESETS
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.zoo.models import doubled, variant
from blockwright.zoo.add import add
from blockwright.zoo.source import open_source

Make = Callable[..., Path]


@claim("A model of a zoo is served as its folder would be", of="fine-tunes")
@pytest.mark.parametrize("architecture", PRESETS)
def test_nothing_tells_it_from_its_folder(
    checkpoint: Make, tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkpoint(architecture)
    add(tmp_path / "zoo", str(source), "model")
    original, ours = Checkpoint.open(source), open_source(tmp_path / "zoo" / "chains" / "model")
    assert (ours.config, ours.generation, ours.nbytes) == (original.config, original.generation, original.nbytes)
    specs = original.specs(16, "bfloat16")
    monkeypatch.setattr(weights, "hash_tensor", None)  # nothing is hashed again
    again = ours.specs(16, "bfloat16")
    assert [(spec.component, spec.config) for spec in again] == [(spec.component, spec.config) for spec in specs]
    for one, other in zip(again, specs, strict=True):
        assert one.hashes == other.hashes
        assert one.tensors.keys() == other.tensors.keys()
        for role, ref in one.tensors.items():
            assert torch.equal(read_rows(ref, 0, ref.shape[0]), read_rows(other.tensors[role], 0, ref.shape[0]))


def test_text_is_the_same(checkpoint: Make, tmp_path: Path) -> None:
    source = checkpoint("llama")
    add(tmp_path / "zoo", str(source), "model")
    original, ours = (load_model(CheckpointFiles(folder)) for folder in (source, tmp_path / "zoo" / "chains" / "model"))
    assert ours.codec.encode("the answer is", special=True) == original.codec.encode("the answer is", special=True)
    assert (ours.defaults, ours.stop_tokens, ours.vocabulary) == (
        original.defaults,
        original.stop_tokens,
        original.vocabulary,
    )
    assert ours.template is not None


def test_a_folder_is_opened_as_ever(checkpoint: Make) -> None:
    assert open_source(str(checkpoint("llama"))).path == checkpoint("llama")
    for text in ("nowhere", "a" * 5000, "~nobody/x", "a\0b"):
        with pytest.raises(weights.CheckpointError):
            open_source(text)


@pytest.mark.parametrize("backend", ["torch", "native"])
async def test_tokens_are_those_of_the_folders(checkpoint: Make, tmp_path: Path, backend: str) -> None:
    """Greedy, against transformers; two applications of one zoo share what they have in common on the worker."""
    base = checkpoint("llama")
    tuned = variant(base, tmp_path / "tuned", {"layers.2.": doubled, "lm_head": doubled})
    zoo = tmp_path / "zoo"
    for source, name in ((base, "base"), (tuned, "tuned")):
        add(zoo, str(source), name)
    rig = await Rig.start([zoo / "chains" / "base", zoo / "chains" / "tuned"], backend=backend)
    try:
        for application, folder in (("a", base), ("b", tuned)):
            prompt = prompt_of(40, seed=3)
            tokens = await rig.generate(f"r{application}", list(prompt), 24, application=application)
            reference = greedy(folder, prompt, 24)
            assert tokens[: len(reference)] == list(reference)
        shared = set(rig.loads["a"].ids) & set(rig.loads["b"].ids)
        assert len(shared) == 5  # embedding and the layers below
    finally:
        await rig.stop()
