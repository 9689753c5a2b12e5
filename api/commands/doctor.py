"""The command ``doctor``."""

from __future__ import annotations

import argparse
import dataclasses
import json


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port, default=8000, metavar="N", help="port that a server would use (8000)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"is {text}; give a number from 1 to 65535")
    return number


def doctor(arguments: argparse.Namespace) -> int:
    """Check whether this machine can serve, and which kernels would run. Each problem
    comes with a fix.

    The exit code is 1 if something will not work.
    """
    from .doctor_checks import FAILED, OK, examine, release

    checks = []
    for check in examine(arguments.port):
        checks.append(check)
        if not arguments.json:
            print(f"{check.status:>7}  {check.name}: {check.text}", flush=True)
            if check.status != OK:
                print(f"{'':7}  -> {check.fix}")
    works = all(check.status != FAILED for check in checks)
    if arguments.json:
        body = {"version": release(), "works": works, "checks": [dataclasses.asdict(check) for check in checks]}
        print(json.dumps(body, indent=1))
    return 0 if works else 1
