"""Seeds in parts: which of them every run plays, and which ``make nightly`` alone."""

from __future__ import annotations

from typing import Any

import pytest


def parts(every: int, daily: int) -> list[Any]:
    """Numbers for ``parametrize``: of ``every`` part the first ``daily`` in any run, the others with ``--nightly``."""
    assert 0 <= daily <= every
    return [part if part < daily else pytest.param(part, marks=pytest.mark.nightly) for part in range(every)]


def spans(every: int, size: int, daily: int) -> list[Any]:
    """Ranges of numbers for ``parametrize``: the first ``daily`` in any run; with ``--nightly`` besides ``every`` ranges of
    ``size``, the first one whole. For tests that ask of each range what only many numbers bring about."""
    assert 0 < daily <= size
    later = [range(part * size, (part + 1) * size) for part in range(every)]
    return [range(daily), *[pytest.param(span, marks=pytest.mark.nightly) for span in later]]
