"""Knowledge precipitation: fine-tuning of a checkpoint and of the heads of its exits, stage by stage.

One forward pass over all layers serves the losses of all active tiers: ``L_0 + lambda (L_1 + .. + L_i)``, each the
cross-entropy of the answers' tokens, with the divergence from the top tier where the recipe asks for it. The gradients of
the upper layers flow through the shared ones. Reads no file and no clock; ``run_file.py`` stores a run.

Legend: B examples, L positions, P learned positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F

from ...gpu.errors import BackendError
from ...gpu.select import open_backend
from ...gpu.weights.checkpoint import Checkpoint
from .examples import IGNORED, ExampleBatches, TrainingExample, tensors
from .network import ChainNetwork, LowRank
from .optimizer import Optimizer, Weights
from .recipe import Recipe


def narrow() -> bool:
    """Return True if the processor multiplies bfloat16 itself, so that products are computed in that type."""
    try:
        numerics = open_backend("native", "bfloat16", 1).numerics
    except BackendError:
        return False
    return "amx" in numerics or "avx512_bf16" in numerics


class Training:
    """A run: the network, the optimizer and the step that comes next."""

    def __init__(
        self, checkpoint: Checkpoint, recipe: Recipe, examples: Sequence[TrainingExample], *, bfloat16: bool
    ) -> None:
        self.recipe, self.step = recipe, 0
        self.means: dict[int, float] = {}  # running means of the losses, by the layers of the tier
        self.network = ChainNetwork(checkpoint)
        for layers in recipe.exits:
            if layers not in self.network.exits:
                self.network.add_head(layers)
        self._examples = ExampleBatches(examples, recipe.batch, recipe.seed)
        self.bfloat16 = bfloat16
        generator = torch.Generator().manual_seed(recipe.seed)
        network = self.network
        heads = {name: one for layers in recipe.exits for name, one in network.heads_of(layers).items()}
        self._low = LowRank(network, network.matrices(), recipe.rank, generator) if recipe.rank else None
        chosen = network.parameters if self._low is None else {**self._low.parameters, **heads}
        self.parameters: Weights = {name: one.requires_grad_() for name, one in chosen.items()}
        matrices = network.matrices() if recipe.optimizer == "muon" and self._low is None else []
        self.optimizer = Optimizer(self.parameters, matrices, recipe.decay)

    @property
    def active(self) -> tuple[int, ...]:
        """The exits that the next step trains, highest first."""
        return self.recipe.stages[self.recipe.stage_of(self.step)[0]]

    def advance(self) -> dict[int, float]:
        """Train one step; return the cross-entropy of each active tier, by its layers."""
        tokens_BL, labels_BL = tensors(self._examples.batch(self.step))
        losses = self._losses(tokens_BL, labels_BL)
        total = sum(losses[1:], losses[0])
        names = [*self.parameters]
        found = torch.autograd.grad(total[1], [self.parameters[name] for name in names], allow_unused=True)
        gradients = {name: one for name, one in zip(names, found, strict=True) if one is not None}
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in gradients.values()]))
        factor = min(1.0, self.recipe.clip / (float(norm) + 1e-6))
        gradients = {name: one * factor for name, one in gradients.items()}
        self.optimizer.step(gradients, self.recipe.rate_at(self.step), self.step + 1)
        tiers = (self.network.layers, *self.active)
        self.step += 1
        made = {layers: float(loss[0].detach()) for layers, loss in zip(tiers, losses, strict=True)}
        for layers, loss in made.items():
            self.means[layers] = loss if layers not in self.means else 0.95 * self.means[layers] + 0.05 * loss
        return made

    def _losses(self, tokens_BL: torch.Tensor, labels_BL: torch.Tensor) -> list[torch.Tensor]:
        """Return for the top and each active exit the cross-entropy, and its part of the loss."""
        recipe, network = self.recipe, self.network
        learned_BL = labels_BL != IGNORED
        count_B1 = learned_BL.sum(1, keepdim=True).clamp(min=1)
        weight_P = (count_B1.float() ** -recipe.even).expand_as(labels_BL)[learned_BL]
        weight_P = weight_P / weight_P.sum()
        labels_P = labels_BL[learned_BL]
        weights = self.weights()
        tiers = (network.layers, *self.active)
        with self._precision():
            hidden = network.hidden(weights, tokens_BL, tiers)
            logits = {layers: network.logits(weights, layers, hidden[layers][learned_BL]) for layers in tiers}
        found = []
        for layers in tiers:
            entropy = (F.cross_entropy(logits[layers], labels_P, reduction="none") * weight_P).sum()
            part = entropy
            if layers != network.layers:
                if recipe.kl:
                    part = part + recipe.kl * self._divergence(logits[network.layers], logits[layers], weight_P)
                part = recipe.lambda_ * part
            found.append(torch.stack((entropy, part)))
        return found

    def _divergence(self, top_PV: torch.Tensor, tier_PV: torch.Tensor, weight_P: torch.Tensor) -> torch.Tensor:
        """Return ``tau^2 KL(top || tier)``; the top tier is not changed by it."""
        tau = self.recipe.tau
        target_PV = (top_PV.detach() / tau).log_softmax(-1)
        each_PV = F.kl_div((tier_PV / tau).log_softmax(-1), target_PV, reduction="none", log_target=True)
        return (each_PV.sum(-1) * weight_P).sum() * tau**2

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=torch.bfloat16) if self.bfloat16 else nullcontext()

    def weights(self) -> Weights:
        """Return the network's parameters as they are now, low-rank terms added."""
        return self.network.parameters if self._low is None else self._low.merged()

    def state(self) -> Weights:
        """Return everything that the rest of the run depends on, except for the step."""
        return {f"p.{name}": one.detach() for name, one in self.parameters.items()} | self.optimizer.state

    @torch.no_grad()
    def restore(self, step: int, state: Weights) -> None:
        """Go on from a stored state."""
        self.step = step
        for name, one in self.state().items():
            one.copy_(state[name])
