"""Small wrong changes of a source, each of which some test should notice, and the tests that should.

Pure: text in, edits out. ``mutants.py`` applies them to a copy of the package and runs the tests.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

KERNELS = "gpu/cpu/kernels/"
TIMES = 10  # one in so many mutations is one of the kernels: each of them is compiled
QUIET = ("debug", "info", "warning", "error", "exception", "critical")  # methods of a log
UNTESTED = ("check", "__repr__", "__post_init__")  # invariants, texts, and refusals of what nothing constructs
OPERATORS: Mapping[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*",
    ast.Div: "*", ast.Mod: "//", ast.And: "or", ast.Or: "and", ast.BitOr: "&", ast.BitAnd: "|",
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
EMPTY = {
    "bool": "False", "int": "0", "float": "0.0", "str": "''", "list": "[]", "dict": "{}", "set": "set()", "tuple": "()",
    "Iterator": "iter(())", "Iterable": "()", "Sequence": "()", "Mapping": "{}",
}  # fmt: skip
C_SIGNS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "&&": "||", "||": "&&"}
C_SIGN = re.compile(r"(?<= )(<=|>=|==|!=|&&|\|\||[<>+-])(?= )")
C_NUMBER = re.compile(r"(?<![\w.\"])(\d+)(?![\w.\"])")
C_UNTOUCHED = re.compile(r'/\*.*?\*/|//[^\n]*|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|"(?:\\.|[^"\n])*"', re.S | re.M)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One edit: ``source[start:end]`` becomes ``after``."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: str) -> str:
        """Return the source with the edit."""
        assert source[self.start : self.end] == self.before, f"{self.path} has changed"
        return source[: self.start] + self.after + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {_short(self.before)} -> {_short(self.after)}"


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 90 else words[:87] + "..."


def python_mutations(path: str, source: str) -> list[Mutation]:
    """Return the mutations of a Python source, in the order of its lines.

    Annotations, decorators, texts, assertions, refusals and invariants stay as they are.
    """
    found = _Finder(path, source)
    found.visit(ast.parse(source))
    return sorted(found.mutations, key=lambda one: (one.start, one.end, one.after))


class _Finder(ast.NodeVisitor):
    """The walk over one source."""

    def __init__(self, path: str, source: str) -> None:
        self.mutations: list[Mutation] = []
        self._path, self._source = path, source
        self._lines = [line.encode() for line in source.splitlines(keepends=True)]
        self._offsets = [0]
        for line in source.splitlines(keepends=True):
            self._offsets.append(self._offsets[-1] + len(line))
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []

    def _place(self, line: int, column: int) -> int:
        return self._offsets[line - 1] + len(self._lines[line - 1][:column].decode())

    def _replace(self, node: ast.stmt | ast.expr, after: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)
        before = self._source[start:end]
        if before != after:
            self.mutations.append(Mutation(self._path, node.lineno, start, end, before, after))

    def _text(self, node: ast.AST) -> str:
        return f"({ast.unparse(node)})"

    # what is left alone ----------------------------------------------------------------------------------------------

    def _leave(self, node: ast.AST) -> None:
        """Nothing below is changed."""

    visit_Raise = visit_Assert = visit_JoinedStr = visit_Import = visit_ImportFrom = visit_Slice = _leave

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in UNTESTED:
            return
        self._functions.append(node)
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(ast.unparse(base) in ("Protocol", "Exception", "StrEnum", "Enum", "IntEnum") for base in node.bases):
            return
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in ("strict", "default", "kw_only"):
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in ("dict", "list", "set", "tuple"):
            return  # dict[str, int](): annotations
        self.generic_visit(node)

    # what is changed -------------------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            self._replace(node, f"({left} {OPERATORS[type(node.ops[0])]} {right})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sides = node.left, node.right
        if any(isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides):
            return
        if isinstance(node.op, ast.BitOr) and ast.unparse(node.left).strip("(")[0].isupper():
            return  # a union of types
        if (sign := OPERATORS.get(type(node.op))) is not None:
            self._replace(node, f"({self._text(node.left)} {sign} {self._text(node.right)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = f" {OPERATORS[type(node.op)]} "
        self._replace(node, f"({word.join(map(self._text, node.values))})")
        for place in range(len(node.values)):  # a condition that is not asked
            rest = [value for other, value in enumerate(node.values) if other != place]
            same = " and " if isinstance(node.op, ast.And) else " or "
            self._replace(node, f"({same.join(map(self._text, rest))})")
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare | ast.BoolOp | ast.Constant | ast.NamedExpr):
            self._replace(test, f"(not {self._text(test)})")

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._replace(test, "True")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace(node, str(not value))
        elif isinstance(value, int):
            self._replace(node, str(value + 1))
            if value > 1:
                self._replace(node, "0")
        elif isinstance(value, float):
            self._replace(node, repr(2 * value) if value else "1.0")
            if value:
                self._replace(node, "0.0")

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and (other := CALLS.get(node.func.id)):
            self._replace(node.func, other)
        if isinstance(node.func, ast.Name) and node.func.id in ("TypeVar", "NewType", "cast"):
            return
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call):
            return
        if isinstance(call.func, ast.Attribute) and call.func.attr in QUIET:
            return
        if ast.unparse(call.func) != "super().__init__":
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any("__slots__" in ast.unparse(target) for target in node.targets):
            return
        inside = self._functions and self._functions[-1].name not in ("__init__", "fork", "restore")
        if inside and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass")
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace(node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        returns = self._functions[-1].returns if self._functions else None
        if (empty := _empty(returns)) is not None:
            self._replace(node.value, empty)
        self.visit(node.value)


def _empty(annotation: ast.expr | None) -> str | None:
    """Return the empty value of a return annotation; None where it has none."""
    if isinstance(annotation, ast.Constant) or annotation is None:
        return None
    if isinstance(annotation, ast.BinOp) and "None" in ast.unparse(annotation).split(" | "):
        return "None"
    name = ast.unparse(annotation).partition("[")[0]
    if name == "tuple" and "..." not in ast.unparse(annotation):
        return None  # of a fixed length: callers would not even unpack it
    return EMPTY.get(name)


def c_mutations(path: str, source: str) -> list[Mutation]:
    """Return the mutations of a C source: operators between spaces, and whole numbers in function bodies."""
    skipped = [match.span() for match in C_UNTOUCHED.finditer(source)]
    found = list[Mutation]()
    for pattern in (C_SIGN, C_NUMBER):
        for match in pattern.finditer(source):
            before = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
            if not before.startswith((" ", "\t")) or any(start <= match.start() < end for start, end in skipped):
                continue
            after = C_SIGNS.get(match[0]) or str(int(match[0]) + 1)
            found.append(Mutation(path, source.count("\n", 0, match.start()) + 1, *match.span(), match[0], after))
    return sorted(found, key=lambda one: one.start)


def chosen(mutations: Sequence[Mutation], seed: int, count: int) -> list[Mutation]:
    """Return ``count`` of the mutations: one in ``TIMES`` of the kernels, the others half of policies and half of actors.

    The same seed and sources give the same mutations in the same order. A layer with too few gives all that it has.
    """
    chance = random.Random(seed)
    layers = [
        sorted((one for one in mutations if one.path.startswith(layer)), key=lambda one: (one.path, one.start, one.after))
        for layer in (KERNELS, "actors/", "policies/")
    ]
    kernels = count // TIMES
    wanted = kernels, (count - kernels) // 2, count - kernels - (count - kernels) // 2
    picked = [one for layer, number in zip(layers, wanted, strict=True) for one in _spread(layer, number, chance)]
    chance.shuffle(picked)
    return picked


def _spread(layer: Sequence[Mutation], number: int, chance: random.Random) -> Iterator[Mutation]:
    """Yield mutations of as many files as there are, or of ``number`` files: long files have no more than short ones."""
    files: dict[str, list[Mutation]] = {}
    for one in layer:
        files.setdefault(one.path, []).append(one)
    left = sorted(files)
    for _ in range(min(number, len(layer))):
        if not left:
            left = sorted(path for path, rest in files.items() if rest)
        rest = files[left.pop(chance.randrange(len(left)))]
        yield rest.pop(chance.randrange(len(rest)))


# the tests of a room ----------------------------------------------------------------------------------------------------

GAMES = ("seeds", "moves", "switches", "overload", "offline", "dispatch")  # of tests/serving: the quick seeds of each
PLAYED = ("simulation", "pipelines", "moving")  # of tests/simulator: what plays the instances of policies/prediction
OF_KERNELS = ("test_native_forward.py", "test_bottlenecks.py", "test_deltas.py", "test_conformance.py")  # the quickest first


def stages(path: str, tests: Mapping[str, str]) -> list[list[str]]:
    """Return the tests for a changed file, the nearest first: those of its name; those that import it; those of its folder,
    or of the simulator that plays it; those of its layer that import its room, and seeds.

    ``tests``: the text of each test file by its path.
    """
    if path.startswith(KERNELS):
        return [[f"tests/gpu/{name}" for name in OF_KERNELS if f"tests/gpu/{name}" in tests]]
    layer, *rooms, name = path.removesuffix(".py").split("/")
    room, module = (rooms[0] if rooms else ""), f"blockwright.{path.removesuffix('.py').replace('/', '.')}"
    word = "_".join(filter(None, ("test", room, name)))
    folders = [f"tests/{layer}/{room}/", f"tests/{layer}/test_{room}_"] if room else [f"tests/{layer}/"]
    own = [
        test for test in tests if test.startswith(f"tests/{layer}/") and test.endswith((f"/{word}.py", f"/test_{name}.py"))
    ]
    users = [test for test in tests if f"{module} import" in tests[test]]
    near = [test for test in tests if room and test.startswith(tuple(folders))]
    wide = [test for test in tests if test.startswith(f"tests/{layer}/") and f"blockwright.{layer}.{room}" in tests[test]]
    if room == "prediction":
        near += [f"tests/simulator/test_{name}.py" for name in PLAYED]
    if layer == "actors" or room in ("overload", "requests", "sweep"):
        wide += [f"tests/serving/test_serving_{game}.py" for game in GAMES]
    found, seen = list[list[str]](), set[str]()
    for stage in (own, users, near, wide):
        fresh = [
            test for test in sorted(stage) if test in tests and test not in seen and "pytest.mark.system" not in tests[test]
        ]
        seen.update(fresh)
        if fresh:
            found.append(fresh)
    return found
