"""Part 4 of ``gpu.py``: transformers' tokens in float32, and its error in bfloat16 beside ours.

The demo checkpoint, adapters of the demo family and the architectures of the tests answer prompts greedily; ``differing``
counts tokens that are not transformers', up to the first choice between two scores that are closer than its rounding. Errors
are of log-probabilities to float64, over random models of ``accuracy_models.py``: ``ratio`` is ours by transformers'.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accuracy_models import drawn, quiet_transformers, write
from accuracy_reference import Peer, Truth
from gpu_card import Card
from gpu_report import NotHere, Part
from gpu_rig import FilledExecutor, Rig, RigSizes
from harness import ROOT
from safetensors.torch import load_file

from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.weights.adapter import open_adapter
from blockwright.gpu.weights.checkpoint import Checkpoint

DEMO = ROOT / "examples" / "demo-checkpoint"
FAMILY = ROOT / "examples" / "demo-family"
CLOSE = 1e-4  # best two scores nearer than this: the choice is not ours to judge
PAGE = 16
CHUNK = 24
NEW = 16
MOST_MEAN = 1.02  # of our error by transformers'


def measure(part: Part) -> None:
    """Add what differs, and the ratio of the errors."""
    new = 4 if part.card.mirrored else NEW
    names = sorted(path.name for path in FAMILY.iterdir() if (path / "adapter_config.json").exists())
    if part.sizes.family:
        _demo_family(part, new, names[: part.sizes.family])
    _presets(part, new)
    if part.sizes.errors:
        with part.attempt("error"):
            _errors(part)


def _demo_family(part: Part, new: int, names: Sequence[str]) -> None:
    with part.attempt("demo"):
        part.add("demo", {"differing": _demo(part.card, new)})
        part.bar("demo", "differing", at_most=0.0)
    for name in names:
        with part.attempt(f"family-{name}"):
            part.add(f"family-{name}", {"differing": _adapter(part.card, FAMILY / name, new)})
            part.bar(f"family-{name}", "differing", at_most=0.0)


def _presets(part: Part, new: int) -> None:
    from blockwright.tests.checkpoints import build_model

    for name in part.sizes.architectures():
        with part.attempt(f"preset-{name}"), tempfile.TemporaryDirectory() as folder:
            model = build_model(name, 0)
            model.save_pretrained(folder)
            rig = rig_of(part.card, Path(folder), "float32")
            part.add(f"preset-{name}", {"differing": _compared(rig, model, _prompts(384), new)})
            part.bar(f"preset-{name}", "differing", at_most=0.0)
        part.card.release()


def rig_of(card: Card, folder: Path, dtype: str, adapter: Path | None = None, length: int = 160) -> Rig:
    """Return a rig of a checkpoint, whose rows of number 1 belong to the adapter."""
    checkpoint = Checkpoint.open(folder)
    specs = checkpoint.specs(PAGE, dtype)
    changed = open_adapter(adapter, checkpoint).specs(PAGE, dtype) if adapter is not None else []
    backend = card.backend(dtype)
    deltas = [(place, spec) for place, spec in enumerate(changed) if spec.delta is not None]
    room = sum(-(-part.nbytes // card.chunk) * card.chunk for _, spec in deltas for part in backend.parts(spec))

    def load(executor: FilledExecutor, spec: ComponentSpec, offsets: list[int]) -> None:
        for _ in executor.load(spec, offsets):
            pass

    rig = Rig(card, backend, specs, RigSizes(2, length, max(length, 64), PAGE, spare=room), load)
    for _, spec in deltas:
        (one,) = backend.parts(spec)
        load(rig.executor, spec, [rig.allocate(one.nbytes)])
    if deltas:
        rig.executor.attach(0, 1, {place: spec.delta.id for place, spec in deltas if spec.delta is not None})
    return rig


def _prompts(vocabulary: int) -> list[list[int]]:
    draw = random.Random(4)
    return [[draw.randrange(3, vocabulary) for _ in range(length)] for length in (1, 19, 50)]


def _demo_prompts() -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in ("reverse: blocks =", "copy: wright =")]


def _demo(card: Card, new: int) -> float:
    found = _compared(rig_of(card, DEMO, "float32"), _theirs(DEMO), _demo_prompts(), new)
    card.release()
    return found


def _adapter(card: Card, folder: Path, new: int) -> float:
    """An adapter of low rank over the demo checkpoint, merged into transformers' weights by hand: peft may not be here."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    if settings["peft_type"] != "LORA":
        raise NotHere(f"{folder.name} is of form {settings['peft_type']}, which only peft merges")
    model = _theirs(DEMO)
    weights = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for name in (name for name in weights if name.endswith("lora_A.weight")):
            a, b = weights[name], weights[name.replace("lora_A", "lora_B")]
            target = model.get_parameter(name.removeprefix("base_model.model.").replace(".lora_A", ""))
            target.add_(settings["lora_alpha"] / settings["r"] * (b.float() @ a.float()))
    found = _compared(rig_of(card, DEMO, "float32", folder), model, _demo_prompts(), new, (1,))
    card.release()
    return found


def _theirs(folder: Path) -> Any:
    return quiet_transformers().AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _compared(rig: Rig, model: Any, prompts: Sequence[Sequence[int]], new: int, delta: tuple[int, ...] = ()) -> float:
    """Return how many of our greedy tokens are not the best of transformers' scores after the same tokens."""
    differing = 0
    for prompt in prompts:
        ours = rig.generate(0, prompt, new, CHUNK, delta)
        with torch.no_grad():
            scores_TV = model(input_ids=torch.tensor([[*prompt, *ours]])).logits[0, len(prompt) - 1 : -1].float()
        best = torch.topk(scores_TV, 2)
        for token, values, chosen in zip(ours, best.values.tolist(), best.indices[:, 0].tolist(), strict=True):
            if values[0] - values[1] < CLOSE:
                break
            differing += token != chosen
    return float(differing)


def _errors(part: Part) -> None:
    ratios = []
    for number in part.sizes.errors:
        longest = 12 if part.card.mirrored else 300
        model = drawn(number, 0, longest)
        with tempfile.TemporaryDirectory() as folder:
            home = write(model, Path(folder))
            truth, peer = Truth(home), Peer(home)
            rig = rig_of(part.card, home, "bfloat16", length=model.max_length + PAGE)
            ours = theirs = 0.0
            for prompt in model.prompts[: 1 if part.card.mirrored else None]:
                true = truth.logprobs(prompt.tokens)[prompt.given - 1 :]
                theirs += float((peer.logprobs(prompt.tokens, prompt.given)[prompt.given - 1 :] - true).abs().mean())
                found = rig.logprobs(0, prompt.tokens, prompt.given, CHUNK)
                mine = torch.tensor([[value for _, value in row] for row in found], dtype=torch.float64)
                ours += float((mine - true).abs().mean())
        part.card.release()
        ratios.append(ours / theirs)
        part.add("error", {"ratio": ratios[-1]})
    part.add("error-mean", {"ratio": statistics.fmean(ratios)})
    part.bar("error-mean", "ratio", at_most=MOST_MEAN)
