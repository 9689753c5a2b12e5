"""What people type who come from other servers."""

from __future__ import annotations

import re

import pytest

from blockwright.api.commands import COMMANDS
from blockwright.api.commands.cli import flags_of, main, make_parser
from blockwright.api.commands.foreign_flags import _BY_SIGN, WORDS
from blockwright.tests.claims import claim

SERVE = "blockwright serve"


@claim("Flags of other servers are answered with the one that does the same here", of="command-line")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "x", "--pipeline", "2"], "'--pipeline'; it is a setting: --set pipeline=2\n"),
        (["serve", "x", "--log-level=info"], "'--log-level=info'; it is a setting: --set log_level=info\n"),
        (["serve", "x", "--page-size"], "'--page-size'; it is a setting: --set page_size=...\n"),
        (
            ["serve", "--model", "/m"],
            "'--model'; the checkpoint is given without a flag: blockwright serve PATH_OR_HUB_ID\n",
        ),
        (
            ["serve", "x", "-tp", "2"],
            "'-tp'; --set pipeline=N spreads a model over N workers, some layers on each\n",
        ),
        (
            ["serve", "x", "--gpu-memory-utilization=0.9"],
            "'--gpu-memory-utilization=0.9'; there is no GPU back end yet; --set memory=2GiB says how much each worker may "
            "take\n",
        ),
        (["serve", "x", "--ctx-size", "9"], "'--ctx-size'; --max-model-len N is the longest prompt and answer together\n"),
        (["serve", "x", "--prot", "1"], "'--prot'; did you mean --port?\n"),
        (["serve", "x", "--xyzzy"], "'--xyzzy'; see --help\n"),
        (["top", "--pipeline", "2"], "'--pipeline'; see --help\n"),
        (["serve", "x", "--tp", "2"], "'--tp'; --set pipeline=N spreads a model over N workers, some layers on each\n"),
        (["serve", "x", "--loglevel", "info"], "'--loglevel'; it is a setting: --set log_level=info\n"),
        (["serve", "x", "--page-sizes=32"], "'--page-sizes=32'; did you mean --set page_size=32?\n"),
        (
            ["serve", "x", "--served-model-nam", "y"],
            "'--served-model-nam'; the model id is the folder's name, or NAME of --app NAME=PATH\n",
        ),
        (["explain", "-v"], "'-v'; see --help\n"),
        (["ps", "-m", "x"], "'-m'; see --help\n"),
        (["bench", "serve", "--tensor-parallel-size", "2"], "'--tensor-parallel-size'; see --help\n"),
        (["chat", "--ctx-size", "9"], "'--ctx-size'; see --help\n"),
        (
            ["serve", "x", "-ub", "64"],
            "'-ub'; prompts are always computed in chunks; --set chunk_size=N says how large they are\n",
        ),
        (
            ["serve", "x", "--disable-log-stats"],
            "'--disable-log-stats'; throughput is only logged with --set log_level=info\n",
        ),
        (
            ["serve", "x", "--temp", "0.2"],
            "'--temp'; sampling belongs to each request, as a field of its body; what it leaves "
            "out is the checkpoint's default\n",
        ),
        (["serve", "x", "--download-dir", "/d"], "'--download-dir'; see --help\n"),
        (["serve", "x", "--rope-theta", "1"], "'--rope-theta'; see --help\n"),
        (["ps", "--host", "h"], "'--host'; --url http://HOST:PORT says where the server listens\n"),
        (["serve", "x", "y"], "'y'; another model is added by --app NAME=y\n"),
        (["serve", "x", "--set", "memory=2", "TB"], "'TB'; another model is added by --app NAME=TB\n"),
        (["chat", "http://h:1", "there"], "'there'; see --help\n"),
        (["serve", "x", "--max-log-len", "9"], "'--max-log-len'; prompts are never logged; leave the flag out\n"),
        (["chat", "-p", "hello"], "'-p'; --message TEXT sends one message and exits\n"),
        (["complete", "-p", "hello"], "'-p'; --prompt TEXT is the same\n"),
        (["chat", "--temprature", "0"], "'--temprature'; did you mean --temperature?\n"),
        (["bench", "serve", "--random-input-len", "9"], "'--random-input-len'; --input-len N is the same\n"),
        (["bench", "serve", "--base-url", "x"], "'--base-url'; --url http://HOST:PORT says where the server listens\n"),
        (["bench", "serve", "--num-prompt", "9"], "'--num-prompt'; did you mean --num-prompts?\n"),
    ],
)
def test_hints(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"blockwright {arguments[0]}: there is no argument {says}"


def test_a_server_without_scheme_is_an_address() -> None:
    from blockwright.api.commands.connection import address, is_address

    assert address("localhost:8000") == "http://localhost:8000"
    assert address("https://h") == "https://h"
    assert [is_address(text) for text in ("localhost:8000", "http://h", "models/tiny", "tiny")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("run", "blockwright chat PATH_OR_HUB_ID loads a model and talks to it, blockwright serve PATH_OR_HUB_ID serves it"),
        ("stop", "a server stops with Ctrl-C or SIGTERM; blockwright apps remove removes one model"),
        ("list", "blockwright ps lists what a server serves, blockwright zoo list what a zoo holds"),
    ],
)
def test_words_of_others(word: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "llama"]) == 2
    assert capsys.readouterr().err == f"blockwright: there is no command {word!r}; {says}\n"


def test_what_is_answered_is_nothing_that_there_is() -> None:
    """Neither a command nor a flag of one that has the answer, and no flag in an answer that this command does not have."""
    assert not set(WORDS) & set(COMMANDS)
    for name in COMMANDS:
        parser = make_parser(name, COMMANDS[name].load())
        known = flags_of(parser)
        signs = {*known, *(str(action.metavar) for action in parser._actions if not action.option_strings)}
        for sign in signs & set(_BY_SIGN):
            assert not set(_BY_SIGN[sign]) & set(known), (name, sign)
            outcome = {word for answer in _BY_SIGN[sign].values() for word in re.findall(r"--[a-z-]+", answer)}
            assert outcome <= {*known, "--set"}, (name, sign)
