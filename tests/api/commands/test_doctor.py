"""The doctor: every line that is not well says what to do, on machines that have what can go wrong."""

from __future__ import annotations

import builtins
import json
import os
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from blockwright.api.commands import doctor
from blockwright.api.commands.cli import main
from blockwright.gpu.errors import BackendError
from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import free_port

ROOT = Path(__file__).parents[3]
XEON = "model name\t: Some CPU\nflags\t\t: fpu avx2 fma avx512f avx512_bf16\n"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def test_this_machine_can_serve_and_says_what_computes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--port", str(free_port())]) == 0
    body = json.loads(capsys.readouterr().out)
    jsonschema.validate(body, json.loads((ROOT / "docs" / "schemas" / "doctor.json").read_text()))
    assert body["works"]
    lines = {check["name"]: check for check in body["checks"]}
    assert lines["numerics, float32"]["text"].startswith(("native-", "torch-"))
    assert set(lines) == {
        *("python", "torch", "instruction sets", "numerics, float32", "numerics, bfloat16", "scheduler", "cores"),
        *("memory", "shared memory", "sockets", "port", "open files", "messages", "gpu"),
    }
    assert [check for check in body["checks"] if (check["status"] == "ok") != (check["fix"] == "")] == []


@claim("`doctor` exits with 1 and prints a fix where the machine cannot serve", of="command-line")
def test_what_will_not_work_is_exit_code_one_with_a_fix(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", str(taken)]) == 1
    out = capsys.readouterr().out
    assert f" failed  port: 127.0.0.1:{taken}: Address already in use\n         -> end what listens there" in out
    assert f"--port {taken + 1}" in out


def test_instruction_sets(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(XEON)
    found = doctor.check_instructions(info)
    assert (found.status, found.text) == ("ok", "Some CPU: avx2 fma avx512f avx512_bf16")
    info.write_text("model name\t: Old CPU\nflags\t\t: fpu sse2\n")
    assert doctor.check_instructions(info).status == "warning"
    assert doctor.check_instructions(tmp_path / "none").status == "warning"


@pytest.mark.parametrize(
    ("check", "status", "says"),
    [
        (lambda: doctor.check_memory(100 << 20), "failed", "--memory"),
        (lambda: doctor.check_memory(4 << 30), "ok", ""),
        (lambda: doctor.check_files(256), "warning", "ulimit"),
        (lambda: doctor.check_files(resource.RLIM_INFINITY), "ok", ""),
        (lambda: doctor.check_shared_memory(Path("/nowhere/shm")), "failed", "tmpfs"),
        (lambda: doctor.check_sockets(Path("/nowhere")), "failed", "TMPDIR"),
        (lambda: doctor.check_gpu("no-such-command"), "ok", ""),
        (lambda: doctor.check_gpu("false"), "warning", "driver"),
        (lambda: doctor.check_gpu("true"), "ok", ""),
    ],
)
def test_checks_of_one_number(check: Any, status: str, says: str) -> None:
    found = check()
    assert found.status == status
    assert says in found.fix


def test_a_path_that_is_too_long_for_sockets(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    found = doctor.check_sockets(long)
    assert (found.status, "too long" in found.text) == ("failed", True)


def test_little_shared_memory_and_one_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: os.terminal_size((1, 2)) and type("U", (), {"free": 1 << 20}))
    assert doctor.check_shared_memory(tmp_path).status == "warning"
    assert doctor.check_shared_memory(tmp_path).text == f"1.0 MiB free in {tmp_path}"
    monkeypatch.setattr("blockwright.actors.resources.cores", lambda: 1)
    assert doctor.check_cores().status == "warning"


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name in ("torch", "zmq"):
            raise ImportError(f"no {name}")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert doctor.check_torch().status == "failed"
    assert doctor.check_encryption().status == "failed"
    monkeypatch.setattr(sys, "platform", "win32")
    assert doctor.check_python().status == "failed"


def test_numerics_without_kernels_and_without_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockwright.gpu import select
    from blockwright.gpu.cpu.native import backend as native

    def refuse(*words: Any) -> Any:
        raise BackendError("the native kernels were not built")

    monkeypatch.setattr(native, "NativeBackend", refuse)
    found = doctor.check_numerics("float32")
    assert (found.status, found.text.startswith("torch-float32 (the torch reference")) == ("warning", True)
    assert "bits depend on the batch" in found.text
    assert "were not built" in found.text
    monkeypatch.setattr(select, "open_backend", refuse)
    assert doctor.check_numerics("float32").status == "failed"


@pytest.mark.parametrize(
    ("checkout", "unwanted", "status", "words"),
    [
        (True, False, "ok", "'make setup' here compiles it for a server"),
        (False, False, "warning", "install it again, with a C compiler"),
        (True, True, "warning", "unset BLOCKWRIGHT_COMPILED"),
    ],
)
def test_an_interpreted_scheduler_is_a_warning_where_a_server_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: bool, unwanted: bool, status: str, words: str
) -> None:
    monkeypatch.setattr("blockwright.policies.COMPILED", False)
    monkeypatch.setattr(doctor, "CHECKOUT", tmp_path)
    monkeypatch.setenv("BLOCKWRIGHT_COMPILED", "0" if unwanted else "1")
    if checkout:
        (tmp_path / "Makefile").touch()
    check = doctor.check_scheduler()
    assert (check.status, bool(check.fix)) == (status, status == "warning")
    assert words in (check.fix or check.text)
    assert "takes twice as long" in check.text
