"""One worker actor on a node of its own, with a gateway that only listens: real tensors, no sockets, no processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockwright.actors.worker.actor import Worker
from blockwright.actors.worker.former_life import take_over
from blockwright.actors.worker.messages import BlockLoaded, Submission
from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.select import open_backend
from blockwright.policies.cluster.report_sequence import ACKNOWLEDGE_EVERY
from blockwright.policies.control.loads import LoadBlock, ModelFiles, NoCapacity
from blockwright.policies.model.chain import Block, Chain, Hop, Route
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.events import GivenBack, TokensEmitted
from blockwright.runtime import Actor, Node, endpoint
from blockwright.tests.cap import CAP
from blockwright.tests.waiting import PATIENCE
from blockwright.tests.worker_config import worker_config
from blockwright.zoo.source import open_source

GREEDY = SamplingParams(temperature=0.0)
ANSWER: Any = BlockLoaded | NoCapacity


class Ear(Actor):
    """The endpoint that workers cast to, feeding a plain record."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @endpoint
    async def tokens(self, report: SweepReport) -> None:
        self.record.record(report)
        if report.serial % ACKNOWLEDGE_EVERY == 0:
            self.node.ref(f"{report.worker}/worker").ack.cast(f"{self.node.name}/gateway", report.serial)


class Record:
    """The messages to a gateway."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, asyncio.Future[str]] = {}
        self.reports: list[SweepReport] = []
        self.changed = asyncio.Event()

    def expect(self, request: str) -> None:
        self.tokens[request] = []
        self.ended[request] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        """The device thread is at its end: so is every request."""
        for future in self.ended.values():
            if not future.done():
                future.set_exception(error)

    def record(self, report: SweepReport) -> None:
        self.reports.append(report)
        for news in report.news:
            match news:
                case TokensEmitted():
                    self.tokens[news.request] += news.tokens
                    if news.finish:
                        self.ended[news.request].set_result(news.finish)
                case GivenBack():
                    self.ended[news.request].set_result(news.reason)
        self.changed.set()


class Rig:
    """A worker that serves checkpoints as applications named a, b, ..."""

    def __init__(self, worker: Worker, node: Node, record: Record) -> None:
        self.worker = worker
        self.node = node
        self.record = record
        self.ref = node.ref(f"{node.name}/worker", Worker)
        self.chains: dict[str, Chain] = {}
        self.loads: dict[str, LoadBlock] = {}
        self.added: dict[str, int] = {}  # bytes that each has brought
        self.version = 0

    @classmethod
    async def start(
        cls,
        checkpoints: Sequence[Path],
        *,
        backend: str = "torch",
        name: str = "w0",
        directory: Path | None = None,
        legacy: dict[str, Any] | None = None,
        incarnation: int = 1,
        **config: object,
    ) -> Rig:
        """directory: of the sockets, where there are other workers. legacy: of a life before, if another follows."""
        node = Node(name, listen=directory is not None, directory=directory, incarnation=incarnation, legacy=legacy)
        await node.start()
        values: dict[str, Any] = {"memory": 16 << 20, "max_length": 512, "kv_layers": 8, "check": True}
        settings = worker_config(name, **{**values, **config})
        record = Record()
        former = take_over(legacy, settings)
        opened = former.backend if former is not None else open_backend(backend, settings.worker.dtype, 1, CAP)
        worker = Worker(settings, opened, record.fail, former)
        await node.spawn(worker, name="worker")
        await node.spawn(Ear(record), name="gateway")
        rig = cls(worker, node, record)
        for application, path in zip("abcdefgh", checkpoints, strict=False):
            await rig.load(application, path)
        await rig.publish()
        return rig

    async def load(self, application: str, path: Path, length: int = 0) -> int:
        config = self.worker.config
        return await self.load_known(
            application, path, open_source(path).specs(config.worker_memory.page_size, config.worker.dtype), length
        )

    async def load_known(self, application: str, path: Path, specs: Sequence[ComponentSpec], length: int = 0) -> int:
        """Of a checkpoint that was hashed before."""
        components = tuple(spec.component for spec in specs)
        self.chains[application] = Chain(application, (Block(components),), self.worker.config.max_length)
        hashes = [spec.hashes for spec in specs]
        ids, deltas = [c.shared for c in components], [c.delta for c in components]
        block = LoadBlock(
            ModelFiles(b"", str(path)), 0, len(components), ids, application, hashes, deltas=deltas, length=length, layers=8
        )
        self.loads[application] = block
        answer: Any = await self.ref.load(block, returns=ANSWER)
        if isinstance(answer, NoCapacity):
            raise MemoryError(answer.message)
        self.added[application] = answer.new_bytes
        return self.added[application]

    async def publish(self, applications: Sequence[str] | None = None, *, planned_too: bool = False) -> None:
        """``planned_too``: nothing else is planned."""
        self.version += 1
        chains, here = list(self.chains.values()), self.node.name
        planned = [Route(f"{c.application}@w0", 1, c.application, (Hop(here, 0, len(c.components)),)) for c in chains]
        routes = [r for r in planned if applications is None or r.application in applications]
        await self.ref.routes(RoutesChanged(self.version, chains, routes, routes if planned_too else planned))

    async def submit(
        self, request: str, prompt: list[int], new: int, *, application: str = "a", sampling: SamplingParams = GREEDY,
        stop: Sequence[int] = (),
        route: str = "",
        gateway: str = "",
        expires: float = 0.0,
    ) -> None:  # fmt: skip
        self.record.expect(request)
        gateway = gateway or f"{self.node.name}/gateway"
        page_size = self.worker.config.worker_memory.page_size
        submission = Submission(
            request=request, attempt=1, gateway=gateway, route=route or f"{application}@w0", route_version=1,
            tokens=prompt, prompt_length=len(prompt), page_hashes=page_hashes(prompt, page_size),
            max_length=len(prompt) + new, stop_tokens=list(stop), sampling=sampling, arrival=float(len(self.record.tokens)),
            timeout=expires,
        )  # fmt: skip
        self.ref.submit.cast(submission)
        await asyncio.sleep(0)

    async def finish(self, request: str) -> list[int]:
        async with asyncio.timeout(PATIENCE):
            await self.record.ended[request]
        return self.record.tokens[request]

    async def generate(self, request: str, prompt: list[int], new: int, **more: object) -> list[int]:
        await self.submit(request, prompt, new, **more)  # type: ignore[arg-type]
        return await self.finish(request)

    async def quiet(self) -> None:
        """All plans have ended; the memory invariant holds."""
        while self.worker.state.open_plans or self.worker._pumping:
            await self.worker.device.call(lambda ex: None)
        self.worker.state.check()
        assert not self.worker.state.parts.rows.live()

    async def stop(self) -> None:
        await self.node.stop()


def seeded(params: SamplingParams, seed: int) -> SamplingParams:
    return replace(params, seed=seed)
