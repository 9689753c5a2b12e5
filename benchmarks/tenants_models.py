"""The applications of ``tenants.py`` on disk: 20 of two base models, with shared tensors, and as whole models.

The first base model has 8 LoRA, 2 BitFit and 2 full fine-tunes, the second 4, 2 and 2. A LoRA has rank 16 on q and v; a
BitFit shifts all linear modules; a full fine-tune changes the upper third of its base model's layers. Weights are random: a
merged model costs as much as any other of its shape, so models that share nothing have seeds of their own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from models import DTYPES, SIZES, make_model, shapes
from safetensors.torch import load_file, save_file

FOUNDATIONS = ("f0", "f1")
COUNTS = {"lora": (8, 4), "bitfit": (2, 2), "full": (2, 2)}  # of the first and the second foundation
RANK = 16
ALPHA = 32
SPREAD = 0.02
LORA_ON, ALL_LINEAR = ("q", "v"), ("q", "k", "v", "o", "gate", "up", "down")
ALONE = "per-model"
MERGED = "merged"
OURS = "blockwright"


@dataclass(frozen=True, slots=True)
class App:
    """An application: its model id, what it is, and whose."""

    name: str
    kind: str
    foundation: str


def apps() -> list[App]:
    """All twenty; kinds and foundations are mixed, so that neither stands for a rate."""
    found = [
        (kind, foundation) for kind, counts in COUNTS.items() for foundation, n in zip(FOUNDATIONS, counts, strict=True)
        for _ in range(n)
    ]  # fmt: skip
    random.Random(11).shuffle(found)
    return [App(f"a{place:02}", kind, foundation) for place, (kind, foundation) in enumerate(found)]


class Fleet:
    """The folders, made once. ``share/NAME``: a delta, or a fine-tune of which the lower part is its foundation's;
    ``alone/NAME``: the same as a model that shares nothing."""

    def __init__(self, folder: Path, size: str, dtype: str) -> None:
        self.folder = folder
        self.size = size
        self.dtype = dtype
        self.apps = apps()

    @property
    def model_bytes(self) -> int:
        """Raw bytes of one whole model."""
        return sum(torch.Size(shape).numel() for shape in shapes(SIZES[self.size]).values()) * DTYPES[self.dtype].itemsize

    def make(self) -> None:
        for seed, name in enumerate(FOUNDATIONS):
            make_model(self.size, self.dtype, self.folder / name, seed)
        for place, app in enumerate(self.apps):
            self._make(app, place)
        self.adapter(self.folder / "late", "lora", 999)  # one more, which is added hot

    def _make(self, app: App, place: int) -> None:
        make_model(self.size, self.dtype, self.folder / "alone" / app.name, 100 + place)
        target = self.folder / "share" / app.name
        if app.kind != "full":
            self.adapter(target, app.kind, place)
            return
        make_model(self.size, self.dtype, target, 200 + place)
        tensors = load_file(target / "model.safetensors")
        kept = load_file(self.folder / app.foundation / "model.safetensors")
        first = 2 * SIZES[self.size].layers // 3
        own = {name for name in tensors if name.startswith("model.layers.") and int(name.split(".")[2]) >= first}
        save_file(
            {n: t if n in own else kept[n] for n, t in tensors.items()}, target / "model.safetensors", {"format": "pt"}
        )

    def adapter(self, target: Path, kind: str, seed: int) -> None:
        """What ``peft`` would save; ``kind``: a key of COUNTS, or "lora-all", on all linear modules."""
        target.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(seed)
        targets = (
            ["q_proj", "v_proj"] if kind == "lora" else [f"{m}_proj" for m in ("q", "k", "v", "o", "gate", "up", "down")]
        )
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA} if kind != "bitfit" else {"peft_type": "BEFT"}
        tensors = {}
        for name, shape in shapes(SIZES[self.size]).items():
            module = name.removesuffix(".weight")
            if module.rpartition(".")[2] not in targets:
                continue
            parts: dict[str, tuple[int, ...]] = {"beft_bias": (shape[0],)}
            if kind != "bitfit":
                parts = {"lora_A.weight": (RANK, shape[1]), "lora_B.weight": (shape[0], RANK)}
            for part, sizes in parts.items():
                drawn = SPREAD * torch.randn(sizes, generator=generator)
                tensors[f"base_model.model.{module}.{part}"] = drawn.to(DTYPES[self.dtype])
        document = {**config, "task_type": "CAUSAL_LM", "target_modules": targets}
        (target / "adapter_config.json").write_text(json.dumps(document))
        save_file(tensors, target / "adapter_model.safetensors", {"format": "pt"})

    def command(self, subject: str) -> list[str]:
        """What follows ``blockwright serve``: the same model ids, whatever lies behind them."""
        if subject == ALONE:
            return self._command([(app.name, self.folder / "alone" / app.name) for app in self.apps])
        served = [(name, self.folder / name) for name in FOUNDATIONS]
        for app in self.apps:
            whole = subject == MERGED and app.kind == "full"
            served.append((app.name, self.folder / ("alone" if whole else "share") / app.name))
        bases = [f"bases.{app.name}={app.foundation}" for app in self.apps if app.kind != "full"]
        return [*self._command(served), *(word for base in bases for word in ("--set", base))]

    def _command(self, served: list[tuple[str, Path]]) -> list[str]:
        (_, first), *others = served
        words = [str(first), "--set", f"app_roots={self.folder}"]
        return words + [word for name, folder in others for word in ("--app", f"{name}={folder}")]

    def distinct_bytes(self) -> int:
        """Of all tensors of ``blockwright``'s applications, equal ones once."""
        shared = [self.folder / name for name in FOUNDATIONS] + [self.folder / "share" / app.name for app in self.apps]
        return sum(dict(pair for folder in shared for pair in contents(folder)).values())


def contents(folder: Path) -> Iterator[tuple[int, int]]:
    """(hash of its content, bytes) of every tensor in a folder's files."""
    for path in folder.glob("*.safetensors"):
        for tensor in load_file(path).values():
            yield hash((tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes())), tensor.nbytes
