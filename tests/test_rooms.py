"""Rooms: within a layer no circle of imports, neither of modules nor of folders; in all layers each class name once,
and nobody uses what another module keeps to itself.

Type-only imports and those inside functions count. Every rule is a function, so that the tests can also show that it catches
an offender.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from blockwright.tests.claims import claim
from blockwright.tests.test_architecture import ROOT, imports, imports_of, layer_modules, layer_of

# rooms (folders) of a layer, from the ground up: each imports only those before it; "" is the layer's root
LIBRARIES = {
    "argparse._SubParsersAction", "events._set_running_loop", "handle._run", "message._replace", "one._Namespace__attrs",
    "os._exit", "parser._actions", "sys._current_frames", "watch.target._replace",
}  # fmt: skip
FLOORS = {"runtime": ("base", "tracing", "actor", "node", "cluster", "", "testing")}


def neighbours(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Which modules of its own layer each module imports: for type checkers only and inside functions, too. A package counts
    as a module where something is imported from it."""
    return {
        name: {
            other for other in imports_of(path) if other in modules and layer_of(other) == layer_of(name) and other != name
        }
        for name, path in modules.items()
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = lowest[name] = len(index)
        path.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in path:  # else it belongs to a component that is complete
                lowest[name] = min(lowest[name], index[other])
        if lowest[name] == index[name]:
            component = path[path.index(name) :]
            del path[path.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(found)


def rooms(graph: dict[str, set[str]], modules: dict[str, Path]) -> dict[str, dict[str, set[str]]]:
    """layer -> room -> rooms of the layer that it imports; the root is "".

    A folder within a room is a room of its own.
    """

    def room(name: str) -> str:
        parts = modules[name].relative_to(ROOT).parts
        return "/".join(parts[1:-1])

    found: dict[str, dict[str, set[str]]] = {}
    for name, others in graph.items():
        below = found.setdefault(str(layer_of(name)), {}).setdefault(room(name), set())
        below |= {room(other) for other in others} - {room(name)}
    return found


def room_faults(below: dict[str, set[str]], floors: Sequence[str] = ()) -> set[tuple[str, str]]:
    """Imports that close a circle of rooms (a layer's root stands above and beside all), and those against ``floors``."""
    graph = {one: {other for other in others if other in below and other} for one, others in below.items() if one}
    closing = {(one, other) for circle in circles(graph) for one in circle for other in graph[one] if other in circle}
    upward = {
        (one, other)
        for one, others in below.items()
        for other in others
        if one in floors and (other not in floors or floors.index(other) > floors.index(one))
    }
    return closing | upward


def defined_classes(source: str) -> list[str]:
    """Classes of a module: private ones, and those within others or within functions, too."""
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def defined_often(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Class names that more than one of the sources (by place) define."""
    places: dict[str, list[str]] = {}
    for place, source in sources.items():
        for name in defined_classes(source):
            places.setdefault(name, []).append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


@claim("Imports make no circle, neither of modules nor of rooms", of="code-and-tests")
def test_no_circle_of_imports_within_a_layer() -> None:
    assert circles(neighbours(layer_modules())) == []


@claim("Imports make no circle, neither of modules nor of rooms", of="code-and-tests")
def test_no_circle_of_rooms_within_a_layer() -> None:
    modules = layer_modules()
    found = {
        layer: room_faults(below, FLOORS.get(layer, ())) for layer, below in rooms(neighbours(modules), modules).items()
    }
    assert {layer: faults for layer, faults in found.items() if faults} == {}


def test_the_rule_of_circles_catches_offenders() -> None:
    """Planted in ``runtime``: a circle by a type-only import, one inside a function, and names of the package itself."""
    modules = layer_modules()
    planted = {
        "blockwright.runtime.base.one": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .two import Two\n",
        "blockwright.runtime.base.two": "def f():\n    from blockwright.runtime import Three\n",
        "blockwright.runtime.base.three": "from blockwright.runtime.base import one, clock\n",
    }
    graph = neighbours(modules)
    assert [circle for circle in circles(graph) if circle[0].startswith("blockwright.runtime")] == []
    names = {*modules, *planted}
    graph |= {name: imports(source, name) & names for name, source in planted.items()}
    graph["blockwright.runtime"] = graph["blockwright.runtime"] | {"blockwright.runtime.base.three"}
    caught = [circle for circle in circles(graph) if "blockwright.runtime.base.one" in circle]
    assert caught == [["blockwright.runtime", *sorted(planted)]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}) == [["a", "b", "c"]]


def test_the_rule_of_rooms_catches_offenders() -> None:
    assert room_faults({"base": {"node"}, "node": {"base"}, "": {"node"}}) == {("base", "node"), ("node", "base")}
    assert room_faults({"base": {"node"}, "node": {"links"}, "links": {"base"}, "over": {"base"}}) == {
        ("base", "node"),
        ("node", "links"),
        ("links", "base"),
    }
    assert room_faults({"": {"node"}, "node": {""}}) == set()
    floors = ("base", "node", "", "testing")
    assert room_faults({"base": {"node"}, "node": {""}, "testing": {"node", "base"}}, floors) == {
        ("base", "node"),
        ("node", ""),
    }
    assert room_faults({"node": {"new"}}, floors) == {("node", "new")}, "a new room is to be given its floor"


def test_each_class_name_is_defined_once() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in layer_modules().values()}
    assert defined_often(sources) == {}


def test_the_rule_of_class_names_catches_offenders() -> None:
    sources = {
        "a.py": "class Run:\n    class Inner: ...\n",
        "b.py": "class _Own: ...\ndef f():\n    class Inner: ...\n",
        "c.py": "class Run: ...\nclass _Own: ...\n",
    }
    assert defined_often(sources) == {"Run": ["a.py", "c.py"], "Inner": ["a.py", "b.py"], "_Own": ["b.py", "c.py"]}


def private_uses(source: str) -> set[str]:
    """What a module uses by an underscore of objects, or imports, that another module has defined. A class may use what it
    inherits."""
    tree = ast.parse(source)
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    own = {node.name for node in ast.walk(tree) if isinstance(node, named)}
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            used |= {alias.name for alias in node.names if _is_private(alias.name)}
        elif isinstance(node, ast.AnnAssign | ast.Assign):  # of a class's body, or a module's
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            own |= {target.id for target in targets if isinstance(target, ast.Name)}
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value) in ("self", "cls")
            and isinstance(node.ctx, ast.Store)
        ):
            own.add(node.attr)
    return used | {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and _is_private(node.attr)
        and node.attr not in own
        and ast.unparse(node.value) not in ("self", "cls", "super()")
    }


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_nobody_uses_what_another_module_keeps_to_itself() -> None:
    found = {path: bad for path in layer_modules().values() if (bad := private_uses(path.read_text()) - LIBRARIES)}
    assert found == {}


def test_the_rule_of_private_names_catches_offenders() -> None:
    source = (
        "from .other import _hidden\n"
        "class A:\n"
        "    _kept: int\n"
        "    def f(self, other):\n"
        "        self._mine = self._inherited\n"
        "        return other._theirs, other._mine, other._kept, super()._more, other.__name__\n"
    )
    assert private_uses(source) == {"_hidden", "other._theirs"}
