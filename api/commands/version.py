"""Prints the version of the installed package."""

from __future__ import annotations

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments."""


def run(arguments: argparse.Namespace) -> int:
    from importlib.metadata import version

    print(f"blockwright {version('blockwright')}")
    return 0
