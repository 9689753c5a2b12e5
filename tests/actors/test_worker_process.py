"""What a worker's process sets for itself before it begins."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
import torch

from blockwright.actors.member_calls import JoinRefused
from blockwright.actors.worker import main
from blockwright.gpu.errors import BackendError
from blockwright.policies.cluster.worker_size import WorkerReport
from blockwright.tests.worker_config import worker_config


class FakeNode:
    """Hears that the worker is unfit."""

    incarnation = 1
    legacy = None  # no life was before

    def __init__(self) -> None:
        self.notified = asyncio.Event()
        self.threads = 0  # of the worker that joins

    def ref(self, _: str) -> FakeNode:
        return self

    async def machine(self, *_: object, **__: object) -> None:
        """Know no machine."""

    async def join(self, *_: object, **__: object) -> WorkerReport:
        return WorkerReport(host="host", device="cpu", cores=8, threads=self.threads, memory=1 << 30)

    async def unfit(self, *_: object) -> None:
        self.notified.set()


async def test_torch_has_as_many_threads_as_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one for each core a copy of a few pages waited 25 ms for a core on a busy machine, in each of its workers."""

    def opened(*_: object) -> None:
        raise BackendError("this machine has none")

    monkeypatch.setattr(main, "open_backend", opened)
    monkeypatch.setattr(main, "set_up", lambda *_: None)
    before, node = (torch.get_num_threads(), sys.getswitchinterval()), FakeNode()
    named: Any = node
    for threads in (before[0] + 1, before[0] + 2):
        node.threads = threads
        task = asyncio.create_task(main.start(named, worker_config(threads=threads)))
        await node.notified.wait()
        node.notified.clear()
        assert torch.get_num_threads() == threads
        task.cancel()
    torch.set_num_threads(before[0])
    sys.setswitchinterval(before[1])


async def test_a_worker_that_joined_by_itself_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object) -> None:
        raise BackendError("this machine has none")

    monkeypatch.setattr(main, "open_backend", opened)
    monkeypatch.setattr(main, "set_up", lambda *_: None)
    before, node = sys.getswitchinterval(), FakeNode()
    node.threads = torch.get_num_threads()
    named: Any = node
    try:
        with pytest.raises(JoinRefused, match="this machine has none"):
            await main.start(named, worker_config(joined=True))
    finally:
        sys.setswitchinterval(before)
    assert not node.notified.is_set()
