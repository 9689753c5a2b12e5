"""What a packed tensor is: its id follows from the raw tensor and the form, not from names, components or fusing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.gpu.backend import SLICE, Backend
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.memory import HostArena
from blockwright.gpu.model.config import ComponentSpec, tensor_shapes
from blockwright.gpu.parameters import ResidentParameters
from blockwright.gpu.select import open_backend
from blockwright.gpu.weights.adapter import open_adapter
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.packed_tensor import PackedTensor
from blockwright.policies.memory.residence import Residence
from blockwright.tests.adapters import make_adapter
from blockwright.tests.cap import CAP
from blockwright.tests.checkpoints import PRESETS, fused_as_phi3, with_tensors
from blockwright.tests.claims import claim
from blockwright.tests.gpu.rig import placing

MakeCheckpoint = Callable[..., Path]
BACKENDS = pytest.mark.parametrize("name", ["torch", "native"])


def specs(path: Path) -> list[ComponentSpec]:
    return Checkpoint.open(path).specs(16, "float32")


def sizes(backend: Backend, path: Path) -> dict[bytes, int]:
    """Distinct packed tensors of a checkpoint."""
    return {part.id: part.nbytes for spec in specs(path) for part in backend.parts(spec)}


@pytest.mark.parametrize("architecture", PRESETS)
def test_every_architecture_has_the_tensors_that_its_configuration_says(
    checkpoint: MakeCheckpoint, architecture: str
) -> None:
    for spec in specs(checkpoint(architecture)):
        assert tensor_shapes(spec.config) == {role: ref.shape for role, ref in spec.tensors.items()}
        assert spec.hashes.keys() == spec.tensors.keys()


@BACKENDS
def test_a_fused_checkpoint_of_the_same_values_adds_nothing(checkpoint: MakeCheckpoint, name: str, tmp_path: Path) -> None:
    """Phi-3 has q, k, v in one tensor, gate and up in another, all under other names; its configuration differs, too."""
    backend, base = open_backend(name, "float32", 1, CAP), checkpoint("llama")
    fused = fused_as_phi3(base, checkpoint("phi3"), tmp_path / "fused")
    ids = [[spec.component.id for spec in specs(path)] for path in (base, fused)]
    assert ids[0][1] != ids[1][1], "attention with another window is another component"
    assert sizes(backend, base) == sizes(backend, fused)


@BACKENDS
def test_interleaved_heads_are_what_they_would_be_alone(checkpoint: MakeCheckpoint, name: str, tmp_path: Path) -> None:
    """GPT-NeoX has the q, k and v of each head behind each other."""
    backend, path = open_backend(name, "float32", 1, CAP), checkpoint("gpt-neox")
    raw = load_file(path / "model.safetensors")
    spec = specs(path)[1]
    fused = raw["gpt_neox.layers.0.attention.query_key_value.weight"].view(4, 3, 16, 64)
    names = {f"model.layers.0.self_attn.{role}_proj.weight": fused[:, i].reshape(64, 64) for i, role in enumerate("qkv")}
    alone = with_tensors(checkpoint("llama-multihead"), tmp_path / "alone", names)
    ours, others = ({part.role: part.id for part in backend.parts(s)} for s in (spec, specs(alone)[1]))
    assert [ours[role] for role in "qkv"] == [others[role] for role in "qkv"]
    assert ours["o"] != others["o"]


def test_a_form_is_part_of_an_id(checkpoint: MakeCheckpoint) -> None:
    """A tied embedding is looked up in rows and multiplied in panels by the native kernels, in rows alone by torch."""
    path = checkpoint("llama-tied")
    for name, equal in (("native", False), ("torch", True)):
        backend = open_backend(name, "float32", 1, CAP)
        first, last = ({part.role: part.id for part in backend.parts(specs(path)[i])}["weight"] for i in (0, -1))
        assert (first == last) == equal
    wide, narrow = (open_backend("native", dtype, 1, CAP) for dtype in ("float32", "bfloat16"))
    assert not sizes(wide, path).keys() & sizes(narrow, path).keys()


def test_what_is_added_to_a_norm_is_part_of_its_id(checkpoint: MakeCheckpoint) -> None:
    """Gemma stores the difference from 1: the same bytes mean another weight."""
    backend = open_backend("native", "float32", 1, CAP)
    spec, gemma = specs(checkpoint("llama"))[1], specs(checkpoint("gemma"))[1]
    same = ComponentSpec(gemma.component, gemma.config, gemma.tensors, gemma.hashes | {"norm": spec.hashes["norm"]})
    ids = [{part.role: part.id for part in backend.parts(s)}["norm"] for s in (spec, same)]
    assert ids[0] != ids[1]


def test_a_tensor_without_a_hash_is_shared_with_nothing(checkpoint: MakeCheckpoint) -> None:
    backend, found = open_backend("torch", "float32", 1), specs(checkpoint("llama"))
    nameless = [ComponentSpec(spec.component, spec.config, spec.tensors) for spec in found]
    ids = [part.id for spec in nameless for part in backend.parts(spec)]
    assert len(set(ids)) == len(ids)
    assert backend.parts(nameless[0])[0].id != backend.parts(found[0])[0].id


@claim("The memory of weights is within 2 % of the sum of distinct tensors", of="fine-tunes")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@BACKENDS
def test_memory_is_within_two_percent_of_the_raw_tensors(checkpoint: MakeCheckpoint, name: str, dtype: str) -> None:
    """Where widths are multiples of a panel; vectors are float32 in both types for the native kernels."""
    path = checkpoint("llama", hidden_size=256, intermediate_size=512, vocab_size=1024)
    raw = sum(ref.nbytes for ref in {ref for spec in specs(path) for ref in spec.tensors.values()})
    packed = sum(sizes(open_backend(name, dtype, 1, CAP), path).values())
    assert packed == pytest.approx(raw * torch.empty(0, dtype=getattr(torch, dtype)).element_size() / 4, rel=0.02)


def test_twenty_lora_tenants_take_what_their_tensors_take(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """Of a base that is not tiny each adds less than 1 %: its small tensors share chunks with those of others."""
    path = checkpoint("llama", hidden_size=512, intermediate_size=1408, vocab_size=2048, num_hidden_layers=4)
    adapters = [make_adapter(path, tmp_path / str(i), seed=i, target_modules=["q_proj", "v_proj"]) for i in range(20)]
    backend = open_backend("native", "float32", 1, CAP)
    base = Checkpoint.open(path)
    chunk = 65536
    residence, found = Residence(ChunkPool(1 << 12, chunk), 64), dict[bytes, int]()
    added = []
    for name, variant in [("base", base), *((str(i), open_adapter(folder, base)) for i, folder in enumerate(adapters))]:
        before = residence.tensor_bytes
        for spec in (needed for whole in variant.specs(16, "float32") for needed in whole.loads()):
            if residence.hold(spec.name, name) is None:
                parts = backend.parts(spec)
                found |= {part.id: part.nbytes for part in parts}
                assert residence.load(spec.name, name, [PackedTensor(part.id, part.nbytes) for part in parts]) is not None
        added.append(residence.tensor_bytes - before)
    assert 0 < max(added[1:]) < 0.01 * added[0]
    assert residence.used * chunk == pytest.approx(sum(found.values()), rel=0.02)
    residence.check()


def rewrite(path: Path, name: str) -> None:
    """Save a file again in place, with another tensor of that name."""
    tensors = load_file(path)
    save_file(tensors | {name: tensors[name] + 1}, path, metadata={"format": "pt"})


@BACKENDS
def test_a_file_that_was_written_again_in_place_is_refused(checkpoint: MakeCheckpoint, name: str, tmp_path: Path) -> None:
    """Packed tensors are shared by the hash that they had when they were added: the next tenant must not meet others."""
    backend, kept = open_backend(name, "float32", 1, CAP), checkpoint("llama")
    path = Path(shutil.copytree(kept, tmp_path / "base"))
    adapter = make_adapter(path, tmp_path / "adapter")
    spec, delta = open_adapter(adapter, Checkpoint.open(path)).specs(16, "float32")[1].loads()
    places, arena = placing(backend, [spec, delta]), HostArena("parameters", 1 << 24, 1 << 16)
    arena.commit(0, range(arena.chunks))
    resident = ResidentParameters(backend, arena, SLICE)

    def load(one: ComponentSpec) -> None:
        list(resident.load(one, [places.offsets[part.id] for part in backend.parts(one)]))

    rewrite(path / "model.safetensors", "model.layers.0.self_attn.v_proj.weight")
    rewrite(adapter / "adapter_model.safetensors", "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight")
    with pytest.raises(CheckpointError, match=r"base/model.*v_proj.weight has changed since.*replace the application"):
        load(spec)
    with pytest.raises(CheckpointError, match=r"adapter_model.*has changed since the model was added"):
        load(delta)
    assert not resident.components
    assert not resident.deltas
    load(specs(kept)[1])
    (found,) = resident.components.values()
    other = ResidentParameters(backend, fresh := HostArena("parameters", 1 << 24, 1 << 16), SLICE)
    fresh.commit(0, range(fresh.chunks))
    list(other.load(specs(kept)[1], [places.offsets[part.id] for part in backend.parts(spec)]))
    assert torch.equal(arena.memory, fresh.memory), "of the refused one nothing is left where others look"
    assert found.spec.name == spec.name


def test_a_configuration_that_was_written_again_is_refused(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """The tensors are the same, and mean something else."""
    path = Path(shutil.copytree(checkpoint("llama"), tmp_path / "base"))
    found = specs(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    known = [spec.component.id for spec in found], 0, [spec.hashes for spec in found]
    with pytest.raises(CheckpointError, match="another configuration than it had; the folder has changed"):
        Checkpoint.open(path).specs_with_ids(16, "float32", *known)
