"""``make mutants``: seeded small changes of policies, actors and kernels, each against the tests of its room.

Works on copies of the package in a temporary folder, so that a run which is killed leaves nothing behind in the sources.
A mutant is caught by a test that fails with it and passes without it; one that no test notices is printed. What survives
is for a person to judge: some changes alter nothing. So the exit status is 0 with survivors, too (``--strict``: 1); it is 1
where a test fails without any mutant, or the run itself fails.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from mutations import KERNELS, Mutation, c_mutations, chosen, python_mutations, stages  # noqa: E402

UNCOPIED = shutil.ignore_patterns(
    ".*", "__pycache__", "_compiled", "build", "dist", "results", "*.egg-info", "node_modules", "pictures"
)
NEEDED = ("policies", "transport", "runtime", "gpu", "zoo", "actors", "simulator", "api", "tests", "benchmarks", "examples")
UNTESTED = ("__init__.py", "compiled.py", "main.py", "invariants.py")  # nothing, processes, and checks of what is right
HANGS = 90  # seconds of one test, after which it is taken to hang
PATIENCE = 5  # times its limit of processor seconds that a run may take while other processes use the machine
OURS = ["-k", "not ([torch or -torch- or torch])"]  # a mutant of the kernels cannot change what torch computes
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?)(?: - .*)?$", re.M)
CAP = "avx2"  # the set that is compiled anew for a mutant of the kernels; the others stay


@dataclass(slots=True)
class Verdict:
    """What became of a mutant. ``by``: the test that caught it; ``ran``: the test files that were run to their end."""

    mutation: Mutation
    outcome: str  # caught, hung, survived, unfinished (its time was over, and nothing had failed), not compiled
    by: str = ""
    ran: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Copy:
    """A copy of the package that is imported as ``blockwright``, one mutant at a time."""

    def __init__(self, folder: Path) -> None:
        self.top = folder / "blockwright"
        self.top.mkdir(parents=True)
        for path in ROOT.glob("*"):
            if path.is_dir() and path.name in NEEDED:
                shutil.copytree(path, self.top / path.name, ignore=UNCOPIED)
            elif path.suffix in (".py", ".toml", ".cfg"):
                shutil.copy(path, self.top)
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "BLOCKWRIGHT_COMPILED": "0"}
        self.environment.pop("MAKEFLAGS", None)
        self._running: subprocess.Popen[str] | None = None
        where = subprocess.run(
            [sys.executable, "-c", "import blockwright; print(blockwright.__file__)"],
            env=self.environment, cwd=self.top, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        if Path(where).resolve().parent != self.top.resolve():
            raise SystemExit(f"tests would import {where} instead of the copy in {self.top}")

    def write(self, path: str, text: str) -> None:
        """Write a source, and forget its bytecode: two texts of one second and one size would share it."""
        (self.top / path).write_text(text)
        for stale in (self.top / path).parent.glob(f"__pycache__/{Path(path).stem}.*"):
            stale.unlink()

    def test(self, tests: Sequence[str], seconds: float, cap: str = "") -> tuple[str, str]:
        """Run the tests until one fails: ``passed``, ``caught``, ``hung`` or ``unfinished``, and the test that failed.

        ``seconds``: of the processor, so that what a mutant's tests are depends on no other process.
        """
        limited = ["sh", "-c", f'ulimit -t {max(int(seconds), 1)}; exec "$@"', "sh"]
        command = [
            *limited, sys.executable, "-m", "pytest", "-x", "-n0", "-q", "--tb=no", "-p", "no:cacheprovider", "-rfE",
            "-o", f"faulthandler_timeout={HANGS}", "-o", "faulthandler_exit_on_timeout=true", *(OURS if cap else []), *tests,
        ]  # fmt: skip
        environment = self.environment | ({"BLOCKWRIGHT_CAP": cap} if cap else {})
        with subprocess.Popen(
            command, cwd=self.top, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:  # fmt: skip
            self._running = process
            try:
                output, _ = process.communicate(timeout=PATIENCE * max(seconds, 1.0))
            except subprocess.TimeoutExpired:
                self.stop()
                process.communicate()
                return "unfinished", ""
            finally:
                self._running = None
        if process.returncode in (0, 5):  # 5: no test was selected
            return "passed", ""
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return "unfinished", ""
        if "Timeout (0:" in output:
            return "hung", (re.findall(r"File \".*?/(tests/\S+)\", line", output) or [""])[0]
        found = FAILED.search(output)
        return "caught", found[1] if found else " ".join(output.split()[-12:])

    def stop(self) -> None:
        """End what runs, with the processes that it has started."""
        if (process := self._running) is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


class Kernels:
    """Compiles the kernels of a copy: all sources once, for a mutant only those of one instruction set."""

    def __init__(self, objects: Path) -> None:
        with (ROOT / "pyproject.toml").open("rb") as file:
            (module,) = tomllib.load(file)["tool"]["setuptools"]["ext-modules"]
        self._sources = list(module["sources"])
        self._compile, self._link = module["extra-compile-args"], module["extra-link-args"]
        self._objects = objects
        for source in self._sources:  # not the library of the checkout, which may be older than its sources
            self._object(ROOT, source, objects / f"{Path(source).stem}.o")

    def _object(self, top: Path, source: str, target: Path) -> None:
        quick = {"-O3": "-O1"}  # of a mutant, which is compiled for a few seconds of tests
        flags = ["-w", *(quick.get(flag, flag) for flag in self._compile if not flag.startswith("-W"))]
        subprocess.run(["gcc", "-fPIC", *flags, "-c", source, "-o", str(target)], cwd=top, check=True, capture_output=True)

    def build(self, copy: Copy, changed: str = "") -> bool:
        """Build the library of a copy with its changed source. False where it does not compile."""
        folder = copy.top.parent / "objects"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._objects, folder)
        again = [source for source in self._sources if f"set_{CAP}_" in source] if changed.endswith(".h") else []
        again += [changed] if changed.endswith(".c") else []
        try:
            for source in again:
                self._object(copy.top, source, folder / f"{Path(source).stem}.o")
        except subprocess.CalledProcessError:
            return False
        library = copy.top / KERNELS / "_cpu.so"
        made = library.with_suffix(".new")
        parts = [str(path) for path in sorted(folder.glob("*.o"))]
        subprocess.run(["gcc", "-shared", *parts, "-o", str(made), *self._link], check=True, capture_output=True)
        made.replace(library)
        return True


def found() -> list[Mutation]:
    """Return the mutations of all sources in question."""
    every = list[Mutation]()
    for layer in ("policies", "actors"):
        for path in sorted((ROOT / layer).rglob("*.py")):
            if "_compiled" not in path.parts and path.name not in UNTESTED:
                every += python_mutations(str(path.relative_to(ROOT)), path.read_text())
    for path in sorted((ROOT / KERNELS).glob("*.[ch]")):
        if "amx" not in path.name and "512" not in path.name and path.name != "native.h":
            every += c_mutations(str(path.relative_to(ROOT)), path.read_text())
    return every


class Run:
    """The mutants of one call, in several processes at a time."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._limit, self._end = arguments.limit, time.monotonic() + 60 * arguments.minutes
        self._copies: queue.Queue[Copy] = queue.Queue()
        self.copies = [Copy(folder / str(number)) for number in range(arguments.jobs)]
        for copy in self.copies:
            self._copies.put(copy)
        (folder / "objects").mkdir()
        self._kernels = Kernels(folder / "objects")
        for copy in self.copies:
            self._kernels.build(copy)
        self._tests = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
        self.broken: set[str] = set()  # tests that fail without any mutant, too
        self._sound: dict[tuple[str, str], bool] = {}  # a test, and its cap -> whether it passes without a mutant

    def judge(self, mutation: Mutation) -> Verdict | None:
        """Return what became of it; None where the time of the run is over."""
        if time.monotonic() > self._end:
            return None
        copy = self._copies.get()
        try:
            return self._judge(copy, mutation)
        finally:
            self._copies.put(copy)

    def _judge(self, copy: Copy, mutation: Mutation) -> Verdict:
        began, source = time.monotonic(), (copy.top / mutation.path).read_text()
        native = mutation.path.startswith(KERNELS)
        verdict = Verdict(mutation, "survived")
        cap = CAP if native else ""
        copy.write(mutation.path, mutation.apply(source))
        try:
            if native and not self._kernels.build(copy, mutation.path):
                verdict.outcome = "not compiled"
            else:
                self._stages(copy, verdict, began, cap)
        finally:
            copy.write(mutation.path, source)
            if native:
                self._kernels.build(copy)
        if verdict.outcome == "caught" and not self._passes(copy, verdict.by, cap):
            self.broken.add(verdict.by)
            return self._judge(copy, mutation)  # by the other tests
        verdict.seconds = time.monotonic() - began
        return verdict

    def _stages(self, copy: Copy, verdict: Verdict, began: float, cap: str) -> None:
        for stage in stages(verdict.mutation.path, self._tests):
            left_out = [f"--deselect={test}" for test in sorted(self.broken)]
            outcome, by = copy.test([*stage, *left_out], self._limit - (time.monotonic() - began), cap)
            if outcome != "passed":
                verdict.outcome, verdict.by = outcome, by
                return
            verdict.ran += stage

    def _passes(self, copy: Copy, test: str, cap: str) -> bool:
        if not test.startswith("tests/"):
            return True  # the process died, or a module was not imported
        if (test, cap) not in self._sound:
            self._sound[test, cap] = copy.test([test], self._limit, cap)[0] in ("passed", "unfinished")
        return self._sound[test, cap]


def report(verdicts: Sequence[Verdict], left: int) -> str:
    """Return the report: survivors with what was run, then the sums."""
    lines = list[str]()
    for one in verdicts:
        if one.outcome in ("survived", "unfinished"):
            how = "" if one.outcome == "survived" else ", and no further in its time"
            lines.append(f"SURVIVED {one.mutation}\n  ran {' '.join(one.ran) or 'no test'}{how}")
    sums = Counter(one.outcome for one in verdicts)
    counts = ", ".join(f"{sums[name]} {name}" for name in ("caught", "hung", "survived", "unfinished", "not compiled"))
    return "\n".join(
        [*lines, f"{len(verdicts)} mutants: {counts}" + (f"; {left} not run: the time was over" if left else "")]
    )


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--limit", type=float, default=60.0, help="processor seconds of tests for each mutant")
    parser.add_argument("--minutes", type=float, default=26.0, help="after which no further mutant begins")
    parser.add_argument("--only", default="", help="only files whose path begins like this")
    parser.add_argument("--strict", action="store_true", help="exit status 1 where a mutant survives")
    return parser.parse_args(words)


def main() -> int:
    arguments = parsed()
    every = [one for one in found() if one.path.startswith(arguments.only)]
    picked = chosen(every, arguments.seed, arguments.count)
    print(f"{len(picked)} of {len(every)} mutations, seed {arguments.seed}", flush=True)
    verdicts = list[Verdict]()
    with tempfile.TemporaryDirectory(prefix="blockwright-mutants-") as folder:
        run = Run(Path(folder), arguments)
        pool = ThreadPoolExecutor(arguments.jobs)
        try:
            for verdict in pool.map(run.judge, picked):
                if verdict is not None:
                    verdicts.append(verdict)
                    print(f"{verdict.outcome:9} {verdict.seconds:4.0f} s {verdict.mutation}  {verdict.by}", flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in run.copies:
                copy.stop()
            pool.shutdown()
    print(report(verdicts, len(picked) - len(verdicts)))
    for test in sorted(run.broken):
        print(f"FAILS WITHOUT A MUTANT {test}")
    survived = any(one.outcome in ("survived", "unfinished") for one in verdicts)
    return int(bool(run.broken) or (arguments.strict and survived))


if __name__ == "__main__":
    sys.exit(main())
