"""Checkpoints of the settings: what is hashed for the applications, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.actors.checkpoints import hash_applications, open_checkpoints
from blockwright.actors.config import Settings
from blockwright.gpu.model.config import TensorRef
from blockwright.gpu.weights import checkpoint as weights
from blockwright.gpu.weights.identity import hash_tensor
from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_checkpoint


def test_a_base_is_hashed_once_for_all_its_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have billions of parameters. The identities are those of adapters that were opened and hashed alone."""
    base = make_checkpoint(tmp_path / "base", "llama")
    folders = {f"a{i}": make_adapter(base, tmp_path / f"a{i}", seed=i) for i in range(3)}
    settings = Settings(
        applications={**{name: str(path) for name, path in folders.items()}, "base": str(base)}, max_model_len=64
    )
    read: list[TensorRef] = []

    def counted(ref: TensorRef, progress: object = None) -> bytes:
        read.append(ref)
        return hash_tensor(ref)

    monkeypatch.setattr(weights, "hash_tensor", counted)
    together = {one.name: one for one in hash_applications(open_checkpoints(settings), settings)}
    assert len(read) == len(set(read))
    for name, folder in folders.items():
        alone = Settings(applications={"base": str(base), name: str(folder)}, max_model_len=64)
        assert hash_applications(open_checkpoints(alone), alone)[1] == together[name]
