"""Errors of log-probabilities in bfloat16, ours and transformers', against float64 arithmetic on the same weights.

    python benchmarks/accuracy.py [--quick] [--json PATH] [--models N] [--seed S] [--model N] [--reuse FOLDER]

Random models of all families, seeded; ``--model`` repeats one by its number. Each model gets a few prompts of 1 to 1,300
tokens and decodes some tokens after each; transformers computes the same in a single pass and with its cache. An error is
|log-probability - truth| over all positions and the whole vocabulary. ``ratio_*`` is ours divided by transformers', with a
row for each instruction set of the processor. ``--reuse`` keeps models, truths and transformers' answers in a folder, so
that another run only computes ours. transformers uses the kernels that torch selects here (ONEDNN_MAX_CPU_ISA caps them).
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import harness
import numpy as np
import torch
from accuracy_models import RandomModel, drawn, write
from accuracy_ours import Loaded, instruction_sets
from accuracy_reference import Peer, Truth
from harness import OURS, Bar, Options, Report

from blockwright.gpu.backend import HostBackend
from blockwright.gpu.cpu.native.backend import NativeBackend

PEER = "transformers"
IN_THE_MEAN, FOR_ANY_ONE = 1.02, 1.25  # of our error by transformers'
MEASURES = ("mean", "p999")
CAP = "ONEDNN_MAX_CPU_ISA"


@dataclass(frozen=True, slots=True)
class Judged:
    """A model's checkpoint, with what is true of it and what transformers says: float64 [positions, vocabulary]."""

    model: RandomModel
    folder: Path
    truth: np.ndarray
    peer: np.ndarray

    def errors(self, logprobs: np.ndarray) -> dict[str, float]:
        off = np.abs(logprobs - self.truth)
        return {"mean": float(off.mean()), "p999": float(np.quantile(off, 0.999))}

    def ratios(self, backend: HostBackend) -> dict[str, float]:
        """Our errors by transformers'."""
        loaded = Loaded(self.folder, backend, max_length=self.model.max_length)
        ours = [loaded.logprobs(prompt.tokens, prompt.given).numpy() for prompt in self.model.prompts]
        errors, theirs = self.errors(np.concatenate(ours)), self.errors(self.peer)
        return {measure: errors[measure] / theirs[measure] for measure in MEASURES}


def judged(model: RandomModel, folder: Path) -> Judged:
    """From ``folder`` if it is there, else made there."""
    parts = (repr(model), metadata.version("torch"), metadata.version("transformers"), processor())
    home = folder / hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
    stored = home / "logprobs.npz"
    if not stored.exists():
        write(model, home)
        truth, peer = Truth(home), Peer(home)
        true = [truth.logprobs(prompt.tokens).numpy() for prompt in model.prompts]
        theirs = [peer.logprobs(prompt.tokens, prompt.given).numpy() for prompt in model.prompts]
        np.savez(home / "unfinished.npz", truth=np.concatenate(true), peer=np.concatenate(theirs))
        (home / "unfinished.npz").rename(stored)
    with np.load(stored) as arrays:
        return Judged(model, home, arrays["truth"], arrays["peer"])


def processor() -> str:
    """What transformers' answers depend on beside its release."""
    cap = os.environ.get(CAP, "none")
    return f"{harness.machine()['cpu']}, torch {torch.backends.cpu.get_cpu_capability()}, {CAP} {cap}"


def compare(report: Report, model: RandomModel, folder: Path) -> None:
    """One line, and the model's samples of the report."""
    case = judged(model, folder)
    theirs = case.errors(case.peer)
    line = [f"{PEER} {theirs['mean']:.5f} {theirs['p999']:.5f}"]
    report.add(f"range{model.spread}", PEER, {f"error_{measure}": theirs[measure] for measure in MEASURES})
    for name in instruction_sets("bfloat16"):
        ratios = case.ratios(NativeBackend("bfloat16", 1, name))
        report.add(
            f"range{model.spread}/{name}",
            OURS,
            {f"error_{measure}": ratios[measure] * theirs[measure] for measure in MEASURES},
        )
        report.add(f"all/{name}", OURS, {f"ratio_{measure}": ratios[measure] for measure in MEASURES})
        line.append(f"{name} {ratios['mean']:.3f} {ratios['p999']:.3f}")
    print(f"{model}\n    {'  '.join(line)}", flush=True)


def summarize(report: Report) -> list[Bar]:
    """Mean and largest of the ratios over models, as rows with the bars that they have to keep."""
    bars = []
    for (case, metric, subject), values in list(report.samples.items()):
        if metric.startswith("ratio_"):
            report.add(case, subject, {f"average_{metric}": statistics.fmean(values), f"worst_{metric}": max(values)})
            bars.append(Bar(case, f"average_{metric}", at_most=IN_THE_MEAN))
            bars.append(Bar(case, f"worst_{metric}", at_most=FOR_ANY_ONE))
    return bars


@harness.claim(
    "Log-probabilities in bfloat16 are on average as close to float64 as those of transformers, or closer", of="numerics"
)
def main(arguments: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--models", type=int, default=0, metavar="N", help="how many (104; quick: 26)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of all models")
    parser.add_argument("--model", type=int, metavar="N", help="only this one")
    parser.add_argument("--reuse", type=Path, metavar="FOLDER", help="where models and what others say of them are kept")
    chosen = parser.parse_args(arguments)
    options = Options(chosen.quick, chosen.json)
    count = chosen.models or (26 if options.quick else 104)
    numbers = range(count) if chosen.model is None else [chosen.model]
    torch.set_num_threads(1)
    report = Report("accuracy", {"models": len(numbers), "seed": chosen.seed, "processor": processor()}, ("torch", PEER))
    with tempfile.TemporaryDirectory() as temporary:
        for number in numbers:
            compare(report, drawn(number, chosen.seed), chosen.reuse or Path(temporary))
    bars = summarize(report)
    print(f"{processor()}; seed {chosen.seed}")
    harness.finish(report, options, bars)


if __name__ == "__main__":
    main()
