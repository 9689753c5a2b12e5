"""A writer that is killed at any of its steps leaves a whole zoo, and can be started again.

``make nightly`` kills those that take many steps at each of them, any run at every fifth.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.adapters import make_adapter
from blockwright.tests.claims import claim
from blockwright.tests.parts import some
from blockwright.tests.zoo.models import doubled, variant
from blockwright.zoo.add import add
from blockwright.zoo.remove import remove

Make = Callable[..., Path]
SMALL = {"num_hidden_layers": 1}


STEPS = pytest.mark.parametrize("every", some((1, 5), 5))


def killed_everywhere(before: Path, work: Path, *words: str, every: int = 1) -> int:
    """The first step that it did not take, of those at which it would have been killed."""
    command = [sys.executable, "-m", "blockwright.tests.zoo.killed", str(every), str(before), str(work), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture
def zoo(checkpoint: Make, tmp_path: Path) -> Path:
    """Of one application, "base"."""
    add(tmp_path / "zoo", str(checkpoint("llama-tied", **SMALL)), "base")
    return tmp_path / "zoo"


@claim("A zoo survives kill -9 at any step", of="fine-tunes")
@STEPS
def test_while_the_first_is_added(checkpoint: Make, tmp_path: Path, every: int) -> None:
    words = ("add", str(checkpoint("llama-tied", **SMALL)), "base")
    assert killed_everywhere(tmp_path / "none", tmp_path / "work", *words, every=every) > 100


@STEPS
def test_while_a_fine_tune_is_added(checkpoint: Make, zoo: Path, tmp_path: Path, every: int) -> None:
    tuned = variant(checkpoint("llama-tied", **SMALL), tmp_path / "tuned", {"up_proj": doubled})
    assert killed_everywhere(zoo, tmp_path / "work", "add", str(tuned), "tuned", every=every) > 20


@claim("A zoo survives kill -9 at any step", of="fine-tunes")
@STEPS
def test_while_an_adapter_is_added(checkpoint: Make, zoo: Path, tmp_path: Path, every: int) -> None:
    adapter = make_adapter(checkpoint("llama-tied", **SMALL), tmp_path / "adapter", target_modules=["q_proj", "up_proj"])
    assert killed_everywhere(zoo, tmp_path / "work", "add", str(adapter), "tuned", "base", every=every) > 40


def test_while_one_is_removed(checkpoint: Make, zoo: Path, tmp_path: Path) -> None:
    add(zoo, str(variant(checkpoint("llama-tied", **SMALL), tmp_path / "tuned", {"up_proj": doubled})), "tuned")
    assert killed_everywhere(zoo, tmp_path / "work", "remove", "base") > 5


@claim("A zoo survives kill -9 at any step", of="fine-tunes")
def test_while_garbage_is_collected(checkpoint: Make, zoo: Path, tmp_path: Path) -> None:
    add(zoo, str(variant(checkpoint("llama-tied", **SMALL), tmp_path / "tuned", {"proj": doubled})), "tuned")
    remove(zoo, "tuned")
    assert killed_everywhere(zoo, tmp_path / "work", "gc") > 5
