"""Workers that are killed, or stop without a word, while requests run: every token comes, once and in order."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.settings import Settings
from blockwright.tests.adapters import greedy as peft_greedy
from blockwright.tests.adapters import make_adapter, peft_model
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.system.client import NEW, Answer, Client, body, check
from blockwright.tests.system.conftest import STREAMS, slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
DRAFTED = ("drafted_tokens", "accepted_tokens")
PROMPTS = itertools.count(100)  # seeds of prompts that no cache holds


def begun(answers: Sequence[Answer], tokens: int = 3) -> bool:
    return all(len(answer.tokens) >= tokens for answer in answers)


async def deaths(client: Client, answers: Sequence[Answer]) -> list[dict[str, float]]:
    """The events of all requests that tell of a death: the head's word, or a home's that saw its host's connection break."""
    views = [await client.request(answer.name) for answer in answers]
    events = [event for view in views if view for event in view["events"]]
    return [event for event in events if event["event"] == "worker_died" or event.get("reason") == "host-lost"]


def drafting(index: int) -> dict[str, Any]:
    """Return request ``index`` of a load with drafts; its answer has few different tokens, so that some drafts stand."""
    return body(index, 40, draft="prompt", draft_tokens=index % 5, allowed_token_ids=list(range(20, 24)))


@claim("A request survives kill -9 of its worker, token for token", of="faults", headline=True)
async def test_kill_9_of_a_worker_while_32_streams_run(replicas: Server, expected: list[list[int]]) -> None:
    async with Client(replicas) as client:
        before = await client.ready()
        with slow(replicas):
            answers = client.load(STREAMS)
            await until(lambda: begun(answers))
            assert not any(answer.finish for answer in answers)
            await client.kill("w0")
        await client.finished()
        check(answers, expected)
        moved = [a for a in answers if await deaths(client, [a])]
        assert 0 < len(moved) < STREAMS, "each worker had some of them"
        after = await client.ready()
        assert after["w0"]["pid"] != before["w0"]["pid"]
        assert after["w1"]["pid"] == before["w1"]["pid"]
        answers = client.load(8)
        await client.finished()
        check(answers, expected[:8])
        assert (await client.ready())["w0"]["counters"]["generated_tokens"] > 0, "it serves again"


@claim("A request with drafts survives kill -9 of its worker, token for token", of="drafts")
async def test_kill_9_of_a_worker_in_the_middle_of_drafts(replicas: Server) -> None:
    count = 16
    async with Client(replicas) as client:
        await client.ready()
        asked = [drafting(index) for index in range(count)]
        calm = [client.begin({**request, "draft": "off"}) for request in asked]
        await client.finished()
        before = await client.ready()
        with slow(replicas):
            answers = [client.begin(request) for request in asked]
            await until(lambda: begun(answers))
            assert not any(answer.finish for answer in answers)
            await client.kill("w0")
        await client.finished()
        check(answers, [answer.tokens for answer in calm])
        assert 0 < len([answer for answer in answers if await deaths(client, [answer])]) < count
        after = await client.ready()
        drafted, accepted = (after["w1"]["counters"][n] - before["w1"]["counters"].get(n, 0) for n in DRAFTED)
        assert 0 < accepted < drafted


@claim("Requests that wait at a survivor move to the replacement of a dead worker", of="faults")
@pytest.mark.nightly
async def test_what_the_survivor_has_no_rows_for_goes_to_the_replacement(
    serve: Callable[..., Server], expected: list[list[int]]
) -> None:
    server = serve(max_rows=2).whole()
    async with Client(server) as client:
        await client.ready()
        with slow(server):
            answers = client.load(12)
            await until(lambda: sum(map(bool, (answer.tokens for answer in answers))) == 4)
            await client.kill("w1")

            async def rerouted() -> list[Any]:
                views = [await client.request(answer.name) for answer in answers]
                return [e for view in views if view for e in view["events"] if e["event"] == "rerouted"]

            events = await until(rerouted)
            assert {(event["source"], event["target"]) for event in events} == {("w0", "w1")}
            assert not any(answer.finish for answer in answers)
        await client.finished()
        check(answers, expected[:12])
    server.stop()


@claim("A request survives kill -9 of its worker, token for token", of="faults", headline=True)
async def test_two_workers_one_after_the_other(replicas: Server, expected: list[list[int]]) -> None:
    async with Client(replicas) as client:
        before = await client.ready()
        many = NEW - 16  # who meets two deaths runs alone from then on, one after the other
        with slow(replicas):
            answers = client.load(STREAMS)
            await until(lambda: begun(answers))
            await client.kill("w0")
        with slow(replicas, after=many):
            await until(lambda: begun(answers, many))
            assert not all(answer.finish for answer in answers)
            await client.kill("w1")
        await client.finished()
        check(answers, expected)
        after = await client.ready()
        assert all(after[name]["pid"] != before[name]["pid"] for name in ("w0", "w1"))


@claim("A request survives kill -9 of its worker while its prompt is prefilled", of="faults")
async def test_kill_9_while_a_prompt_is_being_prefilled(replicas: Server) -> None:
    prompt = prompt_of(400, seed=next(PROMPTS))
    async with Client(replicas) as client:
        await client.ready()

        async def under_way() -> str:
            view = await client.request(answer.name)
            return view["home"] if view and 0 < view["computed_tokens"] < len(prompt) else ""

        with slow(replicas, after=-len(prompt)):
            answer = client.begin(body(0, 20, prompt))
            home = await until(under_way)
            await client.kill(home)
            assert not answer.tokens
        await client.finished()
        view = await client.request(answer.name)
        assert view is not None
        died = next(event for event in view["events"] if event["event"] == "worker_died")
        assert died["worker"] == home
        assert (view["attempt"], view["state"], view["emitted_tokens"]) == (2, "finished", 20)
        reference = list(greedy(replicas.path, prompt, 20))
        assert answer.tokens[: len(reference)] == reference
        check([answer], [answer.tokens])
        await client.ready()


@claim("A request of an adapter survives kill -9 of its worker with the tokens of peft", of="faults")
@pytest.mark.nightly
async def test_kill_9_of_a_worker_while_three_adapters_stream(
    serve: Callable[..., Server], model: Path, tmp_path: Path
) -> None:
    folders = {name: make_adapter(model, tmp_path / name, seed) for seed, name in enumerate("abc")}
    server = serve(
        arguments=[word for name, folder in folders.items() for word in ("--app", f"{name}={folder}")], chunk_size=16
    ).whole()
    asked = [body(index, model="abc"[index % 3]) for index in range(12)]
    async with Client(server) as client:
        await client.ready()
        undisturbed = [client.begin(request) for request in asked]
        await client.finished()
        assert undisturbed[0].tokens == peft_greedy(peft_model(model, folders["a"]), asked[0]["prompt"], NEW)
        with slow(server):
            answers = [client.begin(request) for request in asked]
            await until(lambda: begun(answers))
            await client.kill("w0")
        await client.finished()
        check(answers, [answer.tokens for answer in undisturbed])
        assert await deaths(client, answers)
        await client.ready()
    server.stop()


@claim("A request survives the death of either worker of a pipeline", of="faults")
@pytest.mark.parametrize("victim", ["w0", pytest.param("w1", marks=pytest.mark.nightly)])
async def test_kill_9_of_either_worker_of_a_pipeline(pipeline: Server, expected: list[list[int]], victim: str) -> None:
    async with Client(pipeline) as client:
        before = await client.ready()
        with slow(pipeline):
            answers = client.load(STREAMS)
            await until(lambda: begun(answers))
            assert not any(answer.finish for answer in answers)
            await client.kill(victim)
        await client.finished()
        check(answers, expected)
        assert len(await deaths(client, answers)) == STREAMS
        after = await client.ready()
        assert {name for name in after if after[name]["pid"] != before[name]["pid"]} == {victim}


@claim("A stopped worker is declared down within three seconds, fenced, killed and replaced", of="faults")
async def test_a_stopped_worker_is_declared_down_and_replaced(
    serve: Callable[..., Server], expected: list[list[int]]
) -> None:
    # A busy machine may halt all of us for two seconds: who is declared down then has not been stopped, and requests that
    # meet two such deaths run one after the other.
    server = serve(silence=3 * Settings().faults.silence, chunk_size=16).whole()
    async with Client(server) as client:
        await client.ready()
        with slow(server):
            answers = client.load(STREAMS)
            await until(lambda: begun(answers))
            pid = await client.kill("w1", signal.SIGSTOP)
            await until(lambda: pid not in server.processes())
        await client.finished()
        check(answers, expected)
        after = await client.ready()
        assert after["w1"]["cause"] == "unreachable"
        assert after["w1"]["pid"] != pid
    server.stop()


async def free(client: Client) -> bool:
    return all(worker["memory"]["kv"] + worker["memory"]["cached"] == 0 for worker in (await client.ready()).values())


@claim("A cancelled request is in no later plan, and its memory returns", of="serving")
@pytest.mark.parametrize("stream", [True, False])
async def test_clients_that_go_away_free_everything(uncached: Server, stream: bool) -> None:
    """Without a prefix cache all memory of sequences is free afterwards."""
    async with Client(uncached) as client:
        if stream:
            answers = client.load(4, 400)
            await until(lambda: begun(answers))
        else:
            asking = [asyncio.create_task(client.post(body(index, 400))) for index in range(4)]
        await until(client.memory, what="all four run and own memory")
        if not stream:
            for task in asking:
                task.cancel()
    async with Client(uncached) as client:  # all connections of the first are closed
        await until(lambda: free(client), what="all memory of sequences is free")
        before = await client.ready()
        await client.post(body(0, 4))
        after = await client.ready()
        generated = [sum(w["counters"]["generated_tokens"] for w in workers.values()) for workers in (before, after)]
        assert generated[1] - generated[0] == 4, "nobody computes for those who have gone"
        assert generated[0] < 4 * 400
