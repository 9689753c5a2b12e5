"""The command ``chat``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable

from . import CommandError
from .connection import add_sampling, add_target, is_address, reached, sampling, target_of
from .conversation import Conversation, base_model

FENCE = '"""'


def chat_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--message", metavar="TEXT", help="send this, print the answer and exit")
    parser.add_argument("--system", metavar="TEXT", help="the system message, before all others")
    add_sampling(parser)


def chat(arguments: argparse.Namespace) -> int:
    """Talk to a model: a conversation in the terminal, or a single --message.

    /help lists the commands. Ctrl-C clears the line or stops the answer, Ctrl-D
    ends the conversation.
    """
    target = target_of(arguments)
    if not is_address(target) and sys.stderr.isatty():
        print(f"loading {target} ...", file=sys.stderr)
    with reached(arguments) as session:
        name = arguments.model or next(iter(session.models()), "")
        if why := base_model(session, name):
            raise CommandError(why, 2)
        talk = Conversation(session, arguments.system, arguments.verbose, sampling(arguments))
        if arguments.message is not None:
            talk.say(arguments.message)
            return 0
        print(f"{name} at {session.url or target}; /help lists the commands", file=sys.stderr)
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (editing and history of the lines that input() reads)
        return converse(talk, input)


def converse(talk: Conversation, read: Callable[[str], str]) -> int:
    """Run the conversation until ``/quit`` or the end of the input. The server's refusals are printed, and it goes on."""
    from ..program.results import RequestError

    while True:
        try:
            text = read_text(read)
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:  # clears the typed line
            print("\n(Ctrl-D or /quit ends)", file=sys.stderr)
            continue
        try:
            if text in ("/quit", "/bye", "/exit"):
                return 0
            elif text.startswith("/"):
                if said := talk.order(text):
                    print(said, file=sys.stderr)
            elif text:
                talk.say(text)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except RequestError as error:
            if error.status == 0:
                raise CommandError(error.message) from None
            print(f"blockwright: {error.message}", file=sys.stderr)


def read_text(read: Callable[[str], str]) -> str:
    """Return a line, or all lines between two fences."""
    line = read(">>> ").strip()
    if not line.startswith(FENCE):
        return line
    lines = [line.removeprefix(FENCE)]
    while not lines[-1].rstrip().endswith(FENCE):
        lines.append(read("... "))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip()
