"""Drafts by another model, for ``drafts.py``: tokens per second relative to the ideal E T(1) / (g D(1) + T(g + 1)).

The target is a random model whose upper layers write ``SCALES`` times less into the hidden states; the draft model has
copies of its lower layers, each number a little changed, so that the two share nothing. The smaller the scale, the more
drafts stand. E is the number of tokens of a round as recorded, T(n) the shortest time of the target's kernels for n
positions of each request, and D(1) the draft model's for one, measured in the same round.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from harness import OURS, Report
from models import SIZES, make_model, prompts
from safetensors.torch import load_file, save_file
from server import Served, ServerError

SIZE = "M"
LAYERS = 2  # of the draft model
SCALES = (0.3, 0.1, 0.03)
CHANGED = 1e-3  # of each number of the draft model, relative
DRAFT = "small"
DRAFT_SIZE = f"{SIZE} of {LAYERS} layers"
SIZES[DRAFT_SIZE] = replace(SIZES[SIZE], layers=LAYERS)


class Timed(Protocol):
    """The kernels of a model (``drafts.Verifier``)."""

    def seconds(self, rows: int, positions: int, repeats: int) -> float: ...


def case(dtype: str, requests: int, scale: float) -> str:
    return f"{SIZE}/{dtype}/c{requests}/model{scale:g}"


def make_pair(dtype: str, scale: float, folder: Path) -> tuple[Path, Path]:
    """Write a target and its draft model; return their folders."""
    target, draft = make_model(SIZE, dtype, folder / "target"), make_model(DRAFT_SIZE, dtype, folder / "draft")
    tensors, generator = load_file(target / "model.safetensors"), torch.Generator().manual_seed(1)
    for name in tensors:
        parts = name.split(".")
        if len(parts) > 4 and int(parts[2]) >= LAYERS and parts[4] in ("o_proj", "down_proj"):
            tensors[name] = tensors[name] * scale
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    copies = {}
    for name in load_file(draft / "model.safetensors"):
        noise = torch.randn(tensors[name].shape, generator=generator)
        copies[name] = (tensors[name].float() * (1 + CHANGED * noise)).to(tensors[name].dtype)
    save_file(copies, draft / "model.safetensors", {"format": "pt"})
    return target, draft


async def measure(
    report: Report, server: Served, rigs: tuple[Timed, Timed], name: str, requests: int, rounds: int, tokens: int,
    fixed: tuple[int, ...], turn: Callable[..., Awaitable[Any]],
) -> None:  # fmt: skip
    """Measure one case: no drafts, fixed numbers and the policy in turns. ``rigs``: the target's kernels, the draft's."""
    target, draft = rigs
    asked = prompts(SIZE, requests, 8, seed=requests)
    plain = await turn(server, asked, tokens, [{"draft": "off"}] * requests)
    rates = dict[str, list[float]]()
    for number in range(-1, rounds):  # the first is not counted
        kernel = {n: target.seconds(requests, n, 5) for n in (1, *(g + 1 for g in fixed))}
        one = draft.seconds(requests, 1, 5)
        off = 0.0
        for subject in ("off", *(f"g{g}" for g in fixed), "policy"):
            g = int(subject[1:]) if subject.startswith("g") else 0
            fields = {"draft": "off"} if subject == "off" else {"draft": DRAFT, "draft_tokens": g}
            done = await turn(server, asked, tokens, [fields] * requests)
            if done.answers != plain.answers:
                raise ServerError(f"{name}: other tokens with {subject}")
            off = off or done.rate
            if number < 0:
                continue
            rates.setdefault(subject, []).append(done.rate)
            report.add(f"{name}/{subject}", OURS, {"out_tok_per_s": done.rate, "tokens_per_round": done.of_round})
            if g:
                ideal = done.of_round * kernel[1] / (g * one + kernel[1 + g])
                report.add(f"{name}/{subject}", OURS, {"of_ideal": done.rate / off / ideal, "ideal": ideal})
    middle = {subject: statistics.median(found) for subject, found in rates.items()}
    policy = middle.pop("policy")
    report.add(f"{name}/policy", OURS, {"of_best": policy / max(middle.values()), "speedup": policy / middle["off"]})
