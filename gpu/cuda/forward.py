"""A forward pass over the operations: queues what the parts of a run compute, in scratch of fixed names.

Owns the sizes of that scratch. Legend: T tokens, D hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..model.config import AttentionConfig, EmbeddingConfig
from .components import AttentionPart, BlockPart, CudaRun, EmbeddingPart, HeadPart, MlpPart, Part, Product
from .ops import DeviceStep, Finish, Ops, Sum
from .scratch import Scratch

INPUT, QUERIES = "input", "queries"
ATTENDED, PARTS = "attended", "parts"
LOW, WIDE = "low", "wide"
LOGITS = "logits"
FIRST, SECOND = "first", "second"  # sums, and what deltas add to them
SIDE, ADAPTED = "side", "adapted"


class Forward:
    """The forward passes of one back end. ``begun`` is called for each part."""

    def __init__(
        self,
        ops: Ops,
        scratch: Scratch,
        embedding_factor: Callable[[EmbeddingConfig, torch.dtype], float],
        begun: Callable[[], None],
    ) -> None:
        self._ops, self._scratch = ops, scratch
        self._factor, self._begun = embedding_factor, begun

    def reserve(self, run: CudaRun, tokens: int, longest: int) -> None:
        """Size the scratch for steps of ``tokens`` tokens with positions below ``longest``."""
        size, need = self._ops.dtype.itemsize, self._scratch.need
        for part in run.parts:
            if isinstance(part, EmbeddingPart):
                continue
            need(INPUT, tokens * run.width * size)
            if isinstance(part, HeadPart):
                self._need_product(FIRST, part.product, tokens)
                need(LOGITS, 4 * tokens * run.vocabulary)
                continue
            if isinstance(part, AttentionPart):
                wide = tokens * part.config.heads * part.config.head_dim * size
                need(QUERIES, wide)
                need(ATTENDED, wide)
                need(PARTS, self._ops.attend_bytes(tokens, longest, part.config))
            else:
                need(ATTENDED, tokens * part.config.intermediate * size)
            self._need_product(FIRST, part.first, tokens)
            self._need_product(SIDE if part.aside else SECOND, part.second, tokens)
            if part.bottlenecks is not None:
                need(WIDE, 4 * tokens * part.width)
                need(f"{ADAPTED} delta", 4 * tokens * part.width)
                need(LOW, tokens * part.bottlenecks[0].columns * size)

    def _need_product(self, name: str, product: Product, tokens: int) -> None:
        weight, terms = product.weight, product.terms
        self._scratch.need(name, self._ops.product_bytes(tokens, weight.width, weight.outputs))
        if terms is not None:
            self._scratch.need(f"{name} delta", 4 * tokens * weight.outputs)
            self._scratch.need(LOW, tokens * terms.columns * self._ops.dtype.itemsize)

    def run(self, parts: Sequence[Part], step: DeviceStep, hidden: int) -> None:
        """Queue all parts, over hidden states [T, D] in place."""
        side: Sum | None = None
        normed = False  # the input of the next part is there already
        for i, part in enumerate(parts):
            self._begun()
            if isinstance(part, EmbeddingPart):
                self._embed(part, step, hidden)
                continue
            assert not isinstance(part, HeadPart), "a head is computed by logits()"
            x = self._input(part, step, hidden, normed)
            term = self._attention(part, step, x) if isinstance(part, AttentionPart) else self._feed_forward(part, step, x)
            if part.bottlenecks is not None and step.number_T:
                term = self._adapted(part, step, term, hidden)
            normed = False
            if part.aside:
                side = term
                continue
            following = parts[i + 1] if i + 1 < len(parts) else None
            before = following.before if isinstance(following, BlockPart) else None
            how = Finish(term, side, part.after, part.multiplier)
            self._ops.finish(step, hidden, part.width, how, before, self._scratch[INPUT] if before is not None else 0)
            side, normed = None, before is not None

    def logits(self, part: HeadPart, step: DeviceStep, hidden: int) -> str:
        """Queue a head. Return the buffer of its logits, float32 [T, V]."""
        self._begun()
        x = self._scratch[INPUT]
        self._ops.normalise(hidden, part.norm, part.config.hidden, x, step.tokens)
        term = self._product(part.product, step, x, FIRST)
        self._ops.logits(step, term, part.config.divisor, part.config.softcap, self._scratch[LOGITS])
        return LOGITS

    def _embed(self, part: EmbeddingPart, step: DeviceStep, hidden: int) -> None:
        config = part.config
        self._ops.embed(step, part.weight, config.hidden, self._factor(config, self._ops.dtype), hidden)
        if part.virtual and step.number_T:
            self._ops.fill(step, part.virtual, config.hidden, hidden)

    def _input(self, part: BlockPart, step: DeviceStep, hidden: int, normed: bool) -> int:
        if part.before is None:
            return hidden
        if not normed:
            self._ops.normalise(hidden, part.before, part.width, self._scratch[INPUT], step.tokens)
        return self._scratch[INPUT]

    def _attention(self, part: AttentionPart, step: DeviceStep, x: int) -> Sum:
        config: AttentionConfig = part.config
        qkv = self._product(part.first, step, x, FIRST)
        q, out = self._scratch[QUERIES], self._scratch[ATTENDED]
        virtual = part.virtual if step.number_T else 0
        self._ops.heads(step, qkv, config, part.norms, part.rotary, q, part.kv, part.layer, virtual)
        self._ops.attend(step, q, config, part.kv, part.layer, out, self._scratch[PARTS])
        return self._product(part.second, step, out, SIDE if part.aside else SECOND)

    def _feed_forward(self, part: MlpPart, step: DeviceStep, x: int) -> Sum:
        inner = self._product(part.first, step, x, FIRST)
        self._ops.activate(step, inner, part.config.activation, part.config.gated, self._scratch[ATTENDED])
        return self._product(part.second, step, self._scratch[ATTENDED], SECOND)

    def _product(self, product: Product, step: DeviceStep, x: int, name: str) -> Sum:
        found = self._ops.product(x, product.weight, self._scratch[name], step.tokens)
        delta = 0
        if (terms := product.terms) is not None and step.number_T:
            delta, low = self._scratch[f"{name} delta"], self._scratch[LOW]
            self._ops.shrink(step, x, product.weight.width, terms, low)
            self._ops.expand(step, low, terms, product.weight.outputs, delta)
        return replace(found, biases=product.biases, delta=delta)

    def _adapted(self, part: BlockPart, step: DeviceStep, term: Sum, hidden: int) -> Sum:
        """Return a component's result with the bottlenecks of some rows."""
        assert part.bottlenecks is not None
        terms, reads = part.bottlenecks
        x, wide = self._scratch[INPUT], self._scratch[WIDE]
        low = self._scratch[LOW]
        self._ops.adapt(step, term, hidden, reads, x, wide)
        delta = self._scratch[f"{ADAPTED} delta"]
        self._ops.shrink(step, x, part.width, terms, low)
        self._ops.expand(step, low, terms, part.width, delta)
        return Sum(wide, 1, part.width, delta=delta)
