"""``blockwright upgrade status`` and ``upgrade head``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from blockwright.api.commands import upgrade
from blockwright.api.commands.cli import main
from blockwright.api.commands.upgrade import roll_lines, roll_view
from blockwright.runtime.cluster.process_watch import begun_at
from blockwright.tests.claims import claim

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "upgrade-status.json"
WHY = "protocol 8-9 was offered and this node speaks 5-6, which is too far apart; upgrade the release that speaks 5-6 first"


def running(name: str, role: str, release: str = "0.6.0", protocol: str = "5-6") -> dict[str, Any]:
    return {"name": name, "role": role, "release": release, "protocol": protocol}


MIXED = {
    "releases": [running("head", "head", "0.7.0", "6-7"), running("w0", "worker"), running("g1", "gateway")],
    "refused_releases": [{"name": "far", "release": "0.9.0", "why": WHY}],
    "workers": [{"id": "w0", "numerics": "bf16-amx"}, {"id": "w1", "numerics": "bf16-avx2"}],
}
ALIKE = {
    "releases": [running("head", "head"), running("w0", "worker")],
    "refused_releases": [],
    "workers": [{"id": "w0", "numerics": "bf16-amx"}],
}


@pytest.mark.parametrize("cluster", [MIXED, ALIKE])
def test_the_view_fits_its_schema(cluster: dict[str, Any]) -> None:
    jsonschema.validate(roll_view(cluster), json.loads(SCHEMA.read_text()))


@claim("`upgrade status` shows the release of each member, what is left to roll and what was refused", of="command-line")
def test_what_is_left_and_what_could_not_be_rolled() -> None:
    assert roll_lines(roll_view(MIXED)) == [
        "NAME  ROLE     RELEASE  PROTOCOL  STATE",
        "head  head     0.7.0    6-7       rolled",
        "g1    gateway  0.6.0    5-6       to roll",
        "w0    worker   0.6.0    5-6       to roll",
        "",
        "left to roll to 0.7.0: g1, w0 (2 of 3)",
        f"could not be rolled: far (0.9.0): {WHY}",
        "numerics differ (w0: bf16-amx; w1: bf16-avx2): "
        "a sequence stays on workers of its own while one is left, then it is computed again",
    ]


def test_nothing_is_left() -> None:
    assert roll_lines(roll_view(ALIKE))[-1] == "all 2 run 0.6.0"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A body of /admin/cluster that the command finds."""
    body: dict[str, Any] = {}

    class Session:
        def get(self, path: str, holds: str) -> dict[str, Any]:
            assert (path, holds) == ("/admin/cluster", "workers")
            return body

    @contextlib.contextmanager
    def connected(arguments: Any) -> Iterator[Session]:
        yield Session()

    monkeypatch.setattr(upgrade, "connected", connected)
    return body


def test_the_command(server: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    server.update(MIXED)
    assert main(["upgrade", "status"]) == 0
    assert "left to roll to 0.7.0: g1, w0 (2 of 3)" in capsys.readouterr().out
    assert main(["upgrade", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == roll_view(MIXED)


@pytest.mark.parametrize("releases", [None, [], "x"])
def test_a_server_that_says_nothing_of_releases(
    server: dict[str, Any], capsys: pytest.CaptureFixture[str], releases: Any
) -> None:
    server.update(MIXED | {"releases": releases})
    assert main(["upgrade", "status", "--url", "http://box:1"]) == 1
    assert "the server at http://box:1 does not say which releases run there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["upgrade", "status", "--url", "nowhere"], "give an address like"),
        (["upgrade", "status", "--since", "1"], "--since"),
        (["upgrade", "stats"], "upgrade status"),
        (["upgrade"], "upgrade status"),
    ],
)
def test_mistyped_calls(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    with contextlib.suppress(SystemExit):
        assert main(arguments) == 2
    assert said in "".join(capsys.readouterr())


def kept(epoch: int, release: str, pid: int, begun: int) -> dict[str, Any]:
    succession = {"epoch": epoch, "keeper": pid, "keeper_begun": begun}
    return {"releases": [running("head", "head", release), running("w0", "worker")], "succession": succession}


def test_the_head_is_replaced_by_a_signal_to_its_keeper(
    server: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = begun_at(os.getpid())
    server.update(kept(5, "0.6.0", os.getpid(), begun))
    monkeypatch.setattr(upgrade, "LOOK", 0.0)
    seen: list[int] = []

    def roll(number: int, _: object) -> None:
        seen.append(number)
        server.update(kept(6, "0.7.0", os.getpid(), begun))

    former = signal.signal(signal.SIGUSR2, roll)
    try:
        assert main(["upgrade", "head"]) == 0
    finally:
        signal.signal(signal.SIGUSR2, former)
    assert seen == [signal.SIGUSR2]
    assert capsys.readouterr().out == "the head is of release 0.7.0 (before: 0.6.0)\n"


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({}, "start it with orphan_grace above 0 to roll the head"),
        (kept(5, "0.6.0", 0, 0), "start it with orphan_grace above 0 to roll the head"),
        (kept(5, "0.6.0", 1, -1), "the server is process 1 of another machine; run this there"),
    ],
)
def test_a_head_that_cannot_be_replaced_from_here(
    server: dict[str, Any], capsys: pytest.CaptureFixture[str], cluster: dict[str, Any], said: str
) -> None:
    """SIGUSR2 would end this process."""
    server.update(cluster)
    assert main(["upgrade", "head"]) == 1
    assert said in capsys.readouterr().err


def test_a_head_that_nothing_replaces(
    server: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.update(kept(5, "0.6.0", os.getpid(), begun_at(os.getpid())))
    monkeypatch.setattr(upgrade, "SECONDS", 0.0)
    monkeypatch.setattr(upgrade, "LOOK", 0.0)
    former = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        assert main(["upgrade", "head"]) == 1
    finally:
        signal.signal(signal.SIGUSR2, former)
    assert "no other head has taken over within 0 s; what serve prints says why" in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade", "status", "--url", "http://127.0.0.1:9"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
