"""Tenants of one base in the same sweeps answer token for token as peft does with each adapter alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.cpu.reference.backend import TorchBackend
from blockwright.gpu.errors import ExecutorError
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.tests.adapters import base_model, confirm, make_adapter, peft_model
from blockwright.tests.claims import claim

from .choices import BACKENDS, CUTS, EACH_SET, NATIVE
from .rig import load
from .tenant_rig import TenantRig

Checkpoints = Callable[..., Path]
CONFIGS = {
    "all-linear": {},
    "rslora": {"use_rslora": True, "r": 13},  # of q, k and v a panel and a half
    "patterns": {"rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 9}, "alpha_pattern": {"v_proj": 3, "down_proj": 30}},
    "subset": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0, 2]},
    "regex": {"target_modules": r".*\.(1|2)\..*(k_proj|o_proj|gate_proj)"},
    "excluded": {"exclude_modules": ["v_proj", "mlp.gate_proj"], "r": 30},
    "head": {"target_modules": ["o_proj", "lm_head"]},
    "saved": {"target_modules": ["v_proj"], "modules_to_save": ["lm_head", "model.layers.1.mlp"]},
}


BEFT = {
    "llama": ["q_proj", "o_proj", "up_proj"],
    "llama-biases": ["k_proj", "v_proj", "gate_proj", "down_proj", "lm_head"],
    "gpt-neox": ["query_key_value", "dense_h_to_4h", "dense"],
    "phi3": ["qkv_proj", "gate_up_proj", "o_proj"],
}


def prompt(seed: int, length: int = 24) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, 384) for _ in range(length)]


@claim(
    "LoRA adapters answer as peft does, alone and beside twenty other tenants in one batch", of="fine-tunes", headline=True
)
@NATIVE
@pytest.mark.parametrize("name", CONFIGS)
def test_each_kind_of_lora_equals_peft(make: type, name: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama")
    folder = make_adapter(base, tmp_path / name, **CONFIGS[name])
    rig = TenantRig(make("float32"), base, [folder])
    rig.tenant[1] = 1
    confirm(peft_model(base, folder), prompt(0), rig.generate(1, prompt(0), 20, chunk=7))


@NATIVE
@pytest.mark.parametrize(
    "architecture",
    ["llama-biases", "qwen2", "qwen3", "gemma", "gemma2", "glm4", "gpt-neox", "gpt-neox-serial", "granite", "olmo2", "phi3"],
)
def test_every_architecture_takes_lora(make: type, architecture: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint(architecture)
    folder = make_adapter(base, tmp_path / "a", r=5)
    rig = TenantRig(make("float32"), base, [folder])
    rig.tenant[0] = 1
    confirm(peft_model(base, folder), prompt(1), rig.generate(0, prompt(1), 16))


@NATIVE
@pytest.mark.parametrize("config", [{"target_modules": ["dense", "lm_head"]}, {"modules_to_save": ["lm_head"]}])
def test_the_head_of_gpt_neox_has_two_names(
    make: type, config: dict[str, list[str]], checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """peft calls it as transformers does: lm_head, with earlier releases as in the files, embed_out."""
    base = checkpoint("gpt-neox")
    now = make_adapter(base, tmp_path / "now", **{"target_modules": ["dense"], **config, "r": 5})
    old = tmp_path / "old"
    old.mkdir()
    tensors = load_file(now / "adapter_model.safetensors")
    save_file({name.replace("lm_head", "embed_out"): t for name, t in tensors.items()}, old / "adapter_model.safetensors")
    text = (now / "adapter_config.json").read_text()
    (old / "adapter_config.json").write_text(text.replace("lm_head", "embed_out"))
    for folder in (now, old):
        rig = TenantRig(make("float32"), base, [folder])
        rig.tenant[0] = 1
        confirm(peft_model(base, now), prompt(1), rig.generate(0, prompt(1), 16))


@claim("BitFit, prefix tuning and prompt tuning answer as peft does", of="fine-tunes")
@NATIVE
@pytest.mark.parametrize("architecture", ["llama", "llama-biases", "gpt-neox", "phi3"])
@pytest.mark.parametrize("form", ["beft", "bias-all"])
def test_biases_equal_peft(make: type, form: str, architecture: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    """BitFit: biases that are added to those of the base, if it has any, or trained beside LoRA in their place."""
    base = checkpoint(architecture)
    if form == "beft":
        folder = make_adapter(base, tmp_path / "a", kind="BeftConfig", target_modules=BEFT[architecture])
    else:
        folder = make_adapter(base, tmp_path / "a", bias="all")
    rig = TenantRig(make("float32"), base, [folder])
    rig.tenant[2] = 1
    confirm(peft_model(base, folder), prompt(2), rig.generate(2, prompt(2), 16, chunk=9))
    if (form, architecture) != ("bias-all", "gpt-neox"):  # trained biases of norms make components of their own
        confirm(base_model(base), prompt(2), rig.generate(3, prompt(2), 16))  # beside it the base


@BACKENDS
@CUTS
def test_tenants_in_one_sweep_answer_as_alone(
    make: type, cuts: tuple[int, ...], checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Four adapters of different ranks and modules and the base, some with several rows, prompts in chunks among decodes."""
    base = checkpoint("llama")
    names = ["all-linear", "rslora", "subset", "head"]
    folders = [make_adapter(base, tmp_path / name, seed=i, **CONFIGS[name]) for i, name in enumerate(names)]
    rig = TenantRig(make("float32"), base, folders, cuts)
    rig.tenant = {row: row % 5 for row in range(8)}  # 0: the base
    order = sorted(range(8), key=lambda row: rig.tenant[row])
    values = {row: prompt(row, 5 + 4 * row) for row in order}
    done = rig.together(values, count=16, chunk=6, length=60)
    models = {0: base_model(base)} | {i + 1: peft_model(base, folder) for i, folder in enumerate(folders)}
    for row in order:
        confirm(models[rig.tenant[row]], values[row], done[row])


def logits_of(rig: TenantRig, rows: list[int], chunk: int, together: bool) -> dict[int, list[list[float]]]:
    """Log-probabilities of every token after each row's prompt, computed in chunks, alone or all rows in one batch."""
    everything = SamplingParams(temperature=0.0, logprobs=384)
    groups = [rows] if together else [[row] for row in rows]
    found: dict[int, list[list[float]]] = {}
    for group in groups:
        lengths = {row: 20 + row for row in group}
        edits = [edit for row in group for edit in rig.admit(row, prompt(row, lengths[row]), everything, 60)]
        for start in range(0, max(lengths.values()), chunk):
            batch = [(row, start, min(chunk, lengths[row] - start)) for row in group if start < lengths[row]]
            sample = [i for i, (row, first, count) in enumerate(batch) if first + count == lengths[row]]
            result, edits = rig.run(batch, sample, edits), []
            for i, entry in zip(sample, result.logprobs, strict=True):
                assert entry is not None
                found.setdefault(batch[i][0], []).append([value for _, value in sorted(entry.top)])
    return found


@EACH_SET
def test_a_tenants_bits_do_not_depend_on_the_others(
    dtype: str, instruction_set: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Alone or in one batch, in small chunks or one, with one thread or three of which some lose their cores."""
    base = checkpoint("llama", hidden_size=96)
    names = ["all-linear", "rslora", "excluded", "head"]
    folders = [make_adapter(base, tmp_path / name, seed=i, **CONFIGS[name]) for i, name in enumerate(names)]
    rows = list(range(8))

    def rig(threads: int) -> TenantRig:
        made = TenantRig(NativeBackend(dtype, threads, instruction_set), base, folders)
        made.tenant = {row: row % 5 for row in rows}
        return made

    alone = logits_of(rig(1), rows, 64, together=False)
    assert logits_of(rig(1), rows, 64, together=True) == alone
    assert logits_of(rig(1), rows, 5, together=True) == alone
    late = rig(3)
    assert isinstance(late.executor.backend, NativeBackend)
    late.executor.backend.delay(40, 200)
    assert logits_of(late, rows, 7, together=True) == alone
    reference = TenantRig(TorchBackend("float32"), base, folders)
    reference.tenant = late.tenant
    wanted = logits_of(reference, rows, 64, together=False)
    allowed = 1e-3 if dtype == "float32" else 0.8
    for row in rows:
        assert max(abs(a - b) for a, b in zip(alone[row][0], wanted[row][0], strict=True)) < allowed


@BACKENDS
def test_deltas_can_be_detached_unloaded_and_loaded_again(make: type, checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama")
    folder = make_adapter(base, tmp_path / "a")
    rig = TenantRig(make("float32"), base, [folder])
    rig.tenant = {1: 1}
    first = rig.generate(1, prompt(3), 8)
    list(rig.executor.grow(rig.executor.tables.max_length + 64, 1))
    assert rig.generate(1, prompt(3), 8) == first, "grown tables compose runs anew, with their deltas"
    deltas = [spec for spec in rig.specs if spec.delta is not None]
    with pytest.raises(ExecutorError, match="drop them first"):
        rig.executor.unload(deltas[0].name, [])
    rig.executor.detach(0, 1)
    with pytest.raises(ExecutorError, match="not attached"):
        rig.generate(1, prompt(3), 8)
    for spec in deltas:
        rig.executor.unload(spec.name, [part.id for part in rig.executor.backend.parts(spec)])
    with pytest.raises(ExecutorError, match="is not loaded"):
        rig.executor.attach(0, 1, {1: deltas[0].name})
    for spec in deltas:
        load(rig.executor, spec, rig.placing)
    rig.executor.attach(0, 1, {i: s.name for i, s in enumerate(rig.specs) if s.delta is not None})
    assert rig.generate(2, prompt(3), 8) != first
    rig.tenant[3] = 1
    assert rig.generate(3, prompt(3), 8) == first


@BACKENDS
def test_a_delta_is_packed_in_slices(
    make: type, checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = checkpoint("llama")
    folder = make_adapter(base, tmp_path / "a", r=30)
    for module in ("cpu.native.deltas", "cpu.reference.backend", "cuda.deltas", "cuda.device", "host_device"):
        monkeypatch.setattr(f"blockwright.gpu.{module}.SLICE", 4096)
    rig = TenantRig(make("float32"), base, [folder])
    rig.tenant[1] = 1
    confirm(peft_model(base, folder), prompt(5), rig.generate(1, prompt(5), 12))
    rig.executor.detach(0, 1)
    backend = rig.executor.backend
    for spec in (spec for spec in rig.specs if spec.delta is not None):
        (part,) = backend.parts(spec)
        rig.executor.unload(spec.name, [part.id])
        steps = sum(1 for _ in rig.executor.load(spec, [rig.placing.offsets[part.id]]))
        assert steps > spec.delta.nbytes / (2 * 8192), "a slice, and what is packed together with its last row"
