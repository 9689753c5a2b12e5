"""What a server warns of as it starts to listen."""

from __future__ import annotations

from pathlib import Path

from blockwright.tests.api.serve.test_server import FakeCluster, Session


async def test_keys_that_may_all_change_what_is_served_are_warned_of(folder: Path) -> None:
    """Once roots are set, and until operators' keys are named apart."""
    for more, warned in (
        ({}, 0),
        ({"app_roots": str(folder)}, 1),
        ({"app_roots": str(folder), "admin_keys": {"root": "o"}}, 0),
    ):
        session = Session(FakeCluster(folder), api_keys={"key": "ann"}, **more)
        await session.until("listening")
        session.server.stop()
        assert await session.task == 0
        assert sum("every API key may add, replace and remove all models" in line for line in session.lines) == warned


async def test_roots_that_are_not_there_are_warned_of(folder: Path) -> None:
    session = Session(FakeCluster(folder), app_roots=f"{folder},/nowhere/at/all")
    await session.until("listening")
    session.server.stop()
    assert await session.task == 0
    lines = [line for line in session.lines if "app_roots" in line]
    assert lines == ["warning: app_roots: there is no folder /nowhere/at/all; until there is, nothing can be added from it"]


async def test_warnings_of_the_command_are_reported_once_it_listens(folder: Path) -> None:
    session = Session(FakeCluster(folder), warnings=["keys may be read by all"])
    await session.until("listening")
    session.server.stop()
    assert await session.task == 0
    assert session.lines.count("warning: keys may be read by all") == 1
