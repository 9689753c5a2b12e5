"""What the serving benchmarks compute, with a fake server and a fake peer in place of processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import failover
import pytest
import serving
from harness import OURS, Report
from server import peak_rss_mb


class FakeServer:
    """Counts what is asked; its sweeps spend a quarter outside kernels."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.seconds, self.cpu = 0.0, 0.0

    async def complete(self, prompt: list[int], tokens: int) -> None:
        self.prompts.append(prompt)

    async def stream(self, prompt: list[int], tokens: int) -> AsyncIterator[tuple[float, int, str]]:
        self.seconds += 1.0
        self.cpu += tokens * 25e-6
        yield 0.0, tokens, "r"

    def peak_rss_mb(self) -> float:
        return 100.0

    def head_cpu_seconds(self) -> float:
        return self.cpu

    async def sweep_seconds(self) -> tuple[float, float]:
        return self.seconds, 0.75 * self.seconds


class FakePeer:
    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    def generate(self, prompts: list[list[int]], tokens: int) -> float:
        self.batches.append(prompts)
        return 2.0

    def peak_rss_mb(self) -> float:
        return 300.0


PLAN = serving.Plan(sizes=("S",), prompt_tokens=4, new_tokens=8, runs=2, share_runs=2)


async def test_both_subjects_get_the_same_fresh_prompts_and_the_first_round_is_dropped() -> None:
    report = Report("serving", {})
    server = FakeServer()
    peer = FakePeer()
    await serving.throughput(report, PLAN, "S", "f32", server, peer)  # type: ignore[arg-type]
    asked = [prompt for batch in peer.batches for prompt in batch]
    assert server.prompts == asked
    assert len(asked) == 3 * (1 + 8 + 32) == len({tuple(prompt) for prompt in asked})
    assert report.samples["S/f32/c8", "out_tok_per_s", "transformers"] == [8 * 8 / 2.0] * 2
    assert len(report.samples["S/f32/c32", "out_tok_per_s", OURS]) == 2
    assert report.median("S/f32/c32", "peak_rss_mb", OURS) == 100.0


async def test_shares_are_of_the_run_alone() -> None:
    report, server = Report("serving", {}), FakeServer()
    server.seconds, server.cpu = 1000.0, 1000.0
    await serving.shares(report, PLAN, "S", "bf16", server)  # type: ignore[arg-type]
    assert report.samples["S/bf16/c32", "outside_kernels_share", OURS] == pytest.approx([0.25, 0.25])
    assert report.samples["S/bf16/c32", "gateway_us_per_token", OURS] == pytest.approx([25.0, 25.0])


def test_the_bars_are_those_of_the_issue() -> None:
    found = {(bar.case, bar.at_least) for bar in serving.bars(serving.Plan.chosen(quick=False))}
    assert found == {("S/f32/c32", 1.2), ("S/bf16/c32", 3.0), ("M/f32/c32", 1.2), ("M/bf16/c32", 3.0)}


def test_the_pause_counts_from_the_kill_and_is_not_cut_short_by_a_token_on_its_way() -> None:
    watched = failover.Watched()
    watched.times = [1.0, 1.9, 2.0, 2.1, 2.7, 2.8]
    assert watched.longest_pause(2.05) == pytest.approx(0.6)
    assert watched.longest_pause(2.75) == pytest.approx(0.1)
    assert watched.longest_pause(1.5) == pytest.approx(0.9)
    assert watched.longest_pause(3.0) == 0.0


def test_the_peak_of_a_process_is_read_and_of_a_gone_one_is_nothing() -> None:
    assert peak_rss_mb(os.getpid()) > 10
    assert peak_rss_mb(2**22 + 1) == 0.0
