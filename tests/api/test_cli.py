"""The command line: its flags are frozen, and mistakes cost one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.api.cli import main, make_parser

FLAGS = {
    "--api-key-file",
    "--app",
    "--config",
    "--device",
    "--dtype",
    "--help",
    "--host",
    "--max-model-len",
    "--port",
    "--set",
    "--workers",
}


def test_there_is_no_new_flag() -> None:
    """New knobs are fields of Settings, reached by --set; this list does not grow."""
    from blockwright.api.cli import _flags

    assert set(_flags(make_parser())) == FLAGS


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve"], "blockwright: no model is given; name a checkpoint folder or a hub id\n"),
        (["serve", "x", "--set", "workerz=1"], "blockwright: there is no setting 'workerz'; did you mean workers?\n"),
        (["serve", "x", "--worker", "1"], "blockwright: there is no argument '--worker'; did you mean --workers?\n"),
        (["serve", "x", "--port"], "blockwright serve: argument --port: expected one argument\n"),
        (["sevre"], None),
        ([], None),
    ],
)
def test_mistakes(arguments: list[str], says: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code  # type: ignore[assignment]
    said = capsys.readouterr().err
    assert code == 2
    assert said.count("\n") == 1
    assert says is None or said == says


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("blockwright 0.")


def test_a_checkpoint_that_cannot_be_served(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "blockwright", "serve", str(tmp_path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"blockwright: {tmp_path} has no config.json; name a folder in Hugging Face format\n"
