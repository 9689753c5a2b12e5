"""The commands that talk to a server, with a served demo checkpoint: one server for all of them."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from blockwright.api.commands.cli import main
from blockwright.tests.claims import claim
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until_now

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "demo-checkpoint"
GREEDY = ["--temperature", "0", "--max-tokens", "24"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = Server(MODEL, workers=2, pipeline=2, chunk_size=8)
    yield server.whole().url
    server.stop()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """``code, out, err = run("ps", ...)``"""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def validate(name: str, text: str) -> Any:
    found = json.loads(text)
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schemas" / f"{name}.json").read_text()))
    return found


def test_complete(url: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("complete", url, "--prompt", "reverse: abcd =", *GREEDY) == (0, "dcba\n", "")
    monkeypatch.setattr("sys.stdin", io.StringIO("sort: 312 ="))
    code, out, err = run("complete", url, "--verbose", "--stop", "3", "--model", "demo-checkpoint", *GREEDY)
    assert (code, out) == (0, "12\n")
    assert re.fullmatch(r"\[12 prompt tokens, first token after \d+ ms, 3 tokens, [\d.-]+ tok/s, stop \(cmpl-.*\)\]\n", err)
    code, out, err = run("complete", url, "--prompt", "x", "--temperature", "9")
    assert (code, err) == (1, "blockwright: temperature is 9.0; give a number from 0 to 2\n")
    code, out, err = run("complete", url, "--prompt", "x", "--model", "demo-chekpoint")
    assert (code, err) == (2, "blockwright: the model 'demo-chekpoint' does not exist; did you mean 'demo-checkpoint'?\n")


def test_chat_in_one_message_and_as_a_conversation(url: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("chat", url, "--message", "sort: 312 =", *GREEDY)[1] == "123\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("/help\nsort: 312 =\n/reset\nreverse: ab =\n/what\n\n/quit\nnever said\n"))
    code, out, err = run("chat", url, "--verbose", *GREEDY)
    assert code == 0
    assert re.findall(r"\w+", out.replace(">>> ", "")) == ["123", "ba"]
    assert err.splitlines()[0] == f"demo-checkpoint at {url}; /help lists the commands"
    assert "clear the conversation" in err
    assert "the conversation is cleared" in err
    assert "there is no /what;" in err
    assert err.count("tok/s") == 2


def test_a_refusal_does_not_end_a_conversation(url: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'x' * 600}\nsort: 312 =\n"))
    code, out, err = run("chat", url, *GREEDY)
    assert (code, out) == (0, ">>> >>> 123\n>>> \n")
    assert "the context of demo-checkpoint holds 512 tokens" in err


def test_chat_with_a_folder(run: Any) -> None:
    settings = ["--set", "memory=64MiB", "--set", "threads=1"]
    assert run("chat", str(MODEL), "--message", "sort: 312 =", *GREEDY, *settings) == (0, "123\n", "")
    assert run("chat", str(MODEL), "--message", "x", "--set", "memry=3")[0] == 2
    assert run("complete", str(ROOT / "docs"), "--prompt", "x")[::2] == (
        2,
        f"blockwright: {ROOT / 'docs'} has no config.json; name a folder in Hugging Face format\n",
    )


@claim("`ps` and `top` show memory owned, shared and saved, with JSON output by schema", of="command-line")
def test_ps_and_top(url: str, run: Any) -> None:
    code, out, _ = run("ps", "--url", url, "--json")
    (application,) = validate("ps", out)["applications"]
    assert (application["base"], application["replicas"]) == (None, [["w0", "w1"]])
    code, out, _ = run("ps", "--url", url, "--once")
    assert code == 0
    assert re.search(
        r"^demo-checkpoint +- +ready +w0\+w1 +[\d.]+ MiB +0 B +[\d.]+ \w+ +0 B +0 +0 +512$", out, flags=re.MULTILINE
    )
    main(["complete", url, "--prompt", "reverse: abcd =", *GREEDY])
    code, out, _ = run("top", "--url", url, "--json", "--interval", "0.01")
    (application,) = validate("top", out)["applications"]
    assert application["ttft_p50"] > 0
    for lists in (("--requests", "--actors"), ("--tenants", "--requests"), ("--tenants", "--actors")):
        assert run("ps", *lists, "--url", url)[0] == 2
    listed = run("ps", "--tenants", "--url", url, "--once")[1].splitlines()
    assert listed[0] == "1 tenant; 0 running, 0 waiting"
    assert listed[2].split() == ["TENANT", "WEIGHT", "RUN", "WAIT", "STARTED", "REFUSED", "TOKENS", "KV+CACHED"]
    assert listed[3].split()[:4] == ["demo-checkpoint", "1", "0", "0"], "without keys a model is a tenant"
    (tenant,) = json.loads(run("ps", "--tenants", "--url", url, "--json")[1])["tenants"]
    assert (tenant["requests"]["started"], tenant["tokens"]) == tuple(
        int(word) for word in (listed[3].split()[i] for i in (4, 6))
    )
    idle = re.compile(r"^w1 +ready.*^demo-checkpoint +ready +0 +0 +0\.0 +0\.0 +\d+ ms", flags=re.MULTILINE | re.DOTALL)
    until_now(lambda: idle.search(run("top", "--url", url, "--interval", "0.01")[1]), "what was asked before is counted")


def test_top_on_a_terminal(url: str) -> None:
    """At 80x24 keys scroll, filter and end it, and nothing stands beyond the edge."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable, [sys.executable, "-m", "blockwright", "top", "--url", url], {**os.environ, "TERM": "xterm"}
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = ""

    def shows(text: str) -> bool:
        nonlocal shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 1 << 16).decode(errors="replace")
        return text in shown

    until_now(lambda: shows("2 of 2 workers ready"), "the first screen")
    for typed, said in (
        ("/demo", "filter: demo_ (1 of 1 lines"),
        ("\r", "filter: demo (1 of 1 lines"),
        ("\x1b", "every 1 s; q quits"),
    ):
        shown = ""
        os.write(terminal, typed.encode())
        until_now(lambda said=said: shows(said), said)  # type: ignore[misc]
    os.write(terminal, b"q")
    until_now(lambda: shows("\x1b[?1049l"), "the screen as it was before")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


@claim("`explain` shows where the time of a request went", of="command-line")
def test_explain(url: str, run: Any) -> None:
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps({"prompt": "reverse: abcdefgh =", "max_tokens": 9}).encode(),
        {"Content-Type": "application/json", "x-request-id": "mine/1"},
    )
    with urllib.request.urlopen(request) as answer:
        id = json.load(answer)["id"]
    code, out, _ = run("explain", id, "--url", url)
    assert code == 0
    assert out.startswith(f"{id} of demo-checkpoint: finished\n  20 prompt tokens, 9 emitted, 1 attempt\n")
    assert run("explain", "--last", "--url", url)[1] == out
    assert run("explain", "--url", url)[0] == run("explain", id, "--last", "--url", url)[0] == 2
    listed = run("ps", "--requests", "--url", url, "--once")[1].splitlines()
    assert listed[0].startswith("0 running, 0 waiting, ")
    assert listed[3].split()[:4] == [id, "demo-checkpoint", "finished", "w0"]
    for said in (
        "attempt 1 on w0 [0:",
        "-> w1 [",
        "started on its worker",
        "prefill: 8 of 20",
        "prefill: 16 of 20",
        "first token",
        "finished: ",
    ):
        assert said in out
    assert json.loads(run("explain", "mine/1", "--url", url, "--json")[1])["id"] == id
    code, _, err = run("explain", "cmpl-none", "--url", url)
    assert (code, err.startswith("blockwright: there is no request 'cmpl-none'")) == (2, True)


@claim("`bench serve` sends the usual load patterns and reports their figures", of="command-line")
def test_bench(url: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "figures.json"
    shape = ["--num-prompts", "6", "--input-len", "20", "--output-len", "8", "--range-ratio", "0.5"]
    code, out, err = run("bench", "serve", "--url", url, *shape, "--max-concurrency", "1,4", "--json", str(stored))
    assert (code, err) == (0, "")
    assert re.search(r"^concurrency +1 +4$", out, flags=re.MULTILINE)
    assert re.search(r"^succeeded +6 +6$", out, flags=re.MULTILINE)
    assert max(map(len, out.splitlines()[2:])) <= 80
    assert out.startswith(f"demo-checkpoint at {url} (0.")
    found = validate("bench-serve", stored.read_text())
    assert [(one["concurrency"], one["requests"], one["failed"]) for one in found["levels"]] == [(1, 6, 0), (4, 6, 0)]
    assert all(6 * 4 <= one["output_tokens"] <= 6 * 12 and one["e2e"]["p50"] > 0 for one in found["levels"])
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,9,2\n0.5,900,300\n")
    code, out, _ = run("bench", "serve", "--url", url, "--trace", str(trace), "--trace-speed", "10", "--json", "-")
    found = validate("bench-serve", out)
    (one,) = found["levels"]
    assert (one["arrival"], one["requests"], found["settings"]["clipped"]) == ("trace", 2, 1)
    assert (one["prompt_tokens"], one["output_tokens"]) == (9 + 256, 2 + 256)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert "\r2/2 requests\n" in run("bench", "serve", "--url", url, "--num-prompts", "2", "--output-len", "2")[2]
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('reverse: ab =\n{"prompt": "sort: 312 ="}\n')
    words = ["--prompts", str(prompts), "--num-prompts", "4", "--request-rate", "200", "--arrival", "constant"]
    code, out, _ = run("bench", "serve", "--url", url, *words, "--endpoint", "chat", "--json", "-")
    (one,) = validate("bench-serve", out)["levels"]
    assert (code, one["requests"], one["output_tokens"], one["request_rate"]) == (0, 4, 2 * 3 + 2 * 4, 200.0)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--model", "demo-chekpoint"], 2, "serves no model 'demo-chekpoint'; did you mean 'demo-checkpoint'?\n"),
        (["--prompts", "/none"], 2, "/none cannot be read"),
        (["--trace", "/none"], 2, "/none cannot be read"),
    ],
)
def test_benches_that_cannot_be(url: str, run: Any, words: list[str], code: int, says: str) -> None:
    found, _, err = run("bench", "serve", "--url", url, "--num-prompts", "1", *words)
    assert found == code
    assert says in err


def test_nobody_is_there(run: Any, tmp_path: Path) -> None:
    for words in (
        ["ps", "--url"],
        ["top", "--url"],
        ["bench", "serve", "--url"],
        ["explain", "x", "--url"],
        ["chat", "--message", "x"],
    ):
        code, out, err = run(*words, "http://127.0.0.1:9")
        assert (code, out) == (1, "")
        assert (
            "nothing answers at 127.0.0.1:9 (Connection refused); start a server with 'blockwright serve MODEL', or" in err
        )
        assert err.endswith("or give the address of another one\n"), "which not all of them take with --url"
    code, _, err = run("ps", "--api-key-file", str(tmp_path / "none"))
    assert (code, "No such file" in err) == (2, True)


@claim("`chaos kill` kills a worker and prints what happened", of="command-line")
def test_a_worker_is_killed_and_what_happens_is_reported(url: str, run: Any) -> None:
    """The last test of the module: the worker that it kills is there again."""
    code, out, err = run("chaos", "kill", "w1", "--url", url)
    assert (code, err) == (0, "")
    first, *rest = out.splitlines()
    assert re.fullmatch(r"w1 \(pid \d+\) is killed", first)
    assert any("worker w1 died: exited -9" in line for line in rest)
    assert re.search(r"worker w1 serves again, \d+\.\d\d s after it died$", rest[-1])
    code, _, err = run("chaos", "kill", "w7", "--url", url)
    assert (code, err) == (2, "blockwright: there is no worker 'w7'; there are: w0, w1\n")
