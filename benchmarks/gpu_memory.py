"""Part 8 of ``gpu.py``: half of a model's parameters dropped for KV and restored, while a row decodes between the steps.

``ms_per_gib`` is of mapping alone: a drop takes the chunks from the parameters and gives them to KV, a restore takes them
back. Parameters come back from where they came first. ``account_off`` is the difference between what NVML says this process
added and our own account, as a share of it.
"""

from __future__ import annotations

import statistics
import time

import torch
from gpu_nvml import open_nvml, used
from gpu_report import Part
from gpu_rig import Rig, RigSizes, random_rig
from harness import OURS

from blockwright.gpu.executor import PARAMETERS

MODEL = "8B"
GIB = 1 << 30
MOST_MS = 10.0


def measure(part: Part) -> None:
    """Add the times of drops and restores, and whether the tokens are the same afterwards."""
    with part.attempt("drop-restore"):
        _moves(part)
    part.card.release()
    with part.attempt("account"):
        _account(part)
    part.card.release()
    part.bar("drop", "ms_per_gib", at_most=MOST_MS)
    part.bar("restore", "ms_per_gib", at_most=MOST_MS)
    part.bar("restore", "differing", at_most=0.0)
    part.bar("account", "account_off", at_most=0.01)


def _rig(part: Part, cut: int) -> Rig:
    size, sizes = part.sizes.models[MODEL], part.sizes
    length = 4 * sizes.page
    return random_rig(part.card, size, RigSizes(3, length, length, sizes.page), cuts=[cut])


def _moves(part: Part) -> None:
    size, sizes = part.sizes.models[MODEL], part.sizes
    cut = 1 + 2 * (size.layers // 2)
    rig = _rig(part, cut)
    prompt = [7 * n % size.vocabulary for n in range(sizes.page + 1)]
    want = rig.generate(0, prompt, 8, 64)
    chunk, upper = part.card.chunk, rig.members(1)
    first = min(min(rig.offsets[spec.name]) for spec in upper) // chunk
    ids = rig.ids_at(first)
    load = rig.admit(1, prompt, len(prompt) + 8)
    rig.runs = [0]
    rig.run([(1, 0, 8)], (), load)
    drops, restores = [], []
    for _ in range(max(2, sizes.repeats // 5)):
        _drop(rig)
        rig.run([(1, 8, 1)])  # the lower half computes beside it
        drops.append(_timed(part, rig, PARAMETERS, first, rig.layout.key, rig.kv_chunks, ids))
        rig.run([(1, 9, 1)])
        restores.append(_timed(part, rig, rig.layout.key, rig.kv_chunks, PARAMETERS, first, ids))
        for spec in upper:
            rig.load(spec)
        rig.compose(1)
    rig.runs = [0, 1]
    differing = float(rig.generate(0, prompt, 8, 64) != want)
    moved = len(ids) * chunk / GIB
    part.add("drop", {"ms_per_gib": statistics.median(drops) / moved, "worst_ms_per_gib": max(drops) / moved})
    part.add("restore", {"ms_per_gib": statistics.median(restores) / moved, "differing": differing})
    part.add("moved", {"gib": moved})


def _drop(rig: Rig) -> None:
    rig.executor.drop(1)
    for spec in rig.members(1):
        rig.executor.unload(spec.name, [one.id for one in rig.backend.parts(spec)])


def _timed(part: Part, rig: Rig, source: str, from_: int, target: str, to: int, ids: list[int]) -> float:
    """Move chunks between two arenas. Return the milliseconds."""
    part.card.settle()
    began = time.perf_counter()
    rig.move(source, from_, target, to, ids)
    return 1000 * (time.perf_counter() - began)


def _account(part: Part) -> None:
    """Compare the memory in use by NVML, before and after a model is there, with our account."""
    nvml = open_nvml()
    before = used(nvml)
    reserved = _reserved(part)
    rig = _rig(part, 1)
    part.card.settle()
    ours = sum(rig.executor.committed().values()) + _reserved(part) - reserved + rig.device.held()["graphs"]
    found = used(nvml) - before
    part.add("account", {"ours_bytes": ours, "nvml_bytes": found, "account_off": abs(found - ours) / ours}, OURS)


def _reserved(part: Part) -> int:
    """Return the bytes that torch has taken: scratch, staging, tables."""
    return 0 if part.card.mirrored else torch.cuda.memory_reserved(part.card.device)
