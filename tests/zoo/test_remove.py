"""What is removed goes, what anybody needs or serves stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.gpu.weights.loader import read_rows
from blockwright.tests.zoo.models import doubled, files, tensor_files, variant
from blockwright.zoo.add import add
from blockwright.zoo.errors import ZooError
from blockwright.zoo.remove import gc, remove
from blockwright.zoo.source import open_source
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo

Make = Callable[..., Path]


@pytest.fixture
def zoo(checkpoint: Make, tmp_path: Path) -> Path:
    """Two applications that differ in one tensor."""
    add(tmp_path / "zoo", str(checkpoint("llama")), "base")
    tuned = variant(checkpoint("llama"), tmp_path / "tuned", {"layers.1.mlp.up_proj": doubled})
    add(tmp_path / "zoo", str(tuned), "tuned")
    return tmp_path / "zoo"


def test_exactly_what_nobody_needs_goes(checkpoint: Make, zoo: Path, tmp_path: Path) -> None:
    only = {one: files(zoo_of(checkpoint("llama"), tmp_path / one, one)) for one in ("base",)}
    assert gc(zoo).files == 0
    needed = {f"tensors/{hash[:2]}/{hash}.safetensors" for hash in Zoo(zoo).tensors(Zoo(zoo).chain("tuned"))}
    all_bytes = sum((zoo / name).stat().st_size for name in tensor_files(zoo))
    remove(zoo, "base")
    assert Zoo(zoo).names() == ["tuned"]
    freed = gc(zoo)
    assert freed.files == 2  # a tensor and its component
    assert tensor_files(zoo) == needed
    assert all_bytes - sum((zoo / name).stat().st_size for name in needed) < freed.nbytes
    assert not verify(zoo).faults
    assert len(open_source(zoo / "chains" / "tuned")) == 8
    add(zoo, str(checkpoint("llama")), "base")
    remove(zoo, "tuned")
    gc(zoo)
    left = files(zoo)
    assert left.pop("chains/base/chain.json") != only["base"].pop("chains/base/chain.json")  # whose base was there
    assert left == only["base"]


def zoo_of(source: Path, zoo: Path, name: str) -> Path:
    add(zoo, str(source), name)
    return zoo


def test_an_application_that_is_served_stays(zoo: Path) -> None:
    """As long as what was opened is kept, by whichever process, its files are there to be read again."""
    opened = open_source(zoo / "chains" / "tuned")
    with pytest.raises(ZooError, match=r"application tuned is being served from .*; stop serving it first"):
        remove(zoo, "tuned")
    remove(zoo, "base")
    gc(zoo)
    for ref in opened.hashes():
        read_rows(ref, 0, ref.shape[0])
    del opened
    remove(zoo, "tuned")
    with pytest.raises(ZooError, match="has no application 'tuned'; there are: none"):
        Zoo(zoo).folder("tuned")


def test_who_comes_while_it_is_removed(zoo: Path) -> None:
    """Gets that reason, or does not find it: nothing is opened whose files are about to go."""
    seen = []

    def step(word: str) -> None:
        with pytest.raises((ZooError, ValueError)) as raised:
            open_source(zoo / "chains" / "tuned")
        seen.append(str(raised.value))

    remove(zoo, "tuned", step=step)
    assert seen[0] == f"{zoo / 'chains' / 'tuned'} is being removed; name another application"
    assert "is neither a folder nor a hub id" in seen[-1]


def test_what_is_not_there(zoo: Path) -> None:
    with pytest.raises(ZooError, match="has no application 'nobody'; there are: base, tuned"):
        remove(zoo, "nobody")
    with pytest.raises(ZooError, match="cannot be called"):
        remove(zoo, "../chains/base")


def test_what_somebody_else_left_there_stays(zoo: Path) -> None:
    note = zoo / "tensors" / "README"
    note.parent.mkdir(exist_ok=True)
    (zoo / "files" / "README").write_text("mine")
    (zoo / "components" / "notes.json").write_text("mine")
    remove(zoo, "base")
    remove(zoo, "tuned")
    gc(zoo)
    assert files(zoo).keys() == {"zoo.json", "files/README", "components/notes.json"}
