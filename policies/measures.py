"""Figures as Prometheus groups them: counters, gauges and histograms with their labels, and their sums over processes.

Standard library only. ``api/http/metrics.py`` turns them into text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

Labels = TypeVar("Labels", bound=str | tuple[str, ...])  # the values of a sample's labels; a string if it has one label


class Histogram:
    """Counts by upper bound. They are plain numbers, so that observing costs a few additions."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(frozen=True, slots=True)
class Measure:
    """A Prometheus family: the samples of one name.

    name: a counter's lacks the suffix "_total", which its samples have. kind: "gauge", "counter" or "histogram". samples:
    (name, labels, value).
    """

    name: str
    kind: str
    text: str
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)

    def add(self, labels: Mapping[str, str], value: float, suffix: str = "") -> None:
        suffix = "_total" if self.kind == "counter" else suffix
        self.samples.append((self.name + suffix, dict(labels), float(value)))


def gauge(name: str, text: str, values: Mapping[Labels, float], *labels: str) -> Measure:
    """Return a gauge. ``labels``: the names of the labels, in the order of their values in a key."""
    return _numbers(Measure(name, "gauge", text), values, labels)


def counter(name: str, text: str, values: Mapping[Labels, float], *labels: str) -> Measure:
    """Return a counter. ``labels``: the names of the labels, in the order of their values in a key."""
    return _numbers(Measure(name, "counter", text), values, labels)


def _numbers(made: Measure, values: Mapping[Labels, float], labels: tuple[str, ...]) -> Measure:
    for key, value in values.items():
        made.add(_labelled(key, labels), value)
    return made


def histogram(name: str, text: str, values: Mapping[Labels, Histogram], *labels: str) -> Measure:
    """Return a histogram, with cumulative buckets. ``labels``: the names of the labels, in the order of their values."""
    made = Measure(name, "histogram", text)
    for key, numbers in values.items():
        given, running = _labelled(key, labels), 0.0
        for bound, count in zip((*map(repr, map(float, numbers.bounds)), "+Inf"), numbers.counts, strict=True):
            running += count
            made.add(given | {"le": bound}, running, "_bucket")
        made.add(given, running, "_count")
        made.add(given, numbers.total, "_sum")
    return made


def _labelled(key: str | tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(names, (key,) if isinstance(key, str) else key, strict=True))


def summed(processes: Iterable[Iterable[Measure]]) -> list[Measure]:
    """Return one measure for each name, with its samples added up by name and labels, in order of first appearance."""
    made: dict[str, Measure] = {}
    places: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for measure in (measure for measures in processes for measure in measures):
        total = made.setdefault(measure.name, Measure(measure.name, measure.kind, measure.text))
        for name, labels, value in measure.samples:
            place = places.setdefault((name, tuple(labels.items())), len(total.samples))
            if place < len(total.samples):
                value += total.samples[place][2]
                total.samples[place] = (name, labels, value)
            else:
                total.samples.append((name, labels, value))
    return list(made.values())
