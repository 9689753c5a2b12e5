"""Kernels over rows against float64, and each row's bits alone and in a batch.

Legend: T tokens, D hidden width, Z parts of a sum, H heads, K KV heads, E head size.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from blockwright.gpu.cuda.ops import DeviceStep, Finish, Norm
from blockwright.gpu.model.activations import BOTTLENECKS
from blockwright.gpu.model.config import AttentionConfig, NormConfig, RopeConfig
from blockwright.gpu.model.rotary import rotary_table, rotate
from blockwright.tests.gpu.cuda.kernels.steps import (
    EACH_TYPE,
    Worker,
    assert_near,
    ops_of,
    poisoned,
    random_attention,
    random_tensor,
)
from blockwright.tests.parts import parts

BATCH = [(2, 5, 3), (0, 0, 1), (1, 17, 2)]
TOKENS = sum(count for _, _, count in BATCH)
PLACES = [(row, start + i) for row, start, count in BATCH for i in range(count)]  # row and position of each token


def random_norm(draw: random.Random) -> NormConfig:
    return NormConfig(eps=1e-5, kind=draw.choice(("rms", "layer")), offset=draw.choice((0.0, 1.0)))


class Numbers:
    """Random operands, kept twice: where operations read them, and in float64."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.draw = worker.draw
        self.dtype = worker.dtype
        self.ops = worker.ops

    def model(self, *shape: int) -> torch.Tensor:
        return random_tensor(self.draw, *shape, dtype=self.dtype)

    def norm(self, config: NormConfig, width: int) -> tuple[Norm, torch.Tensor, torch.Tensor]:
        weight, bias = self.model(width), self.model(width)
        return Norm(config, self.worker.keep(weight), self.worker.keep(bias)), weight, bias

    def empty(self, *shape: int) -> tuple[torch.Tensor, int]:
        out = poisoned(*shape, dtype=self.dtype)
        return out, self.worker.keep(out)


def normed(x: torch.Tensor, config: NormConfig, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x, scale = x.double(), weight.double() + config.offset
    if config.kind == "layer":
        return F.layer_norm(x, (x.shape[-1],), scale, bias.double(), config.eps)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.eps) * scale


def alone(worker: Worker, token: int, numbers: list[int]) -> DeviceStep:
    """Return the step of a single token of the batch."""
    return worker.step([(*PLACES[token], 1)], numbers=[numbers[token]])


@EACH_TYPE
@pytest.mark.parametrize("seed", parts(125, 24))
def test_finish(dtype: torch.dtype, seed: int) -> None:
    """Sums of several parts with biases and deltas, post norm, factor, a second sum, the next norm: any of them, or none."""
    draw = random.Random(seed)
    some = Numbers(Worker(ops_of(dtype), draw))
    worker, width = some.worker, draw.choice((7, 64, 100))
    numbers = [draw.choice((0, 3)) for _ in BATCH]
    number_T = torch.tensor([n for n, (_, _, count) in zip(numbers, BATCH, strict=True) for _ in range(count)])
    hidden_TD, term = some.model(TOKENS, width), random_tensor(draw, draw.choice((1, 3)), TOKENS, width)
    bias, delta = some.model(width), random_tensor(draw, TOKENS, width)
    second = random_tensor(draw, 1, TOKENS, width)
    post, post_weight, post_bias = some.norm(random_norm(draw), width)
    norm, weight, norm_bias = some.norm(random_norm(draw), width)
    has = {name: draw.random() < 0.5 for name in ("bias", "delta", "side", "post", "norm")}
    multiplier = draw.choice((1.0, 0.22))

    def run(tokens: slice, step: DeviceStep) -> tuple[torch.Tensor, torch.Tensor]:
        h = hidden_TD[tokens].clone()
        out, address = some.empty(*h.shape)
        total = worker.sum(
            term[:, tokens].contiguous(),
            *([bias] if has["bias"] else []),
            delta=delta[tokens].contiguous() if has["delta"] else None,
        )
        side = worker.sum(second[:, tokens].contiguous()) if has["side"] else None
        how = Finish(total, side, post if has["post"] else None, multiplier)
        worker.ops.finish(step, worker.keep(h), width, how, norm if has["norm"] else None, address)
        return h, out

    found_TD, out_TD = run(slice(None), worker.step(BATCH, numbers=numbers))
    y = term.double().sum(0)
    if has["bias"]:
        y = y + bias.double()
    if has["delta"]:
        y = torch.where(number_T[:, None] != 0, y + delta.double(), y)
    y = (normed(y, post.config, post_weight, post_bias) if has["post"] else y) * multiplier
    assert_near(found_TD, hidden_TD.double() + y + (second[0].double() if has["side"] else 0.0), dtype)
    if has["norm"]:
        assert_near(out_TD, normed(found_TD, norm.config, weight, norm_bias), dtype)
        again, address = some.empty(TOKENS, width)
        worker.ops.normalise(worker.keep(found_TD), norm, width, address, TOKENS)
        assert torch.equal(again, out_TD)
    token = draw.randrange(TOKENS)
    found, out = run(slice(token, token + 1), alone(worker, token, number_T.tolist()))
    assert torch.equal(found[0], found_TD[token])
    assert not has["norm"] or torch.equal(out[0], out_TD[token])


def exact_heads(
    x_TQ: torch.Tensor,
    config: AttentionConfig,
    norms: list[tuple[torch.Tensor, torch.Tensor]],
    table: tuple[torch.Tensor, torch.Tensor],
) -> list[torch.Tensor]:
    """Return float64 queries, keys and values [T, heads, E]: normed and rotated."""
    size = config.head_dim
    sizes = [config.heads * size, config.kv_heads * size, config.kv_heads * size]
    q, k, v = x_TQ.split(sizes, 1)
    if config.qk_norm == "whole":
        q, k = (normed(one, config.norm, *norm) for one, norm in zip((q, k), norms, strict=True))
    q, k, v = (one.reshape(TOKENS, -1, size) for one in (q, k, v))
    if config.qk_norm == "head":
        q, k = (normed(one, config.norm, *norm) for one, norm in zip((q, k), norms, strict=True))
    at_T = torch.tensor([position for _, position in PLACES])
    angles = table[0][at_T].double(), table[1][at_T].double()
    return [rotate(q, angles, config.rope), rotate(k, angles, config.rope), v]


@EACH_TYPE
@pytest.mark.parametrize("seed", parts(100, 20))
def test_heads(dtype: torch.dtype, seed: int) -> None:
    """Norms of heads and of whole projections, rotation in halves or neighbors, prefixes, keys and values in slots."""
    draw = random.Random(seed)
    kind = draw.choice(("", "head", "whole"))
    config = random_attention(draw)
    size, (heads, kv_heads) = config.head_dim, (config.heads, config.kv_heads)
    dim = draw.choice((None, size // 2 // 2 * 2))
    config = replace(config, qk_norm=kind, rope=RopeConfig(theta=1e4, dim=dim, interleaved=draw.random() < 0.5))
    some = Numbers(Worker(ops_of(dtype), draw, page=draw.choice((4, 8))))
    worker, width = some.worker, (heads + 2 * kv_heads) * size
    sums = random_tensor(draw, draw.choice((1, 2)), TOKENS, width)
    biases = list(some.model(width).split([heads * size, kv_heads * size, kv_heads * size])) if draw.random() < 0.5 else []
    norms = []
    if kind:
        shapes = [heads * size, kv_heads * size] if kind == "whole" else [size, size]
        norms = [some.norm(config.norm, shape) for shape in shapes]
    table = rotary_table(config.rope, size, torch.arange(64), torch.float32)
    virtual_PC = some.model(7, 2 * kv_heads * size)
    virtual = torch.tensor([[0, 0], [0, 0], [worker.keep(virtual_PC), 7]])
    numbers = [draw.choice((0, 1, 2)) for _ in BATCH]

    def run(tokens: slice, step: DeviceStep) -> tuple[torch.Tensor, torch.Tensor]:
        arena, memory = worker.arena(2 * kv_heads * worker.page * size)
        out, q = some.empty(sums[0, tokens].shape[0], heads * size)
        worker.ops.heads(
            step,
            worker.sum(sums[:, tokens].clone(), *[bias.clone() for bias in biases]),
            config,
            [norm for norm, _, _ in norms],
            (worker.keep(table[0]), worker.keep(table[1])),
            q,
            arena,
            1,
            worker.keep(virtual),
        )
        return out, memory[:, : 2 * kv_heads * worker.page * size].reshape(-1, 2, kv_heads, worker.page, size)

    def slot(row: int, position: int) -> tuple[int, int]:
        return int(worker.slots[row, 1, position // worker.page]), position % worker.page

    q_TQ, kv = run(slice(None), worker.step(BATCH, numbers=numbers))
    x = sums.double().sum(0) + (torch.cat(biases).double() if biases else 0.0)
    *turned, v = exact_heads(x, config, [(weight, bias) for _, weight, bias in norms], table)
    assert_near(q_TQ, turned[0].flatten(1), dtype, 1.2)
    number_T = [n for n, (_, _, count) in zip(numbers, BATCH, strict=True) for _ in range(count)]
    for token, place in enumerate(PLACES):
        (number, within), expected = slot(*place), (turned[1][token], v[token])
        if number_T[token] == 2 and place[1] < 7:
            expected = tuple(virtual_PC[place[1]].double().view(2, kv_heads, size))
            assert torch.equal(kv[number, :, :, within].double(), torch.stack(expected))
        for i in (0, 1):
            assert_near(kv[number, i, :, within], expected[i], dtype, 3)
    written = torch.zeros(kv.shape[0], worker.page, dtype=torch.bool)
    written[tuple(torch.tensor([slot(*place) for place in PLACES]).T)] = True
    assert torch.equal(kv.isnan().all(4).all(2).all(1), ~written)
    token = draw.randrange(TOKENS)
    q_1Q, kv_1 = run(slice(token, token + 1), alone(worker, token, number_T))
    number, within = slot(*PLACES[token])
    assert torch.equal(q_1Q[0], q_TQ[token])
    assert torch.equal(kv_1[number, :, :, within], kv[number, :, :, within])


@EACH_TYPE
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "gelu_new", "gelu_fast", "relu"])
def test_activate(dtype: torch.dtype, activation: str) -> None:
    draw = random.Random(activation)
    some = Numbers(Worker(ops_of(dtype), draw))
    gated, inner = activation != "gelu_fast", 37
    sums = random_tensor(draw, 2, TOKENS, inner * (1 + gated)) * 2
    sums[:, 0] *= 30  # where an exponential overflows
    if activation.startswith("gelu_"):
        sums[:, 1, :inner] = -1.3  # where tanh is near -1, and 1 + tanh would cancel
    biases = [some.model(inner) for _ in range(1 + gated)]
    out_TI, address = some.empty(TOKENS, inner)
    step = some.worker.step(BATCH)
    some.ops.activate(step, some.worker.sum(sums, *biases), activation, gated, address)
    x = sums.double().sum(0) + torch.cat(biases).double()
    exact = BOTTLENECKS[activation](x[:, :inner]) * (x[:, inner:] if gated else 1.0)
    assert_near(out_TI, exact, dtype)
    assert_near(out_TI[1:], exact[1:], dtype)
    if activation.startswith("gelu_"):
        assert_near(out_TI[1], exact[1], dtype)


@EACH_TYPE
def test_embed_and_fill(dtype: torch.dtype) -> None:
    """Tokens of the table, zero for virtual ones; then the rows of those with a delta's prompt."""
    draw = random.Random(3)
    some = Numbers(Worker(ops_of(dtype), draw))
    worker, width = some.worker, 40
    weight_VD, prompt_PD = some.model(50, width), some.model(7, width)
    worker.tokens[0, :9] = -1
    worker.tokens[2, 6] = -1
    step = worker.step(BATCH, numbers=[1, 0, 2], padding=2)
    out_TD, address = some.empty(step.tokens, width)
    worker.ops.embed(step, worker.keep(weight_VD), width, 1.5, address)
    token_T = [int(worker.tokens[place]) for place in PLACES]
    expected = torch.stack(
        [(weight_VD[t].float() * 1.5).to(dtype) if t >= 0 else torch.zeros(width, dtype=dtype) for t in token_T]
    )
    assert torch.equal(out_TD[:TOKENS], expected)
    virtual = torch.tensor([[0, 0], [worker.keep(prompt_PD), 7], [0, 0]])
    worker.ops.fill(step, worker.keep(virtual), width, address)
    expected[:2] = prompt_PD[5:7]  # the first row's positions 5 and 6; 7 is behind the prompt
    assert torch.equal(out_TD[:TOKENS], expected)


def test_logits() -> None:
    draw = random.Random(4)
    some = Numbers(Worker(ops_of(torch.bfloat16), draw))
    sums = random_tensor(draw, 2, TOKENS, 70) * 20
    delta = random_tensor(draw, TOKENS, 70)
    step = some.worker.step(BATCH, numbers=[0, 1, 0])
    for divisor, cap in ((1.0, 0.0), (4.0, 0.0), (0.5, 30.0)):
        out = poisoned(TOKENS, 70)
        some.ops.logits(step, some.worker.sum(sums, delta=delta), divisor, cap, some.worker.keep(out))
        exact = sums.double().sum(0)
        exact[3] += delta[3].double()
        exact = exact / divisor
        assert_near(out, torch.tanh(exact / cap) * cap if cap else exact, torch.float32)
