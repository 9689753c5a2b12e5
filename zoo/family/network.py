"""Trainable network: the chain of a checkpoint in torch, with exits, computed as the reference back end does.

Parameters have the names of the checkpoint's tensors; a fused tensor is one parameter. Parameters are float32.

Legend: B examples, L positions, S positions with those of a cache, T all positions of a batch, D hidden width, N heads,
K KV heads, G heads of a group, Q rows of a group (its heads times positions), H head size, V vocabulary, P chosen positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F

from ...gpu.cpu.reference.calls import TorchCalls
from ...gpu.cpu.reference.deltas import Products
from ...gpu.cpu.reference.operations import feed_forward, normalise
from ...gpu.model.activations import embedding_multiplier, soft_cap
from ...gpu.model.config import (
    MLP,
    AttentionConfig,
    ComponentConfig,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    ParallelConfig,
)
from ...gpu.model.parts import Source
from ...gpu.model.rotary import rotary_table, rotate
from ...gpu.weights.checkpoint import Checkpoint
from ...gpu.weights.exits import SUFFIXES
from ...gpu.weights.export import tensors_by_name
from ...gpu.weights.loader import read_rows

WRITTEN_OUT = 256  # positions up to which attention's backward pass is faster in single operations
ALPHA = 2.0  # factor of low-rank terms
CALLS = TorchCalls()
TOP = 0  # key of the top tier's head among the exits

Weights = dict[str, torch.Tensor]
Past = dict[int, tuple[torch.Tensor, torch.Tensor]]  # keys and values of each attention, by its place in the chain


def head_name(layers: int) -> str:
    """Return the name in exits.safetensors of the head of the exit after this many layers."""
    return f"after-{layers}"


class ChainNetwork:
    """The chain of one checkpoint, with the parameters of all its heads."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        tied = checkpoint.config.tied
        self.layers = checkpoint.config.layers
        raw = tensors_by_name(checkpoint)
        self.dtypes = {name: tensor.dtype for name, tensor in raw.items()}
        self.parameters: Weights = {name: tensor.float() for name, tensor in raw.items()}
        self._chain: list[tuple[ComponentConfig, Mapping[str, Source]]] = list(checkpoint.chain)
        self._per_layer = (len(self._chain) - 2) // self.layers
        head, roles = self._chain.pop()
        assert isinstance(head, HeadConfig), "a chain ends with its head"
        self.head = head
        embedding = self._chain[0][1]["weight"].name
        self._heads = {TOP: {role: embedding if tied and role == "weight" else one.name for role, one in roles.items()}}
        for layers, refs in checkpoint.exits.items():
            self._add(layers, {role: read_rows(ref, 0, ref.shape[0]).float() for role, ref in refs.items()})

    @property
    def depth(self) -> int:
        """The number of components before the head."""
        return len(self._chain)

    @property
    def exits(self) -> list[int]:
        """The layers of all exits, ascending."""
        return sorted(self._heads.keys() - {TOP})

    def add_head(self, layers: int) -> None:
        """Give an exit a head of its own that begins as the top's."""
        self._add(layers, {role: self.parameters[name].detach().clone() for role, name in self._heads[TOP].items()})

    def _add(self, layers: int, tensors: Mapping[str, torch.Tensor]) -> None:
        names = {role: f"{head_name(layers)}.{SUFFIXES[role]}" for role in tensors}
        for role, name in names.items():
            self.parameters[name] = tensors[role]
            self.dtypes[name] = self.dtypes[self._heads[TOP][role]]
        self._heads[layers] = names

    def heads_of(self, layers: int) -> dict[str, torch.Tensor]:
        """Return the parameters of an exit's head, by their names."""
        return {name: self.parameters[name] for name in self._heads[layers].values()}

    def matrices(self) -> list[str]:
        """Return the names of the layers' projections."""
        names = dict.fromkeys(source.name for _, roles in self._chain[1:] for source in roles.values())
        return [name for name in names if self.parameters[name].ndim == 2]

    def hidden(
        self, weights: Weights, tokens_BL: torch.Tensor, taps: Iterable[int], past: Past | None = None
    ) -> dict[int, torch.Tensor]:
        """Return the hidden states [B, L, D] after some numbers of layers; layers above the last one are not computed.

        ``past`` holds keys and values of earlier positions, and gets the ones of these.
        """
        wanted, found = set(taps), {}
        last = 1 + max(wanted) * self._per_layer
        for place, hidden_BLD in enumerate(self.passage(weights, tokens_BL, 0, last, past)):
            if place and place % self._per_layer == 0 and place // self._per_layer in wanted:
                found[place // self._per_layer] = hidden_BLD
        return found

    def passage(
        self, weights: Weights, x: torch.Tensor, first: int, last: int, past: Past | None = None
    ) -> Iterator[torch.Tensor]:
        """Yield the hidden states [B, L, D] behind each of the components ``first`` to ``last - 1``, without the head.

        ``x``: the states before the first of them, or the tokens [B, L] before an embedding. ``past`` is as in ``hidden``.
        """
        before = 0 if not past else next(iter(past.values()))[0].shape[1]
        position_L = torch.arange(before, before + x.shape[1])
        for place in range(first, last):
            config, mine = self.component(weights, place)
            x = component_output(config, mine, x, position_L, past, place)
            yield x

    def component(self, weights: Weights, place: int) -> tuple[ComponentConfig, Weights]:
        """Return the configuration of a component before the head, and its parameters by role."""
        config, roles = self._chain[place]
        return config, {role: _rows(weights[source.name], source) for role, source in roles.items()}

    def logits(self, weights: Weights, layers: int, hidden_PD: torch.Tensor) -> torch.Tensor:
        """Return the logits [P, V] of the head of an exit, or of the top's."""
        names = self._heads[TOP if layers == self.layers else layers]
        mine = {role: weights[name] for role, name in names.items()}
        logits_PV = F.linear(normalise(hidden_PD, mine, "norm", self.head.norm), mine["weight"])
        if self.head.divisor != 1.0:
            logits_PV = logits_PV / self.head.divisor
        return soft_cap(logits_PV, self.head.softcap).float()


def component_output(
    config: ComponentConfig,
    weights: Weights,
    x: torch.Tensor,
    position_L: torch.Tensor,
    past: Past | None = None,
    place: int = 0,
    products: type[Products] = Products,
) -> torch.Tensor:
    """Return the hidden states [B, L, D] behind a component. ``past`` is as in ``hidden``, by ``place``."""
    match config:
        case EmbeddingConfig():
            embedded_BLD = F.embedding(x, weights["weight"])
            factor = 1.0 if config.multiplier == 1.0 else embedding_multiplier(config, torch.float32)
            return embedded_BLD if factor == 1.0 else embedded_BLD * factor
        case AttentionConfig():
            return x + _attention(place, config, products(weights, (), 0, CALLS), x, position_L, past)
        case MlpConfig():
            return x + _mlp(config, products(weights, (), 0, CALLS), x)
        case ParallelConfig():
            second = {role.removeprefix(MLP): one for role, one in weights.items() if role.startswith(MLP)}
            attended_BLD = _attention(place, config.attention, products(weights, (), 0, CALLS), x, position_L, past)
            return x + _mlp(config.mlp, products(second, (), 0, CALLS, MLP), x) + attended_BLD
    raise AssertionError("a head stands at the end of a chain")


def _rows(tensor: torch.Tensor, source: Source) -> torch.Tensor:
    """Return the rows of a role from the tensor of the file, which may be fused."""
    if source.rows is None:
        return tensor
    first, count, period = source.rows
    periods = tensor.view(-1, period, *tensor.shape[1:])
    return periods[:, first : first + count].reshape(-1, *tensor.shape[1:])


def _mlp(config: MlpConfig, product: Products, x_BLD: torch.Tensor) -> torch.Tensor:
    normed_BLD = normalise(x_BLD, product.weights, "norm", config.norm) if config.pre_norm else x_BLD
    return _finish(feed_forward(normed_BLD, product, config), product.weights, config)


def _finish(out_BLD: torch.Tensor, weights: Weights, config: AttentionConfig | MlpConfig) -> torch.Tensor:
    if config.post_norm:
        out_BLD = normalise(out_BLD, weights, "post_norm", config.norm)
    return out_BLD if config.multiplier == 1.0 else out_BLD * config.multiplier


def _attention(
    place: int,
    config: AttentionConfig,
    product: Products,
    x_BLD: torch.Tensor,
    position_L: torch.Tensor,
    past: Past | None,
) -> torch.Tensor:
    batch, length, _ = x_BLD.shape
    weights, norm = product.weights, config.norm
    normed_BLD = normalise(x_BLD, weights, "norm", norm) if config.pre_norm else x_BLD
    q_BLQ, k_BLQ, v_BLQ = (product(role, normed_BLD) for role in "qkv")
    if config.qk_norm == "whole":
        q_BLQ, k_BLQ = normalise(q_BLQ, weights, "q_norm", norm), normalise(k_BLQ, weights, "k_norm", norm)
    q_TNH, k_TKH, v_TKH = (one.reshape(batch * length, -1, config.head_dim) for one in (q_BLQ, k_BLQ, v_BLQ))
    if config.qk_norm == "head":
        q_TNH, k_TKH = normalise(q_TNH, weights, "q_norm", norm), normalise(k_TKH, weights, "k_norm", norm)
    table = rotary_table(config.rope, config.head_dim, position_L.repeat(batch), q_TNH.dtype)
    q_TNH, k_TKH = rotate(q_TNH, table, config.rope), rotate(k_TKH, table, config.rope)
    q_BLNH, k_BSKH, v_BSKH = (one.view(batch, length, -1, config.head_dim) for one in (q_TNH, k_TKH, v_TKH))
    if past is not None:
        if place in past:
            k_BSKH, v_BSKH = (torch.cat(pair, 1) for pair in zip(past[place], (k_BSKH, v_BSKH), strict=True))
        past[place] = k_BSKH, v_BSKH
    out_BLQ = _attend(q_BLNH, k_BSKH, v_BSKH, position_L, config)
    return _finish(product("o", out_BLQ), weights, config)


def _attend(
    q_BLNH: torch.Tensor, k_BSKH: torch.Tensor, v_BSKH: torch.Tensor, position_L: torch.Tensor, config: AttentionConfig
) -> torch.Tensor:
    kv_heads = k_BSKH.shape[2]
    batch, length, heads, size = q_BLNH.shape
    key_S = torch.arange(k_BSKH.shape[1])
    seen_LS = key_S <= position_L[:, None]
    if config.window is not None:
        seen_LS &= key_S > position_L[:, None] - config.window
    q_BKGLH = q_BLNH.view(batch, length, kv_heads, heads // kv_heads, size).permute(0, 2, 3, 1, 4)
    k_BKSH, v_BKSH = k_BSKH.transpose(1, 2), v_BSKH.transpose(1, 2)
    if config.softcap or len(key_S) <= WRITTEN_OUT:
        q_BKQH = q_BKGLH.reshape(batch, kv_heads, -1, size)  # a group's heads as rows of one product
        scores_BKGLS = (q_BKQH @ k_BKSH.mT).view(*q_BKGLH.shape[:4], -1) * config.scale
        scores_BKGLS = soft_cap(scores_BKGLS, config.softcap).masked_fill(~seen_LS, -math.inf)
        weight_BKQS = scores_BKGLS.softmax(-1).to(v_BKSH.dtype).view(batch, kv_heads, -1, len(key_S))
        out_BKGLH = (weight_BKQS @ v_BKSH).view(q_BKGLH.shape)
    else:
        shape = (*q_BKGLH.shape[:3], len(key_S), size)
        k, v = k_BKSH[:, :, None].expand(shape), v_BKSH[:, :, None].expand(shape)
        out_BKGLH = F.scaled_dot_product_attention(q_BKGLH, k, v, attn_mask=seen_LS, scale=config.scale)
    return out_BKGLH.permute(0, 3, 1, 2, 4).reshape(batch, length, heads * size)


class LowRank:
    """Low-rank terms of a network's projections, trained in their place."""

    def __init__(self, network: ChainNetwork, names: Sequence[str], rank: int, generator: torch.Generator) -> None:
        self.parameters: Weights = {}
        self._base = network.parameters
        self._names = names
        for name in names:
            rows, columns = network.parameters[name].shape
            self.parameters[f"{name}.a"] = torch.randn((rank, columns), generator=generator) * columns**-0.5
            self.parameters[f"{name}.b"] = torch.zeros((rows, rank))

    def merged(self) -> Weights:
        """Return the network's parameters with the terms added."""
        terms = {name: self.parameters[f"{name}.b"] @ self.parameters[f"{name}.a"] * ALPHA for name in self._names}
        return self._base | {name: self._base[name] + term for name, term in terms.items()}
