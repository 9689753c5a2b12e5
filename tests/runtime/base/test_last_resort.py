"""Where nobody has set logging up, a line says when, who and how bad."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from blockwright.runtime import Node
from blockwright.runtime.base.last_resort import log_as


@pytest.fixture
def restored() -> Iterator[None]:
    before = logging.lastResort
    yield
    logging.lastResort = before


@pytest.mark.usefixtures("restored")
def test_a_line_says_when_who_and_how_bad(capsys: pytest.CaptureFixture[str]) -> None:
    log_as("w0")
    handler = logging.lastResort
    assert handler is not None
    assert handler.level == logging.WARNING
    try:
        raise ValueError("too much")
    except ValueError as error:
        record = logging.getLogger("blockwright.runtime").makeRecord(
            "blockwright.runtime", logging.ERROR, __file__, 1, "actor %s crashed: %s", ("w0/a#1.1", error),
            (ValueError, error, error.__traceback__),
        )  # fmt: skip
    handler.handle(record)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"[\d-]+ [\d:,]+ w0 ERROR blockwright.runtime: actor w0/a#1.1 crashed: too much", lines[0])
    assert lines[-1] == "ValueError: too much"


@pytest.mark.usefixtures("restored")
async def test_a_node_that_starts_in_any_loop_sees_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    """``asyncio.run`` and notebooks do not pass by ``blockwright.runtime.run``; a worker keeps its own name."""
    logging.lastResort = logging.StreamHandler()  # Python's, as in a new process
    for name, speaks in (("first", "main"), ("second", "w3")):
        if speaks == "w3":
            log_as("w3")
        node = Node(name, listen=False)
        await node.start()
        await node.stop()
        handler = logging.lastResort
        assert handler is not None
        handler.handle(logging.makeLogRecord({"name": "x", "levelname": "WARNING", "msg": "child w1/a has ended"}))
        assert re.fullmatch(rf"[\d-]+ [\d:,]+ {speaks} WARNING x: child w1/a has ended\n", capsys.readouterr().err)
