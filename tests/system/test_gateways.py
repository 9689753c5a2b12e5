"""Several processes answer on one port: any of them can be asked about any request; the death of one ends only its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import ClientError, ClientResponse, ClientSession, TCPConnector

from blockwright.tests.claims import claim
from blockwright.tests.system.client import body
from blockwright.tests.system.faulty_worker import SLOW
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
QUOTA = 30  # requests a minute of everybody, over all processes; more are sent than come back in the meantime


def fresh(server: Server) -> ClientSession:
    """Every request on a connection of its own, which the kernel gives to any of those that listen."""
    return ClientSession(server.url, connector=TCPConnector(force_close=True))


async def ask(client: ClientSession, **more: Any) -> tuple[int, Any]:
    async with client.post(
        "/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True, **more}
    ) as answer:
        return answer.status, await answer.json()


async def look(client: ClientSession, path: str) -> tuple[int, Any]:
    async with client.get(path) as answer:
        return answer.status, await answer.json()


def gateway_of(id: str) -> str:
    return id.split("-")[1]


async def both(client: ClientSession) -> dict[str, str]:
    """An ended request of each gateway."""
    found: dict[str, str] = {}

    async def more() -> bool:
        status, answer = await ask(client)
        if status == 200:
            found[gateway_of(answer["id"])] = answer["id"]
        return set(found) == {"g0", "g1"}

    await until(more, "answers of both gateways")
    return found


async def one_stream_each(client: ClientSession) -> dict[str, tuple[str, ClientResponse]]:
    """A stream of each gateway that has begun. Where one was late to listen, the quota is spent: some of it comes back."""
    running: dict[str, tuple[str, ClientResponse]] = {}

    async def more() -> bool:
        stream = await client.post("/v1/completions", json={**body(1), "stream": True, "max_tokens": 400})
        line = (await stream.content.readline()).decode()
        assert stream.status in (200, 429), line
        id = line.split('"id":"', 1)[1].split('"', 1)[0] if stream.status == 200 else ""
        if id and gateway_of(id) not in running:
            running[gateway_of(id)] = (id, stream)
        else:
            stream.close()
        return len(running) == 2

    await until(more, "streams of both gateways")
    return running


@claim("Several gateway processes serve one port, and each answers for any request", of="http-api")
@pytest.mark.parametrize("in_head", ["yes", pytest.param("no", marks=pytest.mark.nightly)])
async def test_any_process_answers_for_any_request_and_a_dead_one_is_replaced(
    serve: Callable[..., Server], in_head: str
) -> None:
    server = serve(gateways=2, gateway_in_head=in_head, **{"requests_per_minute.*": QUOTA}).whole()
    async with fresh(server) as client:
        ended = await both(client)
        for id in ended.values():
            for _ in range(12):  # on about as many connections to each process
                status, view = await look(client, f"/v1/requests/{id}")
                assert (status, view["state"], view["emitted_tokens"]) == (200, "finished", 3)
                assert (await look(client, "/admin/cluster"))[0] == 200

        async def agreed() -> bool:
            scrapes: set[float] = set()
            for _ in range(8):
                async with client.get("/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                scrapes.add(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total")))
            return len(scrapes) == 1 and scrapes.pop() >= 2

        await until(agreed, "whoever is asked tells the sum")
        server.lever(SLOW).write_text("0")
        running = await one_stream_each(client)
        id, stream = running["g0"]
        for _ in range(2):  # the first is asked of any process, the second finds nothing that runs
            async with client.post(f"/v1/requests/{id}/cancel") as answer:
                status = answer.status
        assert status == 404
        rest = (await stream.content.read()).decode()
        assert '"code": "request_cancelled"' in rest

        os.kill(pid_of(server, "bw-g1"), signal.SIGKILL)
        with pytest.raises(ClientError):
            await running["g1"][1].content.read()
        running["g1"][1].close()
        server.lever(SLOW).unlink()

        async def idle() -> bool:
            _, view = await look(client, "/admin/cluster")
            return all(w["queue"] == {"waiting": 0, "running": 0} for w in view["workers"])

        await until(idle, "the dead gateway's sequences are freed")

        async def quota() -> bool:
            return (await ask(client))[0] == 429

        await until(quota, "one account for all processes")
        assert await until(lambda: pid_of(server, "bw-g1"), "a new process")
    server.stop()


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def pid_of(server: Server, name: str) -> int:
    """Of its one process of that name; 0 when there is none."""
    return next((pid for pid in server.processes() if _name(pid) == name), 0)


@claim("The death of a gateway ends its connections and nothing else", of="faults")
@pytest.mark.nightly
async def test_the_death_of_one_ends_its_connections_and_nothing_else(
    serve: Callable[..., Server], expected: list[list[int]]
) -> None:
    """Every gateway is a process of its own: the first one is as mortal as the others, and the head is none."""
    server = serve(gateways=2, gateway_in_head="no", chunk_size=16).whole()
    async with fresh(server) as client:
        await both(client)
        server.lever(SLOW).write_text("0")
        streams: dict[str, list[tuple[int, Any, str]]] = {"g0": [], "g1": []}
        index = 0
        while not all(streams.values()) or index < 8:  # all have begun
            stream = await client.post("/v1/completions", json={**body(index % 8), "stream": True})
            line = (await stream.content.readline()).decode()
            streams[gateway_of(line.split('"id":"', 1)[1].split('"', 1)[0])].append((index % 8, stream, line))
            index += 1
        victim = pid_of(server, "bw-g0")
        os.kill(victim, signal.SIGKILL)

        async def answered() -> bool:
            try:
                return (await look(client, "/health/ready"))[0] == 200
            except ClientError:  # on its way to the dead one
                return False

        await until(answered, "somebody answers")
        server.lever(SLOW).unlink()
        for _, stream, _ in streams["g0"]:
            with pytest.raises(ClientError):
                await stream.content.read()
            stream.close()
        for number, stream, line in streams["g1"]:
            text = line + (await stream.content.read()).decode()
            assert text.rstrip().endswith("data: [DONE]")
            assert [t for line in text.splitlines() if line.startswith("data: {") for t in _tokens(line)] == expected[number]
            stream.close()
        await until(lambda: pid_of(server, "bw-g0") not in (0, victim), "another process")
        assert set(await both(client)) == {"g0", "g1"}
        assert server.process.poll() is None
        _, view = await look(client, "/admin/actors")
        (process,) = [a for n in view["nodes"] if n["name"] == "head" for a in n["actors"] if a["name"] == "g0"]
        assert (process["kind"], process["supervisor"], process["restarts"]) == ("Process", "head/gateways", 1)
        await finishes(server, client, expected)
    server.stop()


@pytest.mark.nightly
async def test_the_head_answers_while_the_only_gateway_is_dead(serve: Callable[..., Server]) -> None:
    server = serve(gateways=1, gateway_in_head="no", workers=1).whole()
    async with fresh(server) as client:
        for _ in range(2):
            victim = pid_of(server, "bw-g0")
            os.kill(victim, signal.SIGKILL)
            seen: set[int] = set()

            async def again(seen: set[int] = seen) -> bool:
                try:
                    status, _ = await ask(client)
                except ClientError:  # the moment between the end and the news of it
                    return False
                seen.add(status)
                return status == 200

            await until(again, "the next gateway answers")
            assert seen <= {200, 503}
            assert pid_of(server, "bw-g0") not in (0, victim)
    server.stop()


async def finishes(server: Server, client: ClientSession, expected: list[list[int]]) -> None:
    """After SIGTERM what runs ends well, whichever process has it."""
    streams = [await client.post("/v1/completions", json={**body(index), "stream": True}) for index in range(8)]
    server.process.send_signal(signal.SIGTERM)
    for index, stream in enumerate(streams):
        text = (await stream.content.read()).decode()
        assert text.rstrip().endswith("data: [DONE]"), text[-300:]
        tokens = [t for line in text.splitlines() if line.startswith("data: {") for t in _tokens(line)]
        stream.close()
        assert tokens == expected[index]


@claim("Several gateway processes serve one port, and each answers for any request", of="http-api")
@pytest.mark.nightly
async def test_both_finish_what_runs_and_tokens_are_those_of_one(
    serve: Callable[..., Server], expected: list[list[int]]
) -> None:
    """One of them in the head; two processes besides it do so, too, above."""
    server = serve(gateways=2, gateway_in_head="yes", chunk_size=16).whole()
    async with fresh(server) as client:
        await both(client)
        await finishes(server, client, expected)
    server.stop()


def _tokens(line: str) -> list[int]:
    import json

    choices = json.loads(line[6:])["choices"]
    return choices[0]["token_ids"] if choices else []
