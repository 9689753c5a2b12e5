"""The scripts of deploy/slurm and deploy/ssh, run with stand-ins for ssh, srun and the rest of Slurm, on one machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.commands import COMMANDS
from blockwright.api.commands.cli import make_parser
from blockwright.api.settings.options import make_settings
from blockwright.tests.claims import claim
from blockwright.tests.system.server import Program
from blockwright.tests.waiting import PATIENCE, until_now

ROOT = Path(__file__).parents[2]
SLURM, SSH = ROOT / "deploy" / "slurm", ROOT / "deploy" / "ssh"
SMALL = "64MiB"
STAND_INS = {
    # runs what is behind its options, here
    "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"',
    "ssh": 'shift; exec sh -c "$*"',
    "scontrol": "printf 'n0\\nn1\\n'",
    "hostname": "echo 127.0.0.1",
}
LOGGED = 'printf "%s\\n" "$(basename "$0")" "$@" "" >> "$LOG"'
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_CPUS_PER_TASK": "1"}


class Programs:
    """A folder of programs, before all others on the path."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder / "bin"
        self._folder.mkdir()
        self.log = folder / "log"
        monkeypatch.setenv("PATH", f"{self._folder}:{os.environ['PATH']}")
        monkeypatch.setenv("LOG", str(self.log))
        for name, script in STAND_INS.items():
            self.put(name, script)

    def put(self, name: str, script: str) -> None:
        program = self._folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """Return the arguments of each call that a stand-in has logged."""
        text = self.log.read_text() if self.log.exists() else ""
        return [call.split("\n") for call in text.removesuffix("\n\n").split("\n\n") if call]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("PORT", "0")
    return Programs(tmp_path, monkeypatch)


def parsed(words: list[str]) -> Any:
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    return make_parser(name, COMMANDS[name].load()).parse_args(words[len(name.split()) :])


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE, check=False)


@claim("The command lines of the manifests and scripts in deploy/ are ones that the parser takes", of="installation")
def test_what_the_script_of_an_allocation_calls(programs: Programs, tmp_path: Path) -> None:
    programs.put("blockwright", LOGGED)
    assert run("sh", SLURM / "serve.sbatch", "models/m").returncode == 0
    keys, serve = [words[1:] for words in programs.calls()]
    assert parsed(keys).folder == f"{tmp_path}/blockwright-keys-7"
    given = parsed(serve)
    flags = {"workers": given.workers, "listen": given.listen, "head_keys": given.keys}
    made = make_settings(given.model, sets=given.set, flags=flags)
    assert (made.joining.listen, made.launching.launched_workers, made.launching.hosts) == ("tcp://127.0.0.1:0", 1, ["n1"])
    command = made.launching.template.fill({"host": "n1"})
    assert command[:5] == ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n1"]
    assert parsed(command[6:]).label == ["node=n1"]


def test_what_the_script_of_one_worker_calls(programs: Programs) -> None:
    programs.put("blockwright", LOGGED)
    assert run("sh", SLURM / "worker.sbatch", "worker.join").returncode == 0
    (words,) = programs.calls()
    given = parsed(words[1:])
    assert (given.join, given.name, given.label) == ("@worker.join", "slurm-7", ["job=7"])


@pytest.mark.parametrize(
    ("wish", "jobs", "calls"),
    [
        ("2\n", "", [["sbatch"], ["sbatch"]]),
        ("2\n", "31\n30", []),
        ("3\n", "31\n30", [["sbatch"]]),
        ("1\n", "33\n32\n31", [["scancel", "33", "32"]]),
        ("0\n", "31", [["scancel", "31"]]),
        ("", "31", []),
        ("many", "31", []),
    ],
)
def test_as_many_jobs_as_the_server_wishes(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: str, jobs: str, calls: list[list[str]]
) -> None:
    programs.put("squeue", f"printf '{jobs}'")
    for name in ("sbatch", "scancel"):
        programs.put(name, LOGGED)
    (tmp_path / "wish").write_text(wish)
    monkeypatch.setenv("ONCE", "1")
    done = run("sh", SLURM / "follow-wish.sh", tmp_path / "wish", "worker.join", "--partition=cpu")
    assert done.returncode == 0
    words = ["--job-name=blockwright-worker", "--partition=cpu", f"{SLURM}/worker.sbatch", "worker.join"]
    assert programs.calls() == [[call[0], *words] if call == ["sbatch"] else call for call in calls]
    assert ("holds no number; give the server --set wish_file=" in done.stderr) is (wish in ("", "many"))


@pytest.mark.parametrize(("words", "said"), [([], "usage: workers.sh JOIN_FILE"), (["none", "a"], "none cannot be")])
def test_what_the_script_over_ssh_refuses(words: list[str], said: str) -> None:
    done = run("sh", SSH / "workers.sh", *words)
    assert (done.returncode, said in done.stderr) == (2, True)


def test_a_worker_over_ssh_gets_the_text_is_started_again_and_asked_to_leave(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in of the worker reads the text; its first life ends by itself, the second when it is asked to."""
    monkeypatch.setenv("PAUSE", "0")
    (tmp_path / "worker.join").write_text("the text\n")
    lives = tmp_path / "lives"
    programs.put(
        "blockwright",
        f'{LOGGED}; trap "echo drained >> {lives}; exit 0" TERM; read -r text; echo "$text" >> {lives}\n'
        f'[ "$(grep -c . {lives})" -gt 1 ] || exit 70; while :; do sleep 0.01; done',
    )
    process = subprocess.Popen(["sh", SSH / "workers.sh", tmp_path / "worker.join", "a"], stderr=subprocess.PIPE, text=True)
    try:
        until_now(lambda: lives.exists() and lives.read_text() == "the text\n" * 2, "it is started twice")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert lives.read_text() == "the text\nthe text\ndrained\n"
    assert "the worker on a ended with 70" in said
    assert [parsed(words[1:]).label for words in programs.calls()] == [["host=a"]] * 2


def test_a_text_that_is_refused_ends_the_script(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "worker.join").write_text("the text\n")
    programs.put("blockwright", "exit 2")
    done = run("sh", SSH / "workers.sh", tmp_path / "worker.join", "a", "b")
    assert done.stderr.count("ended with 2") == 2


# the whole


@pytest.fixture
def server(programs: Programs, checkpoint: Callable[..., Path]) -> Iterator[Program]:
    """A server from the script of an allocation: the head, its worker, and one on the second node."""
    serve = f'case $1 in serve) set -- "$@" --set memory={SMALL};; worker) set -- "$@" --memory {SMALL};; esac'
    programs.put("blockwright", f'{serve}\nexec {sys.executable} -m blockwright "$@"')
    made = Program([str(SLURM / "serve.sbatch"), str(checkpoint("llama"))], python="sh")
    yield made
    made.destroy()


@claim("Scripts of deploy/slurm and deploy/ssh start workers that serve, with stand-ins for srun and ssh", of="installation")
@pytest.mark.system
@pytest.mark.nightly
def test_workers_of_the_scripts_serve(server: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cluster() -> dict[str, Any]:
        (url,) = re.findall(r"listening on (http://\S+)", server.out)
        with urllib.request.urlopen(f"{url.replace('0.0.0.0', '127.0.0.1')}/admin/cluster", timeout=PATIENCE) as answer:
            return dict(json.load(answer))

    def ready() -> list[dict[str, str]]:
        return [one["labels"] for one in cluster()["workers"] if one["state"] == "ready"]

    until_now(lambda: " ready at " in server.out or server.process.poll() is not None, "its own worker serves")
    until_now(lambda: ready() == [{}, {"node": "n1"}], "the worker of the allocation serves")
    (address,) = re.findall(r"workers join at tcp://(\S+)", server.out)
    join = tmp_path / "worker.join"
    join.write_text(run("blockwright", "keys", "join", tmp_path / "blockwright-keys-7", "--address", address).stdout)
    workers = server.beside("workers", str(SSH / "workers.sh"), str(join), "a", python="sh")
    until_now(lambda: {"host": "a"} in ready(), "the worker over ssh serves")
    workers.send_signal(signal.SIGTERM)
    assert workers.wait(timeout=PATIENCE) == 0
    until_now(lambda: ready() == [{}, {"node": "n1"}], "it has left")
    assert any("is drained: SIGTERM was received" in event["text"] for event in cluster()["events"])
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=PATIENCE) == 0, server.err
    server.gone()
