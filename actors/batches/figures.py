"""Progress of a running batch, shown under our own key beyond the fields of such APIs. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ...policies.offline.job_account import FeedProgress


def figures_of(progress: Mapping[str, FeedProgress], waits: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return sums over the models, and each model's progress, as plain data.

    ``progress`` is by model. ``waits`` says why the last request sent could not be answered.
    """
    seconds = [one.remaining_seconds for one in progress.values()]
    known = [one for one in seconds if one is not None]
    return {
        "running": sum(one.running for one in progress.values()),
        "remaining_tokens": round(sum(one.remaining_tokens for one in progress.values())),
        "remaining_seconds": round(max(known), 1) if known and len(known) == len(seconds) else None,
        "models": {n: {**_rounded(dataclasses.asdict(one)), "waits": waits.get(n, "")} for n, one in progress.items()},
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value
