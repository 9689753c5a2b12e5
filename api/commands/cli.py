"""The command line. Finds the command, parses, and hands over: everything heavy is imported by the command that needs it.

A wrong command, flag or setting is one sentence on stderr and exit code 2, with the nearest thing that exists. Commands are
modules of ``api/commands``; their flags are frozen (a test holds the list), everything else is a setting.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from blockwright.api.commands import COMMANDS, CommandError, CommandModule
from blockwright.api.commands.foreign_flags import hint
from blockwright.api.nearest import nearest, suggestion

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
_LIST = "Serves many language models from shared blocks."
_UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """Errors in one sentence, without the usage text; an unknown flag is answered with the nearest one."""

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            unknown, *rest = message.removeprefix(_UNKNOWN).split()
            known = flags_of(self)
            near = nearest(unknown.partition("=")[0], known)
            told = f"did you mean {near}?" if near else "see --help"
            message = f"there is no argument {unknown!r}; {hint(unknown, next(iter(rest), ''), known) or told}"
        self.exit(2, f"{self.prog}: {message}\n")


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """All long flags, those of subcommands included."""
    found: list[str] = []
    for action in parser._actions:
        found += [flag for flag in action.option_strings if flag.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found += flags_of(sub)
    return found


def make_parser(name: str, module: CommandModule) -> Parser:
    """The parser of one command; its description is the module's docstring."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"blockwright {name}", description=module.__doc__, formatter_class=form, allow_abbrev=False)
    module.add(parser)
    return parser


def overview() -> str:
    """What ``blockwright --help`` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    end = "'blockwright COMMAND --help' explains a command."
    return "\n".join(["usage: blockwright COMMAND ...", "", _LIST, "", "commands:", *lines, "", end])


def command_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """Which command is meant, whose name may have two words, and what it is given."""
    length = 2 if " ".join(words[:2]) in COMMANDS else 1
    return " ".join(words[:length]), [*words[length:]]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name, rest = command_of(words)
    if name in ("-h", "--help", "help"):
        print(overview())
        return 0
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        return _refuse(_no_command(name), 2)
    try:
        module = COMMANDS[name].load()
        return module.run(make_parser(name, module).parse_args(rest))
    except CommandError as error:
        return _refuse(str(error), error.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit meets no error
        return 0


def _no_command(name: str) -> str:
    if not name:
        return f"no command is given; there are: {', '.join(COMMANDS)}"
    if longer := [command for command in COMMANDS if command.startswith(f"{name} ")]:
        return f"{name} needs another word; there are: {', '.join(longer)}"
    return f"there is no command {name!r}; {suggestion(name, COMMANDS)}"


def _refuse(message: str, code: int) -> int:
    print(f"blockwright: {message}", file=sys.stderr)
    return code
