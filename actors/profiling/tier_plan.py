"""Tier plan: measures the time of one prompt at several depths of a large model, and of smaller models.

All of them take turns on one machine, with the back end that serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...gpu.backend import Backend
from ...gpu.weights.checkpoint import Checkpoint
from ...policies.plan.tier_depths import coarse_depths, depths_between, equal_depth
from .shapes import RowLengths
from .sweep_bench import SweepBench

PROMPT = 1024  # tokens
REPEATS = 5
WHOLE = 0  # depth of a model that is measured as it is


@dataclass(frozen=True, slots=True)
class TierPlan:
    """Measured seconds of a prompt of ``tokens``: of the large model by depth, and of each smaller model.

    ``tiers`` has for each smaller model the depth that is as fast, None if the whole large model is faster.
    """

    tokens: int
    depths: dict[int, float]
    models: tuple[float, ...]
    tiers: tuple[int | None, ...]


def plan_tiers(
    open_backend: Callable[[], Backend],
    big: Checkpoint,
    models: Sequence[Checkpoint],
    memory: int,
    progress: Callable[[int, int], None],
) -> TierPlan:
    """Measure and plan. ``memory``: bytes that may be used. ``progress`` is called with turns done and turns in all.

    Each model has a back end of its own, from ``open_backend``. Raises BackendError and CheckpointError.
    """
    tokens = min(PROMPT, *(one.config.max_position for one in (big, *models)))
    benches = list(_benches(open_backend, [big, *models], tokens, memory))
    whole, turns = [[WHOLE] for _ in models], 2 * REPEATS
    first = coarse_depths(big.config.layers)
    found = _measured(benches, [first, *whole], lambda done: progress(done, turns))
    coarse = dict(zip(first, found[0], strict=True))
    closer = {depth for (seconds,) in found[1:] for depth in depths_between(seconds, coarse)}
    every = sorted({*first, *closer})
    if closer:  # what is compared is measured in the same turns
        found = _measured(benches, [every, *whole], lambda done: progress(REPEATS + done, turns))
    progress(turns, turns)
    depths = dict(zip(every, found[0], strict=True))
    times = tuple(seconds for (seconds,) in found[1:])
    return TierPlan(tokens, depths, times, tuple(equal_depth(seconds, depths) for seconds in times))


def _benches(
    open_backend: Callable[[], Backend], models: Iterable[Checkpoint], tokens: int, memory: int
) -> Iterable[SweepBench]:
    """Yield a bench for each model, all in ``memory`` together."""
    for model in models:
        bench = SweepBench(open_backend(), model, RowLengths(tokens, tokens, rows=1), memory)
        memory -= bench.nbytes
        yield bench


def _measured(
    benches: Sequence[SweepBench], wanted: Sequence[Sequence[int]], progress: Callable[[int], None]
) -> list[list[float]]:
    """Return the fewest seconds of a prompt for each bench and depth, which other programs disturb least.

    They take turns after one that warms up, and so does each bench in its turn: its parameters have left the caches.
    """
    times: list[list[list[float]]] = [[[] for _ in depths] for depths in wanted]
    for turn in range(REPEATS + 1):
        for bench, depths, found in zip(benches, wanted, times, strict=True):
            bench.prompt_seconds(WHOLE)
            for depth, seconds in zip(depths, found, strict=True):
                taken = bench.prompt_seconds(depth)
                if turn:
                    seconds.append(taken)
        progress(min(turn + 1, REPEATS))
    return [[min(seconds) for seconds in found] for found in times]
