"""Plays seed after seed until a property is violated, in a process of its own for each question.

Run by path, in a folder whose package ``blockwright`` is a copy. Reads lines ``GAME FIRST SEEDS``, where GAME is
``runtime.safety.players`` or ``serving.game``; answers each with the seed and the property, with nothing after the last
seed, or with an error. The further arguments are modules that every process has: what is slow to import, and not of the
package.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from importlib import import_module


def hunt(game: str, first: int, count: int) -> tuple[int, str] | None:
    """(seed, property) of the first violation."""
    logging.getLogger("blockwright").setLevel(logging.CRITICAL + 1)
    module = import_module(f"blockwright.tests.{game}")
    for seed in range(first, first + count):
        try:
            module.Game(seed).play()
        except module.Violation as violation:
            return seed, violation.what
    return None


def answer(question: str) -> str:
    """In one line."""
    game, first, count = question.split()
    try:
        return " ".join(map(str, hunt(game, int(first), int(count)) or ()))
    except BaseException:
        return f"error {traceback.format_exc()!r}"


def serve() -> None:
    for question in sys.stdin:
        if (child := os.fork()) == 0:
            print(answer(question), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            print("error it died", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        import_module(name)
    serve()
