"""Part 7 of ``gpu.py``: decode of rows that belong to several LoRA adapters, beside the same rows of the base alone.

Adapters of rank 16 on all seven products of every layer, packed from random tensors. ``ratio`` is a sweep's time with
them by its time without.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from gpu_card import random_tensor
from gpu_report import Part
from gpu_rig import Rig, RigSizes, specs_of
from gpu_sizes import ModelSize
from gpu_speed import decode

from blockwright.gpu.model.config import ComponentSpec, DeltaSpec, TensorRef, tensor_shapes
from blockwright.gpu.model.deltas import DeltaConfig, LoraTerm

ROLES = ("q", "k", "v", "o", "gate", "up", "down")
RANK = 16
MOST = 1.20  # of the base's time, with 8 adapters
MODEL = "8B"


def measure(part: Part) -> None:
    """Add times with and without adapters."""
    size, sizes = part.sizes.models[MODEL], part.sizes
    rows = 32 if 32 in sizes.rows else max(sizes.rows)
    with part.attempt("load"):
        rig = _rig(part, size, rows)
        base = decode(part, f"{MODEL}/none{rows}", size, rig, rows)
        attached = 0
        for tenants in sizes.tenants:
            with part.attempt(f"{MODEL}/{tenants}"):
                for number in range(attached + 1, tenants + 1):
                    _attach(part, size, rig, number)
                attached = tenants
                numbers = tuple(1 + row * tenants // rows for row in range(rows)) if tenants <= rows else ()
                seconds = decode(part, f"{MODEL}/adapters{tenants}", size, rig, rows, numbers)
                part.add(f"{MODEL}/adapters{tenants}", {"ratio": seconds / base})
        del rig
    part.card.release()
    part.bar(f"{MODEL}/adapters8", "ratio", at_most=MOST)


def _rig(part: Part, size: ModelSize, rows: int) -> Rig:
    sizes, card = part.sizes, part.card
    length = sizes.context + 4 * sizes.sweeps + 16
    backend = card.backend("bfloat16")
    specs = specs_of(size, "bfloat16", sizes.page)
    each = sum(-(-backend.parts(_delta(spec, 1))[0].nbytes // card.chunk) * card.chunk for spec in specs if _roles(spec))
    tokens = max(rows, min(512, sizes.context))
    return Rig(card, backend, specs, RigSizes(rows, length, tokens, sizes.page, spare=each * max(sizes.tenants)))


def _roles(spec: ComponentSpec) -> list[str]:
    return [role for role in ROLES if role in tensor_shapes(spec.config)]


def _delta(spec: ComponentSpec, number: int) -> ComponentSpec:
    """Return the component as adapter ``number`` changes it."""
    shapes = tensor_shapes(spec.config)
    tensors = {f"{role}.a": (RANK, shapes[role][1]) for role in _roles(spec)}
    tensors |= {f"{role}.b": (shapes[role][0], RANK) for role in _roles(spec)}
    refs = {name: TensorRef("", name, "F32", shape, 0, 0) for name, shape in tensors.items()}
    terms = tuple(LoraTerm(role=role, rank=RANK, scale=0.01) for role in _roles(spec))
    return replace(spec, delta=DeltaSpec(spec.name[:12] + b"%04d" % number, DeltaConfig(lora=terms), refs))


def _attach(part: Part, size: ModelSize, rig: Rig, number: int) -> None:
    inside = {}
    for place, spec in enumerate(rig.specs):
        if not _roles(spec):
            continue
        changed = _delta(spec, number)
        assert changed.delta is not None
        raw = {
            name: random_tensor(part.card, *ref.shape, seed=1000 * number + n)
            for n, (name, ref) in enumerate(changed.delta.tensors.items())
        }
        (one,) = rig.backend.parts(changed)
        memory = rig.executor.view(rig.allocate(one.nbytes), one.nbytes)
        rig.executor.parameters.deltas[changed.name] = _result(rig.backend.pack_delta(changed, raw, memory))
        inside[place] = changed.name
    rig.executor.attach(0, number, inside)


def _result(steps: Generator[int, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
