"""Each wait of the CUDA back end is needed: leaving out any one of them shows in what it computes, whatever the seed.

A wait is named by the call that comes to it, and by who waits: a stream for another, or the host.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from blockwright.gpu.backend import Batch
from blockwright.gpu.cuda.deferred import DeferredEvent, DeferredStream, DeferredStreams
from blockwright.gpu.cuda.platforms import open_mirror
from blockwright.gpu.errors import BackendError, ExecutorError
from blockwright.policies.model.chain import HiddenLayout
from blockwright.policies.plan.sweep_plan import MapGroup
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import Rig
from blockwright.tests.parts import spans

PAGE = 8
PLACES = [
    ("forward", "stream"), ("forward", "host"), ("logits", "stream"), ("logits", "host"), ("take_hidden", "stream"),
    ("take_hidden", "host"), ("export", "stream"), ("export", "host"), ("import_", "host"), ("map", "settle"),
]  # fmt: skip


class Forgetful:
    """Leaves out the waits of one place. ``left_out`` counts them."""

    def __init__(self, patch: pytest.MonkeyPatch, call: str, who: str) -> None:
        self.call, self.left_out = call, 0
        owner, name = {
            "stream": (DeferredStream, "wait"), "host": (DeferredEvent, "wait"), "settle": (DeferredStreams, "settle")
        }[who]  # fmt: skip
        wait = getattr(owner, name)

        def forget(*given: object) -> None:
            if self._within():
                self.left_out += 1
            else:
                wait(*given)

        patch.setattr(owner, name, forget)

    def _within(self) -> bool:
        frame = sys._getframe(2)
        while frame is not None:
            if (
                frame.f_code.co_name == self.call
                and "/gpu/" in frame.f_code.co_filename
                and "/tests/" not in frame.f_code.co_filename
            ):
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False


def scene(path: Path, seed: int) -> list[torch.Tensor]:
    """All that the back end gives to the host: tokens, hidden states that were kept, pages that were moved."""
    backend = open_mirror("float32", seed=seed)
    rig = Rig(backend, path, PAGE)
    prompt = reference.prompt_of(19)
    found = [torch.tensor(rig.generate(0, prompt, 3, chunk=7))]
    width = rig.checkpoint.config.hidden
    layout = HiddenLayout(width, "float32", PAGE)
    rig.commit(rig.executor.add_layout(layout), 8 * backend.slot_bytes(layout))
    row_N, start_N, count_N = (np.array(column, dtype=np.int32) for column in ([0], [3], [11]))
    batch = Batch(row_N, start_N, count_N, torch.arange(11.0 * width).view(11, width))
    rig.executor.tables.slots[0, -1, :3] = 5, 2, 7
    backend.put_hidden(layout, rig.executor.tables.slots.shape[1] - 1, batch)
    batch.hidden_TD = torch.zeros(11, width)
    backend.take_hidden(layout, rig.executor.tables.slots.shape[1] - 1, batch)
    found.append(batch.hidden_TD)
    sent = torch.randint(0, 256, (6, backend.slot_bytes(layout)), dtype=torch.uint8, generator=torch.manual_seed(seed))
    for slot in range(6):
        backend.import_(layout, [slot], sent[slot : slot + 1])
    came = torch.zeros_like(sent)
    backend.export(layout, range(6), came)
    found.append(came - sent)
    backend.import_(layout, [0], sent[:1])  # is still queued when memory is to be unmapped
    chunks = -(-8 * backend.slot_bytes(layout) // 65536)
    last = range(rig._next_chunk - chunks, rig._next_chunk)
    rig.executor.map(MapGroup(layout.key, 0, list(last), back=True))
    return found


def ends(path: Path, seed: int, right: list[torch.Tensor], call: str, who: str) -> int:
    """How a process ends in which the waits of a place are left out: 0 if all is right, 3 if none came to that place."""
    if not (child := os.fork()):
        faulthandler.disable()
        status = 1
        try:
            with pytest.MonkeyPatch.context() as patch:
                forgetful = Forgetful(patch, call, who)
                found = scene(path, seed)
            status = 3 if not forgetful.left_out else int(not all(map(torch.equal, found, right)))
        except (BackendError, ExecutorError, ArithmeticError) as error:
            status = 2 if who != "settle" or "settle first" in str(error) else 3
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@claim("Host code for a card is tested with queued work that runs as late as it may", of="numerics")
@pytest.mark.parametrize("seeds", spans(1, 20, daily=1), ids=str)
def test_a_missing_wait_shows_in_each_of_ten_places(checkpoint: Callable[..., Path], seeds: range) -> None:
    """A wrong address from poisoned memory may end the process, so each runs in a child."""
    path = checkpoint("llama")
    for seed in seeds:
        right = scene(path, seed)
        assert int(right[1][0, 1]) == 1
        assert not right[2].any()
        found = {place: ends(path, seed, right, *place) for place in PLACES}
        assert [place for place, status in found.items() if status in (0, 3 << 8)] == []
        assert ends(path, seed, right, "no such call", "host") == 3 << 8, "otherwise every child would count"
