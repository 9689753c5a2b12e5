"""Benchmark of surrogates at one row: the time of a pruned block over the block's, against its bytes.

    python benchmarks/adaptive_surrogates.py [--quick] [--json PATH]

Blocks of a random model are pruned and timed as ``zoo surrogate`` does. ``time``: median time of the surrogate over
the block's, which take turns on one thread. ``bytes``: the same of their parameters. ``apart``: the difference of the two;
where reading parameters costs most, it is small.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import harness
import torch
from harness import OURS, Bar, Options, Report
from models import CONFIG_DTYPES, SIZES, make_model

from blockwright.gpu.backend import HostBackend
from blockwright.gpu.select import open_backend
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.zoo.family.network import ChainNetwork
from blockwright.zoo.surrogate.pruning import prune
from blockwright.zoo.surrogate.row_time import RawBlock, row_seconds
from blockwright.zoo.surrogate.similarity import states_before

BLOCKS = {"attention-2": (5, 6), "feed-forward-2": (6, 7), "layer-2": (5, 7), "layers-2-3": (5, 9)}
ROWS, LENGTH = 8, 64  # of the probe: times do not depend on it
APART = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring: the model, its types, and turns of each block."""

    size: str = "M"
    dtypes: tuple[str, ...] = ("bf16", "f32")
    turns: int = 3

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(dtypes=("bf16",), turns=1) if quick else cls()

    def bars(self) -> list[Bar]:
        cases = [case(self.size, dtype, block) for dtype in self.dtypes for block in BLOCKS]
        return [Bar(one, "apart", at_most=APART) for one in cases]


def case(size: str, dtype: str, block: str) -> str:
    return f"surrogate-{size}/{dtype}/{block}"


def surrogate_times(report: Report, plan: Plan) -> None:
    """Prune blocks of a model and time them."""
    size = plan.size
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(SIZES[size].vocabulary, (ROWS, LENGTH), generator=generator).tolist()
    for dtype in plan.dtypes:
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint = Checkpoint.open(make_model(size, dtype, Path(scratch) / "model"))
            network = ChainNetwork(checkpoint)
            for block, (first, last) in BLOCKS.items():
                stored, small = pruned(network, first, last, list(map(tuple, rows)))
                for _ in range(plan.turns):
                    backend = cast(HostBackend, open_backend("auto", CONFIG_DTYPES[dtype], 1))
                    whole, half = row_seconds(backend, [stored, small])
                    figures = {"time": half / whole, "bytes": nbytes(small) / nbytes(stored)}
                    figures["apart"] = abs(figures["time"] - figures["bytes"])
                    report.add(case(size, dtype, block), OURS, figures)
                print(case(size, dtype, block), "done", flush=True)


def pruned(network: ChainNetwork, first: int, last: int, rows: list[tuple[int, ...]]) -> tuple[RawBlock, RawBlock]:
    """Return a block and its surrogate."""
    components = [network.component(network.parameters, place) for place in range(first, last)]
    dtypes = [dict.fromkeys(weights, torch.float32) for _, weights in components]
    found = prune(components, dtypes, states_before(network, rows, first), lambda what, done, total: None)
    return components, [(one.config, one.weights) for one in found]


def nbytes(block: RawBlock) -> int:
    return sum(one.numel() for _, weights in block for one in weights.values())


@harness.claim("At one row a surrogate takes its part of the block's bytes in time, within 0.1", of="adaptive")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    torch.set_num_threads(1)
    report = Report("adaptive_surrogates", {"model": plan.size, "turns": plan.turns})
    surrogate_times(report, plan)
    harness.finish(report, options, plan.bars())


if __name__ == "__main__":
    main(harness.parse(__doc__))
