"""Reads traces of requests: when each came and how long it was. No text, as published.

By their columns: ``input_tokens,output_tokens`` with or without ``arrival_s`` (CSV: Azure, ShareGPT, arXiv), JSON lines of
``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` (Mooncake), and ServeGen's rates of clients, which need
a second file with the quantiles of their lengths. Any of them may be compressed with gzip.
"""

from __future__ import annotations

import bisect
import csv
import gzip
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WINDOW = 600.0  # seconds of a window of ServeGen's rates
_SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_QUANTILES = ("p1", "p5", "p10", "p20", "p30", "p40", "p50", "p60", "p70", "p80", "p90", "p95", "p99")


Laws = dict[tuple[str, str], list[float]]  # (client, field) -> quantiles


class TraceError(ValueError):
    """A file that is no trace; one sentence."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: seconds after the trace's first (None: the trace has no times), tokens, and the ids of the blocks of
    ``BLOCK`` tokens that its prompt is made of (equal leading ids: an equal beginning), where the trace has them."""

    at: float | None
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Clients:
    """What requests are drawn of, where a trace has rates of clients: the file of their lengths, the model's name (empty:
    the first), and from which second on how many requests are wanted at least (a day has millions)."""

    lengths: Path | None = None
    model: str = ""
    start: float = 0.0
    count: int = 1
    seed: int = 0


def read_trace(path: Path, clients: Clients = Clients()) -> list[TraceRequest]:
    """The requests of a file, in the order of their times. Raises TraceError."""
    try:
        text = _text(path)
        if text.lstrip().startswith("{"):
            return [_json_line(line) for line in text.splitlines() if line.strip()]
        rows = list(csv.DictReader(text.splitlines()))
        columns = set(rows[0]) if rows else set()
        if {"input_tokens", "output_tokens"} <= columns:
            times = "arrival_s" in columns
            return [_shape(float(r["arrival_s"]) if times else None, r["input_tokens"], r["output_tokens"]) for r in rows]
        if {"window_start_s", "rate_rps", "iat_dist"} <= columns:
            return _drawn(path, rows, clients)
    except OSError as error:
        raise TraceError(f"{error.filename or path} cannot be read ({error.strerror or error}); check the path") from None
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path.name} is not a trace of a known form ({error})") from None
    raise TraceError(f"{path.name} has the columns {', '.join(sorted(columns))}; give input_tokens and output_tokens")


def cut(shapes: Sequence[TraceRequest], start: float, count: int, speed: float) -> list[TraceRequest]:
    """``count`` requests from ``start`` seconds on, their times counted from there and divided by ``speed``."""
    later = (one for one in shapes if one.at is None or one.at >= start)
    return [
        TraceRequest(None if one.at is None else (one.at - start) / speed, one.prompt, one.output, one.blocks)
        for one in itertools.islice(later, count)
    ]


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()


def _shape(at: float | None, prompt: object, output: object, blocks: tuple[int, ...] = ()) -> TraceRequest:
    return TraceRequest(at, max(int(float(str(prompt))), 1), max(int(float(str(output))), 1), blocks)


def _json_line(line: str) -> TraceRequest:
    one = json.loads(line)
    return _shape(one["timestamp"] / 1000, one["input_length"], one["output_length"], tuple(one.get("hash_ids", ())))


def _drawn(path: Path, rates: Sequence[Mapping[str, str]], clients: Clients) -> list[TraceRequest]:
    """Whole windows of all clients, until there are enough requests after ``start``."""
    if clients.lengths is None:
        raise TraceError(f"{path.name} has rates of clients and no lengths; name their quantiles with --trace-lengths")
    models = list(dict.fromkeys(row["model"] for row in rates))
    model = clients.model or models[0]
    if model not in models:
        raise TraceError(f"there is no model {model!r} in the trace; there are: {', '.join(models)}")
    laws: Laws = {}
    for row in csv.DictReader(_text(clients.lengths).splitlines()):
        if row["model"] == model:
            laws[row["client"], row["field"]] = [float(row[name]) for name in _QUANTILES]
    source = random.Random(clients.seed)
    windows = sorted((float(row["window_start_s"]), int(row["client"]), row) for row in rates if row["model"] == model)
    found: list[TraceRequest] = []
    for start, group in itertools.groupby(windows, key=lambda window: window[0]):
        if start + WINDOW <= clients.start:
            continue
        for _, _, rate in group:
            found += _window(rate, start, laws, source)
        if sum((one.at or 0.0) >= clients.start for one in found) >= clients.count:
            break
    return sorted(found, key=lambda one: one.at or 0.0)


def _window(row: Mapping[str, str], start: float, laws: Laws, source: random.Random) -> Iterator[TraceRequest]:
    """Times between requests by the named law, scaled so that the window holds the client's requests."""
    client = row["client"]
    if (client, "input_tokens") not in laws or (client, "output_tokens") not in laws:
        return
    wanted = float(row["rate_rps"]) * WINDOW
    shape, scale = float(row["iat_shape"]), float(row["iat_scale"])
    count = int(wanted) + (source.random() < wanted % 1)
    gamma = row["iat_dist"] == "Gamma"
    gaps = [source.gammavariate(shape, scale) if gamma else source.weibullvariate(scale, shape) for _ in range(count + 1)]
    total = sum(gaps) or 1.0
    for passed in itertools.islice(itertools.accumulate(gaps), count):
        prompt, output = (_inverse(laws[client, field], source.random()) for field in ("input_tokens", "output_tokens"))
        yield _shape(start + passed / total * WINDOW, prompt, output)


def _inverse(values: Sequence[float], share: float) -> float:
    """The length below which ``share`` of a client's requests lie, linear between the published quantiles."""
    place = bisect.bisect_left(_SHARES, share)
    if place == 0:
        return values[0]
    if place == len(_SHARES):
        return values[-1]
    part = (share - _SHARES[place - 1]) / (_SHARES[place] - _SHARES[place - 1])
    return values[place - 1] + part * (values[place] - values[place - 1])
