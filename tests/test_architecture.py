"""The rules of the house that a program can check: who may import whom, what stays pure, how big things get.

Every rule is a function over source text, so that the tests below can also show that it catches an offender.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from blockwright.tests.claims import claim

ROOT = Path(__file__).parents[1]
LAYERS = ("policies", "simulator", "transport", "gpu", "runtime", "zoo", "actors", "api")

# layer -> other layers that it may import
MAY_IMPORT: dict[str, set[str]] = {
    "policies": set(),
    "simulator": {"policies"},
    "transport": {"policies"},
    "gpu": {"policies"},
    "runtime": {"policies", "transport"},
    "zoo": {"policies", "gpu"},
    "actors": {"policies", "transport", "gpu", "runtime", "zoo"},
    "api": set(LAYERS),
}
# layer -> libraries that it must not touch, not even inside a function
FORBIDDEN: dict[str, set[str]] = {
    "transport": {"torch", "aiohttp"},
    "runtime": {"torch", "aiohttp"},
    "gpu": {"asyncio", "zmq", "aiohttp", "uvloop", "socket"},
    "actors": {"aiohttp"},
    "simulator": {"torch", "zmq", "aiohttp"},
}
PURE_NAMES = {"state", "messages", "port"}  # of modules below actors/, with all that they import from there
IMPURE = {
    "asyncio",
    "zmq",
    "torch",
    "time",
    "random",
    "logging",
    "os",
    "pathlib",
    "json",
    "socket",
    "threading",
    "subprocess",
    "numpy",
}
# what only api/ may say: a status of HTTP, or a word of OpenAI's errors
HTTP_STATUS = re.compile(r"(?<![\w.])(40[0134589]|413|421|429|50[0234])(?![\w.])")
PATHS = re.compile(r"(?<![\w.:])/(?:admin|v1)/")  # of endpoints: in a decision's words, docstrings included
OPENAI_WORDS = re.compile(
    r"openai|invalid_request_error|server_error|model_not_found|context_length|\binvalid_value\b", re.I
)
LEAST_FILE_LINES = 70  # of a file with one importer, which stands beside it, and no thought of its own
SMALL_THOUGHTS = {
    "actors/head_address.py": "the head's keys and its join text, apart from the wiring of a cluster",
    "actors/profiling/link_peer.py": "the other end of a measured link, run in a process of its own",
    "actors/worker/cut_answers.py": "answers that were cut off, apart from the shell that ends their sequences",
    "api/constraints/lark.py": "the language of grammars, apart from that of schemas",
    "api/openai/quality.py": "the tier of a request, apart from the path of its answer",
    "gpu/cuda/synchronous.py": "computes on a card from the host's memory, which sweeps never do",
    "gpu/guesses.py": "hidden states that a plan keeps for a while, apart from the executor, which keeps none",
    "gpu/model/gemma.py": "each architecture is a file, which a newcomer looks for",
    "gpu/weights/lora_product.py": "beside the check of bits, which identities need, it would close a circle",
    "policies/drafts/prompt_lookup.py": "a method of the field, which a newcomer looks for",
    "policies/memory/compaction.py": "a term of the field, which a newcomer looks for",
    "policies/sweep/guess_steps.py": "the table of guesses is one of the parts that it reads: together they close a circle",
    "policies/offline/fed_worker.py": "mypyc compiles it, and not its importer, which has dataclasses",
    "policies/requests/book/application_usage.py": "one part of the book, with data of its own",
    "policies/requests/book/invariants.py": "invariants are checked by tests alone, over the whole book",
    "policies/requests/book/pauses.py": "one part of the book, with data of its own",
    "policies/requests/retry_after.py": "a term of the field, which a newcomer looks for",
    "policies/sweep/backfill_repeats.py": "one mechanism of the sweep machine, with data of its own",
    "policies/sweep/draft_steps.py": "one mechanism of the planner, whose order of steps is the point",
    "policies/sweep/loading.py": "the procedure of one event of the sweep machine",
    "policies/sweep/prefix_catch_up.py": "one mechanism of the planner, with a condition of its own",
    "policies/sweep/route_queues.py": "load figures for reports; they decide nothing",
    "policies/sweep/route_shapes.py": "values that memory and figures of routes are compared by",
    "simulator/copies.py": "the simulator's half of an actor of the head",
    "runtime/node/link_receivers.py": "the receivers of tensors; the importer only wires parts",
}
BANNED_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|misc)$")
MOST_CODE_LINES = 400
MOST_FILE_LINES = 600
MOST_FUNCTION_LINES = 60
SOURCES = (*LAYERS, "tests", "benchmarks", "examples")
MOST_PARAMETERS = 10  # of a function; values that belong together are one value object
MANY_PARAMETERS = {
    "actors/gateway/actor.py:__init__": "made in one place from the settings; all but three have defaults",
    "gpu/weights/checkpoint.py:__init__": "made in one place from a folder's parts; all but two have defaults",
    "runtime/cluster/cluster.py:__init__": "keywords of the public runtime, of which a program gives two or three",
    "runtime/cluster/local_cluster.py:__init__": "keywords of the public runtime, of which a program gives two or three",
    "runtime/node/node.py:__init__": "keywords of the public runtime, of which a program gives two or three",
    "runtime/node/remote_streams.py:on_open": "the fields of a message on the wire, in their order",
    "runtime/testing/simulation.py:__init__": "keywords of the public runtime, of which a test gives two or three",
}


def sources(*suffixes: str) -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.suffix in suffixes]
    for folder in SOURCES:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return sorted(found)


def module_of(path: Path) -> str:
    parts = ("blockwright", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_modules() -> dict[str, Path]:
    return {module_of(path): path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}


def imports(source: str, module: str, is_package: bool = False) -> set[str]:
    """Dotted names of everything imported anywhere in the source; ``from a import b`` gives ``a`` and ``a.b``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")
            base = package[: len(package) - node.level + is_package] if node.level else []
            origin = ".".join((*base, *((node.module or "").split(".") if node.module else [])))
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return found


@cache
def imports_of(path: Path) -> set[str]:
    return imports(path.read_text(), module_of(path), path.name == "__init__.py")


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "blockwright" and parts[1] in LAYERS else None


def layer_faults(layer: str, names: set[str]) -> set[str]:
    """Imports that the layer is not entitled to."""
    ours = {name for name in names if (other := layer_of(name)) and other != layer and other not in MAY_IMPORT[layer]}
    return ours | {name for name in names if name.split(".")[0] in FORBIDDEN.get(layer, set())}


def purity_faults(names: set[str], pure: set[str]) -> set[str]:
    """Imports that a pure module may not have: effects, libraries, and modules of ours that are not pure themselves."""
    faults = set()
    for name in names:
        top = name.split(".")[0]
        if top == "blockwright":
            owner = name if name in pure else name.rpartition(".")[0]
            if owner not in pure and layer_of(name) != "policies" and name != "blockwright":
                faults.add(name)
        elif top in IMPURE or (top not in sys.stdlib_module_names and top != "__future__"):
            faults.add(name)
    return faults


def pure_modules(modules: dict[str, Path]) -> set[str]:
    """policies, the pure files of the actors, and every module below actors/ that these import."""
    pure = {name for name in modules if layer_of(name) == "policies"}
    waiting = [n for n in modules if n.startswith("blockwright.actors.") and n.rpartition(".")[2] in PURE_NAMES]
    while waiting:
        name = waiting.pop()
        if name not in pure:
            pure.add(name)
            near = imports_of(modules[name]) & modules.keys()
            waiting += [other for other in near if other.startswith("blockwright.actors.")]
    return pure


def opens_files(source: str) -> bool:
    """Tell whether a source calls ``open``."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id == "open" for called in calls)


def named_modules(source: str) -> set[str]:
    """Return the modules of the package that strings of a source name, as in "blockwright.a.b:function"."""
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {
        text.partition(":")[0]
        for text in texts
        if isinstance(text, str) and re.fullmatch(r"blockwright(\.\w+)+(:\w+)?", text)
    }


def wire_words(source: str, numbers: bool = True) -> list[str]:
    """Words of HTTP's and OpenAI's errors in a source, comments and docstrings included."""
    return OPENAI_WORDS.findall(source) + (HTTP_STATUS.findall(source) if numbers else [])


def python_functions(source: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def c_functions(source: str) -> Iterator[tuple[str, int]]:
    """Top-level blocks that follow a parameter list, from the line of the name to the closing brace."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    text = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, source, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.MULTILINE)
    depth = 0
    start = 0
    head = 0
    for at, symbol in enumerate(text):
        if symbol == "{":
            depth += 1
            if depth == 1:
                head, start = start, at
        elif symbol == "}":
            depth -= 1
            if depth == 0:
                name = re.search(r"(\w+)\s*\([^{}]*\)\s*(?:__attribute__\s*\(\(.*\)\)\s*)?$", text[head:start])
                if name:
                    yield name[1], text.count("\n", head + name.start(), at) + 1
                start = at + 1
        elif symbol == ";" and depth == 0:
            start = at + 1


@claim("Layers import only lower layers, and product code imports by relative paths", of="code-and-tests")
@pytest.mark.parametrize("layer", [name for name in LAYERS if (ROOT / name).exists()])
def test_layers_import_only_what_lies_below(layer: str) -> None:
    faults = {
        name: bad
        for name, path in layer_modules().items()
        if layer_of(name) == layer and (bad := layer_faults(layer, imports_of(path)))
    }
    assert faults == {}


@pytest.mark.parametrize("layer", [name for name in LAYERS if (ROOT / name).exists()])
def test_layers_name_no_module_of_a_higher_layer_in_a_string(layer: str) -> None:
    modules = layer_modules()
    faults = {
        name: bad
        for name, path in modules.items()
        if layer_of(name) == layer and (bad := layer_faults(layer, named_modules(path.read_text()) & modules.keys()))
    }
    assert faults == {}
    assert named_modules('ENTRY = "blockwright.api.serve.gateway_process:start"') == {
        "blockwright.api.serve.gateway_process"
    }


@claim("Layers import only lower layers, and product code imports by relative paths", of="code-and-tests")
def test_product_code_imports_by_relative_paths() -> None:
    """Readers that resolve imports by path, such as code browsers, then find every one of them."""
    absolute = re.compile(r"^\s*(?:from|import) blockwright\b", re.MULTILINE)
    assert [name for name, path in layer_modules().items() if absolute.search(path.read_text())] == []
    assert absolute.search("def f():\n    from blockwright.policies import plain")


@claim("Policies and state machines are pure: no clock, socket, tensor, randomness or log", of="code-and-tests")
def test_policies_and_state_machines_are_pure() -> None:
    modules = layer_modules()
    pure = pure_modules(modules)
    faults = {name: bad for name in sorted(pure) if (bad := purity_faults(imports_of(modules[name]), pure))}
    assert "blockwright.actors.gateway.port" in pure
    # It decides nothing: it chooses the form, compiled or not, in which those that decide are imported.
    assert faults.pop("blockwright.policies.compiled") == {"os", "pathlib", "pathlib.Path"}
    assert faults == {}
    assert [name for name in sorted(pure) if opens_files(modules[name].read_text())] == []
    assert opens_files("def f(path):\n    with open(path) as file:\n        return file.read()")


def test_http_status_and_openai_words_stand_in_api_alone() -> None:
    """Numbers where requests are decided about: elsewhere 400 may count characters."""
    below = {name: path for name, path in layer_modules().items() if layer_of(name) not in ("api", None)}
    message = {name: wire_words(path.read_text(), layer_of(name) in ("policies", "actors")) for name, path in below.items()}
    assert {name: words for name, words in message.items() if words} == {}


def test_policies_name_no_path_of_an_endpoint() -> None:
    below = {name: path for name, path in layer_modules().items() if layer_of(name) == "policies"}
    assert [name for name, path in below.items() if PATHS.search(path.read_text())] == []
    assert PATHS.search('f"it is not active; /admin/cluster lists those that are"')
    assert not PATHS.search("http://localhost:4318/v1/traces")


def test_the_rule_of_words_catches_offenders() -> None:
    assert wire_words('Fail(request, 503, "full", code="model_not_found")  # as OpenAI has it') == [
        "model_not_found",
        "OpenAI",
        "503",
    ]
    assert wire_words("seconds = 4.5; rows = 256; size = 4096; part = 0.503; x500 = 1503") == []
    assert wire_words("CAUSE_LIMIT = 500", numbers=False) == []


def code_lines(source: str) -> int:
    """Return the number of lines of Python that hold code: no imports, docstrings, comments or blank lines."""
    lines = source.splitlines()
    code = {number for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(source)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if isinstance(node, ast.Import | ast.ImportFrom) or is_text:
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def test_code_lines_leave_out_imports_docstrings_comments_and_blanks() -> None:
    source = '"""One.\n\nTwo."""\n\nimport os\nfrom a import (\n    b,\n)\n\n# why\nx = """\ntext"""  # here\n'
    assert code_lines(source) == 2


@claim("Files have at most 400 lines of code and functions at most 60 lines", of="code-and-tests")
def test_files_are_short() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sources(".py", ".c", ".h")}
    whole = {path: len(text.splitlines()) for path, text in texts.items()}
    assert {path: size for path, size in whole.items() if size > MOST_FILE_LINES} == {}
    code = {path: code_lines(texts[path]) if path.endswith(".py") else size for path, size in whole.items()}
    assert {path: size for path, size in code.items() if size > MOST_CODE_LINES} == {}


def lone_small_files(importers: dict[str, set[str]], sizes: dict[str, int]) -> set[str]:
    """Return the small files whose single importer stands in the same folder."""
    return {
        path
        for path, size in sizes.items()
        if size < LEAST_FILE_LINES
        and len(found := importers.get(path, set())) == 1
        and {other.rpartition("/")[0] for other in found} == {path.rpartition("/")[0]}
    }


@claim("A small file with a single importer beside it has a reason", of="code-and-tests")
def test_no_file_is_a_fragment_of_another() -> None:
    """A command's file is named after what people type, so that ``api/commands`` is left out."""
    paths = {name: str(path.relative_to(ROOT)) for name, path in layer_modules().items()}
    importers: dict[str, set[str]] = {}
    for name, path in layer_modules().items():
        for other in imports_of(path) & paths.keys() - {name}:
            importers.setdefault(paths[other], set()).add(paths[name])
    sizes = {path: len((ROOT / path).read_text().splitlines()) for path in paths.values() if "__init__" not in path}
    found = {path for path in lone_small_files(importers, sizes) if not path.startswith("api/commands/")}
    assert found == SMALL_THOUGHTS.keys()
    assert len(SMALL_THOUGHTS) <= 26


def test_the_rule_of_fragments_catches_offenders() -> None:
    sizes = {"a/small.py": 69, "a/large.py": 70, "a/shared.py": 9, "a/far.py": 9, "a/user.py": 200}
    importers = {"a/small.py": {"a/user.py"}, "a/large.py": {"a/user.py"}, "a/far.py": {"b/user.py"}}
    importers["a/shared.py"] = {"a/user.py", "b/user.py"}
    assert lone_small_files(importers, sizes) == {"a/small.py"}


@claim("Files have at most 400 lines of code and functions at most 60 lines", of="code-and-tests")
def test_functions_are_short() -> None:
    faults = {}
    for path in sources(".py", ".c", ".h"):
        listed = python_functions if path.suffix == ".py" else c_functions
        for name, size in listed(path.read_text()):
            if size > MOST_FUNCTION_LINES:
                faults[f"{path.relative_to(ROOT)}:{name}"] = size
    assert faults == {}


def test_no_module_is_a_drawer_for_everything() -> None:
    names = [path for path in sources(".py", ".c", ".h") if BANNED_NAMES.search(path.stem)]
    folders = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_dir()]
    assert names + [path for path in folders if BANNED_NAMES.search(path.name)] == []


def parameters(source: str) -> Iterator[tuple[str, int]]:
    """Yield the functions of a source with the number of their parameters."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            yield node.name, len(named) - (named[:1] in (["self"], ["cls"]))


def test_functions_have_few_parameters() -> None:
    """A kernel of Triton takes what its launch passes to it, value by value."""
    kernels = ROOT / "gpu" / "cuda" / "kernels"
    paths = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py") if path.parent != kernels]
    found = {
        f"{path.relative_to(ROOT)}:{name}"
        for path in paths
        for name, count in parameters(path.read_text())
        if count > MOST_PARAMETERS
    }
    assert found == MANY_PARAMETERS.keys()
    assert [*parameters("class A:\n    def f(self, a, *, b): ...\nasync def g(c, /): ...\n")] == [("g", 1), ("f", 2)]


# what is imported -> libraries that must not come along
LIGHT = {
    "blockwright": {"torch", "aiohttp", "zmq", "numpy", "rich", "asyncio"},
    "blockwright.policies": {"torch", "aiohttp", "zmq", "numpy", "asyncio"},
    "blockwright.transport": {"torch", "aiohttp"},
    "blockwright.runtime": {"torch", "aiohttp"},
    "blockwright.actors.settings.settings": {"torch", "aiohttp", "zmq"},
    "blockwright.actors.gateway": {"torch", "transformers", "aiohttp"},
    "blockwright.actors.controller": {"torch", "transformers", "aiohttp"},
    "blockwright.gpu.weights.checkpoint": {"torch", "transformers"},
    "blockwright.simulator": {"torch", "aiohttp", "zmq", "numpy", "asyncio"},
    "blockwright.zoo": {"torch", "transformers", "numpy", "aiohttp", "zmq", "asyncio"},
    "blockwright.api": {"torch", "transformers"},
    "blockwright.api.program.pytest_plugin": {"torch", "aiohttp"},
    "blockwright.api.commands.cli": {"torch", "transformers", "aiohttp", "uvloop", "zmq"},
}

# need torch; other modules of zoo do not import them
TRAINS = (
    "blockwright.zoo.family",
    "blockwright.zoo.equivalence.measuring",
    "blockwright.zoo.equivalence.comparison",
    "blockwright.zoo.equivalence.rows",
    "blockwright.zoo.surrogate.making",
    "blockwright.zoo.surrogate.pruning",
    "blockwright.zoo.surrogate.row_time",
    "blockwright.zoo.surrogate.similarity",
    "blockwright.zoo.equivalence.joints",
    "blockwright.zoo.equivalence.stitch_fitting",
    "blockwright.zoo.equivalence.stitcher",
)


@pytest.mark.parametrize("name", LIGHT)
def test_importing_it_loads_nothing_heavy(name: str) -> None:
    modules = layer_modules() | {"blockwright": ROOT / "__init__.py"}
    assert name in modules
    package = modules[name].name == "__init__.py" and name != "blockwright"
    wanted = [other for other in modules if other == name or (package and other.startswith(f"{name}."))]
    wanted = [other for other in wanted if not other.startswith(TRAINS)]
    code = f"import sys, importlib\nfor n in {wanted!r}: importlib.import_module(n)\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert LIGHT[name] & set(done.stdout.split()) == set()


def test_the_import_rule_catches_offenders() -> None:
    lazy = "def f():\n    from blockwright.gpu import backend\n"
    assert layer_faults("runtime", imports(lazy, "blockwright.runtime.x")) == {
        "blockwright.gpu",
        "blockwright.gpu.backend",
    }
    upward = imports("from ..api import nearest", "blockwright.actors.sizing")
    assert layer_faults("actors", upward) == {"blockwright.api", "blockwright.api.nearest"}
    assert layer_faults("gpu", imports("import asyncio", "blockwright.gpu.x")) == {"asyncio"}
    assert layer_faults("runtime", imports("import torch.nn", "blockwright.runtime.x")) == {"torch.nn"}
    downward = imports("from blockwright.policies.model.chain import Chain", "blockwright.runtime.x")
    assert layer_faults("runtime", downward) == set()


def test_the_purity_rule_catches_offenders() -> None:
    pure = {"blockwright.policies.model.chain", "blockwright.actors.worker.messages"}
    source = "import time\nimport numpy\nfrom blockwright.actors.worker import actor\n"
    source += "from blockwright.policies.model.chain import Chain\n"
    assert purity_faults(imports(source, "blockwright.actors.worker.state"), pure) == {
        "time",
        "numpy",
        "blockwright.actors.worker",
        "blockwright.actors.worker.actor",
    }
    clean = "from dataclasses import dataclass\nfrom blockwright.actors.worker.messages import Submission\n"
    assert purity_faults(imports(clean, "blockwright.actors.worker.state"), pure) == set()


def test_functions_are_measured_in_both_languages() -> None:
    assert dict(python_functions("def f():\n    a = 1\n    return a\n")) == {"f": 3}
    source = (
        "#define SWAP(a, b) do { \\\n  a; } while (0)\n"
        "struct pair {\n  int a;\n};\n"
        "static const int table[] = {1,\n2};\n"
        "/* { not ( code */\n"
        "int add(int a,\n        int b)\n{\n  if (a) {\n    return '{';\n  }\n  return b;\n}\n"
        "static void none(void) { }\n"
    )
    assert dict(c_functions(source)) == {"add": 8, "none": 1}


def test_no_test_looks_at_a_clock_of_its_own() -> None:
    """Nothing may fail because a machine is slow, busy or fast: ``tests/waiting.py`` alone bounds how long is waited. (What
    ``make compat`` and ``make mutants`` run is no test.)"""
    allowed = {"waiting.py", "mutants.py", "runtime/test_clock.py", "runtime/test_simulation.py", "system/faulty_worker.py"}
    allowed.add("api/test_loop_stays_free.py")  # how long the loop is held is what it shows
    allowed.add("hosts/switch.py")  # it delays what passes between hosts
    clock = re.compile(r"\btime\.(monotonic|perf_counter|time|process_time)|get_running_loop\(\)\.time|\bloop\.time")
    bound = re.compile(
        r"asyncio\.timeout\([1-9]|wait_for\(.*, [\d.]+\)|wait\(timeout=\d|capture_output=.*timeout=\d+\b(?! \*)"
    )
    folder = ROOT / "tests"
    found = [
        f"{path.relative_to(folder)}:{number}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        if str(path.relative_to(folder)) not in allowed and path.parent.name != "compat"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if clock.search(line) or bound.search(line)
    ]
    assert found == []
