"""What holds for every test: threads, signals, seeds, which tests run only when asked for; and fixtures of several folders.

Imports nothing heavy until a test asks for it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from blockwright.tests import cap

# How long an example takes says how busy the machine is; and the same sources get the same verdict everywhere.
settings.register_profile(
    "suite", deadline=None, max_examples=20, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("suite"), derandomize=False, print_blob=True, max_examples=500)
NOT_RUN = "not run: "  # begins the reason of a test that this machine cannot run
LATER = ("equality", "nightly")  # markers of what runs with --nightly alone

pytest_plugins = ["blockwright.runtime.testing.pytest_plugin"]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("SSL_CERT_FILE", os.devnull)  # all that the system trusts, which aiohttp reads in each process
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's, for tiny tensors, of which several processes compute at once
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of interpreters are started: one compiles, the others read
sys.dont_write_bytecode = False
gc.disable()  # until all tests are collected: what they import stays
cap.limit()
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # a script that runs us in the background ignores Ctrl-C, as would every process that a test starts and ends with it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("blockwright")
    group.addoption("--nightly", action="store_true", help=f"also tests marked {' or '.join(LATER)}, and new examples")
    group.addoption("--seed", type=int, default=0, help="of tests marked nightly: the first of the seeds")
    group.addoption("--seeds", type=int, default=20_000, help="of tests marked nightly: how many seeds")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("nightly" if config.getoption("--nightly") else "suite")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that this machine could not run."""
    skipped = [r.nodeid for r in terminalreporter.stats.get("skipped", []) if f": {NOT_RUN}" in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests on several hosts were not run here: {', '.join(skipped)}")


def pytest_report_header() -> list[str]:
    return [f"capped: {cap.CAP}"] if cap.CAP else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Not by a marker expression in addopts: a ``-m`` of the command line would replace it."""
    if not config.getoption("--nightly"):
        later = {item for item in items if any(item.get_closest_marker(name) for name in LATER)}
        config.hook.pytest_deselected(items=[*later])
        items[:] = [item for item in items if item not in later]


def pytest_collection_finish() -> None:
    """All modules are imported and stay: no later collection of garbage walks the million objects of torch and others. Nor
    does one now, for a second in each process: hardly any of them are garbage."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``checkpoint(architecture="llama", seed=0, **config)``: the folder of a tiny checkpoint, made once per session."""
    from blockwright.tests.checkpoints import make_checkpoint

    made: dict[str, Path] = {}

    def get(architecture: str = "llama", seed: int = 0, **config: Any) -> Path:
        key = repr((architecture, seed, sorted(config.items())))
        if key not in made:
            made[key] = make_checkpoint(tmp_path_factory.mktemp(architecture), architecture, seed, **config)
        return made[key]

    return get
