"""The pages of docs/claims/, made from the claims on tests and benchmarks and from the list of open ones.

``python tests/docs/claims_page.py`` writes them again. Files are read as syntax trees; nothing of them is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path

from blockwright.tests.docs.open_claims import OPEN

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "claims"
SOURCES = ("tests", "benchmarks")
CAPABILITIES = {
    "fine-tunes": "Fine-tunes on shared blocks",
    "families": "Model families",
    "faults": "Faults and recovery",
    "numerics": "Tokens and numerics",
    "checkpoints": "Checkpoints and architectures",
    "serving": "Scheduling and memory of a worker",
    "http-api": "HTTP API",
    "security": "Keys, tenants and hostile input",
    "offline": "Offline batches",
    "parameter-dropping": "Parameter dropping in a burst",
    "prediction": "Prediction, dispatch and autoscaling",
    "drafts": "Drafts",
    "adaptive": "Adaptive chains",
    "structured-output": "Structured output",
    "tools": "Tools and reasoning",
    "embeddings": "Embeddings, reranking and scores",
    "speed": "Speed",
    "command-line": "Command line",
    "observability": "Observability",
    "embedding": "Use inside a program",
    "installation": "Installation, demo and documentation",
    "actor-runtime": "Actor runtime",
    "simulator": "Simulator",
    "code-and-tests": "Code and tests",
}
INDEX_HEAD = """# Claims

Each page lists what one part of Blockwright claims to do, and the tests or benchmarks that show it. A claim that nothing
shows is *open*, with what is missing. The pages are generated from the marks `@claim("...", of="...")` on tests and
benchmarks and from `tests/docs/open_claims.py`; `python tests/docs/claims_page.py` writes them again. `make test` runs the
tests, unless a page says *nightly* (`make nightly`) or *compat* (`make compat`). `make bench` runs the benchmarks.
"""
STRONGEST = ("tests/system", "tests/equality", "tests/serving")  # real processes and outside judges are listed first
LATER = ("pytest.mark.nightly", "pytest.mark.equality")


class ClaimError(ValueError):
    """A claim that cannot be listed, with the place where it stands."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A test or a benchmark."""

    path: Path  # from the root
    name: str
    when: str = ""  # "nightly" or "compat" where ``make test`` does not run it

    def strength(self) -> int:
        folder = "/".join(self.path.parts[:2])
        return STRONGEST.index(folder) if folder in STRONGEST else len(STRONGEST)

    def words(self) -> str:
        name = "" if self.name == "main" else f" `{self.name.removeprefix('test_')}`"
        return f"{name} ({self.when})" if self.when else name


@dataclass(slots=True)
class Claim:
    """A sentence with all that shows it, or with what is missing."""

    sentence: str
    capability: str
    headline: bool = False
    evidence: list[Evidence] = field(default_factory=list)
    missing: str = ""

    def strength(self) -> int:
        return min((one.strength() for one in self.evidence), default=len(STRONGEST) + 1)

    def shown_by(self) -> str:
        """Return a link to each file, with the names of its tests."""
        if not self.evidence:
            return f"open: {self.missing}"
        by_file = groupby(sorted(self.evidence, key=lambda one: (one.strength(), one.path)), key=lambda one: one.path)
        return "; ".join(
            f"[{path.name}](../../{path.as_posix()}){','.join(one.words() for one in some)}" for path, some in by_file
        )


@cache
def claims() -> list[Claim]:
    """Return all claims by page: headlines first, then by the strength of what shows them, the open ones last."""
    found: dict[str, Claim] = {}
    paths = [path for source in SOURCES for path in sorted((ROOT / source).rglob("*.py"))]
    for path in paths:
        text = path.read_text()
        if "claim(" in text:
            for mark, evidence in marks(ast.parse(text), path.relative_to(ROOT)):
                add(found, mark, evidence)
    for capability, sentences in OPEN.items():
        for sentence, missing in sentences.items():
            if sentence in found:
                raise ClaimError(
                    f"{sentence!r} is open and is shown by {found[sentence].evidence[0].path}; remove one of the two"
                )
            found[sentence] = Claim(sentence, capability, missing=missing)
    order = list(CAPABILITIES)
    for one in found.values():
        if one.capability not in CAPABILITIES:
            raise ClaimError(f"{one.sentence!r} names the capability {one.capability!r}; use one of {', '.join(order)}")
    return sorted(found.values(), key=lambda one: (order.index(one.capability), not one.headline, one.strength()))


def add(found: dict[str, Claim], mark: Claim, evidence: Evidence) -> None:
    """Add a mark to the claim of the same sentence."""
    known = found.setdefault(mark.sentence, mark)
    if known.capability != mark.capability:
        raise ClaimError(f"{mark.sentence!r} has two capabilities: {known.capability} and {mark.capability}")
    known.headline |= mark.headline
    known.evidence.append(evidence)


def marks(tree: ast.Module, path: Path) -> Iterator[tuple[Claim, Evidence]]:
    """Return each mark of a file and what it stands on, from top to bottom."""
    later = any("mark.nightly" in ast.unparse(node) for node in tree.body if is_pytestmark(node))
    whole_file = "compat" if "compat" in path.parts else "nightly" if later else ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            when = "nightly" if any(ast.unparse(one) in LATER for one in node.decorator_list) else whole_file
            for one in node.decorator_list:
                if isinstance(one, ast.Call) and ast.unparse(one.func) in ("claim", "harness.claim"):
                    yield read_mark(one, path), Evidence(path, node.name, when)


def is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def read_mark(call: ast.Call, path: Path) -> Claim:
    """Return the claim of ``@claim(...)``, whose arguments are literals."""
    try:
        (sentence,) = (ast.literal_eval(one) for one in call.args)
        options = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        return Claim(sentence, options.pop("of"), options.pop("headline", False))
    except (ValueError, KeyError) as error:
        raise ClaimError(f"{path}:{call.lineno}: write the sentence and of= as literals") from error


def pages(every: Iterable[Claim]) -> dict[str, str]:
    """Return the text of each page by its name."""
    every = list(every)
    texts = {"README.md": index(every)}
    for name, title in CAPABILITIES.items():
        rows = [f"| {one.sentence} | {one.shown_by()} |" for one in every if one.capability == name]
        head = [f"# Claims: {title}", "", "[All claims](README.md)", "", "| claim | shown by |", "| --- | --- |"]
        texts[f"{name}.md"] = "\n".join([*head, *rows, ""])
    return texts


def index(every: list[Claim]) -> str:
    headlines = [f"| {one.sentence} | {one.shown_by()} |" for one in every if one.headline]
    rows = []
    for name, title in CAPABILITIES.items():
        here = [one for one in every if one.capability == name]
        rows.append(f"| [{title}]({name}.md) | {len(here)} | {sum(not one.evidence for one in here) or ''} |")
    return "\n".join(
        [
            INDEX_HEAD,
            "## What users rely on\n\n| claim | shown by |\n| --- | --- |",
            *headlines,
            "\n## By capability\n\n| capability | claims | of these open |\n| --- | --- | --- |",
            *rows,
            f"| all | {len(every)} | {sum(not one.evidence for one in every)} |",
            "",
        ]
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages(claims()).items():
        (FOLDER / name).write_text(text)
