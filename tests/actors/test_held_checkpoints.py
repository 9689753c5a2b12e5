"""What is served is kept from being removed from its zoo for as long as the controller knows it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.applications import Applications
from blockwright.actors.gateway.port import ApplicationView, NewApplication, RemovalView
from blockwright.actors.settings.settings import Settings
from blockwright.actors.sizing import WorkerLimits
from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.cluster.adapter_base import WholeModel
from blockwright.policies.control.events import Application
from blockwright.policies.requests.refusal import RequestRefused
from blockwright.runtime import Actor, Node, endpoint
from blockwright.tests.waiting import until


class Desk(Actor):
    """A controller of which the test says what it has forgotten."""

    def __init__(self) -> None:
        self.names, self.serving = 0, {"m": "m"}
        self.left: dict[str, asyncio.Event] = {}
        self.why = ""
        self.tiers: list[WholeModel] = []

    def ends(self, name: str) -> asyncio.Event:
        return self.left.setdefault(name, asyncio.Event())

    @endpoint
    async def wholes(self) -> list[WholeModel]:
        return self.tiers

    @endpoint
    async def served(self) -> list[Application]:
        return []

    @endpoint
    async def crowded(self) -> str:
        return ""

    @endpoint
    async def add(self, application: Application, *, replace: bool, grace: float) -> str:
        self.names += 1
        name = f"{application.name}~{self.names}"
        if not self.why:
            self.serving[application.name] = name
        return name

    @endpoint
    async def settled(self, application: str) -> str:
        return self.why

    @endpoint
    async def application(self, application: str) -> ApplicationView | None:
        return ApplicationView(application, "", True, 1, 1, 1)

    @endpoint
    async def retire(self, model: str, grace: float, default: str = "") -> tuple[list[str], RemovalView]:
        return [self.serving[model]], RemovalView(False, 0, 0, "", False)

    @endpoint(concurrent=True)
    async def removed(self, application: str) -> None:
        await self.ends(application).wait()


class OpenedCheckpoints(Applications):
    """Reads no file."""

    def _hash(self, new: NewApplication, wholes: list[WholeModel], crowded: str) -> Any:
        return [(f"checkpoint of {new.path}", Application(new.name, new.path, (), 1))]


async def test_a_hold_ends_with_its_application_and_not_with_its_name() -> None:
    node, held = Node("head", listen=False), {"m": "first"}
    await node.start()
    try:
        desk = Desk()
        await node.spawn(desk, name="controller")
        actor = OpenedCheckpoints(Settings(), None, "head/controller", held)  # type: ignore[arg-type]
        apps = await node.spawn(actor, name="applications")
        await apps.add(NewApplication("m", "/b", replace=True))
        assert held == {"m": "first", "m~1": "checkpoint of /b"}, "the old version still answers"
        desk.ends("m").set()
        await until(lambda: held == {"m~1": "checkpoint of /b"})
        removing = asyncio.create_task(apps.remove("m", 5.0))
        await apps.add(NewApplication("m", "/c"))
        desk.ends("m~1").set()
        assert (await removing).gone
        assert held == {"m~2": "checkpoint of /c"}, "the end of one is not that of the next"
        desk.why = "no room"
        await apps.add(NewApplication("x", "/d"))
        desk.ends("x~3").set()
        await until(lambda: held == {"m~2": "checkpoint of /c"})
    finally:
        await node.stop()


async def test_the_removal_of_a_draft_model_says_whose_drafts_end(caplog: pytest.LogCaptureFixture) -> None:
    node, desk = Node("head", listen=False), Desk()
    desk.serving |= {"fam": "fam", "plain": "plain"}
    desk.tiers = [WholeModel("fam", "/fam"), WholeModel("fam:2", "/fam", family="fam")]
    settings = Settings(drafts={"m": "fam:2", "*": "fam", "other": "prompt", "n": "small"}, app_roots="/nowhere")
    await node.start()
    try:
        await node.spawn(desk, name="controller")
        actor = Applications(settings, WorkerLimits("float32", frozenset()), "head/controller")
        apps = await node.spawn(actor, name="applications")
        for model in ("fam", "plain"):
            desk.ends(model).set()
        reason = "which is not served: requests go on without drafts by it until it is added"
        said = (f"drafts.m names fam:2, {reason}", f"drafts.* names fam, {reason}")
        assert (await apps.remove("fam", 5.0)).drafts == said
        assert all(sentence in caplog.text for sentence in said)
        assert (await apps.remove("plain", 5.0)).drafts == ()
    finally:
        await node.stop()


async def test_what_is_refused_when_nobody_waits_any_more_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = Node("head", listen=False)
    await node.start()
    try:
        desk = Desk()
        desk.why = "no room"
        await node.spawn(desk, name="controller")
        actor = Applications(Settings(app_roots="/nowhere"), WorkerLimits("float32", frozenset()), "head/controller")
        apps = await node.spawn(actor, name="applications")
        answer = await apps.add(NewApplication("late", "/b", wait=0.0))
        assert isinstance(answer, ApplicationView)
        assert not answer.ready
        await until(lambda: "model late is not added: " in caplog.text)
        await apps.add(NewApplication("awaited", "/b", wait=60.0))
        assert "model awaited" not in caplog.text, "its client waits and gets the answer"
    finally:
        await node.stop()


def test_a_folder_that_becomes_a_link_while_it_is_read_is_refused(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What workers open later must have been read below the roots: its content is then compared with what was hashed."""
    folder = tmp_path / "roots" / "app"
    outside = tmp_path / "outside"
    specs = Checkpoint.specs
    shutil.copytree(checkpoint("llama"), folder)

    def swapped(self: Checkpoint, *rest: Any) -> list[ComponentSpec]:
        folder.rename(outside)
        folder.symlink_to(outside)
        return specs(self, *rest)

    monkeypatch.setattr(Checkpoint, "specs", swapped)
    actor = Applications(Settings(app_roots=str(folder.parent)), WorkerLimits("float32", frozenset()), "head/controller")
    with pytest.raises(RequestRefused, match="is not below a root of app_roots"):
        actor._hash(NewApplication("app", str(folder)), [], "")
