"""Docstrings and comments in plain English: subject first, a summary line, no worn words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from blockwright.tests.claims import claim

ROOT = Path(__file__).resolve().parents[1]
# folders of product code
DONE = ("transport", "runtime", "actors", "policies", "gpu", "zoo", "simulator", "api")

OPENINGS = """
What Who Whose Whether How Where When Of As By Which Those That To In On For From With After Before
Whoever Nobody"""
BAD = frozenset(OPENINGS.split())
NOUNS = """The A An This It Its Each Every All Any Some One Nothing None No Not Also Only There Same And Or But"""
NO_VERB = frozenset(NOUNS.split())
ENDS_IN_S = re.compile(r"^(?!.*(ss|Focus)$).*s$")
VERBS = """Return Raise Start Stop Send Make Take Give Get Set Put Add Remove Delete Drop Read Write Parse Pack Unpack
Encode Decode Run Call Wait Handle Queue Open Close Let Tell Say Keep Hold Ask Answer Check Accept Refuse Admit Forget
Cancel Find"""
IMPERATIVE = frozenset(VERBS.split())
WORN = re.compile(
    r"\b(so many|so much of|those (?:that|who|which)|whoever|whomever|nobody|somebody|everybody|anybody|that of|told"
    r"|thereof|thereby|thereupon|hereby|herein|whereupon|whereof|wherein|whence|he(?! et al)|his|him)\b",
    re.IGNORECASE,
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules(folder: str) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / folder).rglob("*.py"))}


def docstrings(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield node, text


def opening(text: str) -> str:
    match = re.match(r"\W*(\w+)", text)
    return match[1] if match else ""


def is_property(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in decorators)


def fault(node: Documented, text: str) -> str:
    """Return the rule that a docstring breaks, or an empty text."""
    first = opening(text)
    if first in BAD:
        return f"begins with {first!r}: put the subject first"
    if isinstance(node, ast.Module | ast.ClassDef):
        return f"begins with the verb {first!r}: use a noun phrase" if first in IMPERATIVE else ""
    if is_property(node):
        return ""
    if not text[0].isupper() or first in NO_VERB or ENDS_IN_S.match(first):
        return f"begins with {first or text[:9]!r}: use a verb in the imperative"
    return ""


def worn(source: str) -> Iterator[tuple[int, str]]:
    """Return the line and the text of each worn word in comments and docstrings."""
    texts = [
        (t.start[0], t.string) for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT
    ]
    texts += [(node.body[0].lineno, text) for node, text in docstrings(ast.parse(source))]
    yield from ((line, match[0]) for line, text in texts for match in WORN.finditer(re.sub(r"\s+", " ", text)))


@claim("Docstrings, comments and messages of product code are in plain English, subject first", of="code-and-tests")
@pytest.mark.parametrize("folder", DONE)
def test_docstrings_begin_with_their_subject_or_verb(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', 'module')} {why}"
        for path, tree in modules(folder).items()
        for node, text in docstrings(tree)
        if (why := fault(node, text))
    ]
    assert not found, "\n".join(found)


@claim("Docstrings, comments and messages of product code are in plain English, subject first", of="code-and-tests")
@pytest.mark.parametrize("folder", DONE)
def test_docstrings_and_comments_have_no_worn_words(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} says {word!r}" for path in modules(folder) for line, word in worn(path.read_text())
    ]
    assert not found, "\n".join(found)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Return the line and the text of each string that is no docstring: messages, help, assertions."""
    tree = ast.parse(source)
    words = {id(node.body[0].value) for node, _ in docstrings(tree) if isinstance(node.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in words:
            yield node.lineno, node.value


@pytest.mark.parametrize("folder", DONE)
def test_messages_have_no_worn_words(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} says {match[0]!r}"
        for path in modules(folder)
        for line, text in texts(path.read_text())
        if (match := WORN.search(text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "good"),
    [
        ('def f():\n    """Return the pages."""', True),
        ('def f():\n    """See ``g``."""', True),
        ('def f():\n    """Pass it on."""', True),
        ('def f():\n    """Returns the pages."""', False),
        ('def f():\n    """The pages."""', False),
        ('def f():\n    """Whether it is there."""', False),
        ('def f():\n    """``x``: a number."""', False),
        ('@property\ndef f():\n    """The pages."""', True),
        ('@property\ndef f():\n    """Of the node."""', False),
        ('class C:\n    """A page."""', True),
        ('class C:\n    """Return a page."""', False),
        ('"""How it works."""', False),
    ],
)
def test_an_opening_is_judged(source: str, good: bool) -> None:
    node, text = next(docstrings(ast.parse(source)))
    assert (fault(node, text) == "") is good


def test_a_worn_word_is_found_in_comments_and_docstrings_alone() -> None:
    source = '"""Those\nthat come."""\nx = "nobody"  # whoever asks\n'
    assert list(worn(source)) == [(3, "whoever"), (1, "Those that")]
    assert list(texts(source)) == [(3, "nobody")]


PACKED = {"policies/measures.py": 1, "transport/link_table.py": 1}  # three parts of one value on a line


def packed(tree: ast.Module) -> list[int]:
    """Return the lines that assign three or more values of their own; swaps count, too."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 2
        if isinstance(node.targets[0], ast.Tuple)
    ]


@pytest.mark.parametrize("folder", [*DONE, "tests", "benchmarks", "examples"])
def test_a_statement_assigns_two_values_at_most(folder: str) -> None:
    found = {str(path.relative_to(ROOT)): packed(tree) for path, tree in modules(folder).items()}
    assert {name: lines for name, lines in found.items() if len(lines) > PACKED.get(name, 0)} == {}


def test_packed_values_are_found() -> None:
    assert packed(ast.parse("a, b, c = 1, 2, 3\na, b = 1, 2\na, b, c = f()\n")) == [1]
