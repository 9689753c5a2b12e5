"""Control groups limit what the machine gives."""

import os
import resource
import subprocess
import sys

import psutil
import pytest

from blockwright.actors.resources import address_space, cores, free_memory
from blockwright.tests.claims import claim


@claim("The default numbers of threads and bytes respect quotas, affinity and control groups", of="serving")
def test_a_group_limits_memory_and_its_cache_counts_as_free(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/memory.max").write_text("1000000\n")
    (tmp_path / "a/memory.current").write_text("700000\n")
    (tmp_path / "a/memory.stat").write_text("anon 5\ninactive_file 50000\n")
    (tmp_path / "a/b/memory.max").write_text("max\n")
    assert free_memory(tmp_path, own) == 350_000


def test_version_one_groups_are_read_too(tmp_path):
    own = tmp_path / "own"
    own.write_text("5:cpu:/x\n4:memory:/a\n")
    (tmp_path / "memory/a").mkdir(parents=True)
    (tmp_path / "memory/a/memory.limit_in_bytes").write_text("500000\n")
    (tmp_path / "memory/a/memory.usage_in_bytes").write_text("600000\n")
    assert free_memory(tmp_path, own) == 0, "over the limit is no negative number"


def test_without_groups_the_machine_decides(tmp_path):
    total = psutil.virtual_memory().total
    assert 0 < free_memory(tmp_path, tmp_path / "none") <= total


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


QUOTAS = [("50000", 1), ("100000", 1), ("150000", 1), ("199999", 1), ("250000", 2), ("800000", 8), ("6400000", 8)]


@pytest.mark.parametrize(("quota", "expected"), [*QUOTAS, ("max", 8)])
def test_whole_cores_of_a_quota_count(tmp_path, eight_cores, quota, expected):
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/cpu.max").write_text("max 100000\n")
    (tmp_path / "a/cpu.max").write_text(f"{quota} 100000\n")
    assert cores(tmp_path, own) == expected


@pytest.mark.parametrize("mounted", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize(("quota", "expected"), [*QUOTAS, ("-1", 8)])
def test_whole_cores_of_a_quota_of_version_one_count(tmp_path, eight_cores, quota, expected, mounted):
    own = tmp_path / "own"
    own.write_text("4:cpu,cpuacct:/x\n3:memory:/a\n")
    group = tmp_path / mounted / "x"
    group.mkdir(parents=True)
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    assert cores(tmp_path, own) == expected


@claim("The default numbers of threads and bytes respect quotas, affinity and control groups", of="serving")
def test_a_quota_and_an_affinity_limit_together(tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert cores(tmp_path, own) == 2


def limited(command, program):
    """What the program prints in a process that the shell has limited."""
    return subprocess.run(
        [*command, sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_affinity_of_the_process_counts():
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    assert limited([], one + "from blockwright.actors.resources import cores; print(cores())") == "1"


@pytest.mark.parametrize(("limit", "expected"), [("-v 4000000", "4096000000"), ("-d 3000000", "3072000000")])
def test_the_address_space_is_what_the_shell_left(limit, expected):
    show = "from blockwright.actors.resources import address_space; print(address_space())"
    assert limited(["sh", "-c", f'ulimit {limit}; exec "$@"', "sh"], show) == expected


def test_without_a_limit_the_address_space_has_none(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert address_space() is None
