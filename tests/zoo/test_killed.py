"""A writer that is killed at any of its steps leaves a whole zoo, and can be started again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.adapters import make_adapter
from blockwright.tests.zoo.models import doubled, variant
from blockwright.zoo.add import add
from blockwright.zoo.remove import remove

Make = Callable[..., Path]
SMALL = {"num_hidden_layers": 1}


def killed_everywhere(before: Path, work: Path, *words: str) -> int:
    """The steps at which it was killed."""
    command = [sys.executable, "-m", "blockwright.tests.zoo.killed", str(before), str(work), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture
def zoo(checkpoint: Make, tmp_path: Path) -> Path:
    """Of one application, "base"."""
    add(tmp_path / "zoo", str(checkpoint("llama-tied", **SMALL)), "base")
    return tmp_path / "zoo"


def test_while_the_first_is_added(checkpoint: Make, tmp_path: Path) -> None:
    steps = killed_everywhere(tmp_path / "none", tmp_path / "work", "add", str(checkpoint("llama-tied", **SMALL)), "base")
    assert steps > 100


def test_while_a_fine_tune_is_added(checkpoint: Make, zoo: Path, tmp_path: Path) -> None:
    tuned = variant(checkpoint("llama-tied", **SMALL), tmp_path / "tuned", {"up_proj": doubled})
    assert killed_everywhere(zoo, tmp_path / "work", "add", str(tuned), "tuned") > 20


def test_while_an_adapter_is_added(checkpoint: Make, zoo: Path, tmp_path: Path) -> None:
    adapter = make_adapter(checkpoint("llama-tied", **SMALL), tmp_path / "adapter", target_modules=["q_proj", "up_proj"])
    assert killed_everywhere(zoo, tmp_path / "work", "add", str(adapter), "tuned", "base") > 40


def test_while_one_is_removed(checkpoint: Make, zoo: Path, tmp_path: Path) -> None:
    add(zoo, str(variant(checkpoint("llama-tied", **SMALL), tmp_path / "tuned", {"up_proj": doubled})), "tuned")
    assert killed_everywhere(zoo, tmp_path / "work", "remove", "base") > 5


def test_while_garbage_is_collected(checkpoint: Make, zoo: Path, tmp_path: Path) -> None:
    add(zoo, str(variant(checkpoint("llama-tied", **SMALL), tmp_path / "tuned", {"proj": doubled})), "tuned")
    remove(zoo, "tuned")
    assert killed_everywhere(zoo, tmp_path / "work", "gc") > 5
