"""One flipped bit, a missing file or a stranger in any file of a zoo is found, and named with who needs it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.gpu.errors import CheckpointError
from blockwright.tests.claims import claim
from blockwright.tests.zoo.models import doubled, files, infinite, tensor_files, variant
from blockwright.zoo.add import add
from blockwright.zoo.documents import decode, encode
from blockwright.zoo.errors import ZooDamaged, ZooError
from blockwright.zoo.remove import gc
from blockwright.zoo.source import open_source
from blockwright.zoo.verify import AlteredFile, verify
from blockwright.zoo.zoo import Zoo

Make = Callable[..., Path]


@pytest.fixture
def zoo(checkpoint: Make, tmp_path: Path) -> Path:
    """Two applications that differ in one tensor."""
    base = checkpoint("llama-tied", num_hidden_layers=1)
    add(tmp_path / "zoo", str(base), "base")
    add(tmp_path / "zoo", str(variant(base, tmp_path / "tuned", {"up_proj": doubled})), "tuned")
    return tmp_path / "zoo"


def the_fault(zoo: Path) -> AlteredFile:
    (fault,) = verify(zoo).faults
    return fault


def users(zoo: Path, name: str) -> set[str]:
    """Who needs a file, found by looking for its name in the documents that are read."""
    values = {one: Zoo(zoo).chain(one) for one in Zoo(zoo).names()}
    needed = {
        one: {f"chains/{one}/chain.json", *(f"components/{id}.json" for id in chain.components)}
        | {f"files/{hash}" for hash in chain.files.values()}
        | {f"tensors/{hash[:2]}/{hash}.safetensors" for hash in Zoo(zoo).tensors(chain)}
        for one, chain in values.items()
    }
    return {one for one, names in needed.items() if name in names or name == "zoo.json"}


def test_a_whole_zoo(zoo: Path) -> None:
    verified = verify(zoo)
    assert (verified.faults, verified.chains, verified.tensors) == ((), 2, len(tensor_files(zoo)))


@claim("`zoo verify` finds any flipped bit and any missing file", of="fine-tunes")
def test_any_flipped_bit_is_found(zoo: Path) -> None:
    """In every file; in each the first, the last and some random ones."""
    drawn = random.Random(7)
    values = {name: content for name, content in files(zoo).items() if not (zoo / name).is_symlink()}
    assert {name.split("/")[0] for name in values} == {"zoo.json", "tensors", "components", "files", "chains"}
    for name, content in values.items():
        needed_by = users(zoo, name)
        for bit in {0, 8 * len(content) - 1, *(drawn.randrange(8 * len(content)) for _ in range(6))}:
            raw = bytearray(content)
            raw[bit // 8] ^= 1 << bit % 8
            (zoo / name).write_bytes(raw)
            fault = the_fault(zoo)
            assert fault.path == zoo / name
            assert set(fault.chains) == needed_by, name
            assert fault.found != fault.expected
        (zoo / name).write_bytes(content)
    assert not verify(zoo).faults


@claim("`zoo verify` finds any flipped bit and any missing file", of="fine-tunes")
def test_any_missing_file_is_found(zoo: Path) -> None:
    for name, content in files(zoo).items():
        needed_by, link = users(zoo, name), (zoo / name).is_symlink()
        if name == "zoo.json":
            continue
        (zoo / name).unlink()
        fault = the_fault(zoo)
        assert fault.found == "none"
        assert needed_by <= set(fault.chains)
        if link:
            os.symlink(content.decode(), zoo / name)
        else:
            (zoo / name).write_bytes(content)
    (zoo / "zoo.json").unlink()
    with pytest.raises(ZooError, match=r"is not a zoo: it has no zoo\.json"):
        verify(zoo)


def test_a_tensor_is_known_by_its_hashes(zoo: Path) -> None:
    name = min(tensor_files(zoo))
    raw = bytearray((zoo / name).read_bytes())
    raw[-1] ^= 64
    (zoo / name).write_bytes(raw)
    assert the_fault(zoo).expected == f"the hash {Path(name).stem}"
    assert len(the_fault(zoo).found) == 64


def test_values_that_are_not_finite_are_found(checkpoint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a zoo of an earlier version, which did not look at them."""
    monkeypatch.setattr("blockwright.gpu.weights.finite.is_finite", lambda content, dtype: True)
    base = checkpoint("llama-tied", num_hidden_layers=1)
    add(tmp_path / "zoo", str(variant(base, tmp_path / "bad", {"up_proj": infinite})), "bad")
    monkeypatch.undo()
    fault = the_fault(tmp_path / "zoo")
    assert (fault.expected, fault.found, fault.chains) == ("finite values", "NaN or infinity, or 1.8e19 and more", ("bad",))


def test_garbage_is_checked_too_but_harms_nobody(zoo: Path) -> None:
    base = Zoo(zoo).tensors(Zoo(zoo).chain("base"))
    for path in (zoo / "chains" / "tuned").iterdir():
        path.unlink()
    (zoo / "chains" / "tuned").rmdir()
    (orphan,) = [name for name in tensor_files(zoo) if Path(name).stem not in base]
    (zoo / orphan).write_bytes((zoo / orphan).read_bytes() + b"x")
    assert the_fault(zoo).chains == ()
    gc(zoo)
    assert not verify(zoo).faults


def test_what_is_damaged_is_neither_served_nor_collected(zoo: Path) -> None:
    chain = Zoo(zoo).chain("base")
    document = zoo / "components" / f"{chain.components[1]}.json"
    document.write_bytes(document.read_bytes().replace(b"attention", b"attentiom", 1))
    before = files(zoo)
    with pytest.raises(
        ZooDamaged, match=rf"{document} is damaged: expected the checksum \w+, found .*; run 'blockwright zoo verify'"
    ):
        open_source(zoo / "chains" / "base")
    with pytest.raises(ZooDamaged):
        gc(zoo)
    assert files(zoo) == before


def test_links_and_strangers_are_refused(zoo: Path, tmp_path: Path) -> None:
    """A zoo leads nowhere else: not by a link in place of a file, nor by one more file, nor by a name in a document."""
    folder = zoo / "chains" / "base"
    secret = tmp_path / "secret"
    secret.write_text("{}")

    def refused(words: str) -> None:
        with pytest.raises(CheckpointError, match=words):
            open_source(folder)
        assert verify(zoo).faults

    tokenizer = folder / "tokenizer.json"
    lead = tokenizer.readlink()
    tokenizer.unlink()
    tokenizer.symlink_to(secret)
    refused("expected a link to")
    tokenizer.unlink()
    tokenizer.symlink_to(lead)
    (folder / "chat_template.jinja").symlink_to(secret)
    refused(r"found chat_template\.jinja")
    (folder / "chat_template.jinja").unlink()
    tensor = zoo / sorted(tensor_files(zoo))[0]
    content = tensor.read_bytes()
    (tmp_path / "elsewhere").write_bytes(content)
    tensor.unlink()
    tensor.symlink_to(tmp_path / "elsewhere")
    assert verify(zoo).faults
    tensor.unlink()
    tensor.write_bytes(content)
    document = folder / "chain.json"
    values = decode(document.read_bytes(), document)
    document.write_bytes(encode({**values, "components": ["../../../secret"]}))
    refused("expected hashes of 32 hexadecimal digits, found")
    document.write_bytes(encode({**values, "application": "tuned"}))
    refused("expected application base, found 'tuned'")
    document.write_bytes(encode(values))
    assert not verify(zoo).faults
    (tmp_path / "chains").mkdir()
    (tmp_path / "chains" / "base").symlink_to(folder)
    with pytest.raises(ZooError, match="is not in the folder of a zoo"):
        open_source(tmp_path / "chains" / "base")


def test_a_later_schema_is_refused(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright.zoo.documents.SCHEMA", 2)
    later = encode({"hash": "another"})
    monkeypatch.undo()
    (zoo / "zoo.json").write_bytes(later)
    with pytest.raises(ZooError, match=r"zoo\.json is of schema 2, this program reads 1; use the release that wrote it"):
        Zoo(zoo)
