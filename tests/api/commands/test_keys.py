"""The commands ``keys`` and ``worker``: what they print, and the mistakes that cost one sentence."""

from __future__ import annotations

import argparse
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from blockwright.actors.members import WorkerWish
from blockwright.actors.worker.starting import Starting
from blockwright.api.commands import COMMANDS
from blockwright.api.commands.cli import main, make_parser
from blockwright.api.commands.keys import lasting
from blockwright.api.commands.worker import starting
from blockwright.runtime.cluster.join_text import JoinText, JoinTexts
from blockwright.runtime.cluster.key_folder import make_keys, read_keys
from blockwright.tests.claims import claim

LATER = 1 << 33  # seconds of Unix time


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file with a join text."""
    made = JoinTexts(make_keys(tmp_path / "keys")).issue(["127.0.0.1:9"], "worker", LATER)
    path = tmp_path / "worker.join"
    path.write_text(made.pack() + "\n")
    path.chmod(0o600)
    return path


def test_keys_and_texts_are_made_without_a_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockwright.api.commands.keys.time", SimpleNamespace(time=lambda: 1000.5))
    folder = str(tmp_path / "keys")
    assert main(["keys", "new", folder]) == 0
    keys = read_keys(tmp_path / "keys")
    assert capsys.readouterr().out == f"made keys in {folder}; the public one is {keys.name}\n"
    assert main(["keys", "join", folder, "--address", "10.0.0.5:7000, head.example:7000", "--lasting", "90m"]) == 0
    out, err = capsys.readouterr()
    text = JoinText.parse(out)
    assert text.addresses == ("tcp://10.0.0.5:7000", "tcp://head.example:7000")
    assert text.expires == 1000 + 5400
    assert JoinTexts(keys).check(text.ticket, 1000.0) == "worker"
    assert err == f"join text {text.id} for the role worker, valid until 1970-01-01 01:46 UTC\n"
    assert keys.secret.decode() not in out + err


@pytest.mark.parametrize(("given", "seconds"), [("90m", 5400), ("720h", 2_592_000), ("30d", 2_592_000)])
def test_lengths_of_time(given: str, seconds: int) -> None:
    assert lasting(given) == seconds
    for wrong in ("", "0h", "h", "1", "-1h", "1.5h", "99999d", "1 h"):
        with pytest.raises(argparse.ArgumentTypeError, match="give minutes, hours or days"):
            lasting(wrong)


@claim("A worker that may not join is refused with a sentence, and nothing changes", of="serving")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["keys", "new", "{keys}"], "has keys already"),
        (["keys", "join", "{none}", "--address", "h:1"], "holds no keys to read"),
        (["keys", "join", "{keys}", "--address", "h"], "--address: 'h' is not of the form HOST:PORT; give"),
        (["keys", "join", "{keys}", "--address", "h:99999"], "--address: 'h:99999' is not of the form HOST:PORT; give"),
        (["keys", "join", "{keys}", "--address", ""], "--address: '' is not of the form HOST:PORT; give"),
        (["keys", "join", "{keys}", "--address", ","], "--address is ',': '' is not of the form HOST:PORT; give"),
        (["keys", "join", "{keys}", "--address", "h:1,a b:7"], "--address is 'h:1,a b:7': 'a b:7' is not of the form"),
        (["keys", "join", "", "--address", "h:1"], "FOLDER is ''; name a folder for keys"),
        (["keys", "new", ""], "FOLDER is ''; name a folder for keys"),
        (["keys", "new", " "], "FOLDER is ' '; name a folder for keys"),
        (["keys", "join", "{keys}", "--address", "0.0.0.0:1"], "stands for every address of the head"),
        (["keys", "join", "{keys}", "--address", "h:1", "--role", "king"], "choose one of worker, gateway, predictor, node"),
        (["keys", "join", "{keys}", "--address", "@{none}"], "cannot be used (No such file or directory); name a join text"),
        (["keys", "join", "{keys}", "--address", "@/etc/hosts"], "cannot be used (it holds no join text); name a join text"),
        (["gateway", "--join", "@{none}"], "directory); make one with blockwright keys join --role gateway"),
        (["gateway", "--join", "bwj1-abc"], "--join: the join text cannot be read; copy the whole line"),
        (
            ["gateway", "--join", "@{text}"],
            "admits the role worker, and this is a gateway; make one with blockwright keys join",
        ),
        (["gateway", "--join", "@{text}", "--listen", "tcp://[::]:0"], "stands for every address of this machine"),
        (["worker", "--join", "@{none}"], "cannot be read (No such file or directory); make one with blockwright keys join"),
        (["worker", "--join", "@{keys}"], "keys', but that is a folder; name a file in it"),
        (["node", "--join", "@{keys}"], "keys', but that is a folder; name a file in it"),
        (["node", "--join", "@{none}"], "(No such file or directory); copy the invitation again, or make a join text"),
        (["node", "--join", "@{text}", "--listen", "foo"], "--listen is 'foo'; give tcp://HOST:PORT"),
        (["node", "--join", "bw1-abc"], "--join: the invitation cannot be read; copy the whole of it"),
        (["predictor", "--join", "bwj1-abc"], "--join: the join text cannot be read; copy the whole line"),
        (["worker", "--join", "bwj1-abc"], "--join: the join text cannot be read; copy the whole line"),
        (["worker", "--join", "{text}"], "copy the whole line that blockwright keys join printed, or give @"),
        (["worker", "--join", "tcp://127.0.0.1:9"], "the join text cannot be read; copy the whole line"),
        (["worker", "--join", "@{text}", "--memory", "much"], "--memory is 'much'; give bytes, or a size such as 8GiB"),
        (["worker", "--join", "@{text}", "--memory", "1"], "--memory is '1', which holds no model; give at least 128.0 KiB"),
        (["worker", "--join", "@{text}", "--model-folders", "/,{none}"], "none', which is no folder here; name folders"),
        (["worker", "--join", "@{text}", "--listen", "foo"], "--listen is 'foo'; give tcp://HOST:PORT"),
        (["worker", "--join", "@{text}", "--threads", "-1"], "--threads is -1; give at most 256"),
        (["worker", "--join", "@{text}", "--device", "tpu"], "--device is 'tpu'; choose cpu, cuda"),
        (["worker", "--join", "@{text}", "--label", "zone"], "--label is 'zone'; give NAME=VALUE, each name once"),
        (["worker", "--join", "@{text}", "--label", "zone="], "--label is 'zone='; give NAME=VALUE, each name once"),
        (["worker", "--join", "@{text}", "--listen", "tcp://0.0.0.0:0"], "stands for every address of this machine"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], said: str, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"keys": text.parent / "keys", "none": text.parent / "none", "text": text}
    assert main([one.format(**places) for one in arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("port", "said"), [("99999", "is 99999; give a number from 1 to 65535, or 0"), ("x", "is 'x'; give a number")]
)
def test_a_port_that_is_none(port: str, said: str, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["gateway", "--join", f"@{text}", "--port", port])
    assert said in capsys.readouterr().err


def test_a_text_for_nodes_admits_no_worker(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = JoinTexts(read_keys(text.parent / "keys")).issue(["127.0.0.1:9"], "node", LATER)
    assert main(["worker", "--join", made.pack()]) == 2
    assert (
        "admits the role node, and this is a worker; make one with blockwright keys join --role worker"
        in capsys.readouterr().err
    )
    assert main(["node", "--join", f"@{text}"]) == 2
    assert "admits the role worker, and this is a node" in capsys.readouterr().err


def test_what_a_worker_is_started_with(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--join",
        f"@{text}",
        "--name",
        "far",
        "--memory",
        "2GiB",
        "--threads",
        "3",
        "--label",
        "zone=b",
        "--label",
        "rack=r=1",
    ]
    found = starting(make_parser("worker", COMMANDS["worker"].load()).parse_args(words))
    wish = WorkerWish(2 << 30, 3)
    assert found == Starting(text.read_text().strip(), "far", "", wish, {"zone": "b", "rack": "r=1"})
    assert capsys.readouterr().err == ""
    text.chmod(0o644)
    assert stat.S_IMODE(text.stat().st_mode) == 0o644
    starting(make_parser("worker", COMMANDS["worker"].load()).parse_args(words))
    assert "holds a join text and every user of this machine may read it" in capsys.readouterr().err
