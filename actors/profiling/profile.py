"""Device profile: times sweeps, fits the cost model to some of them, and measures its error on the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ...gpu.backend import Backend
from ...gpu.weights.checkpoint import Checkpoint
from ...policies.plan.cost import features
from ...policies.plan.fit import fit, predict, relative_errors
from .shapes import RowLengths, grid, held_out
from .sweep_bench import SweepBench, TimedLoad

SCHEMA = 1
HELD_OUT = 48  # sweeps
DISTURBED = 0.1  # spread of a sweep's repeats from which the machine counts as disturbed


def profile(
    backend: Backend, checkpoint: Checkpoint, repeats: int, memory: int, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Return the part of the profile document that covers sweeps and loads.

    ``memory`` is the number of bytes that may be used. ``progress`` is called with the turns done and the turns in all.
    Raises BackendError and CheckpointError.
    """
    lengths = RowLengths.of(checkpoint.config.max_position)
    bench = SweepBench(backend, checkpoint, lengths, memory)
    known = grid(lengths)
    shapes = [*known, *held_out(lengths, HELD_OUT, seed=1)]
    times = bench.time(shapes, repeats, progress)
    counts = [features(bench.plan(shape), bench.parameters, bench.kv) for shape in shapes]
    samples = [(found, middle(seconds)) for found, seconds in zip(counts, times, strict=True)]
    fitted, unseen = samples[: len(known)], samples[len(known) :]
    coefficients = fit(fitted, bench.parameters, bench.kv)
    errors = sorted(relative_errors(unseen, coefficients))
    spread = middle(sorted(map(spread_of, times)))
    return {
        "schema": SCHEMA,
        "coefficients": asdict(coefficients),
        "loading": loading(bench.loads),
        "error": {
            "mape": sum(errors) / len(errors),
            "p90": errors[len(errors) * 9 // 10],
            "worst": errors[-1],
            "held_out": len(errors),
            "fitted": len(fitted),
            "spread": spread,
            "disturbed": spread > DISTURBED,
        },
        "held_out": [[predict(found, coefficients), seconds] for found, seconds in unseen],
    }


def middle(values: Sequence[float]) -> float:
    """Return the median of sorted values; the lower of two."""
    return values[(len(values) - 1) // 2]


def spread_of(times: Sequence[float]) -> float:
    """Return the interquartile range of a sweep's sorted repeats, as a fraction of the median."""
    quarter = len(times) // 4
    return (times[-1 - quarter] - times[quarter]) / middle(times)


def loading(loads: Sequence[TimedLoad]) -> dict[str, float]:
    """Return the seconds to load ``components`` of ``bytes`` in memory, and the bandwidth in bytes per second."""
    seconds, nbytes = sum(load.seconds for load in loads), sum(load.nbytes for load in loads)
    return {"components": len(loads), "bytes": nbytes, "seconds": seconds, "bandwidth": nbytes / seconds}
