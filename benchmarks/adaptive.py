"""Benchmark of adaptive chains: blocks accepted as equivalents on a ladder of noise, and variants of them.

    python benchmarks/adaptive.py [--quick] [--json PATH]

The other figures of adaptive chains have scripts of their own: ``adaptive_live.py``, ``adaptive_simulated.py``,
``adaptive_kv.py``, ``adaptive_absent.py``, ``adaptive_stitches.py``, ``adaptive_surrogates.py``, ``adaptive_tokens.py``,
``adaptive_hidden.py`` and ``transfers.py``.

``ladder``: the demo checkpoint against copies of it whose layers have noise of 8 strengths, relative to each matrix's
spread. The pairs of blocks are judged as ``blockwright zoo equivalence`` judges them, by similarity and by answers lost on
prompts of the demo's tasks. The truth is the number of answers lost when the block is swapped, on other prompts, which
chose nothing. ``accepted``: share of the pairs that count. ``worst_lost``: most answers lost in 100 by a pair that counts,
held out. ``recall``: share of the pairs that lose no more than the limit held out which count. ``alone`` is the same without
the measurement of damage: similarity decides. ``equal``: the two lowest rungs, whose swaps change nothing.

``equal``: answers lost by the variants that are made of pairs that count (``adaptive_equal.py``), on the same held-out
prompts: of the rungs, and of the two near fine-tunes of the demo, each with blocks of the other.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import harness
import torch
from adaptive_equal import EQUAL_BARS, ServedVariant, add_equal, served
from harness import OURS, ROOT, Bar, Options, Report
from safetensors.torch import load_file, save_file

from blockwright.api.commands.probe_text import EACH, ComparisonData
from blockwright.api.commands.training_data import DEMO, read_examples
from blockwright.api.demo.siblings import SALES, SUPPORT, mix
from blockwright.api.demo.tasks import HELD_OUT, examination
from blockwright.gpu.weights.checkpoint import Checkpoint, component_of
from blockwright.policies.adaptive.equivalence import BlockPair, EquivalenceLimits, candidate_pairs, is_similar
from blockwright.policies.model.chain import Component
from blockwright.zoo.equivalence.joints import Joined
from blockwright.zoo.equivalence.measuring import ComparedModel, JudgedPair, compare, ends_of, similarities, swap_damage
from blockwright.zoo.equivalence.probe import Probe, Row, same_probe
from blockwright.zoo.family.examples import TrainingExample
from blockwright.zoo.family.network import ChainNetwork

BASE, FAMILY = ROOT / "examples" / "demo-checkpoint", ROOT / "examples" / "demo-family"
STRENGTHS = (0.001, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
EQUAL = 2  # rungs whose blocks are as good as equal
CHOOSING_SEED, PROBE_SEED = 24, 25
HELD_OUT_SEED = 31
WORST = 2.0  # answers lost in 100, held out
DAMAGE, ALONE = "damage", "alone"
Prompts = Sequence[TrainingExample]


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring: rows of the probe, prompts that choose, and prompts that are held out."""

    rows: int = 100
    prompts: int = 400
    held_out: int = 400

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(rows=20, prompts=60, held_out=60) if quick else cls()


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of a comparison: prompts that choose, prompts that are held out, and the probe."""

    prompts: Prompts
    held_out: Prompts
    probe: Probe

    @classmethod
    def chosen(cls, plan: Plan, prompts: Prompts, others: Prompts, rows: Sequence[Row]) -> Texts:
        """Return as many of them as the plan says. Prompts that choose are not held out."""
        mixed = random.Random(1).sample(prompts, len(prompts))[: plan.prompts]
        seen = {one.prompt for one in mixed}
        rest = [one for one in others if one.prompt not in seen]
        held_out = random.Random(2).sample(rest, min(len(rest), plan.held_out))
        return cls(mixed, held_out, same_probe(rows[: plan.rows]))


@dataclass(frozen=True, slots=True)
class Rung:
    """The pairs of one strength. ``lost``: answers lost in 100 on held-out prompts, by pair. ``variants``: made of them."""

    judged: Sequence[JudgedPair]
    lost: dict[BlockPair, float]
    variants: Sequence[ServedVariant] = ()

    def accepted(self, limits: EquivalenceLimits, damage: bool) -> list[BlockPair]:
        """Return the pairs that count; without ``damage`` the ones that look alike."""
        return [one.pair for one in self.judged if (not one.refused if damage else is_similar(one.figures, limits))]


BARS = [
    Bar(f"ladder/{DAMAGE}", "worst_lost", at_most=WORST),
    Bar("ladder/equal", "accepted", at_least=1.0),
    *EQUAL_BARS,
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


def texts(plan: Plan, checkpoint: Checkpoint) -> Texts:
    """Return the demo's tasks as texts: what ``blockwright zoo equivalence --data demo`` reads, and others held out."""
    (prompts, _), whole = ComparisonData((checkpoint, checkpoint), ("base", "noisy")).prompts_and_probe(DEMO, "")
    others = read_examples(DEMO, checkpoint, held_out=EACH, seed=HELD_OUT_SEED)
    return Texts.chosen(plan, prompts, others, whole.rows)


def sibling_texts(plan: Plan, checkpoint: Checkpoint, name: str, scratch: Path) -> Texts:
    """Return the tasks of a near fine-tune as texts."""

    def examples(seed: int) -> Prompts:
        rows = examination(seed, EACH, (HELD_OUT,), mix(name))
        path = scratch / f"{name}-{seed}.jsonl"
        path.write_text("".join(json.dumps({"prompt": one.prompt, "answer": one.answer}) + "\n" for one in rows))
        return read_examples(str(path), checkpoint)

    prompts, others, probed = (examples(seed) for seed in (CHOOSING_SEED, HELD_OUT_SEED, PROBE_SEED))
    return Texts.chosen(plan, prompts, others, [(*one.prompt, *one.answer) for one in probed])


def climb(own: Checkpoint, other: Checkpoint, texts: Texts, limits: EquivalenceLimits) -> Rung:
    """Judge the blocks of ``other`` for a chain, and count the answers that their swaps lose on held-out prompts."""
    base = ComparedModel(components(own), ChainNetwork(own), texts.prompts)
    donor = ComparedModel(components(other), ChainNetwork(other))

    def quiet(what: str, done: int, total: int) -> None:
        return None

    pairs = candidate_pairs(base.components, donor.components, same_tokens=True)
    wanted = dict.fromkeys(ends_of(pair, base.components, donor.components) for pair in pairs)
    alike = similarities(base.network, donor.network, texts.probe, [*wanted], quiet)
    found = compare(base, donor, texts.probe, alike, limits, quiet)
    examined = ComparedModel(base.components, base.network, texts.held_out)
    right = swap_damage(examined, donor.network, (), dict.fromkeys([one.pair for one in found.pairs], Joined()), quiet).right
    lost = {pair: 100 * (right[None] - count) / len(texts.held_out) for pair, count in right.items() if pair is not None}
    return Rung(found.pairs, lost, served(examined, donor, found.pairs))


def ladder(report: Report, plan: Plan, limits: EquivalenceLimits) -> list[Rung]:
    """Judge all rungs."""
    checkpoint = Checkpoint.open(BASE)
    chosen, rungs = texts(plan, checkpoint), list[Rung]()
    with tempfile.TemporaryDirectory() as scratch:
        for strength in STRENGTHS:
            other = Checkpoint.open(noisy(Path(scratch) / f"{strength:g}", strength))
            rungs.append(climb(checkpoint, other, chosen, limits))
            for name, damage in ((DAMAGE, True), (ALONE, False)):
                add(report, f"noise-{strength:g}/{name}", rungs[-1:], limits, damage)
            add_equal(report, f"equal/noise-{strength:g}", [rungs[-1].variants])
            print(f"noise {strength:g}: {len(rungs[-1].judged)} pairs", flush=True)
    for name, damage in ((DAMAGE, True), (ALONE, False)):
        add(report, f"ladder/{name}", rungs, limits, damage)
    add(report, "ladder/equal", rungs[:EQUAL], limits, damage=True)
    return rungs


def siblings(report: Report, plan: Plan, limits: EquivalenceLimits) -> list[Rung]:
    """Judge the demo's two near fine-tunes, each with blocks of the other."""
    found = list[Rung]()
    with tempfile.TemporaryDirectory() as scratch:
        for name, other in ((SUPPORT, SALES), (SALES, SUPPORT)):
            own, donor = (Checkpoint.open(FAMILY / one) for one in (name, other))
            found.append(climb(own, donor, sibling_texts(plan, own, name, Path(scratch)), limits))
            add_equal(report, f"equal/{name}-by-{other}", [found[-1].variants])
            print(f"{name} by {other}: {len(found[-1].judged)} pairs", flush=True)
    return found


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
    limits = EquivalenceLimits()
    rungs = [*ladder(report, plan, limits), *siblings(report, plan, limits)]
    add_equal(report, "equal", [one.variants for one in rungs])
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
