"""Part 3 of ``gpu.py``: the law of bits, for every tile, then for served log-probabilities.

``differing`` counts comparisons whose bits differ. ``narrow`` says whether tiles of 16 rows, which have another instruction,
would agree (1) or not (0): to know, not to reach.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
from gpu_report import Part
from gpu_rig import RigSizes, random_rig
from gpu_steps import Bench, attention

from blockwright.gpu.cuda.tiles import BFLOAT16, FLOAT32, ProductTile, Tiling
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import Edit, SetPages

TILINGS = {"bfloat16": BFLOAT16, "float32": FLOAT32}
BEST = 1000  # log-probabilities of a position that are compared, where the vocabulary is larger


@dataclass(frozen=True, slots=True)
class OneTile(Tiling):
    """A tiling with one tile for any number of rows; the order of sums stays that of ``whole``."""

    whole: Tiling = BFLOAT16

    def columns(self, width: int, outputs: int) -> int:
        return self.whole.columns(width, outputs)


def measure(part: Part) -> None:
    """Add the numbers of differing comparisons."""
    for dtype, tiling in TILINGS.items():
        with part.attempt(f"tiles/{dtype}"):
            _products(part, dtype, tiling)
        with part.attempt(f"attention/{dtype}"):
            _attention(part, dtype)
    with part.attempt("served"):
        _served(part)
    with part.attempt("graph-bucket"):
        _buckets(part)


def one_tile(tile: ProductTile, whole: Tiling) -> Tiling:
    """Return the tiling with this tile for products of any number of rows."""
    return OneTile(
        products=((0, tile),), attention=whole.attention, attention_rows=whole.attention_rows, stretch=whole.stretch,
        segment=whole.segment, row_elements=whole.row_elements, low_depth=whole.low_depth, low_outputs=whole.low_outputs,
        vocabulary=whole.vocabulary, whole=whole,
    )  # fmt: skip


def _products(part: Part, dtype: str, tiling: Tiling) -> None:
    card, counts = part.card, part.sizes.product_rows
    tiles = list(dict.fromkeys(tile for _, tile in tiling.products))
    shapes = ((24, 20),) if card.mirrored else ((4096, 6144), (2048, 16384))
    narrow_agrees = True
    for width, outputs in shapes:
        plain = Bench(card, card.ops(dtype), seed=width)
        x_TW, weight = plain.random(max(counts), width), plain.random(outputs, width)
        want = plain.product(x_TW, weight)
        for number, tile in enumerate(tiles):
            bench = Bench(card, card.ops(dtype, one_tile(tile, tiling)), seed=number)
            differing = sum(not torch.equal(bench.product(x_TW[-n:].clone(), weight), want[-n:]) for n in counts)
            differing += sum(not torch.equal(plain.product(x_TW[-n:].clone(), weight), want[-n:]) for n in counts)
            part.add(f"tiles/{dtype}", {"differing": differing})
        narrow = Bench(card, card.ops(dtype, one_tile(replace(tiles[0], rows=16), tiling)))
        narrow_agrees &= torch.equal(narrow.product(x_TW[:16].clone(), weight), want[:16])
    part.add(f"narrow/{dtype}", {"agrees": float(narrow_agrees)})
    part.bar(f"tiles/{dtype}", "differing", at_most=0.0)


def _attention(part: Part, dtype: str) -> None:
    """Positions computed at once, in chunks, one by one, and beside other rows."""
    config = attention(4, 2, 8) if part.card.mirrored else attention(32, 8, 128)
    bench = Bench(part.card, part.card.ops(dtype), length=80 if part.card.mirrored else 600, seed=5)
    length = bench.tokens_RM.shape[1]
    slots, memory = bench.arena(config)
    for row in range(3):
        bench.write_kv(memory, row, bench.random(length, 2, config.kv_heads, config.head_dim))
    q = [bench.random(length, config.heads * config.head_dim) for _ in range(3)]
    start = length - 9
    whole = bench.attend([(0, start, 9)], q[0][start:], config, slots)
    pieces = [bench.attend([(0, start, 4)], q[0][start : start + 4], config, slots)]
    pieces.append(bench.attend([(0, start + 4, 5)], q[0][start + 4 :], config, slots))
    alone = [bench.attend([(0, p, 1)], q[0][p : p + 1], config, slots) for p in range(start, length)]
    beside = bench.attend(
        [(1, 3, 7), (0, start, 9), (2, 0, 20)], torch.cat([q[1][3:10], q[0][start:], q[2][:20]]), config, slots
    )
    differing = sum(not torch.equal(torch.cat(found), whole) for found in (pieces, alone, [beside[7:16]]))
    part.add(f"attention/{dtype}", {"differing": differing})
    part.bar(f"attention/{dtype}", "differing", at_most=0.0)


def _served(part: Part) -> None:
    size, page = part.sizes.models["1B"], part.sizes.page
    length = 5 * page
    rig = random_rig(part.card, size, RigSizes(rows=3, length=length, tokens=length + 16, page=page))
    draw = random.Random(11)
    tokens = [draw.randrange(size.vocabulary) for _ in range(length - 2)]
    best = 0 if size.vocabulary <= BEST else BEST
    given = len(tokens) - 4
    want = rig.logprobs(0, tokens, given, len(tokens), best=best)
    other = rig.admit(2, [draw.randrange(size.vocabulary) for _ in range(9)], 9)
    rig.run([(2, 0, 8)], [], other)
    found = {
        "chunk": rig.logprobs(0, tokens, given, 7, best=best),
        "batch": rig.logprobs(0, tokens, given, page + 1, beside=[(2, 8, 1)], best=best),
        "prefill": rig.logprobs(0, tokens, given + 2, len(tokens), best=best),
    }
    want_of = {"prefill": want[2:]}
    for name, values in found.items():
        part.add(f"served/{name}", {"differing": float(values != want_of.get(name, want))})
        part.bar(f"served/{name}", "differing", at_most=0.0)
    params = SamplingParams(temperature=0.0, logprobs=best or size.vocabulary)
    first = rig.admit(0, tokens[:given], length, params)
    rig.run([(0, 0, given)], [0], first)
    second = _sharing(first, rig.admit(1, tokens[:given], length, params), 2)
    (again,) = rig.run([(1, 2 * page, given - 2 * page)], [0], second).logprobs
    assert again is not None
    part.add("served/cache", {"differing": float(sorted(again.top) != want[0])})
    part.bar("served/cache", "differing", at_most=0.0)


def _buckets(part: Part) -> None:
    """Tokens and their log-probabilities from recorded steps of several buckets, beside launched ones."""
    size, page = part.sizes.models["1B"], part.sizes.page
    length, most = 3 * page, max(part.sizes.rows)
    rig = random_rig(part.card, size, RigSizes(rows=most, length=length, tokens=max(most, page), page=page))
    graphs = rig.device.graphs
    best = SamplingParams(temperature=0.0, logprobs=0)
    given, found = min(page, length - 8), []
    for enabled, rows in ((False, 1), *((True, rows) for rows in part.sizes.rows)):
        graphs.enabled = enabled
        edits = rig.fill_cache(rows, given, length, params=best)
        rig.run([(row, given - 1, 1) for row in range(rows)], range(rows))
        sweeps = [rig.run([(row, given + n, 1) for row in range(rows)], range(rows)) for n in range(6)]
        found.append([(one.tokens[0], one.logprobs[0]) for one in sweeps])
        rig.release(edits)
    part.add("graph-bucket", {"differing": float(any(one != found[0] for one in found)), "replayed": graphs.replayed})
    part.bar("graph-bucket", "differing", at_most=0.0)


def _sharing(first: list[Edit], second: list[Edit], pages: int) -> list[Edit]:
    """Return the second sequence's edits with the slots of the first one's pages, which are computed already."""
    theirs = {edit.page: edit.slots for edit in first if isinstance(edit, SetPages)}
    return [
        replace(edit, slots=theirs[edit.page]) if isinstance(edit, SetPages) and edit.page < pages else edit
        for edit in second
    ]
