"""Tests on several hosts. Where this user may make no network namespaces, each runs in a user namespace in which it may.

Where that is forbidden, too, the tests count as not run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from blockwright.tests.hosts.network import Hosts
from blockwright.tests.system.conftest import logs_root, model, pace
from blockwright.tests.system.event_logs import pytest_runtest_makereport

__all__ = ["logs_root", "model", "pace", "pytest_runtest_makereport"]  # pytest finds them here
INSIDE = ("unshare", "--user", "--map-root-user", "--net")


@cache
def refusal(*within: str) -> str:
    """Why hosts cannot be made in a process that these words start; "" if they can."""
    program = "from blockwright.tests.hosts.network import Hosts; Hosts('a').close()"
    try:
        tried = subprocess.run([*within, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return "" if tried.returncode == 0 else tried.stderr.strip().rpartition("\n")[2] or f"code {tried.returncode}"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test of this folder in a user namespace if it cannot run here."""
    if Path(__file__).parent not in pyfuncitem.path.parents or not refusal():
        return None
    if why := refusal(*INSIDE):
        pytest.skip(f"not run: {why}")
    later = ["--nightly"] if pyfuncitem.config.getoption("--nightly") else []
    command = [*INSIDE, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *later, pyfuncitem.nodeid]
    done = subprocess.run(command, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return True


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts | None]:
    """Three hosts; the tests of a module are at "a". None where the tests themselves run elsewhere."""
    if refusal():
        yield None
        return
    made = Hosts("a", "b", "c")
    with made.at("a"):
        yield made
    made.close()
