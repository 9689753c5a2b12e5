"""The acceptance of drafts that an exit of the demo checkpoint draws: by coupling, and by the rule of speculative sampling.

The positions are those of answers that the checkpoint samples itself. At each of them p is the law of the top and q that of
the exit, with the top's norm and head. The rejection rule accepts with probability sum(min(p, q)); coupling accepts where
both draw the same token with the same noise, which is counted over many noises. ``within``: the difference of the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import OURS, Bar, Report

from blockwright.api.demo.checkpoint import encode
from blockwright.api.demo.tasks import examination

FOLDER = Path(__file__).parents[1] / "examples" / "demo-checkpoint"
EXITS, TEMPERATURES = (3, 4, 5), (0.7, 1.0, 1.5)
ANSWER = 24  # tokens
CLOSE = 0.002


def bars() -> list[Bar]:
    return [Bar(case_of(layers, heat), "within", at_most=CLOSE) for layers in EXITS for heat in TEMPERATURES]


def case_of(layers: int, heat: float) -> str:
    return f"demo/exit{layers}/T{heat:g}"


def rejected(p_NV: np.ndarray, q_NV: np.ndarray) -> float:
    """Return the acceptance of the rejection rule, over all positions."""
    return float(np.minimum(p_NV, q_NV).sum(axis=1).mean())


def coupled(p_NV: np.ndarray, q_NV: np.ndarray, noises: int, seed: int) -> float:
    """Return the acceptance of coupling, counted over ``noises`` noises of each position."""
    draw, same = np.random.default_rng(seed), 0
    with np.errstate(divide="ignore"):
        log_p_NV, log_q_NV = np.log(p_NV), np.log(q_NV)
    for p_V, q_V in zip(log_p_NV, log_q_NV, strict=True):
        noise_MV = draw.gumbel(size=(noises, p_V.size))
        same += int(np.count_nonzero((p_V + noise_MV).argmax(axis=1) == (q_V + noise_MV).argmax(axis=1)))
    return same / (noises * len(p_NV))


@torch.no_grad()
def laws(model: Any, prompts: list[list[int]], heat: float) -> dict[int, np.ndarray]:
    """Return the laws [N, V] at the positions of sampled answers, by exit; 0: of the top."""
    found: dict[int, list[np.ndarray]] = {}
    torch.manual_seed(1)
    for prompt in prompts:
        given = torch.tensor([prompt])
        row = model.generate(given, do_sample=True, temperature=heat, top_k=0, max_new_tokens=ANSWER, pad_token_id=0)
        states = model(row[:, :-1], output_hidden_states=True).hidden_states
        for layers in (0, *EXITS):
            # the last of the states has passed the final norm already
            state_TD = states[-1][0] if not layers else model.model.norm(states[layers][0])
            logits_TV = model.lm_head(state_TD[len(prompt) - 1 :]).double() / heat
            found.setdefault(layers, []).append(torch.softmax(logits_TV, dim=-1).numpy())
    return {layers: np.concatenate(parts) for layers, parts in found.items()}


def measure(report: Report, per_task: int, noises: int) -> None:
    """Add the acceptance of each exit at each temperature."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    prompts = [encode(example.prompt) for example in examination(7, per_task)]
    for heat in TEMPERATURES:
        found = laws(model, prompts, heat)
        for layers in EXITS:
            by_rule, by_noise = rejected(found[0], found[layers]), coupled(found[0], found[layers], noises, layers)
            figures = {"rejection": by_rule, "coupling": by_noise, "within": by_rule - by_noise, "positions": len(found[0])}
            report.add(case_of(layers, heat), OURS, figures)
