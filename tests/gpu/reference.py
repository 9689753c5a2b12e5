"""What transformers computes for a checkpoint folder: the side of a comparison that is not ours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

CLOSE = 1e-4  # best two logits nearer than this: the choice is not ours to judge


@cache
def load(path: Path, dtype: str = "float32") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()


@torch.no_grad()
def logits(path: Path, tokens: Sequence[int], dtype: str = "float32") -> torch.Tensor:
    """float32 [tokens, vocabulary]."""
    out: torch.Tensor = load(path, dtype)(input_ids=torch.tensor([list(tokens)])).logits[0]
    return out.float()


@cache
@torch.no_grad()
def greedy(path: Path, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """``count`` greedy tokens, fewer when a choice is closer than ``CLOSE``. Uses transformers' own cache."""
    model = load(path)
    out = []
    cache_ = None
    fresh = list(prompt)
    for _ in range(count):
        step = model(input_ids=torch.tensor([fresh]), past_key_values=cache_, use_cache=True)
        cache_ = step.past_key_values
        best = torch.topk(step.logits[0, -1].float(), 2)
        if float(best.values[0] - best.values[1]) < CLOSE:
            break
        fresh = [int(best.indices[0])]
        out += fresh
    return tuple(out)


def compared(scores_TV: torch.Tensor, tokens: Sequence[int]) -> int:
    """How many of ``tokens`` are judged by the scores at their positions: all before the first choice closer than ``CLOSE``.
    AssertionError where one of these is not the best."""
    best = torch.topk(scores_TV, 2)
    close = (best.values[:, 0] - best.values[:, 1] < CLOSE).tolist()
    count = close.index(True) if True in close else len(tokens)
    want = best.indices[:count, 0].tolist()
    assert list(tokens[:count]) == want, f"{list(tokens)} where the reference has {want}"
    return count


@cache
@torch.no_grad()
def confirm(path: Path, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    """``compared`` with transformers' greedy answer to ``prompt``, in one pass over both: as long as each token is the best
    after those before it, they are what transformers would generate."""
    return compared(logits(path, prompt + tokens)[len(prompt) - 1 : -1], tokens)


def prompt_of(length: int, seed: int = 0, vocabulary: int = 384) -> tuple[int, ...]:
    """A random prompt."""
    generator = torch.Generator().manual_seed(seed * 1000 + length)
    return tuple(torch.randint(3, vocabulary, (length,), generator=generator).tolist())
