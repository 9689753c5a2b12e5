"""The busy neighbor ends with its block, whatever ends that; shares are of the same subject and round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import contended
import harness
import psutil
import pytest
from disturbance import Load, disturbed
from harness import OURS, Report

from blockwright.tests.waiting import until_now

ALWAYS = Load(0.001, 0.001)
ONE = contended.ONE_THREAD


def test_the_disturbance_uses_the_processor_and_is_gone_after_its_block() -> None:
    with disturbed(ALWAYS) as process:
        assert process is not None
        child = psutil.Process(process.pid)
        until_now(lambda: child.cpu_times().user > 0.02, "processor time")
    assert process.returncode is not None


def test_the_disturbance_is_killed_when_the_block_fails() -> None:
    with pytest.raises(RuntimeError, match="the server is gone"), disturbed(ALWAYS) as process:
        raise RuntimeError("the server is gone")
    assert process is not None
    assert process.returncode is not None


def test_the_disturbance_ends_by_itself_when_its_parent_was_killed() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(contended.__file__).parent)!r})\n"
        "from disturbance import Load, disturbed\n"
        "with disturbed(Load(0.001, 0.002)) as process:\n    print(process.pid, flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    until_now(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the end of the disturbance")


def test_without_a_load_there_is_no_process() -> None:
    with disturbed(None) as process:
        assert process is None


async def test_every_subject_is_measured_under_every_load_and_shares_are_of_its_own_figure() -> None:
    rates = {OURS: iter((200.0, 160.0, 90.0)), ONE: iter((100.0, 80.0, 60.0))}
    order: list[str] = []

    def subject(name: str) -> contended.Callable[[], contended.Awaitable[float]]:
        async def measure() -> float:
            order.append(name)
            return next(rates[name])

        return measure

    report = Report("contended", {})
    contended.record(report, "S/bf16/c1", await contended.round_of({OURS: subject(OURS), ONE: subject(ONE)}))
    assert order == [OURS, ONE] * 3
    assert report.samples == {
        ("S/bf16/c1/alone", "out_tok_per_s", OURS): [200.0],
        ("S/bf16/c1/alone", "out_tok_per_s", ONE): [100.0],
        ("S/bf16/c1/quarter", "out_tok_per_s", OURS): [160.0],
        ("S/bf16/c1/quarter", "share", OURS): [0.8],
        ("S/bf16/c1/quarter", "out_tok_per_s", ONE): [80.0],
        ("S/bf16/c1/quarter", "share", ONE): [0.8],
        ("S/bf16/c1/always", "out_tok_per_s", OURS): [90.0],
        ("S/bf16/c1/always", "share", OURS): [0.45],
        ("S/bf16/c1/always", "out_tok_per_s", ONE): [60.0],
        ("S/bf16/c1/always", "share", ONE): [0.6],
    }
    wanted = [bar for bar in contended.bars(contended.Plan()) if bar.case.startswith("S/bf16/c1/")]
    assert harness.misses(report, wanted) == ["S/bf16/c1/always share: 0.45, the bar is at least 0.6"]
    assert contended.verdicts(report, wanted)[0] == "MET   S/bf16/c1/quarter share"
    assert len(contended.verdicts(report, wanted)) == 4


def test_the_bars_are_those_of_the_issue() -> None:
    bars = contended.bars(contended.Plan())
    shares = {(bar.case.rpartition("/")[2], bar.at_least) for bar in bars if bar.metric == "share"}
    assert shares == {("quarter", 0.75), ("always", 0.60)}
    assert {bar.case.split("/c")[1].split("/")[0] for bar in bars} == {"1", "8", "32"}
    assert {bar.case[0] for bar in bars} == {"S", "M"}
    assert sum(bar.peer == ONE for bar in bars) == 2 * 3 * 3


def test_a_sweep_of_kernels_is_read_from_its_childs_lines() -> None:
    import kernels

    assert kernels.parsed(["S/bf16/decode1 1.5 2.25"]) == {"S/bf16/decode1": {"min_ms": 1.5, "median_ms": 2.25}}


def test_products_are_read_from_their_childs_lines() -> None:
    import kernels

    lines = ["avx2/f32/1024x5632/128 blockwright 150.5", "avx2/f32/1024x5632/128 torch 140"]
    case = "avx2/f32/1024x5632/128"
    assert kernels.rates(lines) == {(case, "blockwright"): 150.5, (case, "torch"): 140.0}


def test_bars_of_products_are_those_of_the_issue(monkeypatch: pytest.MonkeyPatch) -> None:
    import kernels

    monkeypatch.setattr(kernels, "instruction_sets", lambda _: ["avx512", "avx2", "generic"])
    cases = [
        f"{name}/{dtype}/8x8/{rows}"
        for name in ("amx", "avx2", "generic")
        for dtype in ("f32", "bf16")
        for rows in (8, 16, 128)
        if (name, dtype) != ("amx", "f32")
    ]
    assert [(bar.case, bar.peer, bar.at_least) for bar in kernels.product_bars(cases)] == [
        ("avx2/f32/8x8/128", "torch", 0.95),
        ("avx2/bf16/8x8/16", "float32", 1.0),
        ("avx2/bf16/8x8/128", "float32", 1.0),
    ]
