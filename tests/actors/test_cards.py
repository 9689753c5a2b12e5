"""The cards actor: what it shows of the card that workers use, second by second."""

from __future__ import annotations

import asyncio
import logging

import pytest

from blockwright.actors.cards import PERIOD, Cards
from blockwright.actors.conditions import Published
from blockwright.actors.controller.actor import Controller
from blockwright.actors.controller.progress import Progress
from blockwright.actors.settings.settings import Settings
from blockwright.actors.supervision_tree import tree
from blockwright.policies.control.state import ControllerState
from blockwright.runtime import Node
from blockwright.runtime.tree import Branch
from blockwright.tests.claims import claim
from blockwright.tests.gpu.cuda.fake_nvml import GIB, FakeNvml, card


def services(device: str) -> list[str]:
    branch = tree(Settings(applications={"a": "x"}, device=device)).children[0]
    assert isinstance(branch, Branch)
    return [child.name for child in branch.children]


def test_there_is_one_only_where_workers_compute_on_a_card() -> None:
    assert "cards" in services("cuda:1")
    assert "cards" not in services("cpu") + services("cuda-mirror")


@claim("Memory, use and power of the card that workers use are read once a second, in the head alone", of="observability")
async def test_the_last_reading_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    module = FakeNvml(card(), card(free=30 * GIB, use=83, processes=[(4711, 49 * GIB)]))
    node = Node("head", listen=False)
    await node.start()
    actor = Cards(1, module)
    ref = await node.spawn(actor, name="cards")
    assert actor._timer is not None, f"the next reading is {PERIOD} s away"
    assert await ref.view() == [
        {
            "id": "cuda:1", "name": "NVIDIA H100", "driver": "570.86.15", "memory": {"total": 80 * GIB, "free": 30 * GIB},
            "processes": [{"pid": 4711, "bytes": 49 * GIB}], "use": 0.83, "power": 71.5, "power_limit": 700.0, "clock": 345,
            "clock_limit": 1980, "throttled": [], "errors": 0,
        }
    ]  # fmt: skip
    module.described[1]["use"] = 12
    await actor._read()
    assert [one["use"] for one in await ref.view()] == [0.12]
    module.lost = True
    with caplog.at_level(logging.WARNING):
        await asyncio.gather(actor._read(), actor._read())
        assert await ref.view() == []
    assert "card 1 is not shown: the NVIDIA driver does not answer (GPU is lost)" in caplog.text
    module.lost = False
    await actor._read()
    assert len(await ref.view()) == 1
    await node.stop()
    assert module.opened == 0


async def test_the_cluster_view_says_whether_the_head_doubts_that_it_reaches_its_members() -> None:
    node = Node("head", listen=False)
    await node.start()
    found = []
    for number, doubts in enumerate(("", "3 of 4 members are out of reach")):
        values = ControllerState([], 1.0), [], Published(Progress()), False, None, None, None, lambda said=doubts: said
        controller = await node.spawn(Controller(*values), name=f"controller-{number}")
        found.append((await controller.cluster())["doubts"])
    assert found == ["", "3 of 4 members are out of reach"]
    await node.stop()


async def test_the_cluster_view_has_the_card_and_does_not_wait_for_it() -> None:
    node = Node("head", listen=False)
    await node.start()
    for has_cards in (False, True):
        controller = await node.spawn(
            Controller(ControllerState([], 1.0), [], Published(Progress()), has_cards), name=f"controller-{has_cards}"
        )
        assert (await controller.cluster())["cards"] == [], "none is there, or it is being started again"
    await node.spawn(Cards(0, FakeNvml(card(use=50))), name="cards")
    assert [(one["id"], one["use"]) for one in (await controller.cluster())["cards"]] == [("cuda:0", 0.5)]
    await node.stop()
