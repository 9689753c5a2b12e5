"""What cannot be served is refused at start: exit code 2 and one sentence, whoever finds it out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.actors.resources import free_memory
from blockwright.policies.binary_size import binary_size
from blockwright.policies.cluster.worker_size import program_space
from blockwright.policies.memory.residence import VIRTUAL
from blockwright.tests.claims import claim
from blockwright.tests.system.faulty_worker import HOLD, UNBUILT
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until_now

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


def rewrite_header(folder: Path, change: Callable[[str], str]) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    text = change(raw[8 : 8 + length].decode()).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


DEEP = "[" * 100_000 + "]" * 100_000


def deep_configuration(folder: Path) -> None:
    (folder / "config.json").write_text(f'{{"architectures": {DEEP}}}')


def deep_header(folder: Path) -> None:
    rewrite_header(folder, lambda text: f'{{"__metadata__": {DEEP}}}')


def more_layers_than_memory(folder: Path) -> None:
    change(folder, num_hidden_layers=10**18)


def more_layers_than_patience(folder: Path) -> None:
    change(folder, num_hidden_layers=10**7)


def infinite_offset(folder: Path) -> None:
    rewrite_header(folder, lambda text: text.replace('"data_offsets":[0,', '"data_offsets":[0,Infinity,', 1))


def huge_constant(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 'x' * 400000000000 }}")


def as_it_is(folder: Path) -> None:
    assert folder.exists()


def later(*values: Any) -> Any:
    """Another case of what is refused in the same place; the sentences of checkpoints are also those of tests/gpu."""
    return pytest.param(*values, marks=pytest.mark.nightly)


@claim("A checkpoint that cannot be served is refused in one sentence, with exit code 2 and no traceback", of="checkpoints")
@pytest.mark.parametrize(
    ("spoil", "settings", "words"),
    [
        (unknown_architecture, {}, ["Mamba2ForCausalLM", "Llama"]),
        later(missing_tensor, {}, ["model.layers.1.mlp.up_proj.weight"]),
        later(misshapen_tensor, {}, ["model.layers.1.mlp.up_proj.weight", "3", "5"]),
        later(quantised, {}, ["gptq"]),
        later(pickled, {}, ["safetensors", "pytorch_model.bin"]),
        later(deep_configuration, {}, ["config.json", "nested too deep"]),
        later(deep_header, {}, ["model.safetensors", "nested too deep"]),
        later(more_layers_than_memory, {}, ["num_hidden_layers", str(10**18)]),
        later(more_layers_than_patience, {}, ["num_hidden_layers", str(10**7), "30 tensors"]),
        later(infinite_offset, {}, ["model.safetensors", "inf"]),
        (as_it_is, {"address_space": 300 << 20}, ["300.0 MiB (ulimit -v", "memory 32.0 MiB needs about"]),
        later(as_it_is, {"address_space": 600 << 20}, ["600.0 MiB (ulimit -v"]),
        later(
            as_it_is,
            {"address_space": 1000 << 20, "workers": 1},
            ["1000.0 MiB (", "or give less memory (--set memory="],
        ),
        later(as_it_is, {"threads": 257}, ["threads", "256"]),
        later(huge_constant, {}, ["chat_template.jinja", "400000000000 characters"]),
        (as_it_is, {"memory": "256KiB"}, ["256.0 KiB", "--set memory"]),  # nor do both together hold it
        later(as_it_is, {"memory": "640KiB"}, ["less than one page of 12.0 KiB", "--set memory"]),
        later(as_it_is, {"memry": "1MiB"}, ["memry", "memory"]),
        (as_it_is, {"directory": "/usr"}, ["directory", "/usr"]),
        later(as_it_is, {"directory": "/proc/sockets"}, ["directory", "/proc/sockets"]),
    ],
)
def test_one_sentence_and_exit_code_2(
    model: Path, tmp_path: Path, serve: Serve, spoil: Callable[[Path], None], settings: dict[str, Any], words: list[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    spoil(folder)
    refused(serve(folder, **settings), words)


LOG_STOPPED = "the event log of controller is stopped"  # where its folder is taken away, too


def refused(server: Server, words: list[str]) -> None:
    """It ends by itself with nothing but a sentence that has these words."""
    server.process.wait(timeout=PATIENCE)
    server.gone()
    lines = [line for line in server.err.splitlines() if LOG_STOPPED not in line]
    said = [line for line in lines if line.startswith("blockwright: ")]
    assert len(said) == 1, lines
    assert all(word in said[0] for word in words), said
    assert lines == said, "nothing but the sentence:\n" + server.err
    server.stop(code=2)


def test_the_memory_of_all_workers_together(model: Path, serve: Serve) -> None:
    memory = int(0.9 * free_memory())
    refused(
        serve(model, workers=4, memory=memory), [binary_size(memory), f"{binary_size(4 * memory)} for all 4", "--set memory"]
    )


@pytest.mark.skipif(torch.version.cuda is not None, reason="what a worker maps was measured with the CPU build of torch")
@pytest.mark.parametrize(
    "threads", [3, pytest.param(2, marks=pytest.mark.nightly), pytest.param(40, marks=pytest.mark.nightly)]
)
def test_the_addresses_that_a_refusal_asks_for_are_enough(model: Path, serve: Serve, threads: int) -> None:
    """Torch has two threads for each of ours. Without addresses for their stacks workers died five times; the sentence was
    "exited 1"."""
    need = program_space(threads) + (VIRTUAL + 1) * (32 << 20)
    serve(model, workers=1, threads=threads, address_space=need).whole().stop()


def test_a_worker_that_cannot_start_says_why_and_is_not_started_again(model: Path, serve: Serve, tmp_path: Path) -> None:
    """The folder of its event log is there when the head looks, and a file when the worker does."""
    folder = tmp_path / "logs"
    folder.mkdir()
    server = serve(model, event_log=folder, workers=1, levers=[HOLD])
    server.listening()
    until_now(lambda: "control plane up" in server.out, "control plane up")
    shutil.rmtree(folder)
    folder.write_text("")
    server.lever(HOLD).unlink()
    refused(server, ["worker w0 cannot start", str(folder)])


@pytest.mark.nightly
def test_the_slow_back_end_is_reported_in_one_line(model: Path, serve: Serve) -> None:
    server = serve(model, levers=[UNBUILT]).whole()
    message = [line for line in server.out.splitlines() if line.startswith("warning: ")]
    assert len(message) == 1, message
    for words in ("torch reference computes", "several times slower", "kernels were not built", "install gcc"):
        assert words in message[0]
    lines = server.out.splitlines()
    assert lines.index(message[0]) < next(i for i, line in enumerate(lines) if " ready at " in line)
    server.stop()
