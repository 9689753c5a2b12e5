"""Part 5 of ``gpu.py``: decode and prefill of random models of 1B and 8B, as shares of part 1's ceilings.

A decode sweep counts the weights once and the keys and values of each row as bytes to read; prefill counts two operations
for each weight and token, and the products of its attention. ``host_share`` is the part of a decode sweep in which nothing
computed. Products of each shape are timed beside torch's, which sums as it likes: ``of_mm``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from gpu_card import copies, median_of, poisoned, random_tensor
from gpu_report import Part
from gpu_rig import GREEDY, Rig, RigSizes, random_rig
from gpu_sizes import ModelSize

from blockwright.gpu.cuda.ops import Weight
from blockwright.gpu.cuda.ops_fast import FAST
from blockwright.gpu.device import Ticket
from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.plan.sweep_plan import Edit

ITEM = 2  # bytes of bfloat16
MOST_FAST_ROWS, MOST_FAST_PREFILL = 32, 4096  # where invariant bits are compared with fast ones
WARMING = 8  # sweeps before time is taken: the graphs of a bucket are recorded behind its third use
SAMPLED = {  # options of rows that the card draws, and of rows that it leaves to the host
    "sampled": SamplingParams(temperature=0.8, seed=1),
    "truncated": SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=1),
    "penalised": SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.2, seed=1),
    "logprobs": SamplingParams(temperature=0.0, logprobs=5),
    "on-host": SamplingParams(temperature=0.0, rules=TokenRules(no_repeat=9)),
}
MOST_PREFILL = 2048  # tokens of a sweep, as a scheduler would cut a prompt; longer prompts take several


def measure(part: Part) -> None:
    """Add times, rates and shares of each model."""
    for name, size in part.sizes.models.items():
        with part.attempt(f"{name}/load"):
            rig = _rig(part, size)
            _model(part, name, size, rig)
            del rig
        part.card.release()
        with part.attempt(f"{name}/products"):
            _products(part, name, size)
    name, size = list(part.sizes.models.items())[-1]
    with part.attempt("bits-fast"):
        _fast(part, name, size)
    part.card.release()
    part.bar("8B/decode1", "of_copy", at_least=0.70)
    part.bar("8B/decode32", "of_copy", at_least=0.65)
    part.bar("8B/prefill4096", "of_product", at_least=0.45)
    part.bar("8B/decode32", "host_share", at_most=0.05)
    part.bar("8B/invariant-decode32", "of_fast", at_least=0.85)
    part.bar("8B/invariant-prefill4096", "of_fast", at_least=0.70)
    part.bar("1B/decode1", "graphs_gain", at_least=1.3)
    part.bar("8B/products32", "of_mm", at_least=0.85)
    part.bar("8B/products4096", "of_mm", at_least=0.70)


def _fast(part: Part, name: str, size: ModelSize) -> None:
    """Add what ``bits=fast`` does, and invariant bits as a share of it."""
    rig = _rig(part, size, FAST)
    rows = max(n for n in part.sizes.rows if n <= MOST_FAST_ROWS)
    tokens = max(n for n in part.sizes.prefill if n <= MOST_FAST_PREFILL)
    decode(part, f"{name}/fast-decode{rows}", size, rig, rows)
    _prefill(part, f"{name}/fast-prefill{tokens}", size, rig, tokens)
    for case in (f"decode{rows}", f"prefill{tokens}"):
        fast, ours = (part.found(f"{part.name}/{name}/{kind}{case}", "ms") for kind in ("fast-", ""))
        if fast and ours:
            part.add(f"{name}/invariant-{case}", {"of_fast": fast / ours})


def _rig(part: Part, size: ModelSize, bits: str = "invariant") -> Rig:
    sizes = part.sizes
    decoding = sizes.context + 4 * sizes.sweeps + 16
    longest, page = max(sizes.prefill) + 1, sizes.page
    tokens = max(*sizes.rows, min(MOST_PREFILL, max(sizes.prefill)))
    positions = max(max(sizes.rows) * (decoding + page), longest + page)
    rows = RigSizes(max(sizes.rows), max(decoding, longest), tokens, page, positions=positions)
    return random_rig(part.card, size, rows, bits=bits)


def _model(part: Part, name: str, size: ModelSize, rig: Rig) -> None:
    graphs = rig.device.graphs
    for rows in part.sizes.rows:
        with part.attempt(f"{name}/decode{rows}"):
            seconds = decode(part, f"{name}/decode{rows}", size, rig, rows)
            graphs.enabled = False
            launched = decode(part, f"{name}/launched{rows}", size, rig, rows)
            graphs.enabled = True
            part.add(f"{name}/decode{rows}", {"graphs_gain": launched / seconds})
    most = max(part.sizes.rows)
    for kind, params in SAMPLED.items():
        with part.attempt(f"{name}/{kind}{most}"):
            decode(part, f"{name}/{kind}{most}", size, rig, most, params=params)
    for tokens in part.sizes.prefill:
        with part.attempt(f"{name}/prefill{tokens}"):
            _prefill(part, f"{name}/prefill{tokens}", size, rig, tokens)


def decode(
    part: Part,
    case: str,
    size: ModelSize,
    rig: Rig,
    rows: int,
    numbers: tuple[int, ...] = (),
    params: SamplingParams = GREEDY,
) -> float:
    """Add a decode step's figures, and return its seconds. ``numbers`` are the rows' deltas.

    As in a worker, a plan is queued while the one before it runs. ``host_share`` is the part of a sweep's time in which
    the card has nothing to do, ``submit_ms`` the time in which the host makes and queues a plan.
    """
    sizes, card = part.sizes, part.card
    context, count = sizes.context, sizes.sweeps
    edits = rig.fill_cache(rows, context, context + 3 * count + WARMING, params=params)
    position, submitting = context, 0.0

    def several(sweeps: int) -> None:
        nonlocal position, submitting
        waiting: Ticket | None = None
        for _ in range(sweeps):
            began = time.perf_counter()
            ticket = rig.submit([(row, position, 1) for row in range(rows)], list(range(rows)), numbers)
            submitting += time.perf_counter() - began
            if waiting is not None:
                waiting.wait()
            waiting, position = ticket, position + 1
        if waiting is not None:
            waiting.wait()

    rig.run([(row, context - 1, 1) for row in range(rows)], list(range(rows)), (), numbers)  # draws the first token
    several(WARMING - 2)  # compiles, then records
    submitting = 0.0
    median = _wall(card.settle, lambda: several(count)) / count
    submit = submitting / count
    began = time.perf_counter()
    busy = card.busy(lambda: several(count))
    whole = time.perf_counter() - began
    rig.release(edits)
    nbytes = ITEM * size.parameters + rows * (context + count) * size.kv_bytes(ITEM)
    metrics = {"ms": 1000 * median, "tokens_per_s": rows / median, "bytes_per_s": nbytes / median}
    metrics |= {"host_share": max(0.0, 1 - busy / (count * median)), "profiled_ms": 1000 * whole / count}
    metrics |= {"busy_ms": 1000 * busy / count, "submit_ms": 1000 * submit}
    if copy := part.found("ceilings/copy", "bytes_per_s"):
        metrics["of_copy"] = nbytes / median / copy
    part.add(case, metrics)
    return median


def _prefill(part: Part, case: str, size: ModelSize, rig: Rig, tokens: int) -> None:
    most = rig.sizes.tokens

    def whole(edits: list[Edit]) -> None:
        for start in range(0, tokens, most):
            last = start + most >= tokens
            rig.run([(0, start, min(most, tokens - start))], [0] if last else [], edits if not start else ())

    seconds = []
    for repeat in range(max(2, part.sizes.sweeps // 6) + 1):
        numbers = torch.randint(size.vocabulary, (tokens,), generator=torch.Generator().manual_seed(repeat)).tolist()
        edits = rig.admit(0, numbers, tokens + 1)
        seconds.append(_wall(part.card.settle, partial(whole, edits)))
        rig.release(edits)
    median = statistics.median(seconds[1:])  # the first one sizes what grows
    flop = 2 * (size.parameters - size.hidden * size.vocabulary) * tokens + 2 * size.hidden * size.vocabulary
    flop += 2 * size.layers * size.heads * size.head_dim * tokens * tokens  # scores and values of half the square
    metrics = {"ms": 1000 * median, "tokens_per_s": tokens / median, "flop_per_s": flop / median}
    if product := part.found("ceilings/product", "flop_per_s"):
        metrics["of_product"] = flop / median / product
    part.add(case, metrics)


def _wall(settle: Callable[[], None], work: Callable[[], None]) -> float:
    settle()
    began = time.perf_counter()
    work()
    settle()
    return time.perf_counter() - began


def _products(part: Part, name: str, size: ModelSize) -> None:
    """The four products of a layer, by themselves: ours, and torch.mm on the same numbers."""
    wide, narrow = size.heads * size.head_dim, size.kv_heads * size.head_dim
    shapes = {
        "qkv": (size.hidden, wide + 2 * narrow),
        "o": (wide, size.hidden),
        "gate-up": (size.hidden, 2 * size.intermediate),
        "down": (size.intermediate, size.hidden),
    }
    for tokens in sorted({max(1, n) for n in (32, 4096)} if not part.card.mirrored else {2}):
        ours = theirs = 0.0
        for product, (width, outputs) in shapes.items():
            times = _pair(part, tokens, width, outputs)
            ours, theirs = ours + times[0], theirs + times[1]
            part.add(f"{name}/{product}{tokens}", {"us": 1e6 * times[0], "mm_us": 1e6 * times[1]})
        part.add(f"{name}/products{tokens}", {"of_mm": theirs / ours})


def _pair(part: Part, tokens: int, width: int, outputs: int) -> tuple[float, float]:
    """Return the seconds of our product and of torch's, over weights of which no cache holds the next."""
    card = part.card
    ops = card.ops("bfloat16")
    count = copies(card, ITEM * width * outputs)
    weights = [random_tensor(card, outputs, width, dtype=torch.bfloat16, seed=n) for n in range(count)]
    x_TW = random_tensor(card, tokens, width, dtype=torch.bfloat16, seed=99)
    out = poisoned(card, ops.product_bytes(tokens, width, outputs) // 4)
    result = poisoned(card, tokens, outputs, dtype=torch.bfloat16)
    x, target = x_TW.data_ptr(), out.data_ptr()
    ours = [partial(ops.product, x, Weight(((w.data_ptr(), outputs),), width), target, tokens) for w in weights]
    theirs = [partial(torch.mm, x_TW, w.T, out=result) for w in weights]
    return median_of(card, ours, part.sizes.repeats), median_of(card, theirs, part.sizes.repeats)
