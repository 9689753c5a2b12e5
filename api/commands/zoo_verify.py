"""The command ``zoo verify``."""

from __future__ import annotations

import argparse
import json

from .zoo_folder import add_zoo, progress, refusals


def zoo_verify_arguments(parser: argparse.ArgumentParser) -> None:
    add_zoo(parser)
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def zoo_verify(arguments: argparse.Namespace) -> int:
    """Read everything in a zoo and compare it with what was stored. It finds a
    single flipped bit.

    The exit code is 1 if something is damaged. Each line names a file, the expected
    and the actual value, and the applications that need it. To repair a tensor,
    delete its file and add a model that has the same tensor.
    """
    from ...zoo.verify import verify
    from .zoo_tables import verify_lines, verify_view

    with refusals(), progress() as tell:
        verified = verify(arguments.zoo, lambda done, total: tell("hashing", done, total))
    if arguments.json:
        print(json.dumps(verify_view(verified), indent=1))
    else:
        print("\n".join(verify_lines(verified)))
    return 1 if verified.faults else 0
