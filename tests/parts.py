"""Seeds and values in parts: those that every run plays, and those that ``make nightly`` alone plays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

SHARE = 3  # any run plays a third of the hypothesis examples of a test that says how many it needs


def parts(every: int, daily: int) -> list[Any]:
    """Return numbers for ``parametrize``: of ``every`` part the first ``daily`` in any run, the others nightly."""
    assert 0 <= daily <= every
    return [part if part < daily else pytest.param(part, marks=pytest.mark.nightly) for part in range(every)]


def spans(every: int, size: int, daily: int) -> list[Any]:
    """Return ranges for ``parametrize``: the first ``daily`` in any run; nightly ``every`` one of ``size``.

    For tests that ask of each range what only many numbers bring about.
    """
    assert 0 < daily <= size
    later = [range(part * size, (part + 1) * size) for part in range(every)]
    return [range(daily), *[pytest.param(span, marks=pytest.mark.nightly) for span in later]]


def some(every: Iterable[Any], *daily: Any) -> list[Any]:
    """Return values for ``parametrize``: ``daily`` in any run, the others nightly.

    For choices that a nearer test covers one by one, so that any run needs few of them here. A tuple is for several names.
    """
    values = list(every)
    assert all(value in values for value in daily), f"{daily} are not all among {values}"
    fields = [value if isinstance(value, tuple) else (value,) for value in values]
    marks = [[] if value in daily else [pytest.mark.nightly] for value in values]
    return [pytest.param(*field, marks=mark) for field, mark in zip(fields, marks, strict=True)]


def examples(count: int) -> settings:
    """Return settings for a hypothesis test: ``count`` examples with ``--nightly``, in any run the first third of them.

    Profiles are loaded before test modules are imported (``conftest.py``).
    """
    nightly = settings.get_current_profile_name() == "nightly"
    return settings(max_examples=count if nightly else -(-count // SHARE))
