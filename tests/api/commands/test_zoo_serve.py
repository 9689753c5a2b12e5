"""``zoo serve``, and what is refused of stores and origins before anything starts."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.actors.checkpoints import open_checkpoints
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.source_checks import check_sources, check_store, with_models_of_origin
from blockwright.api.commands import CommandError
from blockwright.api.commands.cli import main
from blockwright.api.commands.worker import made_store
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE
from blockwright.tests.zoo.served_folder import served_folder
from blockwright.zoo.add import add


@pytest.fixture
def zoo(checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    add(tmp_path / "zoo", str(checkpoint("llama")), "m")
    return tmp_path / "zoo"


@claim("`zoo serve` gives a zoo's files by ranges, with ETags that follow from their content", of="command-line")
def test_a_zoo_is_served_until_a_signal_ends_it(zoo: Path) -> None:
    words = [sys.executable, "-m", "blockwright", "zoo", "serve", str(zoo), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said, _, address = process.stdout.readline().strip().rpartition(" at ")
        assert said == f"zoo {zoo}: 1 application"
        mark = (zoo / "zoo.json").read_bytes()
        with urllib.request.urlopen(f"{address}/zoo.json", timeout=PATIENCE) as answer:
            assert answer.read() == mark
        process.terminate()
        assert process.stdout.read() == f"sent {len(mark)} B ({len(mark)} bytes)\n"
        assert process.wait(timeout=PATIENCE) == 0


def test_what_cannot_be_served_is_one_sentence(zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: object) -> str:
        assert main(["zoo", "serve", *map(str, words)]) == 2
        return capsys.readouterr().err

    assert refused(tmp_path, "--port", 1).endswith("it has no zoo.json; make one with 'blockwright zoo add'\n")
    assert refused(zoo, "--port", 65536) == "blockwright: --port is 65536; give 1 to 65535, or 0 for any free one\n"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refused(zoo, "--port", port) == (
            f"blockwright: cannot listen on 127.0.0.1:{port} (Address already in use); choose another --host or --port\n"
        )


@claim("An origin that is none is refused with the field, the value and the remedy", of="serving")
def test_a_server_checks_its_store_and_its_origin_before_it_opens_a_model(zoo: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^origin is '.*nowhere', which gives no zoo \(.*\); give the address or"):
        open_checkpoints(Settings(applications={"m": "/nowhere"}, origin=str(tmp_path / "nowhere")))
    with pytest.raises(SettingsError, match=r"^store is '/proc/x', which cannot be"):
        open_checkpoints(Settings(applications={"m": "/nowhere"}, store="/proc/x"))
    here = Settings(applications={"m": "/nowhere"}, origin=str(zoo), store=str(tmp_path / "store")).sources
    check_sources(here)
    assert (tmp_path / "store" / "zoo.json").is_file()
    check_store(here)


@claim("A model is named by its name in the origin, and refused if the origin does not give it", of="serving")
def test_a_model_that_only_the_origin_has(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def folder(origin: str, path: str, before: dict[str, str] | None = None) -> str:
        return with_models_of_origin(Settings(applications={"a": path}, origin=origin), before).models.applications["a"]

    assert folder(str(zoo), "m") == str(zoo / "chains" / "m")
    assert [folder(str(zoo), path) for path in ("./m", "owner/m", "/m")] == ["./m", "owner/m", "/m"], "no names there"
    assert folder("", "m") == "m"
    with served_folder(zoo) as served:
        found = folder(served.address, "m")
        assert Path(found).is_relative_to(tmp_path / "cache" / "blockwright" / "mirrors")
        why = (
            f"^'none' is no folder here, and the origin {served.address} does not give an application of that name "
            rf"\({served.address}/chains/none/chain.json answers 404 Not Found\); name one that 'blockwright zoo list' "
            "shows there$"
        )
        with pytest.raises(SettingsError, match=why):
            folder(served.address, "none")
        served.flip.add(f"files/{min((zoo / 'files').iterdir()).name}")
        (tmp_path / "flat").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
        with pytest.raises(
            SettingsError, match=r"does not give an application of that name \(files/.* is not what its name"
        ):
            folder(served.address, "m")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "flat"))
        with pytest.raises(SettingsError, match=r"; name another folder for it in XDG_CACHE_HOME$"):
            folder(served.address, "m")
    with pytest.raises(SettingsError, match=r"^'none' is no folder here, .* \(it has no folder chains/none\); name one"):
        folder(str(zoo), "none")
    with pytest.raises(SettingsError, match=r"^origin is 'http://.*', which gives no zoo \(.* does not answer: Connection"):
        folder(served.address, "m")
    assert folder(served.address, "m", {"a": found}) == found, "a later head asks for nothing"
    with pytest.raises(SettingsError, match="does not answer"):
        folder(served.address, "m", {"a": str(tmp_path / "cleared")})
    (tmp_path / "m").mkdir()
    assert folder(served.address, "m") == "m", "a folder here comes first"


def test_an_origin_that_is_away_ends_no_later_head(zoo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    away = Settings(applications={"m": str(zoo / "chains" / "m")}, origin=str(tmp_path / "nowhere"))
    assert open_checkpoints(away, again=True).checkpoints.keys() == {"m"}
    assert "nowhere', which gives no zoo" in caplog.text


@claim("A store that cannot be one is refused with the field, the value and the remedy", of="serving")
def test_a_worker_makes_its_store_or_is_refused(tmp_path: Path) -> None:
    assert made_store("") == ""
    assert made_store(str(tmp_path / "new")) == str(tmp_path / "new")
    assert (tmp_path / "new" / "zoo.json").is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"^--store is '.*file', which can"):
        made_store(str(tmp_path / "file"))
    assert not issubclass(SettingsError, CommandError), "the command turns it into its last sentence"
