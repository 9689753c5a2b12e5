"""Mutants: what is changed, what is left alone, which of them a seed chooses, and which tests are run against each."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.mutations import GAMES, Mutation, c_mutations, chosen, python_mutations, stages

ROOT = Path(__file__).parents[1]


def changes(source: str) -> set[tuple[str, str]]:
    """Return the edits of a source, each of which leaves a program that compiles."""
    found = python_mutations("policies/x.py", source)
    for one in found:
        compile(one.apply(source), "x", "exec")
    return {(one.before, one.after) for one in found}


@claim("Small wrong changes to the code are made and run against the nearest tests", of="code-and-tests")
@pytest.mark.parametrize(
    ("source", "edits"),
    [
        ("x = a < b", {("a < b", "(a <= b)")}),
        ("x = a == b", {("a == b", "(a != b)")}),
        ("x = a and b", {("a and b", "((a) or (b))"), ("a and b", "((a))"), ("a and b", "((b))")}),
        ("x = 4", {("4", "5"), ("4", "0")}),
        ("x = 0", {("0", "1")}),
        ("x = True", {("True", "False")}),
        ("x = min(a, b)", {("min", "max")}),
        ("x = a + b", {("a + b", "((a) - (b))")}),
        ("if f(a):\n    b = a", {("f(a)", "(not (f(a)))")}),
        ("x = [a for a in b if a.c]", {("a.c", "True")}),
        ("f(a)", {("f(a)", "pass")}),
        ("async def g():\n    await f(a)", {("await f(a)", "pass")}),
        ("def g(a):\n    a.b = c", {("a.b = c", "pass")}),
        ("a += b", {("a += b", "pass")}),
        ("def g() -> int:\n    return f(a)", {("f(a)", "0")}),
        ("def g() -> list[int]:\n    return a", {("a", "[]")}),
        ("def g() -> str | None:\n    return a", {("a", "None")}),
        ("x = 'äö', 4", {("4", "5"), ("4", "0")}),
    ],
)
def test_what_is_changed(source: str, edits: set[tuple[str, str]]) -> None:
    assert changes(source) == edits


@pytest.mark.parametrize(
    "source",
    [
        '"""A text of 3 < 4."""',
        "x: dict[str, int]",
        "x = dict[str, int]()",
        'x = f"{a + 1}"',
        'x = a + "b"',
        "assert a < 3, 4",
        "raise ValueError(3)",
        "log.info('%d', 3)",
        "X = Move | Vacate",
        "class A:\n    __slots__ = ('a', 3)",
        "class A(Protocol):\n    def f(self) -> int: return 3",
        "class A:\n    def check(self) -> None:\n        self.a = 3",
        "@dataclass(frozen=True)\nclass A: ...",
        "if TYPE_CHECKING:\n    x = 3",
        "x = zip(a, b, strict=True)",
    ],
)
def test_what_nobody_could_see_is_left_alone(source: str) -> None:
    assert changes(source) == set()


def test_an_edit_of_a_source_of_several_lines_is_where_it_says() -> None:
    source = "def f(a):\n    # äöü\n    if (\n        a\n        < 3\n    ):\n        g('ß'); h(a)\n"
    found = {str(one): one for one in python_mutations("policies/x.py", source)}
    assert "policies/x.py:4: a < 3 -> (a <= 3)" in found
    assert found["policies/x.py:7: h(a) -> pass"].apply(source).endswith("g('ß'); pass\n")
    with pytest.raises(AssertionError, match="has changed"):
        found["policies/x.py:7: h(a) -> pass"].apply(source[1:])


def test_of_c_operators_and_numbers_in_functions_are_changed() -> None:
    source = """/* 1 < 2 */
#define N 4 + \\
    4
static const int K = 3;
int f(const float *x, int n) {
    if (n < 2 && x[0] == 1.0f) /* n < 3 */
        return n - 1; // n + 1
    return g("a < 4", n);
}
"""
    found = {(one.line, one.before, one.after) for one in c_mutations("gpu/cpu/kernels/x.h", source)}
    assert found == {
        (6, "<", "<="),
        (6, "2", "3"),
        (6, "&&", "||"),
        (6, "0", "1"),
        (6, "==", "!="),
        (7, "-", "+"),
        (7, "1", "2"),
    }


def many() -> list[Mutation]:
    long, short = [("policies/long.py", 500), ("actors/long.py", 300)], [(f"policies/p{n}.py", 3) for n in range(40)]
    sizes = [*long, *short, *((f"actors/a/a{n}.py", 5) for n in range(40)), ("gpu/cpu/kernels/x.h", 90)]
    return [Mutation(path, n, n, n + 1, "a", "b") for path, size in sizes for n in range(size)]


def test_a_seed_chooses_the_same_of_all_layers_and_of_no_file_many() -> None:
    picked = chosen(many(), 7, 60)
    assert picked == chosen(many()[::-1], 7, 60)
    assert picked != chosen(many(), 8, 60)
    assert len({*picked}) == 60
    assert Counter(one.path.partition("/")[0] for one in picked) == {"gpu": 6, "actors": 27, "policies": 27}
    assert max(Counter(one.path for one in picked if not one.path.startswith("gpu")).values()) == 1
    assert len(chosen(many()[:5], 1, 60)) == 5


@claim("Small wrong changes to the code are made and run against the nearest tests", of="code-and-tests")
def test_the_nearest_tests_come_first_then_the_room_then_the_seeds() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("tests/**/test_*.py")}
    own, users, near, *_ = stages("policies/memory/chunks.py", texts)
    assert own == ["tests/policies/memory/test_chunks.py"]
    assert all("blockwright.policies.memory.chunks import" in texts[test] for test in users)
    assert "tests/policies/memory/test_slots.py" in {*users, *near}
    own, near, wide = stages("policies/requests/book/pausing.py", texts)  # no test imports it
    assert own == ["tests/policies/requests/book/test_pausing.py"]
    assert "tests/policies/requests/book/test_switching.py" in near
    assert {f"tests/serving/test_serving_{game}.py" for game in GAMES} <= {*wide}
    assert stages("gpu/cpu/kernels/rows.h", texts)[0][0].startswith("tests/gpu/")
    for path in sorted([*ROOT.glob("policies/*/*.py"), *ROOT.glob("actors/**/*.py")]):
        if path.name != "__init__.py":
            found = [test for stage in stages(str(path.relative_to(ROOT)), texts) for test in stage]
            assert found, f"no test is run for {path}"
            assert len(found) == len({*found})
            assert not any("pytest.mark.system" in texts[test] for test in found)


@pytest.mark.parametrize(
    "path", ["policies/sweep/backfill.py", "policies/requests/book/pausing.py", "policies/memory/slots.py"]
)
def test_every_mutant_of_a_source_is_another_program(path: str) -> None:
    source = (ROOT / path).read_text()
    before = ast.dump(ast.parse(source))
    found = python_mutations(path, source)
    assert len(found) > 50
    for one in found:
        assert ast.dump(ast.parse(one.apply(source))) != before
