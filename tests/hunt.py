"""Plays seed after seed until a property is violated: prints the seed and the property, or nothing after the last seed.

python -m blockwright.tests.hunt GAME FIRST SEEDS, where GAME is ``runtime.safety.players`` or ``serving.game``.
"""

from __future__ import annotations

import logging
import sys
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


if __name__ == "__main__":
    print(*(hunt(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) or ()))
