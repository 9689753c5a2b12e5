"""The doctor: every line that is not well says what to do, on machines that have what can go wrong."""

from __future__ import annotations

import builtins
import dataclasses
import json
import os
import re
import resource
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jsonschema
import pytest

from blockwright.api.commands import doctor
from blockwright.api.commands.cli import main
from blockwright.gpu.cuda.nvml import Nvml
from blockwright.gpu.cuda.probe import HostParts
from blockwright.gpu.errors import BackendError
from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import free_port
from blockwright.tests.gpu.cuda.fake_nvml import FakeNvml, card

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
        *("python", "torch", "instruction sets", "numerics, float32", "numerics, bfloat16", "scheduler", "cores", "speed"),
        *("memory", "shared memory", "sockets", "port", "open files", "messages", "gpu"),
    }
    assert [check for check in body["checks"] if (check["status"] == "ok") != (check["fix"] == "")] == []


@claim("`doctor` exits with 1 and prints a fix where the machine cannot serve", of="command-line")
def test_what_will_not_work_is_exit_code_one_with_a_fix(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", str(taken)]) == 1
    out = capsys.readouterr().out
    assert f" failed  port: 127.0.0.1:{taken}: Address already in use\n         -> end what listens there" in out
    assert f"--port {taken + 1}" in out


def test_a_server_on_the_port_shows_what_its_workers_reported() -> None:
    said = {
        "host": "pod", "device": "cpu", "cores": 4, "threads": 2, "memory": 3 << 30,
        "speed": {"bandwidth": 0, "products": 0},
    }  # fmt: skip
    bodies = [{"workers": [{"id": "w0", "reported": said}, {"id": "w1", "reported": said}]}, {"workers": [{"id": "w0"}]}, []]

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(bodies.pop(0)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = Thread(target=lambda: [server.handle_request() for _ in range(3)])
        thread.start()
        found = [list(doctor.check_workers(server.server_address[1])) for _ in range(3)]
        thread.join()
    (check,) = found[0]
    assert check == doctor.Check("workers", "ok", "w0, w1 reported 2 of 4 cores, 3.0 GiB, cpu on pod")
    assert found[1:] == [[], []], "one of an earlier release, and another program"
    assert list(doctor.check_workers(free_port())) == []


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
    ],
)
def test_checks_of_one_number(check: Any, status: str, says: str) -> None:
    found = check()
    assert found.status == status
    assert says in found.fix


GIB = 1 << 30
WHOLE = HostParts(cuda=True, missing=(), compiler="/usr/bin/gcc", headers="/usr/include")


@claim("`doctor` names the cards, what they do, and what stands in their way with the remedy", of="command-line")
def test_the_cards(tmp_path: Path) -> None:
    busy = card(
        free=30 * GIB, processes=[(4711, 49 * GIB), (12, None)], use=83, power=654_321, clock=1410, reasons=0x24, errors=2
    )
    plain = card(**dict.fromkeys(("use", "power", "clock", "ecc", "errors", "processes")), mig=[1, 1])
    found = list(doctor.check_cards(Nvml(FakeNvml(busy, plain)), host=WHOLE))
    assert [(one.name, one.status, one.fix) for one in found] == [
        ("gpu 0", "ok", ""),
        ("gpu 1", "warning", "choose another card, or have MIG turned off"),
    ]
    assert found[0].text == (
        "NVIDIA H100, driver 570.86.15, compute capability 9.0, 30.0 GiB of 80.0 GiB free, used by processes 4711, 12, "
        "83% busy, 654 of 700 W, 1410 of 1980 MHz, held down by power limit and heat, ECC on, 2 errors not corrected "
        "(serve with --device cuda:0; each worker takes 640.0 MiB beside its memory, and what its models' shapes need; "
        "not yet proved on a card)"
    )
    assert found[1].text == (
        "NVIDIA H100, driver 570.86.15, compute capability 9.0, 79.0 GiB of 80.0 GiB free, MIG on; "
        "card 1 (NVIDIA H100) is divided by MIG, which is not supported"
    )
    for lacks, fix in (
        ({"compiler": ""}, "install gcc"),
        ({"headers": ""}, "python3-dev"),
        ({"missing": ("triton",)}, "pip install 'blockwright[gpu]'"),
        ({"cuda": False}, "install one with it"),
        ({"visible": "1,0"}, "choose the card by device"),
    ):
        (one,) = doctor.check_cards(Nvml(FakeNvml(card())), host=dataclasses.replace(WHOLE, **lacks))
        assert (one.status, fix in one.fix) == ("warning", True)


def test_a_machine_without_a_card_is_well_unless_it_has_the_driver(tmp_path: Path) -> None:
    driver = tmp_path / "version"
    (none,) = doctor.check_cards(Nvml(FakeNvml()), driver)
    assert (none.name, none.status, none.fix) == ("gpu", "ok", "")
    assert none.text == "none, serving uses the CPU (the NVIDIA driver finds no card here)"
    driver.touch()
    (none,) = doctor.check_cards(Nvml(FakeNvml()), driver)
    assert (none.status, none.fix) == ("warning", "start the container with one (docker run --gpus all)")


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
    assert found.status == "warning"
    assert re.match(r"torch-[a-z0-9]+-[0-9a-f]{8}-float32 \(the torch reference", found.text)
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
