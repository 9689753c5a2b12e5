"""Cost of a worker's decisions: planning and committing sweeps of decoding sequences, without tensors.

    python benchmarks/sweep.py [--quick] [--json PATH] [--beside CHECKOUT]

``sweep`` is one sweep of 48 or 256 rows: the median of windows of 16 sweeps, in which every row crosses a page boundary once
(boundaries are spread evenly, as in service); ``plan`` and ``commit`` are its parts. ``fork`` is a forecast's copy of 256
rows in 80 GB of 2 MiB chunks, ``fork, cache full`` the same with all memory in cached pages; ``jump`` is 64 sweeps of 256
rows at once. ``publication`` is the time to adopt one variant more, or one fewer, of a model of 32 layers that has 100 of
them, each with deltas in all layers. ``--beside`` measures an older checkout in turn with this one; features that it lacks
are left out.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import harness
from harness import Bar, Options, Report

PAGE, LAYERS = 16, 12
BARS = (
    Bar("sweep/48rows", "sweep_us", at_most=80),
    Bar("sweep/256rows", "sweep_us", at_most=450),
    Bar("fork/256rows", "p50_us", at_most=1000),
    Bar("fork/256rows-cache-full", "p50_us", at_most=1000),
)
Samples = dict[str, dict[str, float]]  # by case, by metric


def chain_of(layers: int):  # type: ignore[no-untyped-def]
    """A model of so many layers, ``m``."""
    from blockwright.policies.model.chain import Block, Chain, Component, Kind, KvLayout

    layout = KvLayout(2, 64, "bfloat16", PAGE)
    kinds = [Kind.EMBEDDING, *[Kind.ATTENTION, Kind.MLP] * layers, Kind.HEAD]
    parts = tuple(
        Component(bytes([depth]) * 16, kind, 0, 384, 384, layout if kind is Kind.ATTENTION else None)
        for depth, kind in enumerate(kinds)
    )
    return Chain("m", (Block(parts),), 1 << 20)


def routed(config: Any, layers: int = LAYERS):  # type: ignore[no-untyped-def]
    """A worker with one route, ``m@w0``, of so many layers, and nothing to do."""
    from blockwright.policies.model.chain import Hop, Route
    from blockwright.policies.requests.routes_changed import RoutesChanged
    from blockwright.policies.sweep.state import SweepState

    chain = chain_of(layers)
    routes = [Route("m@w0", 1, "m", (Hop("w0", 0, len(chain.components)),))]
    state = SweepState(config)
    state.apply(RoutesChanged(1, [chain], routes, routes), 0.0)
    return state


def decoding(rows: int, budget: int, *, chunk: int = 0, layers: int = LAYERS, slot: int = 8192, cached: int = 0):  # type: ignore[no-untyped-def]
    """A worker in the middle of ``rows`` answers, with prompts that share nothing; ``cached`` pages of others are idle."""
    from blockwright.policies.plan.sweep_plan import SweepResult

    state = routed(_config(rows, budget, chunk, slot), layers)
    done = 0
    while done < cached:  # one after the other, each gone before the next comes
        pages = min(cached - done, 4000)
        state.apply(_submission(f"c{done}", [done % 50_000, *range(pages * PAGE)], 2), 0.0)
        while (plan := state.plan(0.0)) is not None:
            state.commit(plan, SweepResult(plan.number, [7] * len(plan.sample)), 0.0)
        done += pages
    for row in range(rows):
        state.apply(_submission(f"r{row}", [row, *range(127 + row % PAGE)], 1 << 16), 0.0)
    while (plan := state.plan(0.0)) is not None and len(plan.sample) < rows:
        state.commit(plan, SweepResult(plan.number, [7] * len(plan.sample)), 0.0)
    assert plan is not None
    state.commit(plan, SweepResult(plan.number, [7] * len(plan.sample)), 0.0)
    state.take_effects()
    return state


def _config(rows: int, budget: int, chunk: int, slot: int) -> Any:
    more: dict[str, Any] = {"worker": "w0", "numerics": "none", "budget": budget, "max_rows": rows}
    try:
        from blockwright.policies.sweep.config import SweepConfig
    except ImportError:  # an older checkout
        from blockwright.policies.sweep import state

        return vars(state)["SweepConfig"](**more, slot_bytes=lambda layout: slot)
    if chunk:
        more["memory_chunk"] = chunk
    return SweepConfig(**more, slot_unit=slot)


def _submission(name: str, tokens: list[int], more: int):  # type: ignore[no-untyped-def]
    from blockwright.policies.model.lineage import page_hashes
    from blockwright.policies.plan.sampling import SamplingParams
    from blockwright.policies.sweep.events import Submission

    return Submission(
        request=name, attempt=1, gateway="head/gateway", route="m@w0", route_version=1, tokens=tokens,
        prompt_length=len(tokens), page_hashes=page_hashes(tokens, PAGE), max_length=len(tokens) + more, stop_tokens=[],
        sampling=SamplingParams(), arrival=float(name[1:]),
    )  # fmt: skip


def sweeps(rows: int, windows: int) -> dict[str, float]:
    """Microseconds of one sweep, from windows in which each row takes one page."""
    from blockwright.policies.plan.sweep_plan import SweepResult

    state = decoding(rows, 4 << 30)
    found: dict[str, list[float]] = {"plan": [], "commit": []}
    gc.collect()
    gc.freeze()
    for _ in range(windows):
        spent = [0.0, 0.0]
        for _ in range(PAGE):
            began = time.perf_counter()
            plan = state.plan(0.0)
            middle = time.perf_counter()
            state.commit(plan, SweepResult(plan.number, [7] * len(plan.sample)), 0.0)
            spent[1] += time.perf_counter() - middle
            spent[0] += middle - began
            state.take_effects()
        found["plan"].append(1e6 * spent[0] / PAGE)
        found["commit"].append(1e6 * spent[1] / PAGE)
    gc.unfreeze()
    both = [a + b for a, b in zip(found["plan"], found["commit"], strict=True)]
    return {"sweep_us": statistics.median(both), **{f"{n}_us": statistics.median(v) for n, v in found.items()}}


def timed(call: Callable[[], object], times: int) -> dict[str, float]:
    """Microseconds of one call."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append(1e6 * (time.perf_counter() - began))
    return {"p50_us": statistics.median(spent), "p90_us": statistics.quantiles(spent, n=10)[8]}


def jumps(times: int) -> dict[str, float]:
    """Microseconds of 64 sweeps at once, their plan included."""
    state = decoding(256, 16 << 30)
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        plan = state.plan(0.0)
        taken = state.jump(plan, min(64, state.repeat(plan)), 0.0)
        spent.append(1e6 * (time.perf_counter() - began) / taken)
        assert taken == 64
        state.take_effects()
    return {"sweep_us": statistics.median(spent)}


def publications(times: int) -> dict[str, float]:
    """Microseconds of one; the routes that were there before are the same objects, as a worker keeps them."""
    from blockwright.policies.model.chain import Block, Hop, Route
    from blockwright.policies.requests.routes_changed import RoutesChanged

    base = chain_of(32)
    every = [base]
    for number in range(101):
        parts = [
            part.adapted(bytes([number, depth]) * 8, 1) if part.kv else part for depth, part in enumerate(base.components)
        ]
        every.append(replace(base, application=f"m{number}", blocks=(Block(tuple(parts)),)))
    routes = [Route(f"{one.application}@w0", 1, one.application, (Hop("w0", 0, len(base.components)),)) for one in every]
    state = routed(_config(48, 4 << 30, 0, 8192), 32)
    versions = iter(range(2, 1 << 30))

    def publish() -> None:
        version = next(versions)
        count = len(every) - version % 2
        state.apply(RoutesChanged(version, every[:count], routes[:count], routes[:count]), 0.0)

    publish()
    return timed(publish, times)


def measure(quick: bool) -> Samples:
    """All cases in this interpreter."""
    found: Samples = {f"sweep/{rows}rows": sweeps(rows, 10 if quick else 25) for rows in (48, 256)}
    old = not hasattr(decoding(1, 1 << 30), "jump") or not hasattr(decoding(1, 1 << 30), "snapshot")
    found["fork/256rows"] = timed(decoding(256, 80 << 30, chunk=2 << 20).fork, 20)
    if not old:
        found["publication/100x32layers"] = publications(6 if quick else 20)
        found["jump/256rows"] = jumps(5 if quick else 20)
        full = decoding(256, 80 << 30, chunk=2 << 20, layers=32, slot=64 << 10, cached=30_000)
        found["fork/256rows-cache-full"] = timed(full.fork, 20)
    return found


@harness.claim("Planning a sweep of 256 sequences takes less than 0.45 ms, and of 48 less than 80 us", of="speed")
@harness.claim("A fork of a scheduler with 256 sequences takes less than 1 ms", of="speed")
def main(options: Options) -> None:
    report = Report("sweep", {"kv_layers": LAYERS, "page": PAGE}, ())
    for _ in range(2 if options.quick else 5):
        for name, python in harness.interpreters(options).items():
            command = [str(python), __file__, "--measure", *(["--quick"] if options.quick else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            for case, metrics in json.loads(done.stdout).items():
                report.add(case, name, metrics)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measure("--quick" in sys.argv)))
    else:
        main(harness.parse(__doc__, beside=True))
