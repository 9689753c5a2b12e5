"""Two worker actors with real tensors, device threads and sockets: what one loads comes from the other's memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.worker import parameters
from blockwright.actors.worker.messages import BlockLoaded
from blockwright.policies.cluster.parameter_fetch import AHEAD
from blockwright.tests.actors.worker_rig import ANSWER, Rig
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of

MakeCheckpoint = Callable[..., Path]
NEW = 12


async def pair(path: Path, folder: Path, backend: str) -> tuple[Rig, Rig]:
    """The first serves the checkpoint, the second nothing yet."""
    os.chmod(folder, 0o700)
    same: dict[str, Any] = {"backend": backend, "directory": folder, "memory": 4 << 20}
    first, second = await Rig.start([path], **same, name="w0"), await Rig.start([], **same, name="w1")
    for one, other in ((first, second), (second, first)):
        one.node.peering.greet(other.node.id, other.node.endpoint)
    return first, second


def spoil(path: Path) -> None:
    """Headers are right, values are lost."""
    for file in path.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:4096].ljust(file.stat().st_size, b"\0"))


async def fetch(rig: Rig, other: Rig, source: str = "w0") -> BlockLoaded:
    block = replace(other.loads["a"], source=source)
    rig.loads["a"], rig.chains["a"] = block, other.chains["a"]
    loaded: Any = await rig.ref.load(block, returns=ANSWER)
    await rig.publish()
    return loaded  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", ["torch", "native"])
async def test_parameters_come_from_a_worker_that_serves_meanwhile(
    checkpoint: MakeCheckpoint, tmp_path: Path, backend: str
) -> None:
    kept = checkpoint("llama")
    path = Path(shutil.copytree(kept, tmp_path / "model"))
    first, second = await pair(path, tmp_path, backend)
    prompt = prompt_of(40, seed=3)
    await first.submit("busy", list(prompt), 200)
    spoil(path)
    loaded = await fetch(second, first)
    assert loaded.fetched == loaded.new_bytes == first.added["a"]
    assert loaded.unfetched == ""
    tokens = await second.generate("r0", list(prompt), NEW)
    reference = greedy(kept, prompt, NEW)
    assert tokens[: len(reference)] == list(reference)
    assert (await first.finish("busy"))[:NEW] == tokens
    status = await second.ref.status()
    assert status.counters["fetched_parameter_bytes"] == loaded.fetched
    assert (await first.ref.status()).counters["sent_parameter_bytes"] == loaded.fetched
    assert status.counters["staged_parameter_bytes"] == 0
    for rig in (first, second):
        await rig.quiet()
        await rig.stop()


@claim("Missing parameters come back from another worker that serves meanwhile, or else from disk", of="parameter-dropping")
@pytest.mark.parametrize("why", ["stalls", "dies", "has nothing", "is not up"])
async def test_what_does_not_come_is_read(
    checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    path = checkpoint("llama")
    first, second = await pair(path, tmp_path, "torch")
    known, answers = first.loads["a"], [0]
    if why == "has nothing":
        await first.publish([])
        await first.ref.unload("a", known.ids)
    if why in ("stalls", "dies"):
        monkeypatch.setattr(parameters, "STALL", 3600.0)
        send, coming = first.worker._parameters.send, second.worker._parameters

        def deaf(wanted: parameters.ParametersWanted) -> None:
            answers[0] += 1
            if answers[0] <= AHEAD:
                send(wanted)
            elif why == "dies":
                coming.lost("w0")
            else:  # patience ends now, and not while something still comes
                monkeypatch.setattr(parameters, "STALL", 0.0)
                for one in coming._fetches:
                    coming._go_on(one)

        monkeypatch.setattr(first.worker._parameters, "send", deaf)
    loaded = await fetch(second, first, "w7" if why == "is not up" else "w0")
    assert loaded.fetched < loaded.new_bytes
    words = {"stalls": "nothing came from w0", "dies": "w0 died", "has nothing": "w0 has not got"}
    assert words.get(why, "w7 is not up") in loaded.unfetched
    assert bool(loaded.fetched) == (why in ("stalls", "dies"))
    prompt = prompt_of(21, seed=4)
    reference = greedy(path, prompt, NEW)
    assert (await second.generate("r0", list(prompt), NEW))[: len(reference)] == list(reference)
    assert (await second.ref.status()).counters["unfetched_loads"] == 1
    for rig in (first, second):
        await rig.stop()
