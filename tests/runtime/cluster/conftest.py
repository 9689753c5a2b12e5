from collections.abc import AsyncIterator

import pytest

from blockwright.runtime.cluster import failure_detector
from blockwright.tests.runtime.cluster.holding import HolderProcess
from blockwright.tests.waiting import PATIENCE


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken connection waits for the exit status that explains it, however long a busy machine takes to tell it."""
    monkeypatch.setattr(failure_detector, "EXIT_GRACE", PATIENCE)


@pytest.fixture
async def process() -> AsyncIterator[HolderProcess]:
    """A holder of what is started elsewhere."""
    made = HolderProcess()
    yield made
    await made.close()
