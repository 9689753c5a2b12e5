"""Profiles in a zoo belong to what was measured, and go when nobody has that any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.zoo.models import doubled, variant
from blockwright.zoo.add import add
from blockwright.zoo.errors import ZooError
from blockwright.zoo.profiles import add_profile, profiles_of
from blockwright.zoo.remove import gc, remove
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo


def test_a_profile_is_of_components(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    root, base = tmp_path / "zoo", checkpoint("llama")
    for name, source in (("base", base), ("twin", base), ("tuned", variant(base, tmp_path / "t", {"layers.1": doubled}))):
        add(root, str(source), name)
    path = add_profile(root, "base", {"coefficients": {"base": 0.25}})
    assert add_profile(root, "twin", {"coefficients": {"base": 0.25}}) == path, "named by its content"
    for name, found in (("base", 1), ("twin", 1), ("tuned", 0)):
        assert [one.profile["coefficients"]["base"] for one in profiles_of(Zoo(root), name)] == [0.25] * found
    remove(root, "base")
    assert gc(root).files == 0
    assert not verify(root).faults
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.26"))
    assert [fault.path for fault in verify(root).faults] == [path]
    path.write_bytes(path.read_bytes().replace(b"0.26", b"0.25"))
    remove(root, "twin")
    gc(root)
    assert not path.exists()
    with pytest.raises(ZooError, match="no application"):
        add_profile(root, "twin", {})


def test_a_damaged_profile_is_garbage(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    root = tmp_path / "zoo"
    add(root, str(checkpoint("llama")), "base")
    good, bad = (add_profile(root, "base", {"coefficients": {"base": base}}) for base in (0.25, 0.5))
    bad.write_bytes(b"{")
    assert gc(root).files == 1
    assert good.exists()
    assert not bad.exists()
    assert not verify(root).faults
