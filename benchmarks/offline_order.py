"""Time and memory to order an offline batch: prefix tree, estimates, units, parts.

    python benchmarks/offline_order.py [--quick] [--json PATH]

100,000 prompts of 1,000 tokens on one core, each case in a process of its own; memory is the peak of that process, including
its prompts. ``mixed``: eight sources with a prefix each, a tenth of their requests conversations that continue. ``alike``:
950 tokens are the same everywhere, so that comparing prompts takes longest. ``chains``: each prompt begins with one of 50
before it, so that the tree is deep. ``sequence_s`` is everything except making prompts. ``again_s``: the order made again,
with known lengths. ``loop``: 50,000 of ``mixed`` as a job on an event loop (``offline_turns.py``).
"""

from __future__ import annotations

import resource
import time
from array import array
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from random import Random

import harness
from harness import OURS, Bar, Options, Report
from offline_turns import turns

REQUESTS = 100_000
LINES = 50_000
TOKENS = 1_000
CASES = ("mixed", "alike", "chains")
BARS = (
    *(Bar(case, metric, at_most=most) for case in CASES for metric, most in (("sequence_s", 60.0), ("peak_mb", 2048.0))),
    Bar("loop", "turn_ms", at_most=50.0),
)
VOCABULARY = int.from_bytes(b"\x00\x01\xff\xff" * TOKENS, "big")  # of the bits of a prompt: token ids below 2**17


def tokens(random: Random, count: int) -> bytes:
    """Random token ids, packed."""
    drawn = int.from_bytes(random.randbytes(4 * count), "big")
    return (drawn & (VOCABULARY >> 32 * (TOKENS - count))).to_bytes(4 * count, "big")


def prompts(case: str, count: int) -> list[bytes]:
    """Packed prompts of ``TOKENS`` tokens each."""
    random = Random(7)
    heads = [tokens(random, 950 if case == "alike" else 60 * (n + 1)) for n in range(1 if case == "alike" else 8)]
    made: list[bytes] = []
    for n in range(count):
        head = heads[random.randrange(len(heads))]
        if made and (case == "chains" or (case == "mixed" and random.random() < 0.1)):
            other = made[max(0, n - 50) + random.randrange(min(n, 50))] if case == "chains" else random.choice(made)
            head = other[: 4 * random.randrange(TOKENS)]
        made.append(head + tokens(random, TOKENS - len(head) // 4))
    return made


def measure(case: str, count: int) -> dict[str, float]:
    """One run. Lengths of answers: drawn for each request, and from 1 in 100 estimated for the others."""
    from blockwright.policies.offline.density import Costs
    from blockwright.policies.offline.estimates import Estimates, choose_samples
    from blockwright.policies.offline.order import Weigher, density_order, waste
    from blockwright.policies.offline.parts import cut
    from blockwright.policies.offline.prefix_tree import PrefixTree

    costs = Costs.of_model(parameters=8e9, hidden=4096, layers=32, kv_width=1024, compute=312e12, bandwidth=2.039e12)
    batch, random = prompts(case, count), Random(11)
    lengths = array("q", [min(1 + int(random.lognormvariate(5.0, 1.5)), 8192) for _ in batch])
    times = [time.process_time()]
    tree = PrefixTree(batch)
    times.append(time.process_time())
    estimates = Estimates(tree, [8192] * count)
    samples = choose_samples(tree, [random.random() for _ in range(count)])
    for request in samples:
        estimates.finished(request, lengths[request])
    outputs = estimates.outputs()
    times.append(time.process_time())
    weigher = Weigher(tree, costs, outputs)
    units = density_order(weigher, memory=400_000)
    times.append(time.process_time())
    parts = cut(units, 8, weigher)
    times.append(time.process_time())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    weigher = Weigher(tree, costs, lengths)
    again = time.process_time()
    density_order(weigher, memory=400_000)
    again = time.process_time() - again
    assert sum(len(unit.requests) for part in parts for unit in part) == count
    steps = dict(zip(("tree_s", "estimates_s", "order_s", "parts_s"), (b - a for a, b in pairwise(times)), strict=True))
    found = {"sharing": tree.sharing, "waste_share": waste(tree, units) / tree.tokens, "units": float(len(units))}
    return {"sequence_s": times[-1] - times[0], "peak_mb": peak, **steps, "again_s": again, **found}


def on_a_loop(count: int) -> dict[str, float]:
    """A job of so many requests."""
    return turns(prompts("mixed", count))


@harness.claim("Ordering a large batch does not hold the event loop", of="offline")
def main(options: Options) -> None:
    count = REQUESTS // 10 if options.quick else REQUESTS
    report = Report("offline_order", {"requests": count, "tokens": TOKENS}, ())
    for case in CASES:
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            report.add(case, OURS, alone.submit(measure, case, count).result())
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        report.add("loop", OURS, alone.submit(on_a_loop, count * LINES // REQUESTS).result())
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
