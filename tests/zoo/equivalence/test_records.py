"""Equivalences in a zoo: they belong to components, a new cut keeps them, and verification finds what is wrong with them."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.policies.adaptive.equivalence import EquivalenceLimits
from blockwright.tests.claims import claim
from blockwright.tests.zoo.equivalence.models import ROWS, noisy
from blockwright.tests.zoo.models import doubled, files, variant
from blockwright.zoo.add import add
from blockwright.zoo.documents import encode
from blockwright.zoo.equivalence.comparison import BothWays, open_comparison
from blockwright.zoo.equivalence.probe import Probe, same_probe
from blockwright.zoo.equivalence.records import (
    equivalence_name,
    is_needed,
    read_equivalences,
    store_equivalences,
    stored_equivalences,
)
from blockwright.zoo.errors import StorageError, ZooError
from blockwright.zoo.remove import gc, remove
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo

LIMITS = EquivalenceLimits()
PROBE = same_probe(ROWS)


class Told:
    """The activities that were reported."""

    def __init__(self) -> None:
        self.what: list[str] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        self.what.append(what)


def measured(root: Path, probe: Probe = PROBE, limits: EquivalenceLimits = LIMITS) -> tuple[BothWays, list[str]]:
    told = Told()
    return open_comparison(root, "base", "near").measure(probe, ((), ()), limits, progress=told), told.what


@pytest.fixture
def root(checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    base = checkpoint("llama")
    add(tmp_path / "zoo", str(base), "base")
    add(tmp_path / "zoo", str(noisy(base, tmp_path / "near", 0.02)), "near")
    return tmp_path / "zoo"


@claim("Equivalences belong to the content of blocks: a new cut and another name keep them", of="adaptive")
def test_equivalences_survive_a_new_cut_and_another_name(
    root: Path, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (there, back), _ = measured(root)
    assert any(pair.counts for pair in there.pairs)
    blocks = len(Zoo(root).blocks("base"))
    tuned = variant(checkpoint("llama"), tmp_path / "tuned", {"layers.1.mlp.up_proj": doubled})
    add(root, str(tuned), "tuned")
    assert len(Zoo(root).blocks("base")) > blocks
    add(root, str(root / "chains" / "base"), "twin")
    remove(root, "base")
    assert gc(root).files == 0
    chains = {name: Zoo(root).chain(name).components for name in ("twin", "near")}
    assert stored_equivalences(Zoo(root), chains["twin"], chains["near"]) == there
    assert stored_equivalences(Zoo(root), chains["near"], chains["twin"]) == back
    assert stored_equivalences(Zoo(root), chains["near"], chains["near"]) is None
    assert not verify(root).faults
    remove(root, "near")
    assert gc(root).files > 2
    assert [*(root / "equivalences").iterdir()] == []


def test_what_was_measured_is_not_measured_again(root: Path) -> None:
    first, told = measured(root)
    assert {*told} == {"similarity", "damage"}
    before = files(root)
    assert measured(root) == (first, [])
    assert files(root) == before
    assert open_comparison(root, "near", "base").stored() == (first[1], first[0])
    stricter, told = measured(root, limits=EquivalenceLimits(similarity=0.999))
    assert told
    assert sum(pair.counts for pair in stricter[0].pairs) < sum(pair.counts for pair in first[0].pairs)
    assert files(root).keys() == before.keys(), "the same chains, the same documents"
    assert measured(root, same_probe(ROWS[:3]))[1]
    min((root / "equivalences").iterdir()).write_bytes(b"{")
    assert measured(root, same_probe(ROWS[:3]))[1], "a damaged document is measured again"
    assert not verify(root).faults


def test_a_zoo_that_cannot_be_written_is_refused_before_anything_is_measured(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    before, told = files(root), Told()
    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageError, match="read-only; name a zoo that can be written; the zoo is as it was"):
        open_comparison(root, "base", "near").measure(PROBE, ((), ()), LIMITS, progress=told)
    assert told.what == []
    assert files(root) == before


def altered(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a document again whose checksum is right and whose content is not."""
    values = json.loads(path.read_text())
    values.pop("checksum"), values.pop("schema")
    change(values)
    path.write_bytes(encode(values))


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "similarity": (lambda v: v["pairs"][0].update(similarity=1.5), "similarity in range"),
    "low": (lambda v: v["pairs"][0].update(low=-0.5), "the 5th percentile in range"),
    "kl": (lambda v: v["pairs"][0].update(kl=-1.0), "kl in range"),
    "lost": (lambda v: v["pairs"][0].update(lost=101), "lost in range"),
    "cells": (lambda v: v["similarities"][0].pop(), "similarities of 7 x 7"),
    "cell": (lambda v: v["similarities"][2].__setitem__(3, 7), "similarity in range"),
    "right": (lambda v: v.update(right=1), "right in range"),
    "limits": (lambda v: v["limits"].update(damage=-3), "limits of a comparison"),
    "verdict": (lambda v: v["pairs"][0].update(counts=not v["pairs"][0]["counts"]), "by the limits"),
    "block": (lambda v: v["pairs"][0].update(block=["0" * 32]), "blocks of its chains"),
    "place": (lambda v: v["pairs"][0].update(first=40), "blocks of its chains"),
    "no hash": (lambda v: v["others"].__setitem__(0, "../x"), "identities of 32 hexadecimal digits"),
    "chains": (lambda v: v["others"].__setitem__(0, "0" * 32), "the chains of"),
    "missing": (lambda v: v.pop("probe"), "probe of StoredEquivalences"),
}


@claim("`zoo verify` finds a damaged equivalence, a component that is not there, and figures that cannot be", of="adaptive")
@pytest.mark.parametrize("name", WRONG)
def test_figures_that_cannot_be_are_found(root: Path, name: str) -> None:
    measured(root)
    path = min((root / "equivalences").iterdir())
    change, expected = WRONG[name]
    altered(path, change)
    (fault,) = verify(root).faults
    assert fault.path == path
    assert expected in fault.expected
    assert not is_needed(path, {*Zoo(root).chain("base").parts, *Zoo(root).chain("near").parts})
    assert gc(root).files == 1
    assert not verify(root).faults


def test_an_unknown_component_is_found(root: Path) -> None:
    (there, _), _ = measured(root)
    unknown = "f" * 32
    strange = replace(there, others=(*there.others[:-1], unknown))
    with pytest.raises(ZooError, match="was removed from the zoo while it was compared"):
        store_equivalences(root, [strange])
    assert not verify(root).faults
    path = root / "equivalences" / f"{equivalence_name(strange.components, strange.others)}.json"
    path.write_bytes(strange.encoded())
    assert read_equivalences(path) == strange
    (fault,) = verify(root).faults
    assert (fault.path, fault.expected, fault.found) == (path, "components of this zoo", f"the unknown {unknown}")
    assert gc(root).files == 1
