"""Training of the demo checkpoint's siblings: two near fine-tunes and a wider model, for adaptive chains.

    python examples/train_demo.py --siblings [NAME ...]

``support`` begins as the checkpoint, ``sales`` as ``support``, at a lower rate: so they are near. Both train the upper
layers whole, on mixes of tasks that differ in their shares (``api/demo/siblings.py``). ``wide`` begins as the checkpoint
with more channels: what is new writes nothing at first. All of them learn in float32 on one thread, so that every processor
does the same arithmetic, up to the order of its sums; the weights are stored in bfloat16. ``report.json`` in each folder has
the accuracy, ``equivalences`` what ``blockwright zoo equivalence`` measures of the first two.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import demo_family
import torch
import train_demo
from demo_checkpoint import write_folder
from safetensors.torch import load_file
from train_demo import Llama

from blockwright.api.commands.cli import main
from blockwright.api.demo.family import Form
from blockwright.api.demo.siblings import LEARNED, SALES, SUPPORT, WIDE, mix
from blockwright.api.demo.tasks import HELD_OUT, TASKS, accuracy, examination
from blockwright.zoo.add import add

SEED, EXAMINED = 23, 100
PROBES = (24, 25)  # seeds of the prompts and of the probe by which blocks are compared
WIDER = 208  # channels of the wider model
RECIPES: dict[str, dict[str, Any]] = {
    SUPPORT: {"steps": 800, "size": 32, "rate": 4e-3, "room": 0.0, "seed": SEED},
    SALES: {"steps": 150, "size": 32, "rate": 4e-4, "room": 0.0, "seed": SEED + 1},
    WIDE: {"steps": 200, "size": 32, "rate": 2e-3, "room": 0.0, "seed": SEED},
}


def grown(base: Llama, hidden: int) -> Llama:
    """Return a copy with more channels, which holds noise in those of the embedding and writes nothing else there."""
    model = Llama(replace(base.shape, hidden=hidden))
    wide, narrow = model.state_dict(), base.state_dict()
    for name, weight in wide.items():
        source = narrow[name]
        if weight.ndim == 1:
            weight[: len(source)] = source * (len(source) / hidden) ** 0.5  # the mean is over more channels
            continue
        if weight.shape[0] == hidden:  # what writes into the channels
            weight[len(source) :] = 0
        weight[: source.shape[0], : source.shape[1]] = source
    model.load_state_dict(wide)
    return model


def learned_share(model: Llama, name: str) -> dict[str, float]:
    """Return the share of right answers to held-out prompts: of each learned task, and of the checkpoint's own together."""
    examples = examination(SEED, EXAMINED, (HELD_OUT,), mix(name))
    counts = accuracy(zip(examples, train_demo.answers(model, examples), strict=True))
    found = {task: counts[task, HELD_OUT] for task in LEARNED}
    own = [counts[task, HELD_OUT] for task in TASKS]
    found["checkpoint's tasks"] = sum(right for right, _ in own), sum(total for _, total in own)
    return {task: round(right / total, 4) for task, (right, total) in found.items()}


def begun(name: str, base: Path, folder: Path) -> Llama:
    """Return a sibling before its training."""
    model = demo_family.foundation(base)
    if name == WIDE:
        return grown(model, WIDER)
    if name == SALES:
        own = load_file(folder / SUPPORT / demo_family.OWN_SHARD)
        model.load_state_dict({key.removeprefix("model."): weight.float() for key, weight in own.items()}, strict=False)
    demo_family.prepare(model, Form.UPPER)
    return model


def make(names: list[str], base: Path, folder: Path) -> None:
    """Train and write siblings; ``report.json`` in the folder of each has its recipe and its accuracy."""
    torch.set_num_threads(1)
    for name in names:
        began = time.monotonic()
        torch.manual_seed(SEED)
        model = begun(name, base, folder)
        train_demo.train(model, **RECIPES[name], tasks=mix(name), mixed=False)
        demo_family.rounded(model)
        if name == WIDE:
            write_folder(folder / name, asdict(model.shape), model.state_dict(), {})
        else:
            demo_family.write_upper(folder / name, model, base)
        seconds = round(time.monotonic() - began)
        report = {"recipe": RECIPES[name], "training_seconds": seconds, "accuracy": learned_share(model, name)}
        (folder / name / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        print(name, json.dumps(report), flush=True)
    if {SUPPORT, SALES} & {*names}:
        measure(folder)


def measure(folder: Path) -> None:
    """Find the blocks of the two near fine-tunes that may answer for each other; keep the results beside them."""
    with tempfile.TemporaryDirectory() as scratch:
        root, data = Path(scratch) / "zoo", Path(scratch) / "data.jsonl"
        for name in (SUPPORT, SALES):
            add(root, str(folder / name), name)
        rows = (example for seed in PROBES for example in examination(seed, EXAMINED, (HELD_OUT,), mix(SUPPORT)))
        data.write_text("".join(json.dumps({"prompt": one.prompt, "answer": one.answer}) + "\n" for one in rows))
        done = main(["zoo", "equivalence", SUPPORT, SALES, "--data", str(data), "--zoo", str(root)])
        assert done == 0, "the comparison has said why"
        shutil.rmtree(folder / "equivalences", ignore_errors=True)
        shutil.copytree(root / "equivalences", folder / "equivalences")
