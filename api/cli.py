"""The command line. Parses, and hands over: everything heavy is imported by the command that needs it.

A wrong flag or setting is one sentence on stderr and exit code 2. Flags are frozen to the few that people expect (a test
holds the list); everything else is a setting, reached by ``--set`` or ``--config``.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import NoReturn

_FLAGS = ("workers", "device", "dtype", "host", "port", "max_model_len")  # fields of Settings that have a flag


class _Parser(argparse.ArgumentParser):
    """Errors in one sentence, without the usage text."""

    def error(self, message: str) -> NoReturn:
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            unknown = message.removeprefix(prefix).split()[0]
            near = difflib.get_close_matches(unknown.partition("=")[0], _flags(self), 1)
            message = f"there is no argument {unknown!r}; " + (f"did you mean {near[0]}?" if near else "see --help")
        self.exit(2, f"{self.prog}: {message}\n")


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """All long flags, those of the subcommands included."""
    found: list[str] = []
    for action in parser._actions:
        found += [flag for flag in action.option_strings if flag.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found += _flags(sub)
    return found


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="blockwright", description="Serves many language models from shared blocks.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve checkpoints over HTTP", allow_abbrev=False)
    serve.add_argument("model", nargs="?", metavar="PATH_OR_HUB_ID", help="checkpoint folder or hub id; its id is its name")
    serve.add_argument("--workers", metavar="N", help="worker processes (1)")
    serve.add_argument("--device", help="cpu")
    serve.add_argument("--dtype", help="auto, float32 or bfloat16 (auto)")
    serve.add_argument("--host", help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", metavar="N", help="port to listen on, 0 for any free one (8000)")
    serve.add_argument(
        "--app", action="append", default=[], metavar="NAME=PATH", help="a further checkpoint and its model id"
    )
    serve.add_argument("--config", metavar="FILE", help="settings in TOML")
    serve.add_argument("--api-key-file", metavar="FILE", help="lines of 'key' or 'key tenant'; without it no key is needed")
    serve.add_argument("--max-model-len", metavar="N", help="most tokens of prompt and answer together")
    serve.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, for instance --set memory=2GiB"
    )
    commands.add_parser("version", help="print the version", allow_abbrev=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.command == "version":
        from importlib.metadata import version

        print(f"blockwright {version('blockwright')}")
        return 0
    from blockwright.actors.config import SettingsError
    from blockwright.api.options import make_settings

    try:
        settings = make_settings(
            arguments.model,
            apps=arguments.app,
            flags={name: value for name in _FLAGS if (value := getattr(arguments, name)) is not None},
            sets=arguments.set,
            config=arguments.config,
            key_file=arguments.api_key_file,
        )
    except SettingsError as error:
        print(f"blockwright: {error}", file=sys.stderr)
        return 2
    from blockwright.api.server import run

    return run(settings)
