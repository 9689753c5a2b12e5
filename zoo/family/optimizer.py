"""Optimizers over parameters by name, with all their state in tensors by name, so that a run can be stored whole.

AdamW for everything, or Muon for the matrices of the layers and AdamW for the rest. Muon's orthogonalization runs in
float32: torch's own runs in bfloat16, which processors without instructions for that type compute ten times slower.

Legend: N matrices of one shape, R rows, C columns; R is at most C.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

BETAS, EPS = (0.9, 0.98), 1e-8
MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of Jordan et al. 2024
ITERATIONS = 5
MATCHED = 0.2  # root mean square of an update of AdamW, to which Muon's is scaled, so that both take one rate

Weights = dict[str, torch.Tensor]


class Optimizer:
    """An optimizer of some parameters. Muon updates ``matrices``; ``state`` holds all that the optimizer remembers."""

    def __init__(self, parameters: Weights, matrices: Sequence[str], decay: float) -> None:
        self.parameters, self._decay = parameters, decay
        muon = set(matrices)
        self._adam = [name for name in parameters if name not in muon]
        shapes: dict[tuple[int, ...], list[str]] = {}
        for name in matrices:
            shapes.setdefault(tuple(parameters[name].shape), []).append(name)
        self._shapes = list(shapes.values())
        self.state: Weights = {f"m.{name}": torch.zeros_like(one) for name, one in parameters.items()}
        self.state |= {f"v.{name}": torch.zeros_like(parameters[name]) for name in self._adam}

    @torch.no_grad()
    def step(self, gradients: Weights, rate: float, number: int) -> None:
        """Update all parameters that have a gradient. ``number``: of the step since the optimizer began, from 1 on."""
        for name in self._adam:
            if name in gradients:
                self._adamw(name, gradients[name], rate, number)
        for names in self._shapes:
            self._muon([name for name in names if name in gradients], gradients, rate)

    def _adamw(self, name: str, gradient: torch.Tensor, rate: float, number: int) -> None:
        weight = self.parameters[name]
        m = self.state[f"m.{name}"]
        v = self.state[f"v.{name}"]
        m.lerp_(gradient, 1 - BETAS[0])
        v.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        if weight.ndim > 1:
            weight.mul_(1 - rate * self._decay)
        scale = (v / (1 - BETAS[1] ** number)).sqrt_().add_(EPS)
        weight.addcdiv_(m, scale, value=-rate / (1 - BETAS[0] ** number))

    def _muon(self, names: Sequence[str], gradients: Weights, rate: float) -> None:
        if not names:
            return
        updates = []
        for name in names:
            m = self.state[f"m.{name}"]
            m.lerp_(gradients[name], 1 - MOMENTUM)
            updates.append(gradients[name].lerp(m, MOMENTUM))
        made_NRC = orthogonalized(torch.stack(updates))
        scale = MATCHED * max(made_NRC.shape[1:]) ** 0.5
        for name, update in zip(names, made_NRC, strict=True):
            self.parameters[name].mul_(1 - rate * self._decay).sub_(update, alpha=rate * scale)


def orthogonalized(matrices_NRC: torch.Tensor) -> torch.Tensor:
    """Return the matrices with all singular values near 1."""
    turned = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x_NRC: torch.Tensor = matrices_NRC.mT if turned else matrices_NRC
    x_NRC = x_NRC / (torch.linalg.matrix_norm(x_NRC, keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(ITERATIONS):
        gram_NRR = x_NRC @ x_NRC.mT
        x_NRC = a * x_NRC + (b * gram_NRR + c * gram_NRR @ gram_NRR) @ x_NRC
    back_NRC: torch.Tensor = x_NRC.mT if turned else x_NRC
    return back_NRC
