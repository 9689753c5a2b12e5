"""Plays seed after seed until a property is violated: prints the seed and the property, or nothing after the last seed.

python hunt.py FIRST SEEDS, with the package to be tested on the path.
"""

from __future__ import annotations

import logging
import sys

from blockwright.tests.serving.game import Game, Violation


def hunt(first: int, count: int) -> tuple[int, str] | None:
    """(seed, property) of the first violation."""
    logging.getLogger("blockwright").setLevel(logging.CRITICAL + 1)
    for seed in range(first, first + count):
        try:
            Game(seed).play()
        except Violation as violation:
            return seed, violation.what
    return None


if __name__ == "__main__":
    print(*(hunt(int(sys.argv[1]), int(sys.argv[2])) or ()))
