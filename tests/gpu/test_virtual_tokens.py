"""Prompt and prefix tuning: virtual tokens before the prompt, whose rows are the tenant's. peft is the judge."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.policies.model.chain import VIRTUAL_TOKEN
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.tests.adapters import base_model, confirm, greedy, make_adapter, peft_model
from blockwright.tests.claims import claim

from .choices import BACKENDS, CUTS, EACH_SET, NATIVE
from .tenant_rig import TenantRig

Checkpoints = Callable[..., Path]
KINDS = {"prompt": "PromptTuningConfig", "prefix": "PrefixTuningConfig"}


def prompt(seed: int, length: int = 24) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, 384) for _ in range(length)]


def tuned(base: Path, folder: Path, kind: str, virtual: int, seed: int = 0) -> Path:
    """With rows as large as those of the tiny models, so that they show."""
    return make_adapter(base, folder, seed, 0.6, KINDS[kind], num_virtual_tokens=virtual)


@claim("BitFit, prefix tuning and prompt tuning answer as peft does", of="fine-tunes")
@NATIVE
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "architecture",
    ["llama", "llama-biases", "mistral-window", "qwen3", "gemma", "gemma2", "glm4", "gpt-neox", "granite", "olmo2", "phi3"],
)
def test_every_architecture_equals_peft(
    make: type, kind: str, architecture: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Windows included, which the first positions leave."""
    # GPT-NeoX has no such field: peft would believe that of the other presets
    base = checkpoint(architecture, **({"num_key_value_heads": 4} if architecture == "gpt-neox" else {}))
    folder = tuned(base, tmp_path / "a", kind, 5)
    rig = TenantRig(make("float32"), base, [folder])
    rig.tenant[1] = 1
    tokens = rig.generate(1, [VIRTUAL_TOKEN] * 5 + prompt(3, 12), 16, chunk=7)
    confirm(peft_model(base, folder), prompt(3, 12), tokens)
    with pytest.raises(AssertionError):  # it shows
        confirm(base_model(base), prompt(3, 12), tokens)


@BACKENDS
@CUTS
def test_tenants_of_all_forms_in_one_sweep_answer_as_alone(
    make: type, cuts: tuple[int, ...], checkpoint: Checkpoints, tmp_path: Path
) -> None:
    base = checkpoint("llama")
    forms = [("prompt", 5), ("prefix", 9), ("prompt", 1), ("prefix", 1)]
    folders = [tuned(base, tmp_path / f"{i}", kind, virtual, seed=i) for i, (kind, virtual) in enumerate(forms)]
    folders.append(make_adapter(base, tmp_path / "lora"))
    virtual = [0, *(count for _, count in forms), 0]
    rig = TenantRig(make("float32"), base, folders, cuts)
    rig.tenant = {row: row % 6 for row in range(8)}
    order = sorted(range(8), key=lambda row: rig.tenant[row])
    values = {row: [VIRTUAL_TOKEN] * virtual[rig.tenant[row]] + prompt(row, 3 + 4 * row) for row in order}
    done = rig.together(values, count=12, chunk=4, length=70)
    models = {0: base_model(base)} | {i + 1: peft_model(base, folder) for i, folder in enumerate(folders)}
    for row in order:
        seen = values[row][virtual[rig.tenant[row]] :]
        assert done[row] == greedy(models[rig.tenant[row]], seen, 12), f"row {row} of tenant {rig.tenant[row]}"


@EACH_SET
@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_chunks_threads_and_others(
    dtype: str, instruction_set: str, kind: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    base = checkpoint("llama")
    folder = tuned(base, tmp_path / "a", kind, 6)
    everything = SamplingParams(temperature=0.0, logprobs=384)
    tokens = {0: prompt(0, 20), 1: [VIRTUAL_TOKEN] * 6 + prompt(1, 20), 2: [VIRTUAL_TOKEN] * 6 + prompt(1, 20)}

    def logits(threads: int, chunk: int, rows: list[int]) -> list[list[float]]:
        rig = TenantRig(NativeBackend(dtype, threads, instruction_set), base, [folder])
        rig.tenant = {1: 1, 2: 1}
        if threads > 1:
            rig.executor.backend.delay(40, 200)  # type: ignore[attr-defined]
        edits = [edit for row in rows for edit in rig.admit(row, tokens[row], everything, 40)]
        found: dict[int, list[float]] = {}
        for start in range(0, 26, chunk):
            batch = [(r, start, min(chunk, len(tokens[r]) - start)) for r in rows if start < len(tokens[r])]
            sample = [i for i, (row, first, count) in enumerate(batch) if first + count == len(tokens[row])]
            result, edits = rig.run(batch, sample, edits), []
            for i, entry in zip(sample, result.logprobs, strict=True):
                assert entry is not None
                found[batch[i][0]] = [value for _, value in sorted(entry.top)]
        return [found[row] for row in rows]

    (alone,) = logits(1, 64, [1])
    assert logits(1, 4, [0, 1, 2])[1:] == [alone, alone]
    assert logits(3, 5, [0, 1, 2])[1:] == [alone, alone]
