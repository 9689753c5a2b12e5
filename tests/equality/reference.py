"""Seeded sampling over transformers' logits with transformers' own processors, then the noise of gpu/sampling/noise.py."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from blockwright.gpu.sampling.noise import gumbel, noise_key
from blockwright.tests.gpu.reference import compared, logits


@cache
@torch.no_grad()
def confirm_sampled(
    path: Path, prompt: tuple[int, ...], tokens: tuple[int, ...], options: tuple[tuple[str, float], ...]
) -> int:
    """``compared`` with what these options choose after ``prompt``, in one pass over both (see ``confirm``)."""
    chosen = dict(options)
    processors = [
        TemperatureLogitsWarper(chosen["temperature"]),
        TopKLogitsWarper(int(chosen["top_k"])),
        TopPLogitsWarper(chosen["top_p"]),
    ]
    repetition = RepetitionPenaltyLogitsProcessor(chosen["repetition_penalty"])
    noisy = []
    for position, plain in enumerate(logits(path, prompt + tokens)[len(prompt) - 1 : -1]):
        out = tokens[:position]
        ids = torch.tensor([[*prompt, *out]])
        scores = repetition(ids, plain[None])
        scores[0, list(set(out))] -= chosen["presence_penalty"]
        for processor in processors:
            scores = processor(ids, scores)
        key = noise_key(int(chosen["seed"]), 0, len(prompt) + position)
        noisy.append(scores[0].double() + torch.from_numpy(gumbel(key, np.arange(scores.shape[1]))))
    return compared(torch.stack(noisy), tokens)
