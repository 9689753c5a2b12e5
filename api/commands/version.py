"""The command ``version``."""

from __future__ import annotations

import argparse


def version_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments."""


def version(arguments: argparse.Namespace) -> int:
    """Print the version of the installed package."""
    from importlib.metadata import version as version_of

    print(f"blockwright {version_of('blockwright')}")
    return 0
