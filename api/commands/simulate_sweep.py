"""Several simulations side by side: a row for each combination of values, and the best one that meets the targets."""

from __future__ import annotations

import itertools
import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...policies.binary_size import parse_size
from ...policies.nearest import suggestion
from . import CommandError
from .simulate_report import METRICS, SHOWN

PLAIN = ("requests", "failed", "requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
LOADS = ("workload", "models")  # tables of what a cluster has to bear
DELAYS = ("latency", "staleness", "cold_start", "forecast_error")  # fields of other tables, likewise
MOST = 1000  # most simulations in one call
_TARGET = re.compile(r"\s*(\w+)(?:\s+(\w+))?\s*(<=|>=|<|>)\s*([0-9.]+(?:e-?[0-9]+)?)\s*(ms|s|%)?\s*", re.IGNORECASE)
_UNITS = {"ms": 1e-3, "s": 1.0, "%": 1e-2, None: 1.0}


@dataclass(frozen=True, slots=True)
class Target:
    """A target. ``share``: the figure of a metric that has several; empty for a metric of one number."""

    text: str
    metric: str
    share: str
    sign: str
    value: float

    def met(self, found: Mapping[str, Any]) -> bool:
        """Return True if a simulation meets the target. One without any answer meets no target on times."""
        figures = found["figures"].get(self.metric) if self.share else None
        value = (figures or {}).get(self.share) if self.share else found[self.metric]
        if value is None:
            return False
        compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[self.sign]
        return bool(compare(value, self.value))


def parse_target(text: str) -> Target:
    """Return the target that a text like ``ttft p99 < 1`` names; raise CommandError."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise CommandError(
            f"--target {text!r} is not a target; write it like 'ttft p99 < 1' or 'output_tokens_per_s > 500'", 2
        )
    metric, share, sign, number, unit = match.groups()
    metric, share = metric.lower(), (share or "").lower()
    if metric not in METRICS and metric not in PLAIN:
        raise CommandError(f"--target {text!r}: there is no metric {metric!r}; {_listed(metric)}", 2)
    if metric in PLAIN and share:
        raise CommandError(f"--target {text!r}: {metric} is one number; leave {share!r} out", 2)
    if metric in METRICS and share not in SHOWN:
        example = f"{metric} p99 {sign} {number}{unit or ''}"
        raise CommandError(f"--target {text!r}: {metric} has {', '.join(SHOWN)}; name one, like {example!r}", 2)
    try:
        value = float(number) * _UNITS[unit and unit.lower()]
    except ValueError:
        raise CommandError(f"--target {text!r}: {number!r} is no number; write it like 'ttft p99 < 1'", 2) from None
    return Target(text.strip(), metric, share, sign, value)


def _listed(metric: str) -> str:
    known = [*METRICS, *PLAIN]
    near = suggestion(metric, known)
    return near if near.startswith("there are") else f"{near} (there are: {', '.join(known)})"


def combinations(changes: Sequence[str]) -> list[list[str]]:
    """Return the changes of each simulation. ``field=1,2`` and ``field=[1,2]`` are two values. Raise CommandError."""
    choices = [[f"{change.partition('=')[0]}={value}" for value in _values(change.partition("=")[2])] for change in changes]
    count = 1
    for one in choices:
        count *= len(one)
    if count > MOST:
        raise CommandError(f"--set describes {count:,} simulations; give at most {MOST:,} combinations of values", 2)
    return [list(one) for one in itertools.product(*choices)]


def varied(combined: Sequence[Sequence[str]]) -> list[int]:
    """Return the places of the changes that have several values."""
    return [n for n in range(len(combined[0])) if len({one[n] for one in combined}) > 1]


def _values(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        parts = [part.strip() for part in text.split(",")]
        return parts if len(parts) > 1 and all(parts) else [text]
    if isinstance(found, list) and found and not any(isinstance(one, list | dict) for one in found):
        return [one if isinstance(one, str) else json.dumps(one) for one in found]
    return [text]


def rows(
    combined: Sequence[Sequence[str]], found: Sequence[Mapping[str, Any]], targets: Sequence[Target]
) -> Iterator[list[str]]:
    """Yield the table, its head first: the varied fields, the main figures, the targets' figures, and if all are met."""
    places = varied(combined)
    shown = [("ttft", "p99"), ("latency", "p99"), ("memory", "p99")]
    shown += [(one.metric, one.share) for one in targets if one.share and (one.metric, one.share) not in shown]
    head = [combined[0][n].partition("=")[0] for n in places]
    units = [METRICS[metric][1] for metric, _ in shown]
    head += [f"{METRICS[m][0]} {s} ({unit})".removesuffix(" ()") for (m, s), unit in zip(shown, units, strict=True)]
    yield [*head, "output tokens/s", "failed", *(["met"] if targets else [])]
    for changes, one in zip(combined, found, strict=True):
        cells = [changes[n].partition("=")[2] for n in places]
        for (metric, share), unit in zip(shown, units, strict=True):
            values = one["figures"][metric]
            factor = {"ms": 1e3, "%": 1e2}.get(unit, 1.0)
            cells.append("-" if values is None else f"{values[share] * factor:,.2f}")
        cells += [f"{one['output_tokens_per_s']:,.1f}", f"{one['failed']:,}"]
        yield [*cells, *(["yes" if all(t.met(one) for t in targets) else "no"] if targets else [])]


def verdict(combined: Sequence[Sequence[str]], found: Sequence[Mapping[str, Any]], targets: Sequence[Target]) -> str:
    """Return a sentence with the best combination that meets all targets, or with the targets that none meets.

    The best one has the largest loads, and of those the smallest resources. The sentence is empty without targets.
    """
    if not targets:
        return ""
    places = varied(combined)
    loads = [_is_load(combined[0][n]) for n in places]
    best = "best" if any(loads) and not all(loads) else "largest" if any(loads) else "smallest"
    wanted = " and ".join(one.text for one in targets)
    for changes, one in sorted(zip(combined, found, strict=True), key=lambda pair: _order(pair[0], places)):
        if all(target.met(one) for target in targets):
            named = " ".join(changes[n] for n in places)
            how = "; the largest load, then the smallest of the rest" if best == "best" else ""
            return f"{best} that meets {wanted}: {named}{how}" if named else f"meets {wanted}"
    never = [target.text for target in targets if not any(target.met(one) for one in found)]
    return f"nothing meets {wanted}" + (f"; no row meets {', '.join(never)}" if never and len(targets) > 1 else "")


def _is_load(change: str) -> bool:
    """Return True for a field whose largest value is wanted: what the cluster bears, not what it has."""
    place, _, name = change.partition("=")[0].rpartition(".")
    return place.partition(".")[0] in LOADS or name in DELAYS


def _order(changes: Sequence[str], places: Sequence[int]) -> list[tuple[float, str]]:
    """Return the sort key of a combination: large loads first, then small resources; values without a size come last."""
    made = []
    for n in sorted(places, key=lambda n: not _is_load(changes[n])):
        text = changes[n].partition("=")[2]
        try:
            size: float | None = float(text)
        except ValueError:
            size = parse_size(text)
        made.append((float("inf"), text) if size is None else (-size if _is_load(changes[n]) else size, ""))
    return made
