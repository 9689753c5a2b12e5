"""Surrogates made in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import cast
from unittest.mock import patch

from blockwright.gpu.backend import HostBackend
from blockwright.gpu.select import open_backend
from blockwright.tests.zoo.equivalence.models import ROWS
from blockwright.zoo.equivalence.probe import same_probe
from blockwright.zoo.surrogate import row_time
from blockwright.zoo.surrogate.making import SurrogateSite, make_surrogate, narrowed, open_site
from blockwright.zoo.surrogate.records import StoredSurrogate


def surrogate_of(root: Path, name: str, first: int, last: int, rows: int = len(ROWS)) -> StoredSurrogate:
    """The surrogate of components ``first`` to ``last - 1`` of an application, with few rows of a probe and short timing."""
    site = narrowed(SurrogateSite(root, name, open_site(root, name).checkpoint, first, last), "it")
    backend = cast(HostBackend, open_backend("auto", "float32", 1))
    with patch.object(row_time, "SECONDS", 0.0):
        return make_surrogate(site, same_probe(ROWS[:rows]), backend, 1, progress=lambda *_: None)
