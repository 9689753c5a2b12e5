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
from blockwright.tests.gpu.reference import CLOSE, load


@cache
@torch.no_grad()
def sampled(path: Path, prompt: tuple[int, ...], count: int, options: tuple[tuple[str, float], ...]) -> tuple[int, ...]:
    """``count`` tokens, fewer when the best two perturbed scores are closer than ``CLOSE``."""
    chosen = dict(options)
    processors = [
        RepetitionPenaltyLogitsProcessor(chosen["repetition_penalty"]),
        TemperatureLogitsWarper(chosen["temperature"]),
        TopKLogitsWarper(int(chosen["top_k"])),
        TopPLogitsWarper(chosen["top_p"]),
    ]
    model, out, cache_, fresh = load(path), list[int](), None, list(prompt)
    for _ in range(count):
        step = model(input_ids=torch.tensor([fresh]), past_key_values=cache_, use_cache=True)
        cache_ = step.past_key_values
        scores = step.logits[:, -1].float()
        ids = torch.tensor([[*prompt, *out]])
        scores = processors[0](ids, scores)
        for token in set(out):
            scores[0, token] -= chosen["presence_penalty"]
        for processor in processors[1:]:
            scores = processor(ids, scores)
        key = noise_key(int(chosen["seed"]), 0, len(prompt) + len(out))
        noisy = scores[0].double().numpy() + gumbel(key, np.arange(scores.shape[1]))
        second, best = np.sort(noisy)[-2:]
        if best - second < CLOSE:
            break
        fresh = [int(np.argmax(noisy))]
        out += fresh
    return tuple(out)
