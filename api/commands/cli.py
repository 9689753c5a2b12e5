"""The command line: finds the command, parses, and calls it. The command itself imports everything heavy.

A wrong command, flag or setting is one sentence on stderr and exit code 2, with the nearest existing name. The flags of
commands are frozen (a test holds the list); everything else is a setting.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ...policies.nearest import nearest, suggestion
from . import COMMANDS, CommandError, CommandFunctions
from .foreign_flags import WORDS, hint

INTERRUPTED = 130  # exit code after Ctrl-C, as in shells
_LIST = "Serves many language models from shared blocks."
_UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, without the usage text. It suggests the nearest name for an unknown one."""

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            unknown, *rest = message.removeprefix(_UNKNOWN).split()
            if _longer(name := self.prog.removeprefix("blockwright ")) and not unknown.startswith("-"):
                self.exit(2, f"blockwright: {_no_second(name, unknown)}\n")
            places = [str(action.metavar) for action in self._actions if not action.option_strings]
            advice = hint(unknown, next(iter(rest), ""), flags_of(self), places) or "see --help"
            message = f"there is no argument {unknown!r}; {advice}"
        self.exit(2, f"{self.prog}: {message}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help to the output, errors included: argparse ignores a failed write, and a full disk would go unnoticed."""
        if file is not sys.stdout:
            return super()._print_message(message, file)
        print(message, end="", flush=True)
        return None

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Convert a value like argparse, but replace a message of argparse that would name a Python function."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if not error.message.startswith("invalid "):
                raise
            wanted = "an integer" if action.type is int else "a number"
            raise argparse.ArgumentError(action, f"is {arg_string!r}; give {wanted}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"is {value!r}; {suggestion(value, [*action.choices])}")


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return all long flags, including the flags of subcommands."""
    found: list[str] = []
    for action in parser._actions:
        found += [flag for flag in action.option_strings if flag.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found += flags_of(sub)
    return found


def make_parser(name: str, command: CommandFunctions) -> Parser:
    """Return the parser of one command; its description is the docstring of the function that runs it."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog=f"blockwright {name}", description=inspect.getdoc(command.run), formatter_class=form, allow_abbrev=False
    )
    command.declare(parser)
    return parser


def overview(first: str = "") -> str:
    """Return the text of ``blockwright --help``, or of ``blockwright zoo --help`` for the first word ``zoo``."""
    shown = {name: command for name, command in COMMANDS.items() if not first or name.startswith(f"{first} ")}
    width = max(map(len, shown))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in shown.items()]
    usage = f"blockwright {first} COMMAND" if first else "blockwright COMMAND"
    about = [] if first else [_LIST, ""]
    return "\n".join([f"usage: {usage} ...", "", *about, "commands:", *lines, "", f"'{usage} --help' explains a command."])


def command_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the command, which may have two words, and its arguments."""
    length = 2 if " ".join(words[:2]) in COMMANDS else 1
    return " ".join(words[:length]), [*words[length:]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _prepare_streams()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except CommandError as error:
        return _refuse(str(error), error.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it
        _drop_output()
        return 0
    except OSError as error:
        if not _writes_nothing():
            raise
        _drop_output()
        return _refuse(f"the output cannot be written ({error.strerror}); make room, or write it elsewhere", 1)


def _run(words: Sequence[str]) -> int:
    """Run a command, or print the help that is asked for; return the exit code."""
    name, rest = command_of(words)
    if name == "help" and rest:
        name, rest = command_of([*rest, "--help"])
    if name in ("-h", "--help", "help"):
        print(overview())
        return 0
    if name not in COMMANDS and rest[:1] in (["-h"], ["--help"]) and _longer(name):
        print(overview(name))
        return 0
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        return _refuse(_no_command(name, rest), 2)
    command = COMMANDS[name].load()
    return command.run(make_parser(name, command).parse_args(rest))


def _prepare_streams() -> None:
    """Replace closed streams, and let an output print replacements for characters that its encoding lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open to the end of the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _writes_nothing() -> bool:
    """Return True if the output accepts nothing more, as on a full disk."""
    try:
        sys.stdout.write(" ")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Redirect the output to the null device, so that the flush at the end of the process meets no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _no_command(name: str, rest: Sequence[str]) -> str:
    if not name:
        return f"no command is given; there are: {', '.join(COMMANDS)}"
    if longer := _longer(name):
        if rest and not rest[0].startswith("-"):
            return _no_second(name, rest[0])
        return f"{name} needs another word; there are: {', '.join(longer)}"
    return f"there is no command {name!r}; {WORDS.get(name) or suggestion(name, COMMANDS)}"


def _no_second(name: str, word: str) -> str:
    longer = _longer(name)
    if f"{name} {word}" in COMMANDS:
        return f"{word} stands behind an option; write {name} {word} first, then the options"
    near = nearest(word, [command.removeprefix(f"{name} ") for command in longer])
    meant = f"did you mean {name} {near}?" if near else f"there are: {', '.join(longer)}"
    return f"there is no command {f'{name} {word}'!r}; {meant}"


def _longer(name: str) -> list[str]:
    """Return the commands of two words that begin with this one."""
    return [command for command in COMMANDS if command.startswith(f"{name} ")]


def _refuse(message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # a closed pipe or a full disk takes no error either
        print(f"blockwright: {message}", file=sys.stderr)
    return code
