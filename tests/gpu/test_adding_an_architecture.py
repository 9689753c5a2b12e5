"""The recipe in docs/adding-an-architecture.md, followed: one file and one registry call serve a model of a new kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from blockwright.gpu.model import registry
from blockwright.gpu.weights.checkpoint import Checkpoint, CheckpointError
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.gpu.reference import greedy, prompt_of

RECIPE = Path(__file__).parents[2] / "docs" / "adding-an-architecture.md"
RENAMED = [
    (r"model\.embed_tokens", "parrot.tokens"),
    (r"lm_head", "parrot.head"),
    (r"model\.norm", "parrot.norm"),
    (r"model\.layers\.(\d)\.", r"parrot.\1."),
    (r"input_layernorm", "norm1"),
    (r"post_attention_layernorm", "norm2"),
    (r"self_attn\.qkv_proj", "qkv"),
    (r"self_attn\.o_proj", "out"),
    (r"mlp\.gate_up_proj", "gate_up"),
    (r"mlp\.down_proj", "down"),
]


def renamed(name: str) -> str:
    for pattern, new in RENAMED:
        name = re.sub(pattern, new, name)
    return name


@pytest.fixture
def parrot(checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A Phi-3 under other names."""
    base, folder = checkpoint("phi3"), tmp_path / "parrot"
    folder.mkdir()
    for file in base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(base / "model.safetensors")
    save_file({renamed(name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = json.loads((base / "config.json").read_text())
    config |= {"architectures": ["ParrotForCausalLM"], "model_type": "parrot", "window": config.pop("sliding_window")}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@claim("A new architecture takes one file and one line in the registry", of="checkpoints")
async def test_one_file_and_one_registry_call(
    parrot: Path, checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, line = re.findall(r"```python tested=\S+\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    with pytest.raises(CheckpointError, match="ParrotForCausalLM"):
        Checkpoint.open(parrot)
    (tmp_path / "parrot.py").write_text(file)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "ARCHITECTURES", dict(registry.ARCHITECTURES))
    exec(line, {})
    prompts = [prompt_of(length, seed=2) for length in (1, 16, 90)]
    async with serve({"m": parrot}) as server:
        for prompt in prompts:
            choice = await server.complete(prompt, 32)
            want = greedy(checkpoint("phi3"), prompt, 32)
            assert tuple(choice["token_ids"][: len(want)]) == want
