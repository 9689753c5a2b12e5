"""Figures from the outcomes of requests: percentiles, rates, and the document that ``--json`` stores.

Times are seconds. TTFT: from sending to the first token. ITL: between two events with tokens. TPOT: the time after the first
token divided by the number of tokens after it. E2E: from sending to the end.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...actors.resources import cores, free_memory

SHARES = (50, 90, 95, 99)
METRICS = ("ttft", "itl", "tpot", "e2e")


@dataclass(slots=True)
class Outcome:
    """The outcome of one request. ``stamps``: arrival times of events with tokens. All times are on one clock."""

    sent: float
    ended: float = 0.0
    stamps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    tokens: int = 0
    error: str = ""


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile, linear between the two nearest values. ``values`` are sorted and not empty."""
    place = (len(values) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """Return mean, percentiles and maximum; None for no values."""
    found = sorted(values)
    if not found:
        return None
    made = {"mean": sum(found) / len(found), **{f"p{share}": percentile(found, share) for share in SHARES}}
    return {name: round(value, 6) for name, value in {**made, "max": found[-1]}.items()}


def level(outcomes: Sequence[Outcome], concurrency: int | None, arrival: str, rate: float | None) -> dict[str, Any]:
    """Return the figures of one run. Failed requests count as failed and nowhere else.

    ``arrival``: the arrival process ("at once", "poisson", "constant", "trace"). ``rate``: requested rate per second, if
    any.
    """
    good = [one for one in outcomes if not one.error]
    seconds = max((one.ended for one in outcomes), default=0.0) - min((one.sent for one in outcomes), default=0.0)
    began = [one for one in good if one.stamps]
    later = [(one, one.tokens - 1) for one in began if one.tokens > 1 and len(one.stamps) > 1]
    given, made = (sum(getattr(one, name) for one in good) for name in ("prompt_tokens", "tokens"))

    def per_second(amount: float) -> float:
        return round(amount / seconds, 3) if seconds > 0 else 0.0

    return {
        "concurrency": concurrency,
        "arrival": arrival,
        "request_rate": rate,
        "requests": len(good),
        "failed": len(outcomes) - len(good),
        "errors": dict(Counter(one.error for one in outcomes if one.error)),
        "seconds": round(seconds, 3),
        "prompt_tokens": given,
        "output_tokens": made,
        "requests_per_s": per_second(len(good)),
        "prompt_tokens_per_s": per_second(given),
        "output_tokens_per_s": per_second(made),
        "ttft": spread(one.stamps[0] - one.sent for one in began),
        "itl": spread(b - a for one in good for a, b in zip(one.stamps, one.stamps[1:], strict=False)),
        "tpot": spread((one.stamps[-1] - one.stamps[0]) / tokens for one, tokens in later),
        "e2e": spread(one.ended - one.sent for one in good),
    }


def document(server: Mapping[str, Any], settings: Mapping[str, Any], levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document that ``--json`` stores (docs/schemas/bench-serve.json).

    ``machine`` and ``versions`` describe the machine of the client.
    """
    return {
        "benchmark": "serve",
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("blockwright", "aiohttp")}},
        "server": dict(server),
        "settings": dict(settings),
        "levels": list(levels),
    }


def machine() -> dict[str, Any]:
    """Return the processor, and the cores and memory that this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": cores(),
        "cores_of_machine": os.cpu_count() or 1,
        "free_memory": free_memory(),
        "system": f"{platform.system()} {platform.release()}",
    }
