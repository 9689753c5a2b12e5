"""Pruning of a block: half of the heads and of the feed-forward's columns are removed, and what is left is repaired.

What stays is chosen by the energy that it adds to the hidden states of a probe. Heads go by whole groups, so that queries
keep their keys and values. The repair is a low-rank correction of the output projections by least squares; it is added to
the weights, so that it costs nothing at serving. Each component is repaired on the states that the pruned ones before it
give, towards the states of the whole block.

Legend: B rows, L positions, T positions without padding, D hidden width, Q columns of an output projection, U units that
stay or go together, S columns of a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ...gpu.cpu.reference.deltas import Products
from ...gpu.model.config import MLP, AttentionConfig, ComponentConfig, MlpConfig, ParallelConfig, attention_of
from ...policies.adaptive.surrogates import better_half
from ..equivalence.measuring import Progress
from ..family.network import Weights, component_output

RANK = 4  # the hidden width is divided by this for the rank of a repair
RIDGE = 1e-3  # of the mean energy of a column, added to each
OUT = ("o", "down")  # output projections
ROWS = {"o": ("q",), "down": ("gate", "up")}  # projections whose rows are the columns of an output projection


@dataclass(frozen=True, slots=True)
class ProbeBatch:
    """Rows of a probe: tokens or hidden states, and which positions are no padding."""

    x: torch.Tensor
    real_BL: torch.Tensor


@dataclass(slots=True)
class PrunedComponent:
    """A component with fewer heads and columns, its parameters by role in the type of the checkpoint."""

    config: ComponentConfig
    weights: Weights


class _OutputRecorder(Products):
    """Products that keep the inputs and outputs of output projections, by role; outputs without the bias."""

    def __init__(self, *given: Any, seen: dict[str, tuple[torch.Tensor, torch.Tensor]], **named: Any) -> None:
        super().__init__(*given, **named)
        self._seen = seen

    def __call__(self, role: str, x_TD: torch.Tensor) -> torch.Tensor:
        y_TQ = super().__call__(role, x_TD)
        if role in OUT:
            self._seen[self._prefix + role] = x_TD, y_TQ
        return y_TQ


def prunable(config: ComponentConfig) -> bool:
    """Return whether heads or columns of a component can be removed."""
    attention = attention_of(config)
    mlp = config.mlp if isinstance(config, ParallelConfig) else config
    return (attention is not None and attention.heads > 1) or (isinstance(mlp, MlpConfig) and mlp.intermediate > 1)


@torch.no_grad()
def prune(
    components: Sequence[tuple[ComponentConfig, Weights]],
    dtypes: Sequence[Mapping[str, torch.dtype]],
    batches: Sequence[ProbeBatch],
    progress: Progress,
) -> list[PrunedComponent]:
    """Return a pruned block.

    Args:
        components: the block, with parameters in float32.
        dtypes: the types of its parameters in the checkpoint, by role.
        batches: the states before the block.
        progress: called behind each component.
    """
    found = []
    tokens = sum(int(one.real_BL.sum()) for one in batches)
    true = list(batches)
    near = list(batches)
    for place, (config, weights) in enumerate(components):
        made = _Pruning(config, weights, true)
        repaired = made.repaired(near, dtypes[place])
        near = [_behind(repaired.config, _wide(repaired.weights), one) for one in near]
        true = made.behind
        found.append(repaired)
        progress("repair", (place + 1) * tokens, len(components) * tokens)
    return found


class _Pruning:
    """The pruning of one component. ``behind``: the states that the whole one gives."""

    def __init__(self, config: ComponentConfig, weights: Weights, batches: Sequence[ProbeBatch]) -> None:
        self._config, self._weights = config, weights
        self._units = _units(config)
        self.behind: list[ProbeBatch] = []
        self._outputs: dict[str, list[torch.Tensor]] = {role: [] for role in self._units}
        energy = {role: torch.zeros(count, size, size) for role, (count, size) in self._units.items()}
        for batch in batches:
            seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
            self.behind.append(_behind(config, weights, batch, seen))
            for role, (count, size) in self._units.items():
                z_TUS = seen[role][0][batch.real_BL].view(-1, count, size)
                energy[role] += torch.einsum("tus,tuv->usv", z_TUS, z_TUS)
                self._outputs[role].append(self._plain(role, seen[role][1][batch.real_BL]))
        self.kept = {role: self._kept(role, one) for role, one in energy.items()}

    def _plain(self, role: str, y_TD: torch.Tensor) -> torch.Tensor:
        """Return a projection's output without its bias."""
        bias = self._weights.get(f"{role}_bias")
        return y_TD if bias is None else y_TD - bias

    def _kept(self, role: str, energy_USS: torch.Tensor) -> list[int]:
        count, size = self._units[role]
        weight_UDS = self._weights[role].view(-1, count, size).transpose(0, 1)
        return better_half(torch.einsum("uds,usv,udv->u", weight_UDS, energy_USS, weight_UDS).tolist())

    def repaired(self, batches: Sequence[ProbeBatch], dtypes: Mapping[str, torch.dtype]) -> PrunedComponent:
        """Return the component with the units that stay. ``batches``: the states that it will be given."""
        config, weights = self._cut()
        for role in self._units:
            drifts = role == [*self._units][-1] and not _part(config, role).post_norm
            weights[role] = self._fitted(config, weights, role, batches, drifts=drifts)
        stored = {role: one.to(dtypes[role]).contiguous() for role, one in weights.items()}
        return PrunedComponent(config, stored)

    def _cut(self) -> tuple[ComponentConfig, Weights]:
        config, weights = self._config, dict(self._weights)
        for role, kept in self.kept.items():
            size = self._units[role][1]
            columns = _places(kept, size)
            weights[role] = weights[role][:, columns]
            prefix = MLP if role.startswith(MLP) else ""
            for name in ROWS[role.removeprefix(MLP)]:
                _take(weights, prefix + name, columns)
            config = _narrow(config, weights, role, kept)
        return config, weights

    def _fitted(
        self, config: ComponentConfig, weights: Weights, role: str, batches: Sequence[ProbeBatch], *, drifts: bool
    ) -> torch.Tensor:
        """Return an output projection [D, Q] with its low-rank correction.

        ``drifts``: it also makes up for the states that differ before the component.
        """
        start_DQ = weights[role]
        wide = start_DQ.shape[1]
        square_QQ, cross_DQ = torch.zeros(wide, wide), torch.zeros_like(start_DQ)
        factor = _part(config, role).multiplier
        for number, batch in enumerate(batches):
            seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
            behind = _behind(config, weights, batch, seen)
            z_TQ = seen[role][0][batch.real_BL]
            wanted_TD = self._outputs[role][number] - z_TQ @ start_DQ.T
            if drifts:
                left_TD = (self.behind[number].x - behind.x)[batch.real_BL]
                wanted_TD = left_TD / factor
            square_QQ += z_TQ.T @ z_TQ
            cross_DQ += wanted_TD.T @ z_TQ
        return start_DQ + low_rank(square_QQ, cross_DQ, max(1, start_DQ.shape[0] // RANK))


def low_rank(square_QQ: torch.Tensor, cross_DQ: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the matrix [D, Q] of a rank that maps inputs nearest to what is wanted, by least squares.

    ``square_QQ`` are the products of the inputs with each other, ``cross_DQ`` of what is wanted with the inputs.
    """
    square_QQ = square_QQ.double()
    square_QQ.diagonal().add_(RIDGE * float(square_QQ.diagonal().mean()) + 1e-12)
    lower_QQ = torch.linalg.cholesky(square_QQ)
    # in the inputs' own metric, the best matrix of a rank is the beginning of a singular value decomposition
    turned_QD = torch.linalg.solve_triangular(lower_QQ, cross_DQ.double().T, upper=False)
    u_QR, s_R, v_RD = torch.linalg.svd(turned_QD, full_matrices=False)
    cut_QD = (u_QR[:, :rank] * s_R[:rank]) @ v_RD[:rank]
    solved_QD: torch.Tensor = torch.linalg.solve_triangular(lower_QQ.T, cut_QD, upper=True)
    return solved_QD.T.float()


def _behind(
    config: ComponentConfig,
    weights: Weights,
    batch: ProbeBatch,
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
) -> ProbeBatch:
    products: Any = Products if seen is None else partial(_OutputRecorder, seen=seen)
    position_L = torch.arange(batch.x.shape[1])
    return replace(batch, x=component_output(config, weights, batch.x, position_L, products=products))


def _units(config: ComponentConfig) -> dict[str, tuple[int, int]]:
    """Return the number of units of each output projection, and the columns of one."""
    found = {}
    if (attention := attention_of(config)) is not None and attention.heads > 1:
        groups = attention.kv_heads if attention.kv_heads > 1 else attention.heads
        found["o"] = groups, attention.heads * attention.head_dim // groups
    if isinstance(config, MlpConfig):
        found["down"] = config.intermediate, 1
    if isinstance(config, ParallelConfig):
        found[f"{MLP}down"] = config.mlp.intermediate, 1
    return found


def _narrow(config: ComponentConfig, weights: Weights, role: str, kept: Sequence[int]) -> ComponentConfig:
    """Return the configuration with fewer units; take the rows of the keys and values that stay."""
    match config:
        case ParallelConfig() if role.startswith(MLP):
            return replace(config, mlp=replace(config.mlp, intermediate=len(kept)))
        case ParallelConfig():
            return replace(config, attention=_with_heads(config.attention, weights, kept))
        case AttentionConfig():
            return _with_heads(config, weights, kept)
        case MlpConfig():
            return replace(config, intermediate=len(kept))
    raise AssertionError("an embedding and a head have no units")


def _with_heads(config: AttentionConfig, weights: Weights, kept: Sequence[int]) -> AttentionConfig:
    if config.kv_heads == 1:
        return replace(config, heads=len(kept))
    for name in ("k", "v"):
        _take(weights, name, _places(kept, config.head_dim))
    return replace(config, heads=len(kept) * config.heads // config.kv_heads, kv_heads=len(kept))


def _take(weights: Weights, name: str, rows: torch.Tensor) -> None:
    """Keep rows of a projection, if there is one, of its bias, and of a norm over all of its rows."""
    mine = [one for one in (name, f"{name}_bias", f"{name}_norm") if one in weights]
    before = len(weights[mine[0]]) if mine else 0
    for one in mine:
        if len(weights[one]) == before:
            weights[one] = weights[one][rows]


def _places(units: Sequence[int], size: int) -> torch.Tensor:
    return (torch.tensor(units)[:, None] * size + torch.arange(size)).flatten()


def _part(config: ComponentConfig, role: str) -> AttentionConfig | MlpConfig:
    if isinstance(config, ParallelConfig):
        return config.mlp if role.startswith(MLP) else config.attention
    assert isinstance(config, AttentionConfig | MlpConfig)
    return config


def _wide(weights: Weights) -> Weights:
    return {role: one.float() for role, one in weights.items()}
