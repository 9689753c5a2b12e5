"""Surrogates in a zoo: stored by content, measured once, checked by ``verify``, and gone with their blocks."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from blockwright.gpu.backend import HostBackend
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.select import open_backend
from blockwright.policies.adaptive.equivalence import EquivalenceLimits
from blockwright.policies.adaptive.variants import Swap, variant_source
from blockwright.tests.adapters import make_adapter
from blockwright.tests.claims import claim
from blockwright.tests.zoo.equivalence.models import ROWS
from blockwright.tests.zoo.models import doubled, files, variant
from blockwright.tests.zoo.surrogate.surrogates import surrogate_of
from blockwright.zoo.add import add
from blockwright.zoo.documents import encode
from blockwright.zoo.equivalence.probe import same_probe
from blockwright.zoo.equivalence.records import StoredEquivalences, StoredPair, store_equivalences
from blockwright.zoo.errors import StorageError, ZooError
from blockwright.zoo.remove import gc, remove
from blockwright.zoo.source import open_source
from blockwright.zoo.surrogate import making, row_time
from blockwright.zoo.surrogate.making import make_surrogate, narrowed, open_site
from blockwright.zoo.surrogate.records import StoredSurrogate, surrogates_of
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo

PROBE = same_probe(ROWS)
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_time, "SECONDS", 0.0)


@pytest.fixture
def root(checkpoint: Make, tmp_path: Path) -> Path:
    add(tmp_path / "zoo", str(checkpoint("llama")), "base")
    return tmp_path / "zoo"


def backend(name: str = "auto") -> HostBackend:
    return cast(HostBackend, open_backend(name, "float32", 1))


def made(root: Path, first: int = 3, last: int = 5, name: str = "base", rows: int = len(ROWS)) -> StoredSurrogate:
    return surrogate_of(root, name, first, last, rows)


@claim(
    "A surrogate is stored by the content of its block: other applications have it, and it goes with the last", of="adaptive"
)
def test_a_surrogate_lives_as_long_as_its_block(root: Path, checkpoint: Make, tmp_path: Path) -> None:
    before = files(root)
    one = made(root)
    new = files(root).keys() - before.keys()
    kinds = {name.partition("/")[0] for name in new}
    assert kinds == {"components", "surrogates", "tensors"}
    assert sum(name.startswith("components/") for name in new) == 2
    assert one.block == Zoo(root).chain("base").components[3:5]
    assert one.nbytes == sum(Zoo(root).component(id).nbytes for id in one.surrogate) < 0.53 * one.block_bytes
    assert 0.2 < one.similarity < 1
    assert one.kl > 0
    assert 0 < one.agreement < 1
    assert (one.tokens, one.made, one.threads) == (sum(map(len, ROWS)) - _fitted(), "pruned", 1)
    assert not verify(root).faults
    assert gc(root).files == 0
    tuned = variant(checkpoint("llama"), tmp_path / "tuned", {"layers.0.mlp.up_proj": doubled})
    add(root, str(tuned), "tuned")
    remove(root, "base")
    gc(root)
    assert surrogates_of(Zoo(root), "tuned") == [one]
    assert not verify(root).faults
    remove(root, "tuned")
    gc(root)
    assert files(root).keys() == {"zoo.json"}


def _fitted() -> int:
    import random

    rows = random.Random(0).sample(ROWS, len(ROWS))
    return sum(map(len, rows[-(-len(rows) // making.HELD_OUT) :]))


def test_what_was_made_is_not_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = made(root)
    stored = files(root)
    monkeypatch.setattr(making, "prune", None)
    assert made(root) == one
    assert files(root) == stored
    monkeypatch.undo()
    monkeypatch.setattr(row_time, "SECONDS", 0.0)
    other = made(root, rows=4)
    assert other.block == one.block
    assert other.surrogate != one.surrogate
    assert len(surrogates_of(Zoo(root), "base")) == 2
    assert not verify(root).faults


@claim("An equivalent smaller block that the zoo knows is taken as the surrogate", of="adaptive")
def test_a_smaller_equivalent_is_taken(root: Path) -> None:
    chain = Zoo(root).chain("base").components
    pair = StoredPair(chain[3:5], chain[5:6], 3, 5, 0.99, 0.98, True, True, 0.01, None)
    rows = tuple((0.5,) * (len(chain) - 1) for _ in chain[:-1])
    store_equivalences(
        root,
        [
            StoredEquivalences(
                components=chain, others=chain, probe="0" * 32, tokens=9, prompts=0, right=0, limits=EquivalenceLimits(),
                similarities=rows, pairs=(pair,),
            )
        ],
    )  # fmt: skip
    one = made(root)
    assert (one.made, one.surrogate) == ("equivalent", chain[5:6])
    assert one.nbytes == Zoo(root).component(chain[5]).nbytes
    assert made(root) == one
    assert not verify(root).faults


def test_a_surrogate_in_use_stays(root: Path) -> None:
    one = made(root)
    opened = open_source(variant_source(str(root / "chains" / "base"), [Swap(3, 5, one.surrogate)]))
    with pytest.raises(ZooError, match="is being served"):
        remove(root, "base")
    gc(root)
    assert len(opened.hashes()) > 0
    specs = opened.specs(16, "float32")
    assert [spec.component.kv.kv_heads for spec in specs if spec.component.kv is not None] == [2, 1, 2]


@pytest.mark.parametrize("name", ["native", "torch"])
def test_both_back_ends_time_blocks(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = making.raw_block(Zoo(root), Zoo(root).chain("base").components[1:5])
    timed = backend(name)
    before = timed.progress()
    assert all(one > 0 for one in row_time.row_seconds(timed, [raw, raw[:2]]))
    assert timed.progress() > before


def test_what_can_have_no_surrogate_is_refused(root: Path, checkpoint: Make, tmp_path: Path) -> None:
    add(root, str(make_adapter(checkpoint("llama"), tmp_path / "lora")), "lora", base="base")
    before = files(root)
    with pytest.raises(
        CheckpointError, match="lora is an adapter, whose blocks are its base's with a change; name its base"
    ):
        open_site(root, "lora")
    with pytest.raises(CheckpointError, match="it of base has no heads and no columns to remove; name layers"):
        made(root, 7, 8)
    with pytest.raises(ZooError, match="has no application 'x'; there are: base, lora"):
        open_site(root, "x")
    assert files(root) == before
    assert narrowed(open_site(root, "base"), "it").block == Zoo(root).chain("base").components[1:7]


def test_a_zoo_that_cannot_be_written_or_lost_the_block_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(root)
    site = open_site(root, "base")

    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageError, match="free some room on that disk; the zoo is as it was"):
        make_surrogate(site, PROBE, backend(), 1, progress=lambda *_: None)
    assert files(root) == before
    monkeypatch.undo()
    monkeypatch.setattr(row_time, "SECONDS", 0.0)
    monkeypatch.setattr(Zoo, "chains", lambda self: {})
    with pytest.raises(ZooError, match="was removed from the zoo while its surrogate was made"):
        make_surrogate(site, PROBE, backend(), 1, progress=lambda *_: None)
    monkeypatch.undo()
    assert files(root) == before


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "similarity": (lambda v: v.update(similarity=1.5), "similarity in range"),
    "agreement": (lambda v: v.update(agreement=-1), "agreement in range"),
    "kl": (lambda v: v.update(kl=-1.0), "kl in range"),
    "seconds": (lambda v: v.update(seconds=0.0), "seconds in range"),
    "larger": (lambda v: v.update(nbytes=v["block_bytes"]), "nbytes in range"),
    "bytes": (lambda v: v.update(nbytes=v["nbytes"] - 1), " bytes"),
    "made": (lambda v: v.update(made="grown"), "pruned or equivalent"),
    "no hash": (lambda v: v["surrogate"].__setitem__(0, "../x"), "identities of 32 hexadecimal digits"),
    "blocks": (lambda v: v["block"].pop(), "the blocks of"),
    "missing": (lambda v: v.pop("probe"), "probe of StoredSurrogate"),
}


@claim("`zoo verify` finds a damaged surrogate, its lost components, and figures that cannot be", of="adaptive")
@pytest.mark.parametrize("name", WRONG)
def test_figures_that_cannot_be_are_found(root: Path, name: str) -> None:
    made(root)
    (path,) = (root / "surrogates").iterdir()
    values = json.loads(path.read_text())
    values.pop("checksum"), values.pop("schema")
    change, expected = WRONG[name]
    change(values)
    path.write_bytes(encode(values))
    (fault,) = verify(root).faults
    assert fault.path == path
    assert expected in fault.expected
    if name != "bytes":  # else it is a document like any other
        assert gc(root).files > 3
        assert not verify(root).faults


def test_a_lost_component_is_found(root: Path) -> None:
    one = made(root)
    lost = root / "components" / f"{one.surrogate[0]}.json"
    lost.unlink()
    faults = {fault.path: fault for fault in verify(root).faults}
    assert faults[lost].chains == ("base",)
    assert any(path.parent.name == "surrogates" for path in faults)
    assert replace(one, block=one.block[::-1]).place(Zoo(root).chain("base").components) is None
