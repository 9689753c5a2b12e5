"""Components by hash: their documents prove themselves, and what is made of them is what a folder gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.gpu.model.config import ComponentSpec
from blockwright.tests.adapters import make_adapter
from blockwright.zoo.add import add
from blockwright.zoo.by_hash import (
    document_of,
    document_path,
    is_wanted,
    of_wanted,
    own_tensors,
    read_by_hash,
    specs_by_hash,
    wanted_hash,
    wanted_tensors,
    with_tensors,
)
from blockwright.zoo.documents import decode, encode
from blockwright.zoo.errors import OriginError
from blockwright.zoo.source import open_source

Make = Callable[..., Path]


def documents(specs: list[ComponentSpec], hashes: dict[bytes, dict[str, bytes]]) -> dict[bytes, bytes]:
    """The documents of components and deltas, by id."""
    loads = [needed for spec in specs for needed in spec.loads()]
    return {one.name: document_of(one, hashes[one.name]) for one in loads}


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma2"])
def test_a_document_is_the_one_of_a_zoo_and_gives_the_same_component(
    checkpoint: Make, tmp_path: Path, architecture: str
) -> None:
    path = checkpoint(architecture)
    add(tmp_path / "zoo", str(path), "m")
    specs = open_source(path).specs(16, "float32")
    made = documents(specs, {spec.name: spec.hashes for spec in specs})
    assert all(raw == (tmp_path / "zoo" / document_path(id, delta=False)).read_bytes() for id, raw in made.items())
    ids = [spec.name for spec in specs]
    found = specs_by_hash(ids, [], {id: read_by_hash(made[id], id) for id in ids}, 16, "float32")
    assert [replace(one, tensors={}) for one in found] == [replace(one, tensors={}) for one in specs]
    for one, other in zip(found, specs, strict=True):
        for role, ref in one.tensors.items():
            stored = of_wanted(ref)
            raw = other.tensors[role]
            assert (stored.hash, stored.dtype, stored.shape) == (other.hashes[role].hex(), raw.dtype, raw.shape)
            assert ref.nbytes == raw.nbytes
        assert is_wanted(one)
        assert not is_wanted(with_tensors(one, other.tensors))


def test_a_delta_is_read_over_its_component(checkpoint: Make, tmp_path: Path) -> None:
    path = checkpoint("llama")
    checkpoint_ = open_source(make_adapter(path, tmp_path / "lora", target_modules=["q_proj"]), path)
    hashes, specs = checkpoint_.hashes(), checkpoint_.specs(16, "float32")
    every = {one.name: {role: hashes[ref] for role, ref in own_tensors(one).items()} for s in specs for one in s.loads()}
    made = documents(specs, every)
    ids, deltas = [s.component.shared for s in specs], [s.component.delta for s in specs]
    configs = {s.component.delta: s.config for s in specs if s.component.delta}
    components = {id: read_by_hash(raw, id, configs.get(id)) for id, raw in made.items()}
    found = specs_by_hash(ids, deltas, components, 16, "float32")
    expected = [needed for spec in specs for needed in spec.loads()]
    assert [one.name for one in found] == [one.name for one in expected]
    assert [one.component for one in found] == [one.component for one in expected]
    changed = next(one for one in found if one.delta is not None)
    assert {*wanted_tensors(changed)} == {*own_tensors(changed)}
    raw = made[changed.name]
    with pytest.raises(OriginError, match="is not what its name says"):
        read_by_hash(raw, changed.name, next(s.config for s in specs if not s.component.delta))


def test_what_is_another_components_or_altered_is_not_taken(checkpoint: Make) -> None:
    first, second = open_source(checkpoint("llama")).specs(16, "float32")[:2]
    raw = document_of(first, first.hashes)
    with pytest.raises(OriginError, match="is damaged"):
        read_by_hash(raw, second.name)
    with pytest.raises(OriginError, match="is damaged"):
        read_by_hash(raw.replace(b"3", b"4", 1), first.name)
    values = decode(raw, Path("x"))
    values["config"]["multiplier"] = 2.0
    with pytest.raises(OriginError, match="is not what its name says"):
        read_by_hash(encode(values), first.name)
    with pytest.raises(OriginError, match="expected a delta"):
        read_by_hash(raw, first.name, first.config)
    assert wanted_hash(first.tensors["weight"]) == ""
