"""The command line: its flags are frozen, mistakes cost one sentence, and asking for help costs next to nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.commands import COMMANDS
from blockwright.api.commands.cli import flags_of, main, make_parser
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE

EXAMPLES = Path(__file__).parents[3] / "examples"
SAMPLING = {"--max-tokens", "--seed", "--stop", "--temperature", "--top-k", "--top-p", "--verbose"}
TARGET = {"--api-key-file", "--model", "--set", "--url"}
SCREEN = {"--api-key-file", "--interval", "--json", "--once", "--url"}
FLAGS = {
    "batch plan": {"--model", "--profile", "--set"},
    "batch run": {"--model", "--output", "--redo", "--set"},
    "bench": {
        *("--api-key-file", "--arrival", "--endpoint", "--input-len", "--json", "--max-concurrency", "--model"),
        *("--num-prompts", "--output-len", "--prefix-len", "--prompts", "--range-ratio", "--request-rate"),
        *("--respect-eos", "--seed", "--temperature", "--trace", "--trace-lengths", "--trace-model"),
        *("--trace-speed", "--trace-start", "--url", "--warmup"),
    },
    "chat": SAMPLING | TARGET | {"--message", "--system"},
    "complete": SAMPLING | TARGET | {"--prompt"},
    "demo": {"--checkpoint", "--port", "--serve"},
    "doctor": {"--join", "--json", "--port"},
    "chaos": {"--api-key-file", "--seconds", "--url"},
    "family export": {"--tier"},
    "family plan": {"--models"},
    "family report": {"--data", "--loss"},
    "family train": {"--data", "--exits", "--set", "--steps"},
    "explain": {"--api-key-file", "--json", "--last", "--url"},
    "apps": {"--api-key-file", "--json", "--url"},
    "apps add": {"--api-key-file", "--base", "--replace", "--url", "--wait"},
    "apps remove": {"--api-key-file", "--default", "--url"},
    "ps": SCREEN | {"--actors", "--join", "--requests", "--tenants"},
    "tagger show": set(),
    "tagger train": {"--held-out", "--output"},
    "top": SCREEN,
    "serve": {
        "--api-key-file",
        "--app",
        "--config",
        "--cors-origin",
        "--device",
        "--dtype",
        "--host",
        "--join-file",
        "--keys",
        "--listen",
        "--max-model-len",
        "--port",
        "--set",
        "--show-settings",
        "--tls-cert",
        "--tls-key",
        "--workers",
        "--zoo",
    },
    "profile": {"--device", "--dtype", "--output", "--repeats", "--threads", "--zoo"},
    "keys new": set(),
    "keys join": {"--address", "--lasting", "--role"},
    "gateway": {"--host", "--join", "--label", "--listen", "--name", "--port"},
    "predictor": {"--join", "--label", "--listen", "--name"},
    "node": {"--join", "--listen", "--name"},
    "worker": {"--device", "--join", "--label", "--listen", "--memory", "--model-folders", "--name", "--store", "--threads"},
    "simulate": {"--from", "--json", "--log", "--set", "--svg", "--target"},
    "trace": {"--trace"},
    "trace replay": {"--json", "--show", "--until"},
    "version": set(),
    "zoo add": {"--base", "--name", "--zoo"},
    "zoo gc": {"--zoo"},
    "zoo serve": {"--host", "--port"},
    "zoo equivalence": {"--damage", "--data", "--json", "--kl", "--png", "--text", "--threshold", "--zoo"},
    "zoo list": {"--json", "--zoo"},
    "zoo remove": {"--zoo"},
    "zoo show": {"--json", "--zoo"},
    "zoo stitch": {"--data", "--json", "--steps", "--text", "--zoo"},
    "zoo surrogate": {"--data", "--json", "--text", "--threads", "--zoo"},
    "upgrade head": {"--api-key-file", "--url"},
    "upgrade status": {"--api-key-file", "--json", "--url"},
    "zoo verify": {"--json", "--zoo"},
}
FORKED = """
import os, sys
for arguments in {every}:
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0, arguments
    else:
        from blockwright.api.commands.cli import main
        try:
            main(arguments)
        except SystemExit:
            pass
        print('loaded:', *sys.modules)
        print('ends', flush=True)
        os._exit(0)
"""
HEAVY = {"torch", "aiohttp", "numpy", "zmq", "uvloop", "transformers", "tokenizers", "rich"}


def exit_code(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as error:
        return int(error.code or 0)


@claim("No new flag appears without a change of the list in its test", of="command-line")
@pytest.mark.parametrize("name", COMMANDS)
def test_there_is_no_new_flag(name: str) -> None:
    """New knobs are fields of Settings, reached by --set; this list does not grow without a reason."""
    assert set(flags_of(make_parser(name, COMMANDS[name].load()))) == FLAGS[name] | {"--help"}


@claim("A misspelt command, flag, setting or model is answered with its closest match", of="command-line")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["serve"],
            "blockwright: no model is given; name a checkpoint folder or a hub id, or try 'blockwright demo --serve'\n",
        ),
        (["serve", "x", "--set", "workerz=1"], "blockwright: there is no setting 'workerz'; did you mean workers?\n"),
        (["serve", "x", "--worker", "1"], "blockwright serve: there is no argument '--worker'; did you mean --workers?\n"),
        (["serve", "x", "--port"], "blockwright serve: argument --port: expected one argument\n"),
        (["bench"], "blockwright bench: the following arguments are required: serve\n"),
        (
            ["ps", "--url", "there"],
            "blockwright ps: argument --url: is 'there'; give an address like http://127.0.0.1:8000\n",
        ),
        (
            ["ps", "--url", "http://:99"],
            "blockwright ps: argument --url: is 'http://:99'; give an address like http://127.0.0.1:8000\n",
        ),
        (
            ["complete", "http://h:x", "--prompt", "a"],
            "blockwright: the server is 'http://h:x'; give an address like http://127.0.0.1:8000\n",
        ),
        (
            ["top", "--interval", "-3"],
            "blockwright top: argument --interval: is -3; give seconds above 0 and at most 86400\n",
        ),
        (
            ["top", "--interval", "nan"],
            "blockwright top: argument --interval: is nan; give seconds above 0 and at most 86400\n",
        ),
        (["demo", "--port", "99999"], "blockwright demo: argument --port: is 99999; give a number from 1 to 65535\n"),
        (
            ["demo", "--checkpoint", f"{EXAMPLES}/demo-chekpoint"],
            f"blockwright: there is no folder {EXAMPLES}/demo-chekpoint; did you mean {EXAMPLES}/demo-checkpoint?\n",
        ),
        (
            ["profile", "x", "--device", "cuda"],
            "blockwright profile: argument --device: is 'cuda', but only a CPU can be profiled so far; give cpu\n",
        ),
        (["doctor", "--port", "99999"], "blockwright doctor: argument --port: is 99999; give a number from 1 to 65535\n"),
        (
            ["bench", "serve", "--max-concurrency", "1,x"],
            "blockwright bench: argument --max-concurrency: is '1,x'; give numbers separated by commas, like 1,4,16\n",
        ),
        (["chaos", "kil", "w0"], "blockwright chaos: argument what: is 'kil'; did you mean kill?\n"),
        (["top", "--interval", "x"], "blockwright top: argument --interval: is 'x'; give a number\n"),
        (["bench", "serve", "--seed", "x"], "blockwright bench: argument --seed: is 'x'; give an integer\n"),
        (["serve", "x", "--port", "99999"], "blockwright: port is 99999; give 0 to 65535\n"),
        (
            ["serve", "x", "--cors-origin", "foo"],
            "blockwright: cors_origins names 'foo'; give origins like https://example.org, or *\n",
        ),
        (
            ["zoo"],
            "blockwright: zoo needs another word; there are: "
            "zoo add, zoo list, zoo show, zoo equivalence, zoo surrogate, zoo stitch, zoo verify, zoo remove, zoo gc, "
            "zoo serve\n",
        ),
        (["zoo", "lst"], "blockwright: there is no command 'zoo lst'; did you mean zoo list?\n"),
        (["help", "zoo", "LIST"], "blockwright: there is no command 'zoo LIST'; did you mean zoo list?\n"),
        (
            ["apps", "--url", "http://127.0.0.1:1", "add", "x", "y"],
            "blockwright: add stands behind an option; write apps add first, then the options\n",
        ),
        (["apps", "ad", "x"], "blockwright: there is no command 'apps ad'; did you mean apps add?\n"),
        (["batch", "rn", "x.jsonl"], "blockwright: there is no command 'batch rn'; did you mean batch run?\n"),
        (
            ["batch", "xyzzy"],
            "blockwright: there is no command 'batch xyzzy'; there are: batch plan, batch run\n",
        ),
        (["zoo", "add", "x"], "blockwright zoo add: the following arguments are required: --name\n"),
        (
            ["zoo", "list", "--zoo", "/nowhere"],
            "blockwright: /nowhere is not a zoo: it has no zoo.json; make one with 'blockwright zoo add'\n",
        ),
        (
            ["serve", "--zoo", "/nowhere"],
            "blockwright: /nowhere is not a zoo: it has no zoo.json; make one with 'blockwright zoo add'\n",
        ),
        (["sevre"], "blockwright: there is no command 'sevre'; did you mean serve?\n"),
        (["xyzzy"], f"blockwright: there is no command 'xyzzy'; there are: {', '.join(COMMANDS)}\n"),
        ([], f"blockwright: no command is given; there are: {', '.join(COMMANDS)}\n"),
    ],
)
def test_mistakes(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(arguments) == 2
    assert capsys.readouterr().err == says


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("blockwright 0.")


@claim("`--help` loads neither torch nor aiohttp and fits 80 columns", of="command-line")
def test_help_is_light() -> None:
    """Import no heavy module; measured on one idle core, ``blockwright --help`` takes about 0.1 s.

    One interpreter is forked for each command before it has imported anything.
    """
    every = [["--help"], *([*name.split(), "--help"] for name in COMMANDS)]
    done = subprocess.run([sys.executable, "-c", FORKED.format(every=every)], capture_output=True, text=True, check=True)
    answers = done.stdout.split("\nends\n")[:-1]
    for arguments, answer in zip(every, answers, strict=True):
        said, _, loaded = answer.partition("loaded:")
        assert HEAVY & set(loaded.split()) == set(), arguments
        assert f"usage: blockwright {' '.join(arguments[:-1]) or 'COMMAND'}" in said, arguments


@claim("`--help` loads neither torch nor aiohttp and fits 80 columns", of="command-line")
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, make_parser(name, COMMANDS[name].load()).format_help().splitlines())) <= 80


def test_the_list_of_commands_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said and command.summary in said for name, command in COMMANDS.items())


@pytest.mark.parametrize("asked", [["zoo", "--help"], ["zoo", "-h"], ["help", "zoo"]])
def test_help_for_the_first_of_two_words(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: blockwright zoo COMMAND ...\n")
    assert COMMANDS["zoo gc"].summary in said
    assert "batch plan" not in said


def test_help_may_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["help", "explain"]) == 0
    assert capsys.readouterr().out.startswith("usage: blockwright explain ")


@pytest.mark.nightly
def test_a_checkpoint_that_cannot_be_served(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "blockwright", "serve", str(tmp_path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert done.stderr == f"blockwright: {tmp_path} has no config.json; name a folder in Hugging Face format\n"


def test_commands_that_only_ask_a_server_import_nothing_of_a_cluster() -> None:
    """So that ``ps`` and ``apps`` answer in some tenths of a second."""
    code = (
        "import resource, sys\n"
        "import blockwright.api.commands.tables\n"  # with an answer, too
        "from blockwright.api.commands.cli import main\n"
        "for command in (['apps'], ['explain', '--last'], ['apps', 'remove', 'a'], ['ps', '--once']):\n"
        "    assert main([*command, '--url', 'http://127.0.0.1:9']) == 1\n"
        "heavy = {'torch', 'numpy', 'zmq', 'uvloop', 'aiohttp', 'asyncio', 'prometheus_client',\n"
        "    'blockwright.gpu', 'blockwright.zoo', 'blockwright.api.program.client', 'blockwright.actors'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(used.ru_utime + used.ru_stime)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing answers at 127.0.0.1:9") == 4
    assert float(done.stdout) < 1.0, "seconds of processor time; 0.4 of them are the aim"


def test_a_server_is_named_in_one_of_two_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "some/folder", "--url", "127.0.0.1:9", "--prompt", "a"]) == 2
    assert "both some/folder and --url http://127.0.0.1:9 are given; give one of them" in capsys.readouterr().err
    assert main(["complete", "--url", "127.0.0.1:9", "--prompt", "a"]) == 1
    assert "nothing answers at 127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["zoo", "--help"], ["ps", "--help"], ["help", "zoo", "list"]])
def test_help_that_nothing_takes_is_one_sentence(words: list[str]) -> None:
    """Lists of commands and the help of one, written to a full disk."""
    with open("/dev/full", "wb") as full:
        done = _ran(words, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == (
        "blockwright: the output cannot be written (No space left on device); make room, or write it elsewhere\n"
    )


@pytest.mark.parametrize("words", [["zoo", "--help"], ["ps", "--help"]])
def test_help_into_a_closed_pipe_is_quiet(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as closed:
        done = _ran(words, stdout=closed, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["xyzzy"], ["ps", "--urll"]])
def test_a_mistake_that_nothing_takes_keeps_its_exit_code(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        assert _ran(words, stdout=full, stderr=full).returncode == 2


def _ran(words: list[str], **streams: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "blockwright", *words], text=True, check=False, **streams)
