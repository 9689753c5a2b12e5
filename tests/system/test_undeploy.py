"""A worker process gives memory back to the system when an application goes, and takes it again when it returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blockwright.actors import topology
from blockwright.actors.gateway.port import Generation
from blockwright.actors.settings.settings import Settings
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.tests.claims import claim
from blockwright.tests.equality.test_sharing import altered
from blockwright.tests.memory import arena_bytes
from blockwright.tests.waiting import PATIENCE

pytestmark = pytest.mark.system
MIB = 1 << 20


@asynccontextmanager
async def running(applications: dict[str, Path]) -> AsyncIterator[topology.Running]:
    settings = Settings(applications={n: str(p) for n, p in applications.items()}, memory=256 * MIB, threads=1)
    cluster = await topology.start(settings)
    try:
        async with asyncio.timeout(PATIENCE):
            await cluster.ready(whole=True)
            yield cluster
    finally:
        await cluster.stop()


async def worker(cluster: topology.Running) -> dict[str, int]:
    """What the pool says (bytes), and the process."""
    (view,) = (await cluster.port.cluster())["workers"]
    return {**view["memory"], "pid": view["pid"], "used": view["memory"]["budget"] - view["memory"]["free"]}


async def ask(cluster: topology.Running, application: str, length: int) -> None:
    prompt = [3 + i % 200 for i in range(length)]
    generation = Generation(
        id=f"cmpl-{application}-{length}", application=application, prompt=prompt, max_tokens=4, stop_tokens=[],
        sampling=SamplingParams(temperature=0.0),
    )  # fmt: skip
    async for _ in cluster.port.generate(generation):
        pass


@claim("An undeployed model returns its memory to the system", of="serving")
async def test_memory_falls_and_rises_by_what_the_pool_says(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    base = checkpoint("llama", vocab_size=8000, hidden_size=256, intermediate_size=2048, num_hidden_layers=4)
    tuned = altered(base, tmp_path / "tuned", ("layers.2.", "layers.3."))
    async with running({"base": base, "tuned": tuned}) as cluster:
        for application in ("base", "tuned"):
            await ask(cluster, application, 450)
        await ask(cluster, "base", 300)
        before = await worker(cluster)
        resident = arena_bytes(before["pid"])
        await cluster.controller.undeploy("tuned")
        await ask(cluster, "base", 300)  # its answer follows what the device did before
        after = await worker(cluster)
        freed = before["used"] - after["used"]
        assert before["parameters"] - after["parameters"] > 4 * MIB, "its own blocks"
        assert before["cached"] > after["cached"], "the pages that they made"
        assert resident - arena_bytes(before["pid"]) == pytest.approx(freed, rel=0.05)
        low = arena_bytes(before["pid"])
        await cluster.controller.deploy("tuned")
        await cluster.ready(whole=True)
        await ask(cluster, "tuned", 450)
        again = await worker(cluster)
        assert again["pid"] == before["pid"]
        assert arena_bytes(before["pid"]) - low == pytest.approx(again["used"] - after["used"], rel=0.05)
