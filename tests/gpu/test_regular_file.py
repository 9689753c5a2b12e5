"""Files of checkpoints are regular and bounded: a pipe, a device or a socket there is refused and never waited for."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path

import pytest

from blockwright.api.http.catalog import load_model
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.regular_file import open_regular, read_regular
from blockwright.gpu.weights.adapter import open_adapter
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_checkpoint

FRONT = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "llama")


def put_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("name", [*FRONT, "config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_in_a_checkpoint_is_refused_or_counts_as_absent(base: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(base, tmp_path / "m")
    put_pipe(folder / name)
    with contextlib.suppress(CheckpointError):
        load_model(CheckpointFiles(folder))
    with contextlib.suppress(CheckpointError):
        Checkpoint.open(folder).hashes()


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", *FRONT])
def test_a_pipe_in_an_adapter_is_refused_or_counts_as_absent(base: Path, tmp_path: Path, name: str) -> None:
    folder = make_adapter(base, tmp_path / "a")
    put_pipe(folder / name)
    with contextlib.suppress(CheckpointError):
        load_model(CheckpointFiles(folder, base))
    with contextlib.suppress(CheckpointError):
        open_adapter(folder, Checkpoint.open(base)).hashes()


def test_what_is_no_regular_file_is_named(tmp_path: Path) -> None:
    put_pipe(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="socket"):
            open_regular(tmp_path / "socket")
    with pytest.raises(CheckpointError, match="pipe is a pipe; put the checkpoint's file there"):
        open_regular(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="/dev/zero is a device"):
        read_regular("/dev/zero", 10)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")


def test_a_file_of_more_bytes_than_it_may_have_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "file", 10) == b"0123456789"
    with pytest.raises(CheckpointError, match=r"file is too long \(10 bytes, more than 9\)"):
        read_regular(tmp_path / "file", 9)
