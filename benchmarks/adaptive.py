"""Benchmark of adaptive chains: blocks accepted as equivalents on a ladder of noise, and the times of surrogates.

    python benchmarks/adaptive.py [--quick] [--json PATH]

``ladder``: the demo checkpoint against copies of it whose layers have noise of 8 strengths, relative to each matrix's
spread. The pairs of blocks are judged as ``blockwright zoo equivalence`` judges them, by similarity and by answers lost on
prompts of the demo's tasks. The truth is the number of answers lost when the block is swapped, on other prompts, which
chose nothing. ``accepted``: share of the pairs that count. ``worst_lost``: most answers lost in 100 by a pair that counts,
held out. ``recall``: share of the pairs that lose no more than the limit held out which count. ``alone`` is the same without
the measurement of damage: similarity decides. ``equal``: the two lowest rungs, whose swaps change nothing.

``surrogate``: times of surrogates at one row (``adaptive_surrogates.py``).
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import harness
import torch
from adaptive_surrogates import bars, surrogate_times
from harness import OURS, ROOT, Bar, Options, Report
from safetensors.torch import load_file, save_file

from blockwright.api.commands.probe_text import ComparisonData
from blockwright.api.commands.training_data import DEMO, read_examples
from blockwright.gpu.weights.checkpoint import Checkpoint, component_of
from blockwright.policies.adaptive.equivalence import BlockPair, EquivalenceLimits, candidate_pairs, is_similar
from blockwright.policies.model.chain import Component
from blockwright.zoo.equivalence.joints import Joined
from blockwright.zoo.equivalence.measuring import ComparedModel, JudgedPair, compare, ends_of, similarities, swap_damage
from blockwright.zoo.equivalence.probe import Probe, same_probe
from blockwright.zoo.family.examples import TrainingExample
from blockwright.zoo.family.network import ChainNetwork

BASE = ROOT / "examples" / "demo-checkpoint"
STRENGTHS = (0.001, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
EQUAL = 2  # rungs whose blocks are as good as equal
HELD_OUT_SEED = 31
WORST = 2.0  # answers lost in 100, held out
DAMAGE, ALONE = "damage", "alone"
Prompts = Sequence[TrainingExample]


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring: rows of the probe, prompts that choose, and prompts that are held out."""

    rows: int = 2000
    prompts: int = 1200
    held_out: int = 1200
    size: str = "M"  # of the model whose blocks get surrogates
    dtypes: tuple[str, ...] = ("bf16", "f32")
    turns: int = 3

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(rows=80, prompts=240, held_out=240, dtypes=("bf16",), turns=1) if quick else cls()


@dataclass(frozen=True, slots=True)
class Rung:
    """The pairs of one strength. ``lost``: answers lost in 100 on held-out prompts, by pair."""

    judged: Sequence[JudgedPair]
    lost: dict[BlockPair, float]

    def accepted(self, limits: EquivalenceLimits, damage: bool) -> list[BlockPair]:
        """Return the pairs that count; without ``damage`` the ones that look alike."""
        return [one.pair for one in self.judged if (not one.refused if damage else is_similar(one.figures, limits))]


BARS = [
    Bar(f"ladder/{DAMAGE}", "worst_lost", at_most=WORST),
    Bar("ladder/equal", "accepted", at_least=1.0),
]


def noisy(folder: Path, strength: float) -> Path:
    """Make a copy of the demo checkpoint in which every matrix of a layer has noise of ``strength`` times its spread."""
    shutil.copytree(BASE, folder)
    source = torch.Generator().manual_seed(7)

    def changed(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if "layers" not in name or tensor.ndim < 2:
            return tensor
        wide = tensor.float()
        return (wide + strength * wide.std() * torch.randn(wide.shape, generator=source)).to(tensor.dtype)

    tensors = {name: changed(name, tensor) for name, tensor in load_file(BASE / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def components(checkpoint: Checkpoint) -> list[Component]:
    """Return the components with their identities."""
    ids = checkpoint.ids(checkpoint.hashes())
    return [component_of(config, id, 0) for (config, _), id in zip(checkpoint.parts, ids, strict=True)]


def climb(base: ComparedModel, other: Checkpoint, probe: Probe, limits: EquivalenceLimits, held_out: Prompts) -> Rung:
    """Judge the pairs of one rung, and count the answers that their swaps lose on held-out prompts."""
    noisy_one = ComparedModel(components(other), ChainNetwork(other))

    def quiet(what: str, done: int, total: int) -> None:
        return None

    pairs = candidate_pairs(base.components, noisy_one.components, same_tokens=True)
    wanted = dict.fromkeys(ends_of(pair, base.components, noisy_one.components) for pair in pairs)
    alike = similarities(base.network, noisy_one.network, probe, [*wanted], quiet)
    found = compare(base, noisy_one, probe, alike, limits, quiet)
    examined = ComparedModel(base.components, base.network, held_out)
    right = swap_damage(
        examined, noisy_one.network, (), dict.fromkeys([one.pair for one in found.pairs], Joined()), quiet
    ).right
    lost = {pair: 100 * (right[None] - count) / len(held_out) for pair, count in right.items() if pair is not None}
    return Rung(found.pairs, lost)


def ladder(report: Report, plan: Plan) -> None:
    """Judge all rungs."""
    checkpoint, limits = Checkpoint.open(BASE), EquivalenceLimits()
    (prompts, _), whole = ComparisonData((checkpoint, checkpoint), ("base", "noisy")).prompts_and_probe(DEMO, "")
    probe = same_probe(whole.rows[: plan.rows])
    mixed = random.Random(1).sample(prompts, len(prompts))[: plan.prompts]
    seen = {one.prompt for one in mixed}
    others = [one for one in read_examples(DEMO, checkpoint, held_out=100, seed=HELD_OUT_SEED) if one.prompt not in seen]
    held_out = random.Random(2).sample(others, min(len(others), plan.held_out))
    base = ComparedModel(components(checkpoint), ChainNetwork(checkpoint), mixed)
    rungs: list[Rung] = []
    with tempfile.TemporaryDirectory() as scratch:
        for strength in STRENGTHS:
            other = Checkpoint.open(noisy(Path(scratch) / f"{strength:g}", strength))
            rungs.append(climb(base, other, probe, limits, held_out))
            for name, damage in ((DAMAGE, True), (ALONE, False)):
                add(report, f"noise {strength:g}/{name}", rungs[-1:], limits, damage)
            print(f"noise {strength:g}: {len(rungs[-1].judged)} pairs", flush=True)
    for name, damage in ((DAMAGE, True), (ALONE, False)):
        add(report, f"ladder/{name}", rungs, limits, damage)
    add(report, "ladder/equal", rungs[:EQUAL], limits, damage=True)


def add(report: Report, case: str, rungs: Sequence[Rung], limits: EquivalenceLimits, damage: bool) -> None:
    """Report the pairs of some rungs that are accepted, with or without the measurement of damage."""
    accepted = [one.lost[pair] for one in rungs for pair in one.accepted(limits, damage)]
    good = [lost for one in rungs for lost in one.lost.values() if lost <= limits.damage]
    pairs = sum(len(one.judged) for one in rungs)
    recall = sum(lost <= limits.damage for lost in accepted) / len(good) if good else 1.0
    figures = {"pairs": pairs, "accepted": len(accepted) / pairs, "recall": recall, "most_lost": max(map(max_lost, rungs))}
    report.add(case, OURS, figures | {"worst_lost": max(accepted, default=0.0)})


def max_lost(rung: Rung) -> float:
    """Return the answers lost in 100 by the worst pair, accepted or not."""
    return max(rung.lost.values())


@harness.claim("Blocks that count as equivalent lose at most 2 answers in 100, on prompts that chose nothing", of="adaptive")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    torch.set_num_threads(1)
    report = Report("adaptive", {"rows": plan.rows, "prompts": plan.prompts, "held_out": plan.held_out})
    ladder(report, plan)
    surrogate_times(report, plan.size, plan.dtypes, plan.turns)
    harness.finish(report, options, BARS + bars(plan.size, plan.dtypes))


if __name__ == "__main__":
    main(harness.parse(__doc__))
