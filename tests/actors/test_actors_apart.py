"""No actor reads another's object: what one has to say to another is a message, or a value that it publishes.

The rule is a function over source text, so that the tests can also show that it catches offenders. It knows an actor's
object by where it comes from (made here, or annotated with an actor's class), and by the name under which actors keep their
state machine.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.test_architecture import ROOT

ALLOWED = {"ref"}  # where an actor is, which its maker may tell others


def actor_classes(sources: dict[str, str]) -> set[str]:
    """Names of all classes below ``Actor``, of whichever module."""
    bases: dict[str, set[str]] = {}  # of all classes of that name
    for source in sources.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update({base.id for base in node.bases if isinstance(base, ast.Name)})
    found = {"Actor"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def mentions(annotation: ast.expr | None, classes: set[str]) -> bool:
    """Whether a value of this type may be an actor; a class (``type[Actor]``) is none."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp):
        return mentions(annotation.left, classes) or mentions(annotation.right, classes)
    return isinstance(annotation, ast.Name) and annotation.id in classes


def held(tree: ast.AST, classes: set[str]) -> set[str]:
    """Names of variables, parameters and attributes that are actors' objects."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and mentions(node.annotation, classes):
            names.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and mentions(node.annotation, classes):
            names |= {_last(node.target)}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if isinstance(node.value.func, ast.Name) and node.value.func.id in classes:
                names |= {_last(target) for target in node.targets}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and mentions(node.returns, classes):
            names.add(node.name)  # a property
    return names - {""}


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def reads(source: str, classes: set[str]) -> list[str]:
    """What is read of another actor's object, as it is written."""
    tree, found = ast.parse(source), []
    objects = held(tree, classes)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        of_object = _last(owner) in objects and node.attr not in ALLOWED
        of_state = isinstance(owner, ast.Attribute) and owner.attr == "state" and ast.unparse(owner.value) != "self"
        if of_object or of_state:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def sources() -> dict[str, str]:
    folders = ("actors", "api", "runtime")
    return {str(path.relative_to(ROOT)): path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")}


@claim("No actor reads the object of another actor", of="faults")
def test_no_actor_reads_anothers_object() -> None:
    everything = sources()
    classes = actor_classes(everything) - {"Actor"}
    assert {"Controller", "Gateway", "Worker", "GatewayPeer", "Limiter", "Process", "Supervisor"} <= classes
    faults = {name: bad for name, text in everything.items() if (bad := reads(text, classes))}
    assert faults == {}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def f(controller):\n    return controller.state.version\n", "controller.state.version"),
        ("class A(Actor):\n    def f(self):\n        return self._running.gateway.state.board\n", "state.board"),
        ("async def f():\n    made = Controller([])\n    made.gateway_up('g1')\n", "made.gateway_up"),
        ("def f(them: Controller | None):\n    them.history\n", "them.history"),
        (
            "class A:\n    def __init__(self, c: 'Controller'):\n        self.c = c\n    def f(self):\n        self.c.x\n",
            "self.c.x",
        ),
    ],
)
def test_the_rule_catches_offenders(source: str, says: str) -> None:
    classes = actor_classes({"actor": "class Controller(Actor):\n    pass\n", "here": source})
    (found,) = reads(source, classes)
    assert says in found


def test_the_rule_lets_references_and_own_state_be() -> None:
    source = (
        "class Controller(Actor):\n"
        "    def f(self, other: Ref, worker):\n"
        "        made = Controller()\n"
        "        other.look.cast(made.ref)\n"
        "        return self.state.version, worker.state == 'ready'\n"
    )
    assert reads(source, actor_classes({"here": source})) == []


def test_every_source_is_looked_at() -> None:
    assert "actors/topology.py" in sources()
    assert not [path for path in sources() if Path(path).suffix != ".py"]
