"""Each wait of the CUDA back end is needed: leaving out any one of them shows in what it computes, whatever the seed.

A wait is named by the call that comes to it, and by who waits: a stream for another, or the host.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockwright.gpu.cuda import graphs
from blockwright.gpu.cuda.deferred import DeferredEvent, DeferredStream, DeferredStreams
from blockwright.gpu.cuda.device import CudaDevice
from blockwright.gpu.cuda.platforms import open_mirror
from blockwright.gpu.errors import BackendError, ExecutorError
from blockwright.policies.model.chain import HiddenLayout
from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.plan.sweep_plan import MapGroup
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import GREEDY, Rig
from blockwright.tests.parts import spans

PAGE = 8
# By the call that comes to a wait, and by who waits.
PLACES = {
    "the copy of a plan's results comes behind its computation": ("queue_copy", "stream"),
    "a ticket waits for that copy": ("_collect", "host"),
    "a buffer of results is taken again when it has been read": ("take", "host"),
    "a host buffer is written to again when its upload has ended": ("upload", "host"),
    "pages are brought to the host behind what writes them": ("export", "stream"),
    "the host waits for these pages": ("export", "host"),
    "logits are brought to the host behind their computation": ("logits", "stream"),
    "the host waits for these logits": ("logits", "host"),
    "the host waits for the tokens before a draw of its own": ("_prepare", "host"),
    "chunks are unmapped when nothing is queued": ("map", "settle"),
    "tables are replaced by larger ones when nothing is queued": ("reserve", "settle"),
    "scratch is replaced by larger one when nothing is queued": ("need", "settle"),
    "a graph is given back when it is not queued": ("_drop_oldest", "settle"),
}


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
    """All that the back end gives to the host: tokens of plans that are open together, and pages that were moved."""
    backend = open_mirror("float32", seed=seed)
    rig = Rig(backend, path, PAGE, max_length=40)
    found = [_tokens(rig, seed)]
    layout = HiddenLayout(rig.checkpoint.config.hidden, "float32", PAGE)
    rig.commit(rig.executor.add_layout(layout), 8 * backend.slot_bytes(layout))
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


def _tokens(rig: Rig, seed: int) -> torch.Tensor:
    """Tokens of three rows, of which one is drawn on the host, while tables, scratch and graphs are replaced."""
    executor, device = rig.executor, rig.executor.device
    assert isinstance(device, CudaDevice)
    prompts = [reference.prompt_of(length, seed=seed) for length in (19, 5, 9)]
    # what the host draws depends on all tokens before, and the card leaves such rules to it
    unlike = TokenRules(allowed=[*prompts[2], 3], no_repeat=1)
    rows = [GREEDY, SamplingParams(seed=seed, top_p=0.9), SamplingParams(seed=seed, rules=unlike)]
    edits = [edit for row, params in enumerate(rows) for edit in rig.admit(row, prompts[row], params, 40)]
    at = [len(prompt) for prompt in prompts]
    tickets = [executor.submit(rig.plan([(row, 0, at[row]) for row in range(3)], [0, 1, 2], edits))]
    for turn, rows_now in enumerate((2, 2, 2, 3, 2, 1, 2, 1, 2, 1, 3, 2, 2)):  # a bucket is dropped just behind its use
        batch = [(row, at[row], 1) for row in range(rows_now)]
        tickets.append(executor.submit(rig.plan(batch, list(range(len(batch))))))
        for row, *_ in batch:
            at[row] += 1
        if turn == 5:
            device.add_width(4 * rig.checkpoint.config.hidden)
        if turn == 11:
            list(executor.grow(64, rig.checkpoint.config.layers + 1))
    assert device.graphs.replayed
    return torch.tensor([token for ticket in tickets for token in ticket.wait().tokens])


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
        except (BackendError, ExecutorError, ArithmeticError, IndexError):
            status = 2 if forgetful.left_out else 3
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@claim("Host code for a card is tested with queued work that runs as late as it may", of="numerics")
@pytest.mark.parametrize("seeds", spans(1, 20, daily=1), ids=str)
def test_a_missing_wait_shows_in_each_of_ten_places_and_more(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    """A wrong address from poisoned memory may end the process, so each runs in a child."""
    path = checkpoint("llama")
    monkeypatch.setattr(graphs, "MOST", 1)
    for seed in seeds:
        right = scene(path, seed)
        assert not right[1].any()
        found = {words: ends(path, seed, right, *place) for words, place in PLACES.items()}
        assert [words for words, status in found.items() if status in (0, 3 << 8)] == [], found
        assert ends(path, seed, right, "no such call", "host") == 3 << 8, "otherwise every child would count"
