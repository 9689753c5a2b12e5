"""Who changes what: a sub-state's data are written by its own methods alone, and nobody bypasses ``apply``.

Each rule is a function over source text, so that the tests can also show that it catches an offender.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from blockwright.tests.claims import claim

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "policies/sweep").glob("*.py"), *(ROOT / "policies/memory").glob("*.py")])
MUTATING = {
    "append",
    "extend",
    "insert",
    "pop",
    "remove",
    "clear",
    "update",
    "setdefault",
    "add",
    "discard",
    "sort",
    "reverse",
}
MAKERS = {"array", "dict.fromkeys", "list"}
COPIES = {"fork", "restore", "_compose"}  # they fill a new object of their own class
MADE = {"plan", "batch", "lease", "flight", "done"}  # values in the making, and records that are the module's own
CALLED = {"apply", "plan", "commit", "take_effects", "check"}  # of the machine, by the worker; all else is reading


@cache
def containers() -> set[str]:
    """Names of the attributes that hold lists, dicts, sets or arrays."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.AnnAssign(ast.Attribute(attr=name), kind) if ast.unparse(kind).startswith(("list", "dict", "set")):
                    found.add(name)
                case ast.Assign([ast.Attribute(attr=name)], ast.Call(made)) if ast.unparse(made) in MAKERS:
                    found.add(name)
    return found


def _attributes(node: ast.expr) -> tuple[str, list[str]]:
    """The name with which an expression begins, and the attributes that follow: ``a.b[1].c`` gives a, [b, c]."""
    found = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            found.insert(0, node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else "", found)


def reaching(source: str, held: set[str]) -> list[str]:
    """Writes to what other objects hold, and uses of their private attributes."""
    faults = []
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name not in COPIES]
    for node in (n for function in functions for n in ast.walk(function)):
        written: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            written = [t for outer in node.targets for t in (outer.elts if isinstance(outer, ast.Tuple) else [outer])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            written = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING:
            written = [node.func.value] if set(_attributes(node.func.value)[1][-1:]) & held else []
        for target in written:
            name, attributes = _attributes(target)
            if len(attributes) > (name == "self") and name not in MADE:
                faults.append(f"line {node.lineno}: changes {ast.unparse(target)}")
        private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if private and ast.unparse(node.value) not in ("self", "cls"):
            faults.append(f"line {node.lineno}: uses {ast.unparse(node)}")
    return faults


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_module_reaches_into_another(path: Path) -> None:
    assert reaching(path.read_text(), containers()) == []


@pytest.mark.parametrize(
    "line",
    [
        "rows.planned[3] = 4", "self.rows.planned += [3]", "del parts.queue.running[0]", "rows.tokens[1].append(2)",
        "parts.rows.status[1], a = 2, 3", "return pages._index", "self._parts.queue.running.pop()",
    ],
)  # fmt: skip
def test_offenders_are_caught(line: str) -> None:
    assert reaching(f"def f(self, rows, parts, pages):\n    {line}\n", containers())


@pytest.mark.parametrize(
    "line", ["self._next = rows.planned[3]", "known = rows.known", "queue.pop()", "self.tokens[1].append(2)"]
)
def test_readers_and_owners_are_not(line: str) -> None:
    assert not reaching(f"def f(self, rows, queue):\n    {line}\n", containers())


# by which names the worker's modules have the machine and its parts
HELD = {"state", "_state", "_machine", "parts", "rows", "queue", "memory", "leases", "page_transfers", "page_pins", "routes"}
# what they call besides ``CALLED``: it changes nothing (``tests/policies/sweep/test_snapshot.py``, ``test_looking``), or the
# notes of cached pages alone, which decide nothing
READING = {
    "fork", "snapshot", "digest", "queues", "room", "offline_capacities", "kv_by_application", "all_in_force", "number",
    "planned", "bytes_by_holder", "left_alone", "all_held", "shared_now", "segments", "batch", "live", "tokens_of",
    "partition", "claims", "note_cache", "cache_report", "unmarked", "unused_since", "known", "home", "is_guest",
}  # fmt: skip


def bypassing(source: str) -> set[str]:
    """What is called or written of the sweep machine or of its parts, other than to read."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _of_machine(node.func.value):
            found |= {ast.unparse(node.func)} if node.func.attr not in CALLED | READING else set()
        if isinstance(node, ast.Assign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute | ast.Subscript) and _of_machine(target.value):
                    found.add(ast.unparse(target))
    return found


def _of_machine(node: ast.expr) -> bool:
    name, attributes = _attributes(node)
    return bool({name, *attributes} & HELD) and (name, attributes) != ("queue", [])  # the library's


@claim("Every input of the scheduler is an event", of="serving")
def test_the_worker_only_applies_events_and_ends_plans() -> None:
    found = {path.name: bad for path in (ROOT / "actors/worker").glob("*.py") if (bad := bypassing(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("self.state.parts.rows.add(1)", "self.state.parts.rows.add"),
        ("self._state.jump(plan, 3, 0.0)", "self._state.jump"),
        ("memory.release([], 'a')", "memory.release"),
        ("routes.change(event, kept)", "routes.change"),
        ("self.state.number = 3", "self.state.number"),
        ("parts.rows.known[1] += 1", "parts.rows.known[1]"),
    ],
)
def test_whoever_bypasses_it_is_caught(line: str, says: str) -> None:
    assert bypassing(line) == {says}
