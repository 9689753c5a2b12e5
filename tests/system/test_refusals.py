"""What cannot be served is refused at start: exit code 2 and one sentence, whoever finds it out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE

pytestmark = pytest.mark.system
Serve = Callable[..., Server]


def change(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def unknown_architecture(folder: Path) -> None:
    change(folder, architectures=["Mamba2ForCausalLM"], model_type="mamba2")


def missing_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def misshapen_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 5)
    save_file(tensors, folder / "model.safetensors")


def quantised(folder: Path) -> None:
    change(folder, quantization_config={"quant_method": "gptq", "bits": 4})


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def huge_constant(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 'x' * 400000000000 }}")


def as_it_is(folder: Path) -> None:
    assert folder.exists()


@pytest.mark.parametrize(
    ("spoil", "settings", "words"),
    [
        (unknown_architecture, {}, ["Mamba2ForCausalLM", "Llama"]),
        (missing_tensor, {}, ["model.layers.1.mlp.up_proj.weight"]),
        (misshapen_tensor, {}, ["model.layers.1.mlp.up_proj.weight", "3", "5"]),
        (quantised, {}, ["gptq"]),
        (pickled, {}, ["safetensors", "pytorch_model.bin"]),
        (huge_constant, {}, ["chat_template.jinja", "400000000000 characters"]),
        (as_it_is, {"memory": "512KiB"}, ["524288", "--set memory"]),
        (as_it_is, {"memory": "832KiB"}, ["less than one page of 12288 bytes", "--set memory"]),
        (as_it_is, {"memry": "1MiB"}, ["memry", "memory"]),
        (as_it_is, {"directory": "/usr"}, ["directory", "/usr"]),
        (as_it_is, {"directory": "/proc/sockets"}, ["directory", "/proc/sockets"]),
    ],
)
def test_one_sentence_and_exit_code_2(
    model: Path, tmp_path: Path, serve: Serve, spoil: Callable[[Path], None], settings: dict[str, str], words: list[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    spoil(folder)
    server = serve(folder, **settings)
    server.process.wait(timeout=PATIENCE)
    server.gone()
    lines = server.err.splitlines()
    said = [line for line in lines if line.startswith("blockwright: ")]
    assert len(said) == 1, lines
    assert all(word in said[0] for word in words), said
    assert lines == said, "nothing but the sentence"
    server.stop(code=2)
