"""What people type who come from other servers."""

from __future__ import annotations

import pytest

from blockwright.api.commands.cli import main

SERVE = "blockwright serve"


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
        (["chat", "--url", "localhost:8000"], "'--url'; the address is given without a flag: http://HOST:PORT\n"),
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
