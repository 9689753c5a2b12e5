"""The command ``complete``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from .connection import add_sampling, add_target, reached, sampling

if TYPE_CHECKING:
    from ..program.blocking import BlockingCall


def complete_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="what is continued")
    add_sampling(parser)


def complete(arguments: argparse.Namespace) -> int:
    """Continue one prompt and print the answer as it is generated. Without --prompt
    it reads the prompt from standard input.
    """
    prompt = sys.stdin.read() if arguments.prompt is None else arguments.prompt
    with reached(arguments) as session:
        stream(session.stream(prompt, **sampling(arguments)), arguments.verbose)
    return 0


def stream(call: BlockingCall, verbose: bool) -> str:
    """Print an answer as it arrives, then its speed on standard error if wanted; return the text."""
    from .speed import Watch

    watch = Watch()
    for piece in call:
        watch.saw(len(piece.token_ids))
        print(piece.text, end="", flush=True)
    print(flush=True)
    assert call.answer is not None
    if verbose:
        print(watch.summary(call.answer), file=sys.stderr)
    return call.answer.text
