"""Bottleneck adapters answer as the same computation written out over transformers' modules, alone and among others."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.tests.adapters import base_model, bottleneck_model, confirm, make_adapter, make_bottleneck, peft_model
from blockwright.tests.claims import claim

from .choices import BACKENDS, CUTS, EACH_SET, NATIVE
from .tenant_rig import TenantRig

Checkpoints = Callable[..., Path]
HOULSBY: dict[str, Any] = {"mh_adapter": True, "non_linearity": "swish", "original_ln_before": False, "reduction_factor": 4}
KINDS: dict[str, dict[str, Any]] = {
    "pfeiffer": {"reduction_factor": 8},
    "houlsby": HOULSBY,
    "parallel": {"is_parallel": True, "original_ln_before": False, "reduction_factor": 1.5, "scaling": 0.5},
    "layers": {**HOULSBY, "reduction_factor": {"1": 2, "default": 7}, "leave_out": [2], "non_linearity": "gelu_new"},
    "attention": {**HOULSBY, "output_adapter": False, "non_linearity": "gelu"},
    "once": {"original_ln_after": False, "residual_before_ln": False},
}


def prompt(seed: int, length: int = 24) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, 384) for _ in range(length)]


@claim("Bottleneck adapters answer as the same computation in torch", of="fine-tunes")
@NATIVE
@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        *(("llama", kind) for kind in KINDS),
        *((name, kind) for name in ("qwen3", "gemma", "phi3") for kind in ("pfeiffer", "houlsby")),
        *(("gemma2", kind) for kind in ("houlsby", "parallel")),
    ],
)
def test_each_kind_equals_the_computation_in_torch(
    make: type, architecture: str, kind: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    base = checkpoint(architecture)
    folder = make_bottleneck(base, tmp_path / "a", **KINDS[kind])
    rig = TenantRig(make("float32"), base, [folder])
    rig.tenant[1] = 1
    tokens = rig.generate(1, prompt(0), 16, chunk=7)
    confirm(bottleneck_model(base, folder), prompt(0), tokens)
    with pytest.raises(AssertionError):  # it shows
        confirm(base_model(base), prompt(0), tokens)


@BACKENDS
@CUTS
def test_tenants_in_one_sweep_answer_as_alone(
    make: type, cuts: tuple[int, ...], checkpoint: Checkpoints, tmp_path: Path
) -> None:
    base = checkpoint("llama")
    names = ["pfeiffer", "houlsby", "parallel", "layers"]
    folders = [make_bottleneck(base, tmp_path / name, seed=i, **KINDS[name]) for i, name in enumerate(names)]
    models = [base_model(base), *(bottleneck_model(base, folder) for folder in folders)]
    folders.append(make_adapter(base, tmp_path / "lora"))
    models.append(peft_model(base, folders[-1]))
    rig = TenantRig(make("float32"), base, folders, cuts)
    rig.tenant = {row: row % 6 for row in range(8)}
    order = sorted(range(8), key=lambda row: rig.tenant[row])
    values = {row: prompt(row, 3 + 4 * row) for row in order}
    done = rig.together(values, count=12, chunk=11, length=60)
    for row in order:
        confirm(models[rig.tenant[row]], values[row], done[row])


@EACH_SET
def test_bits_do_not_depend_on_others_chunks_and_threads(
    dtype: str, instruction_set: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Nor do those of the base, whose output is kept apart only where somebody has a bottleneck."""
    base = checkpoint("llama")
    folders = [make_bottleneck(base, tmp_path / name, **KINDS[name]) for name in ("houlsby", "pfeiffer", "parallel")]
    everything = SamplingParams(temperature=0.0, logprobs=384)

    def logits(threads: int, chunk: int, rows: list[int]) -> dict[int, list[float]]:
        rig = TenantRig(NativeBackend(dtype, threads, instruction_set), base, folders)
        rig.tenant = {row: row % 4 for row in rows}
        if threads > 1:
            rig.executor.backend.delay(40, 200)  # type: ignore[attr-defined]
        edits = [edit for row in rows for edit in rig.admit(row, prompt(row), everything, 40)]
        for start in range(0, 24, chunk):
            batch = [(row, start, min(chunk, 24 - start)) for row in rows]
            result, edits = rig.run(batch, list(range(len(rows))) if start + chunk >= 24 else [], edits), []
        return {row: [v for _, v in sorted(e.top)] for row, e in zip(rows, result.logprobs, strict=True) if e is not None}

    alone = logits(1, 24, [0]) | logits(1, 24, [1]) | logits(1, 24, [2]) | logits(1, 24, [3])
    assert logits(1, 5, [0, 1, 2, 3]) == alone
    assert logits(3, 7, [0, 1, 2, 3]) == alone
