"""Talks with a model: a conversation on the terminal, or one message with --message.

/help lists what else can be typed. Ctrl-C ends an answer that is coming, Ctrl-D the conversation.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockwright.api.commands import CommandError
from blockwright.api.commands.complete import stream
from blockwright.api.commands.connection import add_sampling, add_target, reached, sampling

if TYPE_CHECKING:
    from blockwright.api.program.blocking import BlockingSession

HELP = "/reset forgets what was said, /quit (or Ctrl-D) ends, /help says this; everything else is for the model"


def add(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--message", metavar="TEXT", help="say this, print the answer and end")
    parser.add_argument("--system", metavar="TEXT", help="the system message, before all others")
    add_sampling(parser)


def run(arguments: argparse.Namespace) -> int:
    with reached(arguments) as session:
        talk = Conversation(session, arguments.system, arguments.verbose, sampling(arguments))
        if arguments.message is not None:
            talk.say(arguments.message)
            return 0
        name = arguments.model or session.models()[0]
        print(f"{name} at {session.url or arguments.target}; /help says what else can be typed", file=sys.stderr)
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (editing and history of the lines that input() reads)
        return converse(talk, lambda: input(">>> "))


class Conversation:
    """What was said so far, and how the next answer is asked for."""

    def __init__(self, session: BlockingSession, system: str | None, verbose: bool, options: dict[str, Any]) -> None:
        self._session, self._verbose, self._options = session, verbose, options
        self._first = [{"role": "system", "content": system}] if system else []
        self.messages = [*self._first]

    def reset(self) -> None:
        self.messages = [*self._first]

    def say(self, text: str) -> None:
        """Print the answer to ``text``. One that was refused or broken off leaves the conversation as it was."""
        asked = [*self.messages, {"role": "user", "content": text}]
        answer = stream(self._session.stream_chat(asked, **self._options), self._verbose)
        self.messages = [*asked, {"role": "assistant", "content": answer}]


def converse(talk: Conversation, read: Callable[[], str]) -> int:
    """Until ``/quit`` or the end of the input. What the server refuses is said, and the conversation goes on."""
    from blockwright.api.program.results import RequestError

    while True:
        try:
            text = read().strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        try:
            if text == "/quit":
                return 0
            elif text == "/reset":
                talk.reset()
            elif text.startswith("/"):
                print(HELP if text == "/help" else f"there is no {text.split()[0]}; {HELP}", file=sys.stderr)
            elif text:
                talk.say(text)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except RequestError as error:
            if error.status == 0:
                raise CommandError(error.message) from None
            print(f"blockwright: {error.message}", file=sys.stderr)
