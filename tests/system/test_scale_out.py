"""A block whose queue is nearly as long as memory allows is deployed on the other worker, alone, and goes again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.equality.test_sharing import altered
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.system.client import Client, body, check
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
NEW = 60


def routes(cluster: Any, application: str) -> set[str]:
    return {route["id"] for route in cluster["routes"] if route["application"] == application}


def parameters(cluster: Any) -> dict[str, int]:
    return {worker["id"]: worker["memory"]["parameters"] for worker in cluster["workers"]}


def blocks_of(cluster: Any, worker: str) -> dict[str, list[str]]:
    """Application -> the actors of its blocks."""
    found: dict[str, list[str]] = {}
    for block in next(one for one in cluster["workers"] if one["id"] == worker)["busiest_blocks"]:
        for application in block["applications"]:
            found.setdefault(application, []).append(block["actor"])
    return found


async def cluster(client: Client, ways: int) -> Any:
    """As it is once ``tuned`` has so many routes."""

    async def look() -> Any:
        found = (await client.get("/admin/cluster"))[1]
        return found if len(routes(found, "tuned")) == ways else None

    return await until(look, f"{ways} routes")


@claim("A block under load is copied alone to another worker and goes again when idle", of="fine-tunes")
@pytest.mark.nightly
async def test_under_a_burst_the_upper_block_runs_on_both_workers(serve: Any, model: Path, tmp_path: Path) -> None:
    """Two foundations that fit on a worker each, and a variant of the first; beside the second there is room for a part."""
    tuned = altered(model, tmp_path / "tuned", ("layers.2.",))
    other = make_checkpoint(tmp_path / "other", seed=5)
    more = ["--app", f"tuned={tuned}", "--app", f"other={other}"]
    server: Server = serve(memory="1152KiB", max_model_len=256, block_idle=2, arguments=more)
    server.whole()
    async with Client(server) as client:
        before = await cluster(client, 1)
        prompts = [tuple(prompt_of(5 + n % 11, seed=n)) for n in range(18)]
        burst = [client.begin({**body(0, NEW, prompt), "model": "tuned"}) for prompt in prompts[:14]]
        during = await cluster(client, 2)
        (added,) = routes(during, "tuned") - routes(before, "tuned")
        hops = next(route["hops"] for route in during["routes"] if route["id"] == added)
        assert [hop["worker"] for hop in hops] == ["w0", "w1"], "one part of the chain stays where it was"
        assert routes(during, "other") == routes(before, "other")
        assert all(blocks_of(during, worker)["tuned"] for worker in ("w0", "w1")), "an actor for each block of it, on both"
        nodes = {node["name"]: node["actors"] for node in (await client.get("/admin/actors"))[1]["nodes"]}
        assert {a["supervisor"] for a in nodes["w1"] if a["name"].startswith("block-")} == {"w1/blocks"}
        asked = prompts[:14]

        async def both() -> bool:
            """As the burst ends, one more at a time may all go the old way: they come until one does not."""
            asked.append(prompts[len(asked) % len(prompts)])
            burst.append(client.begin({**body(0, NEW, asked[-1]), "model": "tuned"}))
            workers = (await client.get("/admin/cluster"))[1]["workers"]
            return all(worker["counters"]["computed_tokens"] for worker in workers)

        await until(both, "both have computed")
        await client.finished()
        answers = {prompt: greedy(tuned, prompt, NEW) for prompt in prompts}
        check(burst, [answers[prompt] for prompt in asked])
        after = await cluster(client, 1)
        assert routes(after, "tuned") == routes(before, "tuned")

        async def gone() -> bool:
            return parameters((await client.get("/admin/cluster"))[1]) == parameters(before)

        await until(gone, "what was loaded for it has gone")
