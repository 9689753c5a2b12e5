"""Files with secrets that every user may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.api.commands.cli import main
from blockwright.api.settings.secret_files import open_to_all, warnings_of


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True), (0o444, True), (0o604, True)])
def test_a_file_that_all_may_read_is_named_with_its_mode_and_the_remedy(tmp_path: Path, mode: int, warned: bool) -> None:
    file = tmp_path / "my keys"
    file.write_text("key")
    file.chmod(mode)
    sentence = f"{file} holds API keys and every user of this machine may read it (mode {mode:o}); chmod 600 '{file}'"
    assert open_to_all(file, "API keys") == (sentence if warned else "")
    tmp_path.chmod(0o755)
    assert open_to_all(tmp_path, "API keys") == "", "a folder holds none, and must be entered"


def test_every_file_of_a_server_that_holds_a_secret_is_looked_at(tmp_path: Path) -> None:
    keys, config, plain, tls = (tmp_path / name for name in ("keys", "c.toml", "plain.toml", "tls.pem"))
    config.write_text('[admin_keys]\nk = "t"\n')
    for file in (keys, plain, tls):
        file.touch()
    for file in (keys, config, plain, tls):
        file.chmod(0o644)
    found = warnings_of(str(keys), str(config), str(tls))
    assert [sentence.split(" holds ")[0] for sentence in found] == [str(keys), str(config), str(tls)]
    assert warnings_of(None, str(plain), "") == warnings_of(str(tmp_path / "none"), None, "") == []


def test_an_invitation_that_all_may_read_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "invitation"
    file.write_text("nothing")
    file.chmod(0o644)
    assert main(["node", "--join", f"@{file}"]) == 2
    warning, refusal = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {file} holds an invitation and every user of this machine may read it (mode 644)")
    assert "holds no invitation" in refusal
