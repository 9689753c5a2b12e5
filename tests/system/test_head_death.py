"""The head dies, or is stopped: streams and requests go on, and the next head takes over without loading anything again.

Gateways are processes, but where a test says otherwise. ``CASES`` names what may happen at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.commands.cli import main
from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.parts import some
from blockwright.tests.system.client import NEW, SAMPLED, Client, body, check
from blockwright.tests.system.conftest import FAULTY, STREAMS, slow
from blockwright.tests.system.faulty_worker import WAIT
from blockwright.tests.system.server import Server
from blockwright.tests.system.test_gateways import fresh
from blockwright.tests.system.test_overload import SIZES, changes, load, looked, restored, right
from blockwright.tests.system.test_resume import Resuming
from blockwright.tests.system.test_resume import undisturbed as quiet
from blockwright.tests.waiting import PATIENCE, until, until_now

pytestmark = pytest.mark.system
RESUMED = 8  # streams of the head's own gateway
WHOLE = 8  # requests that are not streamed
SILENCE = 4.0  # seconds, so that a stopped head is noticed within the test, and a busy machine is not taken for one
HEADS = 5  # that may end within a minute before the keeper ends all
MODEL = "llama"


@pytest.fixture(scope="module")
def outliving(model: Path, pace: Path) -> Iterator[Callable[[], Server]]:
    """Returns a server for each test, another one after ``HEADS`` tests."""
    settings = {
        "gateway_in_head": "no",
        "gateways": 2,
        "orphan_grace": 300,
        "silence": SILENCE,
        "app_roots": str(model.parent),
    }
    made, tests = list[Server](), itertools.count()

    def server() -> Server:
        if next(tests) % HEADS == 0:
            for former in made[-1:]:
                former.stop()
            made.append(Server(model, module=FAULTY, pace=pace, chunk_size=16, **settings).whole())
        return made[-1]

    yield server
    made[-1].stop()


@pytest.fixture
def kept(outliving: Callable[[], Server]) -> Server:
    """Two workers and two gateways, which outlive their heads."""
    return outliving()


def whole_request(index: int) -> dict[str, Any]:
    chosen: dict[str, Any] = {"seed": index, **SAMPLED} if index % 2 else {"temperature": 0}
    prompt = list(prompt_of(5 + index % 23, seed=index))
    return {"prompt": prompt, "max_tokens": NEW, "ignore_eos": True, "return_token_ids": True, **chosen}


async def taken_over(client: Client, former: int) -> dict[str, dict[str, Any]]:
    """The workers, once another head serves and all of them are back."""
    await until(lambda: client.server.head() not in (0, former), "another head")

    async def look() -> Any:
        status, view = await client.get("/admin/cluster")
        whole = status == 200 and all(worker["state"] == "ready" and worker["counters"] for worker in view["workers"])
        return {worker["id"]: worker for worker in view["workers"]} if whole else None

    found: dict[str, dict[str, Any]] = await until(look, "the next head, with all workers")
    return found


def life_of(workers: dict[str, dict[str, Any]]) -> dict[str, tuple[int, int, int]]:
    """The process of each worker, its incarnation, and the bytes of parameters that it has loaded so far."""
    return {
        name: (one["pid"], one["incarnation"], one["counters"]["loaded_parameter_bytes"]) for name, one in workers.items()
    }


async def undisturbed(
    server: Server, expected: list[list[int]], trouble: Callable[[Client], Awaitable[None]], *, once: bool = False
) -> None:
    """Streams and requests that run during ``trouble``, and such that begin in it, have the tokens of a quiet server.

    once: no stream begins anew.
    """
    async with Client(server) as client:
        await client.ready()
        with slow(server, 6):
            streams = client.load(STREAMS)
            others = [asyncio.create_task(client.post(whole_request(index))) for index in range(WHOLE)]
            await until(lambda: all(len(answer.tokens) >= 3 for answer in streams), "the first tokens")
            former = server.head()
            await trouble(client)
            late = [client.begin(body(index)) for index in range(4)]
        await client.finished()
        check(streams, expected[:STREAMS])
        check(late, expected[:4])
        for index, (status, answer) in enumerate(await asyncio.gather(*others)):
            assert status == 200, answer
            assert answer["choices"][0]["token_ids"] == expected[index], f"request {index}"
        await taken_over(client, former)
        views = [await client.request(answer.name) for answer in streams] if once else []
        assert all(view is not None and view["attempt"] == 1 for view in views), views


def end_head(server: Server, how: signal.Signals) -> None:
    os.kill(server.head(), how)


async def _alone(client: Client, how: signal.Signals) -> None:
    end_head(client.server, how)


async def _with_a_worker(client: Client, how: signal.Signals) -> None:
    """A worker dies while there is no head."""
    pid = (await client.workers())["w0"]["pid"]
    end_head(client.server, how)
    os.kill(pid, signal.SIGKILL)


async def _during_a_drain(client: Client, how: signal.Signals) -> None:
    status, answer = await client.drain("w1")
    assert status in (200, 202), answer
    former = client.server.head()
    end_head(client.server, how)
    await until(lambda: client.server.head() not in (0, former), "another head")

    async def still() -> bool:
        status, view = await client.get("/admin/cluster")
        return status == 200 and {w["id"]: w["state"] for w in view["workers"]}["w1"] == "draining"

    await until(still, "the drain goes on")
    status, answer = await client.drain("w1", drain=False)
    assert status in (200, 202), answer


async def _during_an_addition(client: Client, how: signal.Signals) -> None:
    """Whoever adds a model learns that the head is away, and may ask again."""
    path = client.server.path
    adding = asyncio.create_task(client._session.post("/admin/apps", json={"name": "more", "path": str(path)}))
    await asyncio.sleep(0)
    end_head(client.server, how)
    answer = await adding
    assert answer.status in (200, 503), await answer.text()

    async def added() -> bool:
        async with client._session.post("/admin/apps", json={"name": "more", "path": str(path)}) as again:
            return again.status in (200, 409)

    await until(added, "the model is added by the next head")
    async with client._session.delete("/admin/apps/more") as gone:
        assert gone.status == 200, await gone.text()


async def _during_a_move(client: Client, how: signal.Signals) -> None:
    """Moves are the gateways' own: they need no head."""
    status, view = await client.get("/v1/requests?limit=8")
    assert status == 200, view
    end_head(client.server, how)
    for line in view["data"][:4]:
        await client.move(line["id"], worker="w1")


CASES = {
    "alone": _alone,
    "with a worker": _with_a_worker,
    "during a drain": _during_a_drain,
    "during an addition": _during_an_addition,
    "during a move": _during_a_move,
}


@claim("Kill -9 or SIGSTOP of the head ends no stream, and no token is lost or repeated", of="faults")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("case", some([*CASES], "alone", "with a worker"))
async def test_no_stream_ends_with_the_head(kept: Server, expected: list[list[int]], case: str, how: signal.Signals) -> None:
    async def trouble(client: Client) -> None:
        await CASES[case](client, how)

    await undisturbed(kept, expected, trouble, once=case == "alone")


@claim("A new head adopts workers as they are: the same lives, and not a byte of parameters is loaded again", of="faults")
async def test_a_new_head_takes_workers_as_they_are_and_refuses_operators_until_then(kept: Server) -> None:
    async with Client(kept) as client:
        before = await client.ready()
        former = kept.head()
        end_head(kept, signal.SIGKILL)
        status, answer = await client.get("/admin/cluster")
        assert (status, answer.get("error", {}).get("code")) in ((503, "unavailable"), (200, None)), answer
        status, _ = await client.post({"prompt": [5], "max_tokens": 1})
        assert status == 200
        after = await taken_over(client, former)
    assert life_of(after) == life_of(before)
    assert all(loaded > 0 for _, _, loaded in life_of(after).values())
    assert "in place of a head that has ended" in kept.out
    assert "adopted 2 workers and 2 gateway processes" in kept.out


@claim("A new head adopts the others also where the process that forks them dies with the head before", of="faults")
async def test_the_forkserver_and_the_head_die_at_once(kept: Server, expected: list[list[int]]) -> None:
    async with Client(kept) as client:
        before = life_of(await client.ready())

    async def trouble(client: Client) -> None:
        os.kill(kept.forkserver(), signal.SIGKILL)
        end_head(kept, signal.SIGKILL)

    await undisturbed(kept, expected, trouble)
    async with Client(kept) as client:
        assert life_of(await client.ready()) == before
    assert len(kept.processes()) == 7  # keeper, forkserver, head, two workers, two gateways: none twice


@claim("With any free port for other machines (port 0), the next head listens at the same one and adopts all", of="faults")
@pytest.mark.nightly
async def test_the_next_head_listens_at_the_same_free_port(serve: Callable[..., Server], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys)
    server = serve(workers=1, listen="tcp://127.0.0.1:0", head_keys=str(keys), silence=SILENCE, **OUTLIVING).whole()
    async with Client(server) as client:
        await client.ready()
        former = server.head()
        end_head(server, signal.SIGKILL)
        await taken_over(client, former)
    assert "adopted 1 worker and 1 gateway process" in server.out
    assert len(set(re.findall(r"workers join at (\S+)", server.out))) == 1
    server.stop()


@claim("A joined process of predictors outlives the head, and the next one asks it again", of="prediction")
@pytest.mark.nightly
async def test_the_next_head_takes_up_predictors_that_joined(
    serve: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    make_keys(keys)
    own = {"listen": "tcp://127.0.0.1:0", "head_keys": str(keys), "dispatch": "ours"}
    server = serve(workers=1, **own, dispatch_timeout=1, silence=SILENCE, **OUTLIVING).whole()
    (where,) = set(re.findall(r"workers join at tcp://(\S+)", server.out))
    capsys.readouterr()
    assert main(["keys", "join", str(keys), "--address", where, "--role", "predictor"]) == 0
    text = tmp_path / "predictor.join"
    text.touch(0o600)
    text.write_text(capsys.readouterr().out)
    words = ["predictor", "--join", f"@{text}", "--name", "px", "--label", "rack=b"]
    process = server.beside("px", "-m", "blockwright", *words)
    async with Client(server) as client:

        async def shown() -> list[dict[str, Any]]:
            status, view = await client.get("/admin/cluster")
            found = [one for one in view["predictors"] if one["id"] == "px"] if status == 200 else []
            return found if found and found[0]["state"] == "ready" else []

        before = await until(shown, "it has joined")
        former = server.head()
        end_head(server, signal.SIGKILL)
        await taken_over(client, former)
        assert await until(shown, "it is taken up again") == before
    process.terminate()
    assert process.wait(timeout=PATIENCE) == 0, server.said("px")
    server.stop()


@claim("Streams of a gateway in the head's process go on at the next head, whose workers are loaded", of="faults")
async def test_streams_of_the_heads_own_gateway_go_on_at_the_next_head(serve: Callable[..., Server]) -> None:
    server = serve(silence=SILENCE, gateway_in_head="yes").whole()
    async with fresh(server) as session, Client(server) as client:
        names = [f"n{index}" for index in range(RESUMED)]
        truth = await asyncio.gather(*(quiet(session, index, name) for index, name in enumerate(names)))
        before, former = await client.ready(), server.head()
        clients = [Resuming(index, name) for index, name in enumerate(names)]
        tasks = [asyncio.create_task(one.run(session)) for one in clients]
        await until(lambda: all(len(one.events) > 5 for one in clients), "all streams run")
        end_head(server, signal.SIGKILL)
        await asyncio.gather(*tasks)
        assert [one.said for one in clients] == truth
        assert all(one.resumed for one in clients)
        after = await taken_over(client, former)
    assert life_of(after) == life_of(before)
    server.stop()


STAGES = ("listening", "checkpoints opened", "hashed", "workers up")


@pytest.mark.parametrize("stage", some(STAGES, "workers up"))
def test_a_head_that_is_killed_while_it_starts_is_followed_by_one_that_serves(
    serve: Callable[..., Server], stage: str
) -> None:
    server = serve(silence=SILENCE)
    until_now(lambda: stage in server.out, stage)
    end_head(server, signal.SIGKILL)
    until_now(lambda: "another takes over" in server.err, "another head")
    server.listening()
    until_now(lambda: server.status("/admin/cluster") == 200, "it serves")  # the one before may have said that it is ready
    server.whole()
    server.stop()


def test_kill_9_of_the_keeper_ends_members_that_have_no_head(serve: Callable[..., Server]) -> None:
    server = serve(silence=SILENCE).whole()
    os.kill(server.process.pid, signal.SIGSTOP)  # it starts no other head
    end_head(server, signal.SIGKILL)
    until_now(lambda: "goes on without" in server.err, "members without a head")
    server.process.kill()
    server.stop(code=-signal.SIGKILL)


PHASES = ("leaving", "exchanging", "pipeline", "loading", "returning")
OUTLIVING = {"gateway_in_head": "no", "orphan_grace": 300}


@pytest.mark.nightly
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("phase", PHASES)
async def test_the_head_dies_while_parameters_are_dropped_or_restored(
    checkpoint: Callable[..., Path], serve: Callable[..., Server], phase: str, how: signal.Signals
) -> None:
    """Some phases are over in no time: then it dies in the next one. Parameters that are to come back wait for the test."""
    settings = {**OUTLIVING, "memory": "6MiB", "overload": "on", "silence": SILENCE}
    server = serve(checkpoint("llama", **SIZES), **settings).whole()
    async with Client(server) as client:
        await client.ready()
        asked = load()
        former = server.head()

        async def there() -> bool:
            groups = (await looked(client))["groups"].values()
            later = PHASES[min(PHASES.index(phase), PHASES.index("loading")) :]
            return any(group["step"] in later for group in groups)

        lever = server.lever(WAIT)
        with slow(server, 5):
            answers = [client.begin(request) for request in asked]
            if phase in ("leaving", "exchanging", "pipeline"):
                await until(there, phase)
                end_head(server, how)
            else:
                await until(lambda: changes(client, "drop"), "a drop")
                lever.touch()
        if phase in ("loading", "returning"):
            await until(there, "parameters are to come back")
            if phase == "returning":
                lever.unlink()
            end_head(server, how)
        await client.finished()
        if phase == "loading":
            await until(lambda: server.head() not in (0, former), "another head")
            lever.unlink()
        await taken_over(client, former)

        async def whole() -> bool:
            """A gateway on a busy machine may miss the next head, too, for a moment."""
            status, _ = await client.get("/admin/cluster")
            return status == 200 and await restored(client)

        await until(whole, "all parameters are back")
        await right(client, answers, asked)
    server.stop()


@pytest.mark.nightly
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_head_dies_while_a_worker_is_started_for_a_load(
    serve: Callable[..., Server], expected: list[list[int]], how: signal.Signals
) -> None:
    scaled = {"autoscale": "relief", "autoscale_latency": 5, "autoscale_max_workers": 2, "autoscale_cooldown": 0}
    server = serve(workers=1, autoscale_window=1, silence=SILENCE, **OUTLIVING, **scaled).whole()
    async with Client(server) as client:
        former = server.head()

        async def starting() -> Any:
            status, view = await client.get("/admin/cluster")
            return status == 200 and any(worker["id"] == "w1" for worker in view["workers"])

        with slow(server, 6):
            answers = client.load(STREAMS)
            await until(starting, "a second worker is started")
            end_head(server, how)
        await client.finished()
        check(answers, expected)
        await until(lambda: server.head() not in (0, former), "another head")
        status, _ = await client.post({"prompt": [5], "max_tokens": 1})
        assert status == 200

        async def settled() -> bool:
            status, view = await client.get("/admin/cluster")
            return status == 200 and all(worker["state"] in ("ready", "draining") for worker in view["workers"])

        await until(settled, "no worker is left half started")
    server.stop()
