"""``blockwright demo`` without the repository's checkpoint, as from an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.api.commands import demo
from blockwright.api.commands.cli import main
from blockwright.tests.claims import claim

pytestmark = pytest.mark.system


@claim(
    "The demo serves two replicas, a pipeline and a family of fine-tunes and fails if one request fails", of="installation"
)
@claim("The demo ends with a burst in which parameters are dropped and restored", of="installation")
@pytest.mark.nightly
def test_random_weights_where_there_is_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "trained_checkpoint", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["demo"]) == 0
    out = capfd.readouterr().out
    assert "12 requests at once to demo-random" in out
    assert (out.count("noise  "), "wrong" in out) == (13, False)
    assert "ok     13 of 13 requests completed" in out
    assert "ok     parameters became KV memory in the burst" in out
    assert "ok     the parameters came back after it" in out
    assert out.count("ok     the server stopped on request") == 2
    longer = len("demo-checkpoint") - len("demo-random")  # the name that most people see
    assert max(len(line) + longer * ("demo-random" in line) for line in out.splitlines()) <= 80
    assert list(tmp_path.iterdir()) == [], "the checkpoint is removed"


def test_the_repository_has_the_trained_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = demo.trained_checkpoint()
    assert folder is not None
    assert (folder / "report.json").exists()
    assert main(["demo", "--checkpoint", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"blockwright: {tmp_path} has no config.json; name a folder in Hugging Face format\n"
