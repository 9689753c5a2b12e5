"""Seeds in parts: how many of them every run plays, and how many ``make nightly`` alone."""

from __future__ import annotations

from typing import Any

import pytest


def parts(every: int, daily: int) -> list[Any]:
    """Numbers for ``parametrize``: of ``every`` part the first ``daily`` in any run, the others with ``--nightly``."""
    assert 0 < daily <= every
    return [part if part < daily else pytest.param(part, marks=pytest.mark.nightly) for part in range(every)]
