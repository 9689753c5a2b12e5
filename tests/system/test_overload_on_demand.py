"""A model on demand is asked for in a burst: it takes nothing that a drop has freed, and is answered all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.policies.cluster.demand import PATIENCE
from blockwright.tests.claims import claim
from blockwright.tests.equality.test_sharing import altered
from blockwright.tests.system.client import Client
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.system.test_overload import SIZES, STREAMS, changes, load, looked, restored, right
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
TRIO = ("w0", "w1", "w2")
FEW = 6  # requests that leave room for a fine-tune


@claim("Models on demand are not loaded into memory that a drop has freed", of="parameter-dropping")
@pytest.mark.nightly
async def test_a_model_on_demand_waits_for_the_end_of_a_burst(
    checkpoint: Callable[..., Path], serve: Callable[..., Server], tmp_path: Path
) -> None:
    """It fits beside half of the other one's parameters, but not beside all of them."""
    base = checkpoint("llama", **SIZES)
    other = altered(base, tmp_path / "other", ("layers.", "embed", "lm_head"))
    server = serve(base, memory="6MiB", overload="on", silence=3, arguments=["--set", f"app_roots={tmp_path}"]).whole()
    beside: list[set[str]] = []  # what workers have while parameters are dropped
    async with Client(server) as client:
        await client.add("other", other)
        asked = load([base.name])

        async def done() -> bool:
            if (await looked(client))["groups"]:
                here = [{*worker["parameters_by_application"]} for worker in (await client.workers()).values()]
                beside.extend(here if (await looked(client))["groups"] else [])
            return all(answer.done for answer in answers)

        with slow(server, 5):
            answers = [client.begin(request) for request in asked]
            await until(lambda: changes(client, "drop"))
            late = [{**request, "model": "other"} for request in load([base.name])[:4]]
            answers += [client.begin(request) for request in late]
            asked_at = (await looked(client))["readings"]["w0"][-1]["at"]

            async def waited() -> bool:
                """Longer than what is in use without a burst has before it gives way."""
                assert not await done(), "it is slow"
                return bool((await looked(client))["readings"]["w0"][-1]["at"] - asked_at > 3 * PATIENCE)

            await until(waited)
        more = load([base.name])[:2]
        answers += [client.begin(request) for request in more]
        await until(lambda: all(answer.tokens for answer in answers[-2:]))
        assert not any(answer.tokens for answer in answers[STREAMS:-2]), "the other one takes new requests"
        await until(done)
        assert beside
        assert all(here == {base.name} for here in beside)
        assert {*(await client.workers())["w0"]["parameters_by_application"]} == {"other"}, "it has had its turn"
        await right(client, answers, asked + late + more)
    server.stop()


@pytest.mark.nightly
async def test_what_was_loaded_on_demand_is_dropped_in_a_burst_of_its_own(
    checkpoint: Callable[..., Path], serve: Callable[..., Server], tmp_path: Path
) -> None:
    """After one swap no worker dropped anything until the next start."""
    base = checkpoint("llama", **SIZES)
    other = altered(base, tmp_path / "other", ("layers.", "embed", "lm_head"))
    server = serve(base, memory="6MiB", overload="on", silence=3, arguments=["--set", f"app_roots={tmp_path}"]).whole()
    async with Client(server) as client:
        await client.add("other", other)
        asked = load(["other"])
        answers = [client.begin(asked[0])]
        await client.finished()
        assert (await looked(client))["refused"] == {}
        with slow(server, 5):
            answers += [client.begin(request) for request in asked[1:]]
            await until(lambda: changes(client, "drop"))
        await until(lambda: restored(client))
        await right(client, answers, asked)
        swapped = {**asked[0], "model": base.name}
        await right(client, [client.begin(swapped)], [swapped])
    server.stop()


@pytest.mark.nightly
async def test_what_is_added_during_a_drop_comes_to_all_workers(
    checkpoint: Callable[..., Path], serve: Callable[..., Server], tmp_path: Path
) -> None:
    """At once to the one outside of the pipeline, and after the restore to the others."""
    base = checkpoint("llama", **SIZES)
    tuned = altered(base, tmp_path / "tuned", ("layers.1.mlp", "layers.3."))
    own = ["--set", f"app_roots={tmp_path}"]
    overload = {"overload": "on", "overload_most": 2, "overload_quiet": 0.01}  # while anything runs parameters stay dropped
    server = serve(base, workers=3, memory="8MiB", silence=3, arguments=own, **overload).whole()
    async with Client(server) as client:
        asked = load() + load()
        with slow(server, 5):
            answers = [client.begin(request) for request in asked]
            await until(lambda: changes(client, "drop"))
            for answer in answers[FEW:]:
                await client.leave(answer)
            await client.add("tuned", tuned)
            (group,) = (await looked(client))["groups"]
            assert {*(await having(client, "tuned"))} == {*TRIO} - {*group.split("+")}
        late = load(["tuned"])[:2]
        answers = answers[:FEW] + [client.begin(request) for request in late]
        await client.finished()
        await until(lambda: restored(client))
        assert await having(client, "tuned") == await having(client, base.name) == [*TRIO]
        assert (await looked(client))["refused"] == {}
        await right(client, answers, asked[:FEW] + late)
    server.stop()


async def having(client: Client, model: str) -> list[str]:
    """Workers that have its parameters."""
    return sorted(name for name, one in (await client.workers()).items() if model in one["parameters_by_application"])
