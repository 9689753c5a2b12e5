"""A server of workers that share a card, on a machine whose driver is a stand-in: what it shows of the card, and refuses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from blockwright.api.commands.cli import main
from blockwright.tests.claims import claim
from blockwright.tests.gpu.cuda.fake_nvml import GIB
from blockwright.tests.parts import some
from blockwright.tests.system.card_machine import CARDS
from blockwright.tests.system.client import Client
from blockwright.tests.system.server import Server
from blockwright.tests.system.test_refusals import refused
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
MACHINE = "blockwright.tests.system.card_machine"
BUSY = {"free": 30 * GIB, "use": 83, "power": 654_300, "processes": [[4711, 49 * GIB]]}
Fields = dict[str, Any]


@pytest.fixture
def start(serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    """``start(cards, **settings)``: a server of a machine with these cards; the file ``tmp_path / "cards"`` changes them."""

    def begin(cards: Sequence[Fields], **settings: Any) -> Server:
        describe(tmp_path, cards)
        monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
        return serve(module=MACHINE, **settings)

    return begin


def describe(folder: Path, cards: Sequence[Fields]) -> None:
    (folder / "new").write_text(json.dumps(cards))
    (folder / "new").replace(folder / "cards")


async def look(server: Server, path: str) -> str:
    async with ClientSession(server.url) as session, session.get(path) as answer:
        return await answer.text()


@claim("`ps`, `top`, `/metrics` and `/admin/cluster` of a server show memory, use and power of its card", of="observability")
async def test_a_server_shows_the_card_of_its_workers(
    start: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: list[list[int]]
) -> None:
    """Only the card that they use, and it changes as the card does. Requests go on while it does not answer."""
    server = start([{}, BUSY], device="cuda:1", workers=2).whole()
    line = "cuda:1 (NVIDIA H100): 50.0 GiB of 80.0 GiB used, 83% busy, 654 of 700 W"

    async def said(command: str) -> bool:
        """Tell whether a command shows the card; the server leaves out a reading that does not come at once."""
        capsys.readouterr()
        assert await asyncio.to_thread(main, [command, "--once", "--url", server.url]) == 0
        return line in capsys.readouterr().out.splitlines()

    for command in ("ps", "top"):
        await until(lambda command=command: said(command), f"{command} shows the card")

    async def measured() -> str:
        text = await look(server, "/metrics")
        return text if "card_use" in text else ""

    metrics = await until(measured)
    seen = dict(re.findall(r'^blockwright:(card_\w+){card="cuda:1"} (\S+)$', metrics, re.MULTILINE))
    wanted = {"card_use": 0.83, "card_power_watts": 654.3, "card_power_limit_watts": 700.0}
    assert {name: float(seen[name]) for name in wanted} == wanted
    assert 'card="cuda:0"' not in metrics

    async def shown() -> list[dict[str, Any]]:
        cards: list[dict[str, Any]] = json.loads(await look(server, "/admin/cluster"))["cards"]
        return cards

    (card,) = await until(shown)
    assert (card["memory"], card["processes"]) == (
        {"total": 80 * GIB, "free": 30 * GIB},
        [{"pid": 4711, "bytes": 49 * GIB}],
    )
    describe(tmp_path, [{}, BUSY | {"use": 12}])

    async def idler() -> bool:
        return [card["use"] for card in await shown()] == [0.12]

    await until(idler, "the next reading")
    (tmp_path / "cards").unlink()  # MachineNvml answers with an error

    async def silent() -> bool:
        return not await shown()

    await until(silent, "a card that does not answer is not shown")
    await until(lambda: "card 1 is not shown" in server.err, "which is said")
    async with Client(server) as client:
        answers = client.load(2, 8)
        await client.finished()
    assert [answer.tokens for answer in answers] == [tokens[:8] for tokens in expected[:2]]
    server.stop()


@claim("A server that cannot use its card ends in one sentence with exit code 2 before any worker starts", of="command-line")
@pytest.mark.parametrize(
    ("cards", "settings", "says"),
    some(
        [
            NO_CARD := (
                [{}],
                {"device": "cuda:7"},
                "device is 'cuda:7', but there is no card 7 here; choose one of 0 (NVIDIA H100)",
            ),
            ([], {}, "device is 'cuda', but the NVIDIA driver finds no card here; start the container with one"),
            ([{"mig": [1, 0]}], {}, "device is 'cuda', but card 0 (NVIDIA H100) is divided by MIG"),
            ([{"capability": [7, 5]}], {}, "device is 'cuda', but card 0 (NVIDIA H100) has compute capability 7.5"),
            ([{"free": GIB}], {}, "device is 'cuda', but card 0 (NVIDIA H100) is in use: 1.0 GiB of 80.0 GiB are free"),
            (
                [{"mode": 3}],
                {"workers": 2},
                "workers is 2, but card 0 (NVIDIA H100) takes one process (compute mode exclusive); start 1",
            ),
            (
                [{}],
                {"workers": 200},
                "workers is 200, but card 0 (NVIDIA H100) has 79.0 GiB free, and each takes 640.0 MiB",
            ),
            TOO_LARGE := (
                [{}],
                {"workers": 2, "memory": "50GiB"},
                "memory is 50.0 GiB for each worker, 100.0 GiB for all 2, but only 77.6 GiB are free for them on card 0",
            ),
            ([{"mig": [1, 0]}], {"device": "auto", "bits": "fast"}, "bits is 'fast', which is of a card, and device auto"),
        ],
        NO_CARD,
        TOO_LARGE,
    ),
)
def test_what_cannot_be_had_of_a_card(
    start: Callable[..., Server], cards: list[Fields], settings: dict[str, Any], says: str
) -> None:
    server = start(cards, **{"device": "cuda", **settings})
    refused(server, [f"blockwright: {says}"])
    assert not [path for path in Path(server.event_logs.folder).rglob("*") if path.is_file()], "of a worker"
