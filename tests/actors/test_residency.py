"""A worker that serves many models has each packed tensor in memory once, and loses nothing when a load ends badly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from blockwright.gpu import host_device
from blockwright.gpu.backend import PackedPart
from blockwright.gpu.errors import BackendError
from blockwright.gpu.executor import Executor
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.runtime import RemoteError
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.checkpoints import fused_as_phi3, with_tensors
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.waiting import PATIENCE
from blockwright.zoo.source import open_source

MakeCheckpoint = Callable[..., Path]
LARGE = {"hidden_size": 192, "intermediate_size": 384, "vocab_size": 1024, "num_hidden_layers": 4}


async def check_equal(rig: Rig, application: str, path: Path) -> None:
    prompt = prompt_of(21)
    want = list(greedy(path, prompt, 8))
    got = await rig.generate(f"{application}/{len(rig.record.tokens)}", list(prompt), 8, application=application)
    assert got[: len(want)] == want


@claim("Identical tensors lie in a worker's memory once, whatever their names", of="fine-tunes")
@pytest.mark.parametrize("backend", ["torch", "native"])
async def test_a_model_of_the_same_tensors_adds_none_whatever_their_names(
    checkpoint: MakeCheckpoint, backend: str, tmp_path: Path
) -> None:
    base = checkpoint("llama")
    fused = fused_as_phi3(base, checkpoint("phi3"), tmp_path / "fused")
    rig = await Rig.start([base], backend=backend)
    before = rig.worker.state.parts.memory.parameter_bytes
    assert await rig.load("b", fused) == 0
    assert rig.worker.state.parts.memory.parameter_bytes == before
    found = (await rig.ref.status()).parameters_by_application
    assert [owned for owned, _ in found.values()] == [0, 0]
    assert len(set(found.values())) == 1
    await rig.publish()
    await check_equal(rig, "a", base)
    await check_equal(rig, "b", fused)
    await rig.publish(["b"])
    await rig.ref.unload("a", rig.loads["a"].ids)
    await check_equal(rig, "b", fused)
    await rig.quiet()
    await rig.stop()


@claim(
    "A copy of a served model adds no parameter bytes, and a fine-tune adds only the tensors that differ",
    of="fine-tunes",
    headline=True,
)
async def test_twenty_fine_tunes_of_one_tensor_each_take_what_differs(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    base = checkpoint("llama", **LARGE)
    raw = load_file(base / "model.safetensors")
    names = [name for name in sorted(raw) if "layers" in name][:20]
    tunes = [with_tensors(base, tmp_path / str(i), {name: raw[name] * 1.25}) for i, name in enumerate(names)]
    rig = await Rig.start([base], backend="native", memory=64 << 20)
    parts = {part.id: part.nbytes for path in (base, *tunes) for part in _parts(rig, path)}
    added = [await rig.load(f"t{i}", path) for i, path in enumerate(tunes)]
    assert rig.added["a"] + sum(added) == sum(parts.values())
    assert rig.worker.state.parts.memory.parameter_bytes == pytest.approx(sum(parts.values()), rel=0.02)
    small = [bytes_ for name, bytes_ in zip(names, added, strict=True) if "norm" in name]
    assert small
    assert max(small) < 0.01 * rig.added["a"]
    await rig.publish()
    for i in (0, 7, 19):
        await check_equal(rig, f"t{i}", tunes[i])
    await check_equal(rig, "a", base)
    await rig.publish([])
    for name, block in rig.loads.items():
        await rig.ref.unload(name, block.ids)
    await rig.quiet()
    assert (await rig.ref.status()).parameters == 0
    await rig.stop()


def _parts(rig: Rig, path: Path) -> list[PackedPart]:
    backend = rig.worker.backend
    return [part for spec in Checkpoint.open(path).specs(16, "float32") for part in backend.parts(spec)]


async def test_a_load_that_fails_half_way_leaves_nothing_and_can_be_repeated(
    checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_device, "SLICE", 4096)
    base, broken = checkpoint("llama"), tmp_path / "broken"
    raw = load_file(base / "model.safetensors")
    with_tensors(base, broken, {"model.layers.1.mlp.down_proj.weight": raw["model.layers.1.mlp.down_proj.weight"] + 1})
    rig = await Rig.start([base])
    await rig.quiet()
    before = rig.worker.state.parts.memory.residence.snapshot()
    file = broken / "model.safetensors"
    whole = file.read_bytes()
    specs = Checkpoint.open(broken).specs(16, "float32")
    down = next(spec.tensors["down"] for spec in specs[4:] if "down" in spec.tensors)
    monkeypatch.setattr(rig.worker._block_loader, "_read", lambda block, *_: _ready(specs))
    file.write_bytes(whole[: down.offset + down.nbytes // 2])
    with pytest.raises(RemoteError, match=r"CheckpointError.*down_proj\.weight cannot be read"):
        await rig.load_known("b", broken, specs)
    await rig.quiet()
    assert rig.worker.state.parts.memory.residence.snapshot() == before
    file.write_bytes(whole)
    assert await rig.load_known("b", broken, specs) > 0
    await rig.publish()
    await check_equal(rig, "a", base)
    await check_equal(rig, "b", broken)
    await rig.stop()


async def _ready(value: object) -> object:
    return value


async def test_whoever_needs_what_is_being_loaded_waits_for_it(checkpoint: MakeCheckpoint) -> None:
    path = checkpoint("llama")
    rig = await Rig.start([])
    gate = threading.Event()
    rig.worker.device.call(lambda ex: gate.wait(PATIENCE))
    tasks = []
    for name in "ab":  # one by one: their files are read beside the loop, in any order
        tasks.append(asyncio.create_task(rig.load(name, path)))
        while len(rig.worker._loader._waiting) < len(tasks):
            await rig.ref.status()
    first, second = tasks
    first.cancel()
    await asyncio.wait([first])
    assert not second.done()
    gate.set()
    assert await second == 0, "the first one's places"
    await rig.publish(["b"])
    await check_equal(rig, "b", path)
    await rig.stop()


async def test_what_the_device_cannot_do_is_the_loads_error_and_the_worker_goes_on(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Composed, reserved or grown when it is published it would end the worker, again after each restart."""
    other = checkpoint("qwen2", num_key_value_heads=1)
    rig = await Rig.start([checkpoint("llama")])
    before = rig.worker.state.parts.memory.residence.components
    for operation in ("add_layout", "grow", "rehearse"):
        with monkeypatch.context() as patch:
            patch.setattr(Executor, operation, refuse)
            with pytest.raises(RemoteError, match="no memory on this device"):
                await rig.load("b", other, length=4096)
        assert rig.worker.state.parts.memory.residence.components == before
    await rig.load("b", other, length=4096)
    await rig.publish()
    await check_equal(rig, "a", checkpoint("llama"))
    await check_equal(rig, "b", other)
    await rig.stop()


def refuse(*_: object) -> None:
    raise BackendError("no memory on this device")


async def test_a_second_load_of_a_holder_does_not_release_what_the_first_brings(checkpoint: MakeCheckpoint) -> None:
    rig = await Rig.start([checkpoint("llama")])
    specs = open_source(checkpoint("qwen2")).specs(rig.worker.config.worker_memory.page_size, "float32")
    first = asyncio.ensure_future(rig.worker._loader.load(specs, "b"))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="being loaded already"):
        await rig.worker._loader.load(specs[:2], "b")
    assert await first
    assert {spec.name for spec in specs} <= {*rig.worker.state.parts.memory.residence.components}
    await rig.stop()


async def test_a_load_that_is_released_while_it_waits_for_its_place_ends(checkpoint: MakeCheckpoint) -> None:
    rig = await Rig.start([checkpoint("llama")])
    specs = open_source(checkpoint("qwen2")).specs(rig.worker.config.worker_memory.page_size, "float32")
    load = asyncio.ensure_future(rig.worker._loader.load(specs, "b"))
    await asyncio.sleep(0)
    await rig.ref.unload("b", [spec.name for spec in specs])
    with pytest.raises(RuntimeError, match="released meanwhile"):
        await load
    assert await rig.load("b", checkpoint("qwen2"))
    await rig.stop()
