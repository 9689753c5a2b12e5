"""Where nobody has set logging up, a line says when, who and how bad."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

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
