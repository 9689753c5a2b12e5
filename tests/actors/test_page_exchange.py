"""Two worker actors with real tensors and sockets: pages of a sequence are exported from one and arrive at the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.sweep.page_events import Export, Exported, PageTarget
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.waiting import until

Checkpoints = Callable[..., Path]
PROMPT, NEW = prompt_of(70, seed=5), 6
LAYERS = 8  # at least


async def pair(path: Path, folder: Path, sizes: tuple[int, int]) -> tuple[Rig, Rig]:
    """Two workers that serve a checkpoint over the mirror of a card, with pages of these sizes."""
    os.chmod(folder, 0o700)
    same: dict[str, Any] = {"backend": "cuda-mirror", "directory": folder}
    first, second = [await Rig.start([path], **same, name=f"w{number}", page_size=size) for number, size in enumerate(sizes)]
    for one, other in ((first, second), (second, first)):
        one.node.peering.greet(other.node.id, other.node.endpoint)
    return first, second


async def export(rig: Rig, to: str, request: str, number: int) -> Exported:
    """Have a worker send all full pages of a request that ran there, and return the outcome that its gateway is told."""
    hashes = page_hashes(PROMPT, rig.worker.config.worker_memory.page_size)
    gateway = f"{rig.node.name}/gateway"
    await rig.ref.export(Export(gateway, request, 1, number, "a@w0", "", hashes, 0, [PageTarget(to, 0, LAYERS)]))

    def outcome() -> list[Exported]:
        told = [news for report in rig.record.reports for news in report.news if isinstance(news, Exported)]
        return [news for news in told if news.number == number]

    (done,) = await until(outcome)
    return done  # type: ignore[no-any-return]


@claim("Pages of another size than a worker's own are not used there, and a sentence says so once", of="numerics")
@pytest.mark.parametrize(("ours", "theirs"), [(8, 16), (16, 8), (8, 8)])
async def test_pages_from_a_worker_with_another_size(
    checkpoint: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture, ours: int, theirs: int
) -> None:
    """They are refused as a whole, the sender is told, and both workers go on computing the tokens of transformers."""
    path = checkpoint("llama")
    wanted = list(greedy(path, PROMPT, NEW))
    first, second = await pair(path, tmp_path, (ours, theirs))
    assert await first.generate("r0", list(PROMPT), NEW) == wanted
    pages, same = len(PROMPT) // ours, ours == theirs
    for number in (1, 2):
        done = await export(first, "w1", "r0", number)
        assert (done.pages, done.refused) == ((pages, 0) if same else (0, pages))
        assert done.nbytes > 0
    counters = second.worker.state.counters
    assert (counters["imported_pages"], counters["refused_pages"]) == ((pages, 0) if same else (0, 2 * pages))
    assert await second.generate("r1", list(PROMPT), NEW) == wanted
    assert second.worker.state.counters["cached_tokens"] == (pages * ours if same else 0)
    assert await first.generate("r2", list(PROMPT), NEW) == wanted
    said = [text for text in caplog.messages if "page_size" in text]
    other = (
        f"worker w0 sends pages of {ours} tokens, and this worker's have {theirs}, so they are computed anew here; start "
        "all workers with one page_size"
    )
    assert said == ([] if same else [other])
    for rig in (first, second):
        await rig.quiet()
        await rig.stop()
