"""Part 2 of ``gpu.py``: every kernel against float64, with fresh inputs and poisoned results, in both types.

``error`` is the norm of the difference by the norm of the truth; where a kernel copies or chooses,
0 or 1: all equal, or not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gpu_card import DTYPES, in_order
from gpu_report import Part
from gpu_sizes import Sizes
from gpu_steps import LAYER, Bench, attention

from blockwright.gpu.cuda import ops as records
from blockwright.gpu.cuda.ops import FIELDS, Finish, Norm, Terms
from blockwright.gpu.model.config import AttentionConfig, NormConfig
from blockwright.gpu.sampling.noise import gumbel, noise_key

TOLERANCE = {"float32": 2e-6, "bfloat16": 8e-3}
EPS = 1e-5
RANK = 16
Kernel = Callable[[Bench, Sizes], float]


def measure(part: Part) -> None:
    """Add the largest error of each kernel over its seeds."""
    for dtype in DTYPES:
        for name, kernel in KERNELS.items():
            case = f"{name}/{dtype}"
            with part.attempt(case):
                errors = [
                    kernel(Bench(part.card, part.card.ops(dtype), seed=seed), part.sizes) for seed in range(part.sizes.seeds)
                ]
                part.add(case, {"error": max(errors)})
                exact = name in EXACT
                part.bar(case, "error", at_most=0.0 if exact else TOLERANCE["float32" if name in WIDE else dtype])


def error_of(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the relative error; what is not finite counts as infinite."""
    off = float((found.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30))
    return off if np.isfinite(off) else float("inf")


def _sizes(bench: Bench, sizes: Sizes) -> tuple[int, int, int]:
    """Return tokens, a width and outputs that are no multiples of tiles: small where the operations are."""
    small = bench.card.mirrored
    return (5, 24, 20) if small else (int(bench.draw.integers(1, 200)), 1000, 3000)


def product(bench: Bench, sizes: Sizes) -> float:
    _, width, outputs = _sizes(bench, sizes)
    worst = 0.0
    for tokens in sizes.product_rows:
        x_TW, weights = bench.random(tokens, width), [bench.random(outputs + n, width) for n in range(3)]
        worst = max(worst, error_of(bench.product(x_TW, *weights), x_TW.double() @ torch.cat(weights).double().T))
    return worst


def _attention(bench: Bench, config: AttentionConfig) -> float:
    """A prefill's end, a chunk, and a token, over a cached prefix; behind the last key lies poison."""
    lengths = (1, 40, 70) if bench.card.mirrored else (1, 130, 250)
    slots, memory = bench.arena(config)
    kv_R = [bench.random(length, 2, config.kv_heads, config.head_dim) for length in lengths]
    for row, kv_S2KE in enumerate(kv_R):
        bench.write_kv(memory, row, kv_S2KE)
    batch = [(row, length - count, count) for row, (length, count) in enumerate(zip(lengths, (1, 7, 1), strict=True))]
    tokens = sum(count for *_, count in batch)
    q_TQ = bench.random(tokens, config.heads * config.head_dim)
    counts = [count for *_, count in batch]
    found = torch.split(bench.attend(batch, q_TQ, config, slots), counts)
    given = torch.split(q_TQ, counts)
    pairs = zip(batch, found, given, strict=True)
    return max(error_of(out, exact_attention(q, kv_R[row], start, config)) for (row, start, _), out, q in pairs)


def exact_attention(q_TQ: torch.Tensor, kv_S2KE: torch.Tensor, start: int, config: AttentionConfig) -> torch.Tensor:
    """Return the attention of consecutive queries from position ``start`` on, in float64."""
    count = len(q_TQ)
    end = start + count
    q = q_TQ.double().view(count, config.kv_heads, -1, config.head_dim)
    k, v = kv_S2KE[:end].double().unbind(1)
    score = torch.einsum("tkge,ske->kgts", q, k) * config.scale
    if config.softcap:
        score = torch.tanh(score / config.softcap) * config.softcap
    own = torch.arange(start, end, device=q.device)[:, None]
    key = torch.arange(end, device=q.device)[None]
    seen = key <= own
    if config.window:
        seen &= key > own - config.window
    weight = score.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("kgts,ske->tkge", weight, v).flatten(1)


def attend(bench: Bench, sizes: Sizes) -> float:
    heads = ((4, 2, 8),) if bench.card.mirrored else ((32, 8, 64), (32, 8, 128), (8, 8, 80), (8, 4, 256))
    return max(_attention(bench, attention(*shape)) for shape in heads)


def window_and_cap(bench: Bench, sizes: Sizes) -> float:
    size = 8 if bench.card.mirrored else 128
    return max(_attention(bench, attention(4, 2, size, window=window, softcap=5.0)) for window in (None, 33))


def _norm(bench: Bench, width: int) -> tuple[Norm, torch.Tensor]:
    weight_D = bench.random(width)
    return Norm(NormConfig(eps=EPS), bench.keep(weight_D)), weight_D


def _normed(x: torch.Tensor, weight_D: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight_D.double()


def normalise(bench: Bench, sizes: Sizes) -> float:
    tokens, width, _ = _sizes(bench, sizes)
    x_TD, out_TD = bench.random(tokens, width), bench.empty(tokens, width)
    norm, weight_D = _norm(bench, width)
    x = bench.keep(x_TD)
    in_order(bench.card, lambda: bench.ops.normalise(x, norm, width, out_TD.data_ptr(), tokens))
    return error_of(out_TD, _normed(x_TD, weight_D))


def finish(bench: Bench, sizes: Sizes) -> float:
    """The residual sum of four parts, and its norm."""
    tokens, width, _ = _sizes(bench, sizes)
    hidden_TD, parts = bench.random(tokens, width), bench.random(4, tokens, width, dtype=torch.float32)
    truth = hidden_TD.double() + parts.double().sum(0)
    norm, weight_D = _norm(bench, width)
    out_TD = bench.empty(tokens, width)
    step = bench.step([(0, 0, tokens)])
    how = Finish(bench.sum(parts))
    hidden = bench.keep(hidden_TD)
    in_order(bench.card, lambda: bench.ops.finish(step, hidden, width, how, norm, out_TD.data_ptr()))
    return max(error_of(hidden_TD, truth), error_of(out_TD, _normed(hidden_TD, weight_D)))


def activate(bench: Bench, sizes: Sizes) -> float:
    tokens, width, _ = _sizes(bench, sizes)
    parts, out_TI = bench.random(2, tokens, 2 * width, dtype=torch.float32), bench.empty(tokens, width)
    step, inner = bench.step([(0, 0, tokens)]), bench.sum(parts)
    in_order(bench.card, lambda: bench.ops.activate(step, inner, "silu", True, out_TI.data_ptr()))
    gate, up = torch.split(parts.double().sum(0), width, -1)
    return error_of(out_TI, torch.nn.functional.silu(gate) * up)


def rotate_and_write(bench: Bench, sizes: Sizes) -> float:
    """Queries rotated, keys rotated and written to their slots, values written as they are."""
    config = attention(4, 2, 8) if bench.card.mirrored else attention(8, 2, 128)
    heads = config.heads
    narrow = config.kv_heads
    size = config.head_dim
    start = 3
    tokens = 6
    qkv = bench.random(2, tokens, (heads + 2 * narrow) * size, dtype=torch.float32)
    angle = np.arange(start + tokens)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)[None]
    cos, sin = (torch.from_numpy(f(angle)).to(bench.card.device) for f in (np.cos, np.sin))
    tables = bench.keep(cos.float()), bench.keep(sin.float())
    slots, memory = bench.arena(config)
    step = bench.step([(1, start, tokens)], config)
    q_TQ = bench.empty(tokens, heads * size)
    given = bench.sum(qkv)
    in_order(bench.card, lambda: bench.ops.heads(step, given, config, (), tables, q_TQ.data_ptr(), slots, LAYER))
    total = qkv.double().sum(0).view(tokens, -1, size)
    low, high = total[:, : heads + narrow].chunk(2, -1)
    c, s = (table[start:, None] for table in (cos, sin))
    turned = torch.cat([low * c - high * s, high * c + low * s], -1)
    truth_kv = torch.stack([turned[:, heads:], total[:, heads + narrow :]], 1)
    place = [(int(bench.slots_RLP[1, LAYER, p // bench.page]), p % bench.page) for p in range(start, start + tokens)]
    found_kv = torch.stack([memory[slot, :, :, at] for slot, at in place])
    return max(error_of(q_TQ, turned[:, :heads].flatten(1)), error_of(found_kv, truth_kv))


def low_rank(bench: Bench, sizes: Sizes) -> float:
    """Rows of two adapters, and rows of none between them, whose result is never written."""
    _, width, outputs = _sizes(bench, sizes)
    pairs = [(bench.random(RANK, width), bench.random(outputs, RANK)) for _ in range(2)]
    record = np.zeros((3, 1, FIELDS), dtype=np.int64)
    record[:, :, records.ROWS] = outputs
    for number, (a, b) in enumerate(pairs, 1):
        record[number, 0, records.A], record[number, 0, records.B] = bench.keep(a), bench.keep(b)
        record[number, 0, records.RANK] = RANK
        record[number, 0, records.SCALE] = int(np.float64(0.5).view(np.int64))
    terms = Terms(bench.ints(record), 1, RANK, outputs)
    numbers = (1, 0, 2)
    step = bench.step([(row, 0, 3) for row in range(3)], numbers=numbers)
    x_TW, low = bench.random(9, width), bench.empty(9, RANK)
    delta_TQ = bench.empty(9, outputs, dtype=torch.float32)
    x = bench.keep(x_TW)

    def both() -> None:
        bench.ops.shrink(step, x, width, terms, low.data_ptr())
        bench.ops.expand(step, low.data_ptr(), terms, outputs, delta_TQ.data_ptr())

    in_order(bench.card, both)
    worst = 0.0
    for row, number in enumerate(numbers):
        if number:
            a, b = (one.double() for one in pairs[number - 1])
            at = slice(3 * row, 3 * row + 3)
            worst = max(worst, error_of(delta_TQ[at], 0.5 * (x_TW[at].double() @ a.T) @ b.T))
    return worst


def logits(bench: Bench, sizes: Sizes) -> float:
    tokens, _, vocabulary = _sizes(bench, sizes)
    parts, out_TV = (
        bench.random(2, tokens, vocabulary, dtype=torch.float32),
        bench.empty(tokens, vocabulary, dtype=torch.float32),
    )
    step, term = bench.step([(0, 0, tokens)]), bench.sum(parts)
    in_order(bench.card, lambda: bench.ops.logits(step, term, 2.0, 30.0, out_TV.data_ptr()))
    return error_of(out_TV, torch.tanh(parts.double().sum(0) / 2 / 30) * 30)


def embed(bench: Bench, sizes: Sizes) -> float:
    """A copy of rows: equal or not."""
    tokens, width, _ = _sizes(bench, sizes)
    weight = bench.random(50, width)
    out_TD = bench.empty(tokens, width)
    step = bench.step([(2, 1, tokens)])
    address = bench.keep(weight)
    in_order(bench.card, lambda: bench.ops.embed(step, address, width, 1.0, out_TD.data_ptr()))
    return _unequal(out_TD, weight[torch.from_numpy(bench.tokens_RM[2, 1 : 1 + tokens]).long().to(weight.device)])


def gather_and_scatter(bench: Bench, sizes: Sizes) -> float:
    tokens, width, _ = _sizes(bench, sizes)
    source = bench.random(tokens, width)
    middle = bench.empty(tokens, width)
    back = bench.empty(tokens, width)
    order = bench.draw.permutation(tokens).astype(np.int32)
    index, address = bench.ints(order), bench.keep(source)

    def both() -> None:
        bench.ops.gather(address, index, middle.data_ptr(), tokens, width)
        bench.ops.scatter(middle.data_ptr(), index, back.data_ptr(), tokens, width)

    in_order(bench.card, both)
    chosen = torch.from_numpy(order).long().to(source.device)
    return max(_unequal(middle, source[chosen]), _unequal(back, source))


def copy_slots(bench: Bench, sizes: Sizes) -> float:
    words, count = 4096 // 4, 5
    source = bench.random(count + 3, words, dtype=torch.float32)
    target = bench.empty(count, words, dtype=torch.float32)
    chosen = bench.draw.permutation(count + 3)[:count].astype(np.int32)
    index, address = bench.ints(chosen), bench.keep(source)
    in_order(bench.card, lambda: bench.ops.copy_slots(address, index, target.data_ptr(), 0, count, 4 * words))
    return _unequal(target, source[torch.from_numpy(chosen).long().to(source.device)])


def draw(bench: Bench, sizes: Sizes) -> float:
    """The tokens of the host's sampler, at temperatures, and at 0 the best ones."""
    rows, vocabulary = 4, 300 if bench.card.mirrored else 128256
    scores = bench.random(rows, vocabulary, dtype=torch.float32)
    keys = np.array([noise_key(int(bench.draw.integers(1 << 40)), 0, n) for n in range(rows)], dtype=np.uint64)
    heat = np.array([0.0, 0.3, 1.0, 1.7])
    token = bench.keep(torch.full((rows,), -9, dtype=torch.int32, device=bench.card.device))
    drawn = bench.kept(-1)
    key, temperature = bench.ints(keys.view(np.int64)), bench.ints(heat)
    address = bench.keep(scores)
    in_order(bench.card, lambda: bench.ops.draw(address, rows, vocabulary, key, temperature, token))
    found = scores.double().cpu().numpy()
    noise = [gumbel(int(keys[n]), np.arange(vocabulary)) if heat[n] else np.zeros(vocabulary) for n in range(rows)]
    want = [int(np.argmax(found[n] / (heat[n] or 1.0) + noise[n])) for n in range(rows)]
    return float(drawn.tolist() != want)


def _unequal(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float(not torch.equal(found, truth))


KERNELS: dict[str, Kernel] = {
    "product": product,
    "attend": attend,
    "attend-window-cap": window_and_cap,
    "normalise": normalise,
    "finish": finish,
    "activate": activate,
    "rotate-write": rotate_and_write,
    "low-rank": low_rank,
    "logits": logits,
    "embed": embed,
    "gather-scatter": gather_and_scatter,
    "copy-slots": copy_slots,
    "draw": draw,
}
EXACT = ("embed", "gather-scatter", "copy-slots", "draw")
WIDE = ("product", "logits")  # whose results are float32 in both types
