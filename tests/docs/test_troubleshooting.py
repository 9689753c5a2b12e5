"""Every message that docs/troubleshooting.md explains is one that the code says."""

from __future__ import annotations

import ast
import re
from functools import cache

from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
FOLDERS = ("actors", "api", "gpu", "policies", "runtime", "transport")
HEADING = re.compile(r"^### `(.+)`$", re.MULTILINE)
HOLE = "\0"  # where a sentence has a name or a number


@cache
def sentences() -> frozenset[str]:
    """All texts of the code, with ``HOLE`` for what is put in."""
    trees = [ast.parse(path.read_text()) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.JoinedStr):
            found.add("".join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(re.sub(r"%(\.\d)?[sdf]", HOLE, node.value))
    return frozenset(found)


def said(message: str) -> bool:
    """``…`` stands for one hole or for several with whatever is between them, nothing else for anything."""
    pattern = re.compile("(?s:.*)".join(re.escape(part) for part in message.split("…")))
    return any(pattern.fullmatch(sentence) for sentence in sentences())


@claim("Every message in the troubleshooting page is one that the code says", of="installation")
def test_every_message_is_one_of_the_code() -> None:
    messages = HEADING.findall(PAGE.read_text())
    assert len(messages) > 30
    assert [message for message in messages if not said(message)] == []
    assert len(messages) == len(set(messages))


def test_a_message_that_nobody_says_is_found_out() -> None:
    assert said("the model … does not exist; …")
    assert not said("the model … does not exists; …")
    assert not said("the model does not exist")
