"""The figures at the top of the README are those of docs/performance.md; what is not there yet is said in its fifth line."""

from __future__ import annotations

import re

from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import ROOT

README = (ROOT / "README.md").read_text()
MEASURED = (ROOT / "docs" / "performance.md").read_text()


def section(name: str) -> str:
    return MEASURED.split(f"\n## {name}\n")[1].split("\n## ")[0]


def figure(name: str) -> str:
    return next(line for line in README.splitlines() if line.startswith(f"| {name} |"))


@claim("The figures in the README come from the stored benchmarks", of="installation")
@claim("Serving is at least 1.3 times as fast as transformers, with 1 to 32 requests at once", of="speed", headline=True)
def test_speed_is_the_range_of_all_that_is_measured() -> None:
    rows = [line.split(" | ") for line in section("Serving").splitlines() if re.match(r"\| [SM] (f32|bf16)", line)]
    ratios = [float(row[4]) for row in rows]
    assert len(ratios) == 12
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times transformers" in figure("speed")


@claim("The figures in the README come from the stored benchmarks", of="installation")
def test_the_pause_is_that_of_two_replicas() -> None:
    (pause,) = re.findall(r"milliseconds: ([\d,]+) ", " ".join(section("Failover").split()))
    assert f"{float(pause.replace(',', '')) / 1000:.2f} s: the longest pause" in figure("survival")


@claim("The figures in the README come from the stored benchmarks", of="installation")
def test_memory_is_that_of_twenty_tenants() -> None:
    text = " ".join(section("Tenants").split())
    (taken,) = re.findall(r"Parameters take (\d+) MB", text)
    (models,) = re.findall(r"in the memory of ([\d.]+) whole models", text)
    (times,) = re.findall(r"\| poisson closed \| tokens/s .*? / ([\d.]+) \|", text)
    assert f"20 fine-tunes in the memory of {models} models, at {float(times):.1f} times the throughput" in figure("memory")
    assert f"their parameters take {taken} MB" in figure("memory")


def test_what_is_not_there_yet_is_said_at_once() -> None:
    fifth = README.splitlines()[4]
    assert fifth.startswith("CPU only today")
    assert "`--device cuda` is written and [not proved on a card](docs/gpu.md)" in fifth
    assert README.splitlines()[5] == "No quantized weights yet."
