"""All benchmarks with stored results, one after the other, and the changes since the stored results.

    python benchmarks/all.py [--store] [--quick] [--beside CHECKOUT] [--only NAME ...]

Each has a budget of seconds, plus the unused seconds of the ones before it; the total is less than half an hour. A benchmark
that takes longer is stopped and counts as failed.

Results go into a new folder, which is named at the end. With ``--store`` (refused if there are uncommitted changes) they
replace the ones in ``benchmarks/results``, and docs/performance.md is written again. Let nothing else run meanwhile. xoscar,
a peer of ``actors``, takes part if it is in ``.peers/``: ``python benchmarks/actors.py --quick`` creates that once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import harness
import page
import psutil
from changes import changes
from harness import ROOT

RESULTS = ROOT / "benchmarks" / "results"
BUDGETS = {
    "sweep": 20,
    "controller": 90,
    "nodes": 80,
    "links": 60,
    "actors": 160,
    "tokens": 70,
    "failover": 170,
    "kernels": 230,
    "deltas": 80,
    "accuracy": 200,
    "contended": 280,
    "serving": 360,
}
LONG = {
    "forecast": 60,
    "predictors": 90,
    "simulation": 120,
    "cells": 3600,
    "fidelity": 1200,
    "on_demand": 240,
    "drafts": 900,
    "draft_models": 900,
    "family": 900,
    "family_sweeps": 600,
    "tier_sweeps": 1500,
    "tier_fairness": 60,
    "large": 1800,
    "scheduling": 2700,
    "scheduling_live": 960,
    "overload": 2700,
    "overload_live": 1200,
    "pipelines": 1800,
    "offline": 1800,
    "tenants": 2400,
    "offline_order": 60,
    "offline_live": 1200,
    "offline_online": 900,
    "structured": 900,
    "adaptive": 3600,
    "transfers": 600,
    "head_death": 600,
    "adaptive_absent": 60,
    "adaptive_live": 300,
    "adaptive_hidden": 900,
    "adaptive_tokens": 600,
    "adaptive_stitches": 600,
    "adaptive_surrogates": 600,
    "adaptive_kv": 600,
    "adaptive_simulated": 1800,
    "one_machine": 1200,
}  # named or not run
WITH_BESIDE = (
    "actors",
    "controller",
    "tokens",
    "kernels",
    "one_machine",
)  # scripts that measure another checkout in turn with this one
GRACE = 60.0  # seconds to stop servers in, when time is up


def run_one(name: str, path: Path, budget: float, more: Sequence[str] = ()) -> str:
    """Run a script, which stores ``path``; why it failed, or nothing."""
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--json", str(path), *more]
    # what is not there is not fetched in the middle of measuring: a peer's row then says that it could not be made
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PIP_NO_INDEX": "1"})
    try:
        code = process.wait(budget)
    except subprocess.TimeoutExpired:
        end(process)
        return f"did not finish within {budget:g} s"
    except BaseException:
        end(process)
        raise
    return f"ended with {code}" if code else "" if path.exists() else "stored nothing"


def end(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, on which scripts stop their servers; then whatever is left of it."""
    left = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def compared(folder: Path, results: Path) -> list[str]:
    """Lines about every new result beside the stored one."""
    found: list[str] = []
    for path in sorted(folder.glob("*.json")):
        now, stored = json.loads(path.read_text()), results / path.name
        if not stored.exists():
            found.append(f"{path.stem}: not stored before")
            continue
        before = json.loads(stored.read_text())
        lines = changes(before, now)
        found.append(f"{path.stem}: {len(lines) or 'no'} changes since {before['when']}, commit {before['commit'][:10]}")
        found += [f"    {line}" for line in lines]
    return found


def store(folder: Path, results: Path, commit: str) -> None:
    """Replace what is stored; refused if anything was measured on another state than ``commit``."""
    new = sorted(folder.glob("*.json"))
    for path in new:
        if (measured := json.loads(path.read_text())["commit"]) != commit:
            raise SystemExit(f"{path.stem} was measured on {measured}, not on {commit}: nothing is stored")
    for path in new:
        shutil.copy(path, results / path.name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="replace benchmarks/results and docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, smaller sizes: to see that all of it works")
    parser.add_argument("--beside", type=Path, metavar="PATH", help=f"a checkout with a .venv, for {', '.join(WITH_BESIDE)}")
    parser.add_argument(
        "--only", nargs="+", default=list(BUDGETS), choices=[*BUDGETS, *LONG], metavar="NAME", help="just these"
    )
    chosen = parser.parse_args(arguments)
    commit, machine = harness.commit(), harness.machine()
    if chosen.store and (chosen.quick or commit == "unknown" or commit.endswith("+")):
        parser.error(f"only whole results of a committed state are stored; this is {commit}{', quick' * chosen.quick}")
    print(f"commit {commit}, {machine['cores']} cores of {machine['cpu']}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="blockwright-bench-"))
    began = time.monotonic()
    failed = []
    due = began
    for name in chosen.only:
        due, since = due + (BUDGETS | LONG)[name], time.monotonic()
        print(f"\n== {name} (at most {due - since:.0f} s)", flush=True)
        more = ["--beside", str(chosen.beside)] if chosen.beside and name in WITH_BESIDE else []
        why = run_one(name, folder / f"{name}.json", due - since, [*more, *(["--quick"] if chosen.quick else [])])
        failed += [f"{name}: {why}"] if why else []
        print(f"== {name}: {why or 'done'}, {time.monotonic() - since:.0f} s", flush=True)
    print("\n== changes beyond noise", *compared(folder, RESULTS), sep="\n")
    if chosen.store:
        store(folder, RESULTS, commit)
        page.write(page.PAGE, RESULTS)
    print("\n".join([f"\n{(time.monotonic() - began) / 60:.1f} minutes; results are in {folder}", *failed]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
