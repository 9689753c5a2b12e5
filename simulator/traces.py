"""Trace reader: arrival times and lengths of requests. No text, as published.

Formats are recognized by their columns: ``input_tokens,output_tokens`` with or without ``arrival_s`` (CSV: Azure, ShareGPT,
arXiv), ``Timestamp,Request tokens,Response tokens`` (BurstGPT; rows without a response failed and are left out), JSON lines
of ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` (Mooncake), and ServeGen's rates of clients, which
need a second file with the quantiles of their lengths. Any of them may be compressed with gzip, or begin with the byte order
mark that spreadsheets write. Requests are sorted by time, whatever the order of the file.
"""

from __future__ import annotations

import bisect
import csv
import gzip
import io
import itertools
import json
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

BLOCK = 512  # tokens of a block in a trace that names its blocks
WINDOW = 600.0  # seconds of a window of ServeGen's rates
MOST_RATE = 10_000  # requests a second of one client: the ones of a window are listed
LEAST_SHAPE = 0.01  # shape of the times between requests, which overflow much below it
RATES = {"model", "client", "window_start_s", "rate_rps", "iat_dist", "iat_shape", "iat_scale"}  # ServeGen's columns
_SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_QUANTILES = ("p1", "p5", "p10", "p20", "p30", "p40", "p50", "p60", "p70", "p80", "p90", "p95", "p99")


Laws = dict[tuple[str, str], list[float]]  # (client, field) -> quantiles


class TraceError(ValueError):
    """A file that is not a trace. One sentence, with line and field if one is wrong."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    ``at`` is in seconds after the trace's first request; None if the trace has no times. ``blocks`` are the ids of the
    blocks of ``BLOCK`` tokens in its prompt, if the trace has them; equal leading ids mean an equal beginning.
    """

    at: float | None
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Clients:
    """Options for drawing requests from rates of clients.

    ``lengths`` is the file of their lengths. ``model`` is the model's name; empty means the first. At least ``count``
    requests from second ``start`` on are drawn, since a day has millions.
    """

    lengths: Path | None = None
    model: str = ""
    start: float = 0.0
    count: int = 1
    seed: int = 0


def read_trace(path: Path, clients: Clients = Clients()) -> list[TraceRequest]:
    """Return the requests of a file, in the order of their times. Raises TraceError."""
    text = _text(path)
    if text.lstrip().startswith(("{", "[")):
        names: dict[int, int] = {}
        lines = enumerate(text.split("\n"), 1)
        return _in_order([_json_line(path, number, line, names) for number, line in lines if line.strip()])
    columns = _columns(text)
    if {"input_tokens", "output_tokens"} <= columns.keys():
        at = "arrival_s" if "arrival_s" in columns else ""
        return _in_order([_shape(row, at, "input_tokens", "output_tokens") for row in _rows(path, text)])
    if {"Timestamp", "Request tokens", "Response tokens"} <= columns.keys():
        return _burst(path, _rows(path, text))
    if columns.keys() >= RATES:
        return _drawn(path, _rows(path, text), clients)
    if not columns:
        raise TraceError(f"{path.name} is empty; give a line with the names of columns, and a line for each request")
    raise TraceError(f"{path.name}, line 1: the columns are {', '.join(columns):.200}; give input_tokens and output_tokens")


def has_rates(path: Path) -> bool:
    """Return whether a file has rates of clients, which need quantiles of lengths. Raises TraceError."""
    return _columns(_text(path)).keys() >= RATES


def _columns(text: str) -> dict[str, None]:
    """Return the names in the first line of a CSV file."""
    return dict.fromkeys(filter(None, (name.strip() for name in text.lstrip().partition("\n")[0].split(","))))


def _in_order(found: list[TraceRequest]) -> list[TraceRequest]:
    return sorted(found, key=lambda one: one.at or 0.0)


def _burst(path: Path, rows: Sequence[_Row]) -> list[TraceRequest]:
    """Return the requests of a BurstGPT trace, from the first one that was answered on."""
    answered = (row for row in rows if row.number("Response tokens"))
    found = _in_order([_shape(row, "Timestamp", "Request tokens", "Response tokens") for row in answered])
    if not found:
        raise TraceError(f"{path.name} has no request with a response; give another file")
    first = found[0].at or 0.0
    return [replace(one, at=(one.at or 0.0) - first) for one in found]


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a file."""

    file: str
    line: int
    values: Mapping[str, Any]

    def number(self, field: str) -> float:
        written = self.values.get(field)
        try:
            if isinstance(written, bool) or (isinstance(written, str) and "_" in written):  # Python accepts both as numbers
                raise ValueError
            value = float(written)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise self.error(field, "a number") from None
        if not 0 <= value < 1e15:
            raise self.error(field, "a number from 0 on")
        return value

    def text(self, field: str) -> str:
        if not (found := self.values.get(field)):
            raise self.error(field, "a name")
        return str(found)

    def error(self, field: str, wanted: str) -> TraceError:
        if self.values.get(field) is None:
            return TraceError(f"{self.file}, line {self.line}: {field} is missing; give {wanted}")
        return TraceError(f"{self.file}, line {self.line}: {field} is {self.values[field]!r:.40}; give {wanted}")


def _rows(path: Path, text: str) -> list[_Row]:
    """Return the rows of a CSV file, below the names of its columns."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    names: list[str] = []
    found: list[_Row] = []
    try:
        for values in reader:
            if len(values) < 2 and not "".join(values).strip():
                continue  # an empty line
            if not names:
                names = [name.strip() for name in values]
                continue
            if any(value.strip() for value in values[len(names) :]):
                says = f"there are {len(values)} fields, and line 1 names {len(names)}; give each its own column"
                raise TraceError(f"{path.name}, line {reader.line_num}: {says}")
            found.append(_Row(path.name, reader.line_num, dict(zip(names, values, strict=False))))
    except csv.Error as error:
        raise TraceError(f"{path.name}, line {reader.line_num}: this is no CSV ({error})") from None
    if not found:
        raise TraceError(f"{path.name} has no requests below the names of its columns; give a line for each")
    return found


def cut(shapes: Sequence[TraceRequest], start: float, count: int, speed: float) -> list[TraceRequest]:
    """Return ``count`` requests from ``start`` seconds on, their times counted from there and divided by ``speed``."""
    later = (one for one in shapes if one.at is None or one.at >= start)
    return [
        TraceRequest(None if one.at is None else (one.at - start) / speed, one.prompt, one.output, one.blocks)
        for one in itertools.islice(later, count)
    ]


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror or error}); check the path") from None
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is damaged ({error})") from None


def _shape(row: _Row, at: str, prompt: str, output: str, unit: float = 1.0) -> TraceRequest:
    when = row.number(at) * unit if at else None
    return TraceRequest(when, max(int(row.number(prompt)), 1), max(int(row.number(output)), 1))


def _json_line(path: Path, number: int, line: str, names: dict[int, int]) -> TraceRequest:
    """Parse one JSON line.

    ``names`` maps each block id so far to a small number, because the ids of other programs may be of any size.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path.name}, line {number}: this is no JSON ({error})") from None
    if not isinstance(values, dict):
        raise TraceError(f"{path.name}, line {number}: this is no JSON object")
    row = _Row(path.name, number, values)
    blocks = values.get("hash_ids", ())
    if not isinstance(blocks, list | tuple) or not all(type(block) is int and block >= 0 for block in blocks):
        raise row.error("hash_ids", "a list of whole numbers")
    shape = _shape(row, "timestamp", "input_length", "output_length", 1e-3)
    return replace(shape, blocks=tuple(names.setdefault(block, len(names)) for block in blocks))


def _drawn(path: Path, rates: Sequence[_Row], clients: Clients) -> list[TraceRequest]:
    """Draw whole windows of all clients, until there are enough requests after ``start``."""
    if clients.lengths is None:
        raise TraceError(
            f"{path.name} has rates of clients and no lengths; name the file of their quantiles"
            " (lengths in a description, --trace-lengths of bench)"
        )
    models = list(dict.fromkeys(row.text("model") for row in rates))
    model = clients.model or models[0]
    if model not in models:
        raise TraceError(f"there is no model {model!r} in the trace; there are: {', '.join(models)}")
    laws = _laws(clients.lengths, model)
    source = random.Random(clients.seed)
    windows = [(row.number("window_start_s"), row.number("client"), row) for row in rates if row.text("model") == model]
    windows.sort(key=lambda window: window[:2])
    found: list[TraceRequest] = []
    for start, group in itertools.groupby(windows, key=lambda window: window[0]):
        if start + WINDOW <= clients.start:
            continue
        for _, _, rate in group:
            found += _window(rate, start, laws, source)
        if sum((one.at or 0.0) >= clients.start for one in found) >= clients.count:
            break
    return sorted(found, key=lambda one: one.at or 0.0)


def _laws(path: Path, model: str) -> Laws:
    laws: Laws = {}
    for row in _rows(path, _text(path)):
        if row.values.get("model") == model:
            laws[row.text("client"), row.text("field")] = [row.number(name) for name in _QUANTILES]
    if not laws:
        raise TraceError(f"{path.name} has no quantiles of the lengths of {model}'s clients; name the file that has them")
    return laws


def _window(row: _Row, start: float, laws: Laws, source: random.Random) -> Iterator[TraceRequest]:
    """Yield a window's requests. Times between them follow the named law, scaled so that the window holds all of them."""
    client = row.text("client")
    if (client, "input_tokens") not in laws or (client, "output_tokens") not in laws:
        return
    rate = row.number("rate_rps")
    shape = row.number("iat_shape")
    scale = row.number("iat_scale")
    if rate > MOST_RATE:
        raise row.error("rate_rps", f"at most {MOST_RATE:,}")
    if shape < LEAST_SHAPE:
        raise row.error("iat_shape", f"more than 0, at least {LEAST_SHAPE}")
    if not scale:
        raise row.error("iat_scale", "more than 0")
    wanted = rate * WINDOW
    count = int(wanted) + (source.random() < wanted % 1)
    gamma = row.text("iat_dist") == "Gamma"
    gaps = [source.gammavariate(shape, scale) if gamma else source.weibullvariate(scale, shape) for _ in range(count + 1)]
    total = sum(gaps) or 1.0
    for passed in itertools.islice(itertools.accumulate(gaps), count):
        prompt, output = (_inverse(laws[client, field], source.random()) for field in ("input_tokens", "output_tokens"))
        yield TraceRequest(start + passed / total * WINDOW, max(int(prompt), 1), max(int(output), 1))


def _inverse(values: Sequence[float], share: float) -> float:
    """Return the length below which the fraction ``share`` of a client's requests lies.

    It is interpolated linearly between the published quantiles.
    """
    place = bisect.bisect_left(_SHARES, share)
    if place == 0:
        return values[0]
    if place == len(_SHARES):
        return values[-1]
    part = (share - _SHARES[place - 1]) / (_SHARES[place] - _SHARES[place - 1])
    return values[place - 1] + part * (values[place] - values[place - 1])
