"""The demo's tour against a fake server, and the verdicts that decide its exit status."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from aiohttp import web

from blockwright.api.demo import tour as demo
from blockwright.api.demo.client import ExampleOutcome
from blockwright.api.demo.tasks import HELD_OUT, LONGER, Example
from blockwright.api.demo.tenants import HOT
from blockwright.api.program.client import Client
from blockwright.tests.api.demo.fake_http import served
from blockwright.tests.claims import claim

ANSWERS = {item.prompt: item.answer for seed in range(6, 12) for item in demo.examination(seed, 3)}
ANSWERS |= {item.prompt: item.answer for seed in range(6, 12) for item in demo.examination(seed, 1, (HELD_OUT,))}


class FakeServer:
    """Answers from a table; replicas alternate, the pipeline names both workers."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.chats = 0
        self.fail: str = ""  # a prompt whose stream ends in an error event

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.post("/v1/completions", self.complete),
            web.post("/v1/chat/completions", self.chat),
            web.get("/v1/requests/{id}", self.describe),
        ]

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "demo-checkpoint"}, {"id": demo.PIPELINE}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self.stream(request, body["model"], body["prompt"], lambda text: {"text": text})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.chats += 1
        prompt = body["messages"][0]["content"]
        return await self.stream(request, body["model"], prompt, lambda text: {"delta": {"content": text}})

    async def stream(self, request: web.Request, model: str, prompt: str, shape) -> web.StreamResponse:  # type: ignore[no-untyped-def]
        self.prompts.append(prompt)
        name = f"{model}:{len(self.prompts)}"
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "x-request-id": name})
        await answer.prepare(request)
        chunks = [{"choices": [shape(letter)]} for letter in ANSWERS[prompt]]
        chunks.append({"choices": [{**shape(""), "finish_reason": "stop"}]})
        chunks.append({"choices": [], "usage": {"completion_tokens": len(ANSWERS[prompt]) + 1}})
        if prompt == self.fail:
            chunks = [chunks[0], {"error": {"message": "worker w0 died three times"}}]
        for chunk in chunks:
            await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def describe(self, request: web.Request) -> web.Response:
        model, number = request.match_info["id"].split(":")
        workers = ["w0", "w1"] if model == demo.PIPELINE else [f"w{int(number) % 2}"]
        return web.json_response({"route": [{"worker": worker} for worker in workers]})


def client_of(server: FakeServer) -> AbstractAsyncContextManager[Client]:
    return served(server.routes())


@claim(
    "The demo serves two replicas, a pipeline and a family of fine-tunes and fails if one request fails", of="installation"
)
async def test_the_tour_streams_everything_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    async with client_of(server) as client:
        checks = await demo.tour(client, True)
    assert [check.text for check in checks if not check.passed] == []
    assert server.chats == 1
    assert len(server.prompts) == 12 + 1 + 72
    shown = capsys.readouterr().out
    assert "w0 > w1" in shown
    assert "36/36" in shown
    assert shown.count("right  ") >= 13


async def test_noise_is_shown_and_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    async with client_of(server) as client:
        checks = await demo.tour(client, False)
    assert [check.passed for check in checks] == [True, True, True]
    assert len(server.prompts) == 12 + 1
    assert "the text is noise" in capsys.readouterr().out


@claim(
    "The demo serves two replicas, a pipeline and a family of fine-tunes and fails if one request fails", of="installation"
)
async def test_one_failed_request_fails_the_tour() -> None:
    server = FakeServer()
    server.fail = demo.examination(demo.SEED, 1, (HELD_OUT,))[0].prompt
    async with client_of(server) as client:
        checks = await demo.tour(client, True)
    assert [check.passed for check in checks] == [False, True, True, True]


def outcome(split: str, text: str, route: list[str]) -> ExampleOutcome:
    return ExampleOutcome(Example("copy", "copy: ab =", "ab", split), "demo", text=text, route=route)


def test_the_verdict_needs_both_replicas_the_pipeline_and_the_accuracy() -> None:
    shown = [outcome(HELD_OUT, "ab", ["w0"]), outcome(HELD_OUT, "ab", ["w1"])]
    piped = outcome(HELD_OUT, "ab", ["w0", "w1"])
    right, wrong = outcome(HELD_OUT, "ab", ["w0"]), outcome(HELD_OUT, "x", ["w0"])
    too_long = outcome(LONGER, "x", ["w0"])

    def verdict(shown: list[ExampleOutcome], piped: ExampleOutcome, examined: list[ExampleOutcome]) -> list[bool]:
        return [check.passed for check in demo.judge(shown, piped, examined, True)]

    assert verdict(shown, piped, [right, too_long]) == [True, True, True, True]
    assert verdict(shown[:1], piped, [right]) == [True, False, True, True]
    assert verdict(shown, shown[0], [right]) == [True, True, False, True]
    assert verdict(shown, piped, [right, wrong]) == [True, True, True, False]


def test_the_curl_line_is_what_a_shell_understands() -> None:
    words = shlex.split(demo.curl_line(8123, "demo", Example("count", "count: a in aba =", "2", HELD_OUT)))
    assert words[:2] == ["curl", "http://127.0.0.1:8123/v1/completions"]
    assert json.loads(words[-1]) == {"model": "demo", "prompt": "count: a in aba =", "max_tokens": 64, "temperature": 0}


def test_a_port_in_use_is_replaced() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert demo.free_port(port) not in (port, 0)
    assert demo.free_port(port) == port


def test_the_server_gets_both_model_ids_from_one_folder() -> None:
    words = demo.command(Path("/models/demo"), 1234, {})
    assert words[1:6] == ["-m", "blockwright", "serve", "/models/demo", "--workers"]
    assert words[words.index("--app") + 1] == "demo-pipeline=/models/demo"
    assert "pipelines.demo-pipeline=2" in words
    assert words[words.index("--port") + 1] == "1234"
    assert not any("app_roots" in word for word in words)


def test_the_server_gets_the_family_but_for_the_member_that_is_added_later() -> None:
    family = {name: Path("/examples/family") / name for name in ("dates", HOT)}
    words = demo.command(Path("/models/demo"), 1234, family)
    assert "dates=/examples/family/dates" in words
    assert "app_roots=/examples" in words, "the family of tiers lies there, too"
    assert f"{HOT}=/examples/family/{HOT}" not in words


def test_an_interrupted_server_may_die_of_the_signal() -> None:
    """It had no handler yet; one that ran must end in order."""
    codes = (0, -signal.SIGTERM, -signal.SIGKILL, 2)
    assert [demo.stopped(code, interrupted=True).passed for code in codes] == [True, True, False, False]
    assert [demo.stopped(code, interrupted=False).passed for code in codes] == [True, False, False, False]


def test_servers_are_asked_to_end_together_and_only_once() -> None:
    handler = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"
    patient = f"{handler}; print('up', flush=True); time.sleep(99)"
    servers = [demo.DemoServer([sys.executable, "-c", patient], 1) for _ in range(2)]
    while not all(server.said() for server in servers):
        assert not any(server.ended() for server in servers)
    assert demo.stop_all(servers) == [0, 0]


def test_a_server_that_does_not_start_leaves_none_behind() -> None:
    wanted = [([sys.executable, "-c", f"import time; time.sleep(99)  # {__name__}"], 1), (["/no/such/program"], 2)]
    with pytest.raises(FileNotFoundError):
        demo.attended(wanted, demo.serve_on)
    assert not [one for one in Path("/proc").glob("[0-9]*/cmdline") if __name__ in _read(one)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # ended meanwhile
