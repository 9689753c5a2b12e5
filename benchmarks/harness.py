"""The common frame of all benchmarks: the same options, alternating subjects, one table, one JSON format.

A script makes a ``Report``, feeds it samples (of subjects that alternate: A B A B ...), states its bars and calls
``finish``. The harness does not depend on the measured subject, and it changes no result: a missed bar is printed as a miss.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[1]
OURS, BESIDE = "blockwright", "beside"
_F = TypeVar("_F")


def claim(sentence: str, *, of: str, headline: bool = False) -> Callable[[_F], _F]:
    """Mark a benchmark's ``main`` as showing a sentence of docs/claims/ and return it unchanged; see tests/claims.py."""
    return lambda main: main


@dataclass(frozen=True, slots=True)
class Options:
    """What every script takes."""

    quick: bool
    json: Path | None
    beside: Path | None = None  # another checkout, for the scripts that take one


@dataclass(frozen=True, slots=True)
class Bar:
    """What a result has to reach: ``at_least <= ours / peer <= at_most``, without a peer the same of ours alone."""

    case: str
    metric: str
    peer: str = ""
    at_least: float = 0.0
    at_most: float = float("inf")


@dataclass(slots=True)
class Report:
    """Samples by (case, metric, subject), in the order in which they came."""

    benchmark: str
    settings: dict[str, Any]
    packages: Sequence[str] = ("torch",)
    samples: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    absent: list[tuple[str, str, str]] = field(default_factory=list)  # (case, subject, why)

    def add(self, case: str, subject: str, metrics: Mapping[str, float]) -> None:
        """One run's metrics."""
        for metric, value in metrics.items():
            self.samples.setdefault((case, metric, subject), []).append(value)

    def miss(self, case: str, subject: str, why: str) -> None:
        """A peer that could not be measured; it is a row of the table, not of the JSON."""
        self.absent.append((case, subject, why))

    def median(self, case: str, metric: str, subject: str) -> float | None:
        found = self.samples.get((case, metric, subject))
        return statistics.median(found) if found else None

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "case": case,
                "subject": subject,
                "metric": metric,
                "value": statistics.median(values),
                "low": min(values),
                "high": max(values),
                "runs": len(values),
            }
            for (case, metric, subject), values in self.samples.items()
        ]

    def document(self) -> dict[str, Any]:
        """What ``--json`` stores; ``results/schema.json`` describes it."""
        return {
            "benchmark": self.benchmark,
            "commit": commit(),
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(self.packages),
            "settings": self.settings,
            "rows": self.rows(),
        }


def parser(description: str | None, *, beside: bool = False) -> argparse.ArgumentParser:
    """Knows the two options of every script, and that of those which measure another checkout in turn with this one."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="about a minute: fewer repeats, smaller sizes")
    made.add_argument("--json", type=Path, metavar="PATH", help="store the result")
    if beside:
        made.add_argument(
            "--beside", type=Path, metavar="PATH", help="a checkout with a .venv, measured in turn with this one"
        )
    return made


def parse(description: str | None, arguments: Sequence[str] | None = None, *, beside: bool = False) -> Options:
    """The options of a script that has none of its own."""
    options = parser(description, beside=beside).parse_args(arguments)
    return Options(options.quick, options.json, options.beside if beside else None)


def interpreters(options: Options) -> dict[str, Path]:
    """The subjects that take turns, each with its interpreter: this checkout, and ``BESIDE`` where there is one."""
    found = {OURS: Path(sys.executable)}
    if options.beside is not None:
        found[BESIDE] = options.beside.resolve() / ".venv" / "bin" / "python"
    return found


def misses(report: Report, bars: Iterable[Bar]) -> list[str]:
    """A sentence for each bar that was not reached, or could not be judged."""
    found = []
    for bar in bars:
        ours = report.median(bar.case, bar.metric, OURS)
        peer = report.median(bar.case, bar.metric, bar.peer) if bar.peer else None
        name = f"{bar.case} {bar.metric}"
        if ours is None or (bar.peer and not peer):
            found.append(f"{name}: not measured")
        else:
            value, unit = (ours / peer, f" times {bar.peer}") if peer else (ours, "")
            if value < bar.at_least:
                found.append(f"{name}: {value:.4g}{unit}, the bar is at least {bar.at_least:g}")
            elif value > bar.at_most:
                found.append(f"{name}: {value:.4g}{unit}, the bar is at most {bar.at_most:g}")
    return found


def table(report: Report) -> str:
    """A row for each sample series; ``ratio`` is ours divided by that peer."""
    lines = [("case", "metric", "subject", "median", "min", "max", "runs", "ratio")]
    for row in report.rows():
        ours = report.median(row["case"], row["metric"], OURS)
        peer = row["subject"] != OURS and ours is not None and row["value"]
        ratio = f"{ours / row['value']:.2f}" if peer and ours is not None else ""
        numbers = (f"{row[name]:.4g}" for name in ("value", "low", "high"))
        lines.append((row["case"], row["metric"], row["subject"], *numbers, str(row["runs"]), ratio))
    lines += [(case, "-", subject, why, "", "", "", "") for case, subject, why in report.absent]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) if at < 3 else cell.rjust(width) for at, (cell, width) in enumerate(pairs)).rstrip()
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )


def finish(report: Report, options: Options, bars: Iterable[Bar] = ()) -> None:
    """Print the table and the misses, and store the JSON."""
    print(table(report))
    for sentence in misses(report, bars):
        print(f"MISS  {sentence}")
    store(report, options)


def store(report: Report, options: Options) -> None:
    """Write the JSON if the command asked for it."""
    if options.json:
        options.json.write_text(json.dumps(report.document(), indent=1) + "\n")


def commit() -> str:
    """Of the checkout, with "+" where something is not committed but results, which change nothing that is measured;
    "unknown" outside a checkout."""
    if not shutil.which("git"):
        return "unknown"

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return git("rev-parse", "HEAD") + ("+" if changed not in ("", "unknown") else "")


def machine() -> dict[str, Any]:
    """CPU model, cores that this process may use, and no GPU unless a script measures one."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = names[0] if names else name
    return {"cpu": name, "cores": len(os.sched_getaffinity(0)), "gpu": None}


def versions(packages: Iterable[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in (OURS, *packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
