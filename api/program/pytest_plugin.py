"""The pytest plugin: a fixture that serves a checkpoint to a program's tests.

pytest finds it by its entry point when the package is installed. It imports nothing heavy until a test uses the fixture.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .blocking import BlockingSession

StartCluster = Callable[..., "BlockingSession"]


@pytest.fixture(scope="session")
def blockwright_cluster() -> Iterator[StartCluster]:
    """Yield ``blockwright_cluster(model, **settings)``, which starts a cluster like ``blockwright.Cluster``.

    It answers through ``generate``, ``chat``, ``stream`` and, for clients of the API, at ``url`` (a free port). Calls with
    equal arguments get the same cluster; all of them end with the session.
    """
    from .embedded import Cluster

    started: dict[str, BlockingSession] = {}
    with contextlib.ExitStack() as stack:

        def start(model: str | os.PathLike[str], **settings: Any) -> BlockingSession:
            key = repr((os.fspath(model), sorted(settings.items())))
            if key not in started:
                started[key] = stack.enter_context(Cluster(model, **{"port": 0, **settings}))
            return started[key]

        yield start
