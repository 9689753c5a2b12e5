"""Event logs of the servers under test: in the end each is replayed, and a failing test leaves a copy behind.

A plugin of pytest, too: ``conftest.py`` has its hook and fixture.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from blockwright.actors.settings.logs import LogSettings
from blockwright.api.commands.trace import as_lines, replay


class EventLogs:
    """Those of one server, in ``folder``: for its setting ``event_log``. None of them can be started without."""

    root: ClassVar[Path | None] = None  # in pytest's folder of temporary files
    here: ClassVar[list[EventLogs]] = []  # of servers that are not finished
    ended: ClassVar[list[EventLogs]] = []  # of those that the running test has finished, which it may fail yet

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="logs-", dir=self.root))
        self.here.append(self)

    def files(self, writer: str = "*") -> list[Path]:
        return sorted(self.folder.glob(f"{writer}-*.events"))

    def finish(self) -> None:
        """The server is gone: all that its workers planned and its controller decided comes out again. Idempotent."""
        if self in self.here:
            for path in self.files():
                report = replay(path)
                assert report.agrees, "\n".join([str(path), *as_lines(report)])
            self.here.remove(self)
            self.ended.append(self)

    @classmethod
    def leave_behind(cls, test: str) -> list[Path]:
        """Copies, since servers of several tests go on; those of servers that ended in the failure stay as well."""
        folders = [logs.folder for logs in (*cls.here, *cls.ended) if logs.files()]
        if not folders:
            return []
        left = Path(tempfile.mkdtemp(prefix=f"failed-{''.join(filter(str.isalnum, test))}-", dir=cls.root))
        copies = [Path(shutil.copytree(folder, left / folder.name)) for folder in folders]
        return sorted(path for copy in copies for path in copy.glob("*.events"))

    @classmethod
    def forget(cls) -> None:
        """The test is over: nobody asks for those of servers that have ended in order."""
        while cls.ended:
            shutil.rmtree(cls.ended.pop().folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and (left := EventLogs.leave_behind(item.name)):
        report.sections.append(("event logs (blockwright trace replay FILE)", "\n".join(map(str, left))))
    if report.when == "teardown":
        EventLogs.forget()
    return report


@pytest.fixture(scope="session")
def logs_root(tmp_path_factory: pytest.TempPathFactory) -> None:
    EventLogs.root = tmp_path_factory.mktemp("event-logs")


@pytest.fixture(autouse=True)
def embedded_logs(logs_root: None) -> Iterator[None]:
    """Of clusters within a test's own process: their settings have a folder unless they say otherwise."""
    defaults: dict[str, Any] = LogSettings.__init__.__kwdefaults__  # type: ignore[misc]
    before, logs = defaults["event_log"], EventLogs()
    defaults["event_log"] = str(logs.folder)
    yield
    defaults["event_log"] = before
    logs.finish()
