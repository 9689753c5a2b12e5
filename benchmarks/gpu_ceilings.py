"""Part 1 of ``gpu.py``: rates of copies, products and uploads, and the time between two launches."""

from __future__ import annotations

from functools import partial

import torch
from gpu_card import copies, median_of, random_tensor
from gpu_report import Part

LAUNCHES = 200


def measure(part: Part) -> None:
    """Add the ceilings. A copy counts the bytes that it reads and those that it writes."""
    with part.attempt("copy"):
        _copy(part)
    with part.attempt("product"):
        _product(part)
    with part.attempt("launch"):
        _launch(part)
    with part.attempt("host-to-device"):
        _upload(part)


def _copy(part: Part) -> None:
    card, nbytes = part.card, part.sizes.copied
    buffers = [random_tensor(card, nbytes // 4, seed=n) for n in range(min(4, copies(card, nbytes)))]
    targets = [torch.empty_like(buffer) for buffer in buffers]
    work = [partial(target.copy_, source) for target, source in zip(targets, buffers, strict=True)]
    part.add("copy", {"bytes_per_s": 2 * nbytes / median_of(card, work, part.sizes.repeats)})


def _product(part: Part) -> None:
    card, side = part.card, part.sizes.side
    pairs = [[random_tensor(card, side, side, seed=2 * n + i, dtype=torch.bfloat16) for i in (0, 1)] for n in range(2)]
    out = torch.empty(side, side, dtype=torch.bfloat16, device=card.device)
    work = [partial(torch.mm, a, b, out=out) for a, b in pairs]
    part.add("product", {"flop_per_s": 2 * side**3 / median_of(card, work, part.sizes.repeats)})


def _launch(part: Part) -> None:
    """The time of one of many small operations in a row, which is mostly the gap between them."""
    card = part.card
    small = random_tensor(card, 16, seed=1)

    def many() -> None:
        for _ in range(LAUNCHES):
            small.add_(1e-3)

    part.add("launch", {"gap_us": 1e6 * median_of(card, [many], part.sizes.repeats) / LAUNCHES})


def _upload(part: Part) -> None:
    card, nbytes = part.card, part.sizes.copied // 4
    hosts = [torch.randn(nbytes // 4, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    if not card.mirrored:
        hosts = [host.pin_memory() for host in hosts]
    target = torch.empty(nbytes // 4, device=card.device)
    work = [partial(target.copy_, host, non_blocking=True) for host in hosts]
    part.add("host-to-device", {"bytes_per_s": nbytes / median_of(card, work, part.sizes.repeats)})
