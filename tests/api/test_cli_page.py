"""docs/cli.md is what the commands say of themselves. ``python tests/api/test_cli_page.py`` writes it again."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from blockwright.api.commands import COMMANDS
from blockwright.api.commands.cli import make_parser
from blockwright.tests.claims import claim

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEAD = """# The command line

This page is the same as `blockwright COMMAND --help`. If you mistype something, the command answers with one sentence that
names the closest match, and exits with code 2. If it fails later, it exits with code 1. [schemas/](schemas/) describes JSON
output. [serving.md](serving.md#settings) lists the settings of a server.
"""


def page() -> str:
    return "\n".join([HEAD, *(line for name in COMMANDS for line in section(name))])


def section(name: str) -> Iterator[str]:
    parser = make_parser(name, COMMANDS[name].load())
    yield f"## {name}\n"
    yield f"{parser.description}\n"
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    if actions:
        yield "| argument | meaning |\n| --- | --- |"
        for action in actions:
            yield f"| `{spelling(action)}` | {action.help % vars(action) if action.help else ''} |"
        yield ""


def spelling(action: argparse.Action) -> str:
    value = action.metavar or ("\\|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return f"[{value}]" if action.nargs == "?" else str(value)
    return action.option_strings[-1] + ("" if action.nargs == 0 else f" {value}")


@claim("The command line and API pages are generated from the code", of="code-and-tests")
def test_the_page_tells_every_argument() -> None:
    assert PAGE.read_text() == page(), "write it again: python tests/api/test_cli_page.py"


if __name__ == "__main__":
    PAGE.write_text(page())
