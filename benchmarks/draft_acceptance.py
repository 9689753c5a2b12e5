"""The acceptance of drafts that an exit of the demo checkpoint draws: by coupling, and by the rule of speculative sampling.

The positions are those of the right answers to prompts that the checkpoint was not trained on. At each of them p is the
law of the top and q the one of the exit, with the top's norm and head. Both acceptances are computed, not counted:

- the rejection rule accepts with probability sum(min(p, q));
- coupling accepts where the least of E_i / p_i and of E_i / q_i, for one and the same exponential noise E, has the same i.
  For a token i that is so with probability 1 / sum_j(max(p_j / p_i, q_j / q_i)).

``within``: the difference of the two.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from harness import OURS, Bar, Report

from blockwright.api.demo.checkpoint import encode
from blockwright.api.demo.tasks import HELD_OUT, examination

FOLDER = Path(__file__).parents[1] / "examples" / "demo-checkpoint"
EXITS, TEMPERATURES = (3, 4, 5), (0.7, 1.0, 1.5)
CLOSE = 0.002


def bars() -> list[Bar]:
    return [Bar(case_of(layers, heat), "within", at_most=CLOSE) for layers in EXITS for heat in TEMPERATURES]


def case_of(layers: int, heat: float) -> str:
    return f"demo/exit{layers}/T{heat:g}"


def rejected(p_NV: np.ndarray, q_NV: np.ndarray) -> float:
    """Return the acceptance of the rejection rule, over all positions."""
    return float(np.minimum(p_NV, q_NV).sum(axis=1).mean())


def coupled(p_NV: np.ndarray, q_NV: np.ndarray) -> float:
    """Return the acceptance of coupling, over all positions."""
    total = 0.0
    for p_V, q_V in zip(p_NV, q_NV, strict=True):
        token_K = np.flatnonzero((p_V > 0) & (q_V > 0))  # only these can be drawn by both
        ratio_KV = np.maximum(p_V / p_V[token_K, None], q_V / q_V[token_K, None])
        total += float((1 / ratio_KV.sum(axis=1)).sum())
    return total / len(p_NV)


@torch.no_grad()
def logits(per_task: int) -> dict[int, torch.Tensor]:
    """Return the logits [N, V] before each token of the answers, by exit; 0: of the top."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    found: dict[int, list[torch.Tensor]] = {}
    for example in examination(7, per_task, (HELD_OUT,)):
        prompt, answer = encode(example.prompt), encode(example.answer)[1:]  # each begins with a mark of its own
        states = model(torch.tensor([[*prompt, *answer]]), output_hidden_states=True).hidden_states
        for layers in (0, *EXITS):
            # the last of the states has passed the final norm already
            state_TD = states[-1][0] if not layers else model.model.norm(states[layers][0])
            found.setdefault(layers, []).append(model.lm_head(state_TD[len(prompt) - 1 :]).double())
    return {layers: torch.cat(parts) for layers, parts in found.items()}


def measure(report: Report, per_task: int) -> None:
    """Add the acceptance of each exit at each temperature."""
    found = logits(per_task)
    for heat in TEMPERATURES:
        laws = {layers: torch.softmax(one / heat, dim=-1).numpy() for layers, one in found.items()}
        for layers in EXITS:
            by_rule, by_noise = rejected(laws[0], laws[layers]), coupled(laws[0], laws[layers])
            figures = {"rejection": by_rule, "coupling": by_noise, "within": by_rule - by_noise, "positions": len(laws[0])}
            report.add(case_of(layers, heat), OURS, figures)
