"""What it costs a worker to decide: planning and committing a sweep of 256 decoding sequences, without tensors.

    python benchmarks/sweep.py [--quick] [--json PATH]

``plan/256rows`` is one call of ``SweepState.plan``, ``commit/256rows`` one of ``commit``; ``fork/256rows`` is a forecast's
copy. The live worker plans the next sweep while one runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import harness
from harness import OURS, Options, Report

from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.sweep.events import RoutesChanged, Submission
from blockwright.policies.sweep.state import SweepConfig, SweepState

ROWS = 256
LAYERS = 12
PROMPT = 128
LAYOUT = KvLayout(2, 64, "bfloat16", 16)


def decoding() -> SweepState:
    """A worker in the middle of ``ROWS`` answers, with prompts that share nothing."""
    kinds = [Kind.EMBEDDING, *[Kind.ATTENTION, Kind.MLP] * LAYERS, Kind.HEAD]
    parts = tuple(
        Component(bytes([depth]) * 16, kind, 0, 384, 384, LAYOUT if kind is Kind.ATTENTION else None)
        for depth, kind in enumerate(kinds)
    )
    chain = Chain("m", (Block(parts),), 4096)
    routes = [Route("m@w0", 1, "m", (Hop("w0", 0, len(parts)),))]
    config = SweepConfig(worker="w0", numerics="none", budget=4 << 30, slot_bytes=lambda layout: 8192, max_rows=ROWS)
    state = SweepState(config)
    state.apply(RoutesChanged(1, [chain], routes, routes), 0.0)
    for row in range(ROWS):
        tokens = [row, *range(PROMPT - 1)]
        submission = Submission(
            request=f"r{row}", attempt=1, gateway="head/gateway", route="m@w0", route_version=1, tokens=tokens,
            prompt_length=PROMPT, page_hashes=page_hashes(tokens, 16), max_length=4096, stop_tokens=[],
            sampling=SamplingParams(), arrival=float(row),
        )  # fmt: skip
        state.apply(submission, 0.0)
    while len(state.running) < ROWS or any(state.rows.known[o[2]] == PROMPT for o in state.running):
        sweep(state, {})
    return state


def sweep(state: SweepState, seconds: dict[str, list[float]]) -> None:
    """One sweep, planned and committed; how long each took is appended."""

    def timed(name: str, call: Callable[[], object]) -> object:
        began = time.perf_counter()
        value = call()
        seconds.setdefault(name, []).append(time.perf_counter() - began)
        return value

    timed("plan", lambda: state.plan(0.0))
    (plan,) = state.open_plans.values()
    result = SweepResult(plan.number, [7] * len(plan.sample))
    timed("commit", lambda: state.commit(plan, result, 0.0))
    state.take_effects()


def main(options: Options) -> None:
    report = Report("sweep", {"rows": ROWS, "kv_layers": LAYERS, "prompt_tokens": PROMPT}, ())
    for _ in range(2 if options.quick else 5):
        state, seconds = decoding(), dict[str, list[float]]()
        for _ in range(300):
            sweep(state, seconds)
        for _ in range(20):
            began = time.perf_counter()
            state.fork()
            seconds.setdefault("fork", []).append(time.perf_counter() - began)
        for name, values in seconds.items():
            p99 = statistics.quantiles(values, n=100)[98]
            report.add(f"{name}/{ROWS}rows", OURS, {"p50_us": 1e6 * statistics.median(values), "p99_us": 1e6 * p99})
    harness.finish(report, options)


if __name__ == "__main__":
    main(harness.parse(__doc__))
