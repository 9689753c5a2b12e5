"""In bfloat16 no back end is further from float64 arithmetic on the same weights than transformers' own bfloat16 is.

Random models of every family (``benchmarks/accuracy_models.py``), on each instruction set that the processor has. Nothing
here asks for the bits of another library: its order of sums differs by processor and release, its error hardly does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from accuracy import FOR_ANY_ONE, IN_THE_MEAN, judged
from accuracy_models import FAMILIES, SPREADS, drawn
from accuracy_ours import instruction_sets

from blockwright.gpu.backend import HostBackend
from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.cpu.reference.backend import TorchBackend
from blockwright.tests.claims import claim

ALL = 104
# one of each family, the spread of the weights in turn
SOME = [place + len(FAMILIES) * (place % len(SPREADS)) for place in range(len(FAMILIES))]
# A model's own ratio says little: two sound orders of sums differ by some percent, more in the percentile, which is made of
# few positions. The average over models tells a lost bit, and ``test_all`` holds it to what was promised.
ONE = 1.25
ONE_PERCENTILE = 1.6
AVERAGE = 1.1

BACKENDS: dict[str, Callable[[], HostBackend]] = {"torch": lambda: TorchBackend("bfloat16", 1)}
for _name in instruction_sets("bfloat16"):
    BACKENDS[_name] = lambda name=_name: NativeBackend("bfloat16", 1, name)
Ratios = dict[int, dict[str, float]]  # our errors by transformers', by model and measure


def ratios(backends: Iterable[str], numbers: Iterable[int], folder: Path) -> dict[str, Ratios]:
    """By back end; what transformers and float64 say of a model is computed once."""
    found: dict[str, Ratios] = {name: {} for name in backends}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for number in numbers:
        case = judged(drawn(number), folder)
        for name in found:
            found[name][number] = case.ratios(BACKENDS[name]())
    torch.set_num_threads(threads)
    return found


def hold(found: Ratios, average: float, one: dict[str, float]) -> None:
    for measure, limit in one.items():
        values = {number: ratios[measure] for number, ratios in found.items()}
        assert {number: value for number, value in values.items() if value > limit} == {}, measure
        assert statistics.fmean(values.values()) <= average, values


@claim("Log-probabilities in bfloat16 are on average as close to float64 as those of transformers, or closer", of="numerics")
def test_models_of_unlike_families(tmp_path: Path) -> None:
    """In one test, for one process computes what all back ends are compared with. Every sixth family, in any run."""
    for name, found in ratios(BACKENDS, SOME[::6], tmp_path).items():
        print(name)
        hold(found, AVERAGE, {"mean": ONE, "p999": ONE_PERCENTILE})


@pytest.mark.nightly
def test_the_other_families(tmp_path: Path) -> None:
    for name, found in ratios(BACKENDS, sorted(set(SOME) - set(SOME[::6])), tmp_path).items():
        print(name)
        hold(found, AVERAGE, {"mean": ONE, "p999": ONE_PERCENTILE})


@pytest.mark.equality
def test_all(tmp_path: Path) -> None:
    for name, found in ratios(instruction_sets("bfloat16"), range(ALL), tmp_path).items():
        print(name)
        hold(found, IN_THE_MEAN, {"mean": FOR_ANY_ONE, "p999": FOR_ANY_ONE})
