"""The steps of docs/tagger.md: what a cluster serves is logged, a model is trained on that, and serves."""

from __future__ import annotations

import json
import random
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.tagger.request_log import read_requests
from blockwright.api.commands.cli import main
from blockwright.api.demo.tasks import TASKS, TRAIN, make_example
from blockwright.tests.claims import claim
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until_now

pytestmark = pytest.mark.system
MODEL = Path(__file__).parents[2] / "examples" / "demo-checkpoint"
REQUESTS = 40


def ask(server: Server, path: str, body: dict[str, Any] | None = None) -> bytes:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        found: bytes = answer.read()
        return found


def answered(server: Server, prompt: str) -> dict[str, Any]:
    body = {"model": MODEL.name, "prompt": prompt, "max_tokens": 64, "temperature": 0}
    found: dict[str, Any] = json.loads(ask(server, "/v1/completions", body))
    return found


def prompts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [make_example(draw, draw.choice([*TASKS]), TRAIN).prompt for _ in range(count)]


@claim("`tagger train` makes a model from what was served", of="prediction")
@pytest.mark.nightly
def test_what_was_served_trains_what_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "requests"
    model = tmp_path / "tagger.json"
    kept = tmp_path / "learned"
    server = Server(MODEL, workers=1, request_log=logs)
    try:
        server.whole()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda prompt: answered(server, prompt), prompts(1, REQUESTS)))
    finally:
        server.stop()
    lengths = sorted(answer["usage"]["completion_tokens"] for answer in answers)
    assert sorted(one.length for one in read_requests(logs)) == lengths, "all of them, once the server has ended"
    assert main(["tagger", "train", str(logs), "-o", str(model)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:4]] == ["constant", "history", "trained"]
    server = Server(MODEL, workers=1, tagger=f"trained:{model}", tagger_folder=kept, gateway_in_head="no")
    try:
        server.whole()
        until_now(lambda: b'"expected_tokens"' in story(server, prompts(2, 1)[0])[0], "a gateway with the model")
        text, tokens = story(server, prompts(3, 1)[0])
        first, *_, last = json.loads(text)["events"]
        assert 1 <= first["expected_tokens"] == last["expected_tokens"] <= 64
        assert last["tokens"] == tokens
        seen = re.search(r"^blockwright:length_estimates_total (\S+)$", ask(server, "/metrics").decode(), re.MULTILINE)
        assert seen is not None
        assert float(seen[1]) >= 2
    finally:
        server.stop()
    assert json.loads((kept / "tagger.json").read_text())["estimator"]["kind"] == "trained"


def story(server: Server, prompt: str) -> tuple[bytes, int]:
    """Of a request with this prompt, and how many tokens it got."""
    answer = answered(server, prompt)
    return ask(server, f"/v1/requests/{answer['id']}"), answer["usage"]["completion_tokens"]
