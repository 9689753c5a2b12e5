"""``blockwright batch run`` (docs/offline.md) on a real cluster: each line its answer or its error; a killed run goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.commands.cli import main
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE, until_now

pytestmark = pytest.mark.system
MODEL = Path(__file__).parents[2] / "examples" / "demo-checkpoint"
SETTINGS = [word for one in ("memory=64MiB", "threads=1", "workers=2") for word in ("--set", one)]
WORDS = ("abc", "blend", "serve", "xyz", "hello", "tree", "unit", "side")


def line(id: str, prompt: str, **more: Any) -> str:
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, **more}
    return json.dumps({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body})


def chat(id: str, text: str) -> str:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0}
    return json.dumps({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def answers(path: Path) -> dict[str, Any]:
    found = [json.loads(one) for one in path.read_text().splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found), "a line is answered twice"
    return {one["custom_id"]: one["response"]["body"] for one in found}


@claim("`batch run` answers a file without a server and goes on after kill -9", of="offline")
def test_each_line_has_its_answer_or_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line(word, f"reverse: {word} =") for word in WORDS]
    wrong = ["{broken", line("abc", "twice"), line("other", "x", model="demo-chekpoint"), line("hot", "x", temperature=9)]
    given.write_text(
        "\n".join([*lines[:4], *wrong, *lines[4:], chat("talk", "sort: 312 ="), line("two", "sort: 21 =", n=2)])
    )
    assert main(["batch", "run", str(given), "-o", str(out), "--model", str(MODEL), *SETTINGS]) == 1
    found = answers(out)
    assert {id: found[id]["choices"][0]["text"].strip() for id in WORDS} == {word: word[::-1] for word in WORDS}
    assert found["talk"]["choices"][0]["message"]["content"] == "123"
    assert len(found["two"]["choices"]) == 2
    errors = {one["custom_id"]: one for one in map(json.loads, (tmp_path / "out.errors.jsonl").read_text().splitlines())}
    assert errors.keys() == {None, "abc", "other", "hot"}
    assert errors["other"]["response"]["status_code"] == 404
    assert errors["abc"]["error"]["code"] == "duplicate_custom_id"
    said = capsys.readouterr().err
    assert "answered 10 of 14 lines" in said
    assert f"4 failed: {tmp_path / 'out.errors.jsonl'}" in said
    assert "line 7: 404: the model 'demo-chekpoint' does not exist; did you mean 'demo-checkpoint'?" in said


@claim("`batch run` answers a file without a server and goes on after kill -9", of="offline")
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "in.jsonl"
    out = tmp_path / "out.jsonl"
    pace = tmp_path / "pace.json"
    texts = [f"reverse: {word}{number} =" for number in range(6) for word in WORDS]
    given.write_text("\n".join(line(str(n), text) for n, text in enumerate(texts)))
    pace.write_text('{"base": 0.02}')
    command = ["batch", "run", str(given), "-o", str(out), "--model", str(MODEL), *SETTINGS]
    slow = [*command, "--set", f"pace={pace}", "--set", "max_rows=4"]
    process = subprocess.Popen([sys.executable, "-m", "blockwright", *slow], stderr=subprocess.PIPE)
    until_now(lambda: out.exists() and out.read_bytes().count(b"\n") > 5, "some lines are answered")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    before = out.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    with out.open("ab") as file:  # what a machine leaves that died while it wrote
        file.write(b'{"id": "batch_req_')
    capsys.readouterr()
    assert main(command) == 0
    assert out.read_bytes().startswith(whole)
    found = answers(out)
    assert {*found} == {str(n) for n in range(len(texts))}
    done = whole.count(b"\n")
    assert f"answered 48 of 48 lines ({done} before)" in capsys.readouterr().err
    assert main(command) == 0, "nothing is left, and no cluster is started for that"
    assert f"({len(texts)} before)" in capsys.readouterr().err
    given.write_text("\n".join(line(str(n), text) for n, text in reversed([*enumerate(["reverse: cat =", *texts[1:]])])))
    assert main(command) == 2
    said = capsys.readouterr().err
    assert f"line 48 of {given} ('0') has changed since {out} got its answer; give --redo to drop it" in said
    assert answers(out) == found, "a refused run changes nothing"
    assert main([*command, "--redo"]) == 0
    assert "answered 48 of 48 lines (47 before, 1 dropped)" in capsys.readouterr().err
    anew = answers(out)
    assert anew.pop("0")["choices"][0]["text"].strip() == "tac"
    assert anew == {id: answer for id, answer in found.items() if id != "0"}
