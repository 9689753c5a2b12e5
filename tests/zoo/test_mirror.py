"""Mirrors: an application of an origin without its tensors, in a folder of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.adapters import make_adapter
from blockwright.tests.claims import claim
from blockwright.tests.zoo.served_folder import ServedFolder, served_folder
from blockwright.zoo.add import add
from blockwright.zoo.by_hash import is_wanted
from blockwright.zoo.errors import OriginError, ZooDamaged, ZooError
from blockwright.zoo.mirror import mirrored
from blockwright.zoo.origin import open_origin
from blockwright.zoo.source import open_source

Make = Callable[..., Path]


@pytest.fixture
def served(checkpoint: Make, tmp_path: Path) -> Iterator[ServedFolder]:
    base = checkpoint("llama")
    add(tmp_path / "zoo", str(base), "m")
    add(tmp_path / "zoo", str(make_adapter(base, tmp_path / "lora", target_modules=["q_proj", "down_proj"])), "tuned")
    with served_folder(tmp_path / "zoo") as made:
        yield made


def mirror(served: ServedFolder, name: str, root: Path) -> Path:
    with closing(open_origin(served.address)) as origin:
        return mirrored(origin, name, root)


def described(checkpoint: Checkpoint) -> tuple[object, ...]:
    specs = checkpoint.specs(16, "float32")
    return checkpoint.content(), [(spec.component, spec.config, spec.hashes) for spec in specs], checkpoint.generation


@claim("A head without a checkpoint takes all but the tensors from the origin, compared with its hash", of="serving")
@pytest.mark.parametrize("name", ["m", "tuned"])
def test_a_mirror_says_all_that_the_zoo_does_and_has_no_tensor(served: ServedFolder, tmp_path: Path, name: str) -> None:
    folder = mirror(served, name, tmp_path / "cache")
    there, here = open_source(served.root / "chains" / name), open_source(folder)
    assert described(here) == described(there)
    assert all(is_wanted(spec) for whole in here.specs(16, "float32") for spec in whole.loads())
    names = {path.name for path in (served.root / "chains" / name).iterdir()}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: (there.path / name).read_bytes() for name in names
    }
    assert served.sent < 0.2 * served.tensor_bytes
    assert not any(path.startswith("tensors/") for path, _ in served.asked)


def test_a_mirror_that_is_whole_asks_for_the_document_alone(served: ServedFolder, tmp_path: Path) -> None:
    folder = mirror(served, "tuned", tmp_path / "cache")
    del served.asked[:]
    assert mirror(served, "tuned", tmp_path / "cache") == folder
    assert served.asked == [("chains/tuned/chain.json", "")]
    damaged = min((folder / "tokenizer.json").resolve().parents[1].glob("deltas/*"))
    damaged.write_bytes(damaged.read_bytes().replace(b"1", b"2", 1))
    (folder / "tokenizer.json").resolve().unlink()
    del served.asked[:]
    mirror(served, "tuned", tmp_path / "cache")
    assert {Path(path).parent.name for path, _ in served.asked} == {"tuned", "deltas", "files"}
    assert len(served.asked) == 3
    assert described(open_source(folder)) == described(open_source(served.root / "chains" / "tuned"))


def test_another_model_of_the_same_name_has_another_mirror(served: ServedFolder, checkpoint: Make, tmp_path: Path) -> None:
    first = mirror(served, "m", tmp_path / "cache")
    add(tmp_path / "other", str(checkpoint("llama", tie_word_embeddings=True)), "m")
    with served_folder(tmp_path / "other") as other:
        second = mirror(other, "m", tmp_path / "cache")
    assert first != second
    assert open_source(first).content() != open_source(second).content()


@pytest.mark.parametrize("what", ["components", "files", "deltas"])
def test_a_flipped_bit_of_the_origin_is_found(served: ServedFolder, tmp_path: Path, what: str) -> None:
    bad = min((served.root / what).iterdir())
    served.flip.add(f"{what}/{bad.name}")
    with pytest.raises(OriginError, match=f"{what}/{bad.stem}"):
        mirror(served, "tuned", tmp_path / "cache")
    served.flip.clear()
    assert described(open_source(mirror(served, "tuned", tmp_path / "cache")))


def test_what_the_origin_does_not_give(served: ServedFolder, tmp_path: Path) -> None:
    with pytest.raises(OriginError, match=r"chains/none/chain\.json answers 404 Not Found"):
        mirror(served, "none", tmp_path / "cache")
    with pytest.raises(ZooError, match="cannot be called"):
        mirror(served, "../m", tmp_path / "cache")
    served.flip.add("chains/m/chain.json")
    with pytest.raises(ZooDamaged):
        mirror(served, "m", tmp_path / "cache")
    min((served.root / "files").iterdir()).unlink()
    with pytest.raises(OriginError, match=r"files/.* answers 404"):
        mirror(served, "tuned", tmp_path / "cache")
