"""Logs: one JSON object on each line where that was asked for, text otherwise."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from blockwright.actors.logs import set_up
from blockwright.tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    monkeypatch.setenv("HF_HUB_VERBOSITY", "warning")  # as it was, afterwards
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    hub = logging.getLogger("huggingface_hub")
    before = hub.level
    yield logger
    hub.setLevel(before)
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_a_line_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("json", "warning", "w1")
    log = logging.getLogger("blockwright.x")
    log.info("not this")
    log.warning("worker %s\nis gone", "w0", extra={"request": "cmpl-1"})
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    at = first.pop("time")
    assert (at[10], at[-1], len(at)) == ("T", "Z", 24)
    assert first == {
        "level": "warning",
        "logger": "blockwright.x",
        "process": "w1",
        "message": "worker w0\nis gone",
        "request": "cmpl-1",
    }
    assert second["level"] == "error"
    assert second["exception"].endswith("ValueError: why")


def test_what_the_hub_client_logs_is_reported_in_our_words(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("text", "info", "head")
    logging.getLogger("huggingface_hub.utils._http").warning("'[Errno -2] Name or service not known' thrown while")
    assert capsys.readouterr().err == ""
    set_up("text", "debug", "head")
    logging.getLogger("huggingface_hub.utils._http").warning("thrown")
    assert "thrown" in capsys.readouterr().err


def test_so_it_is_where_the_client_is_imported_later() -> None:
    """It sets its level itself, and has a handler of its own."""
    code = "from blockwright.actors.logs import set_up\nset_up('text', 'warning', 'head')\n"
    code += "import logging\nfrom huggingface_hub import hf_hub_download\n"
    code += "logging.getLogger('huggingface_hub.utils._http').warning('thrown')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stderr == ""


def test_text_names_the_process_and_a_second_set_up_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("json", "debug", "head")
    set_up("text", "info", "head")
    logging.getLogger("blockwright.x").info("hello")
    logging.getLogger("blockwright.x").debug("not this")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" head INFO blockwright.x: hello")
