"""Control groups limit what the machine gives."""

import psutil

from blockwright.actors.resources import cores, free_memory


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


def test_a_cpu_quota_limits_cores(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cores(tmp_path, own) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores(tmp_path, own) >= 1


def test_a_cpu_quota_of_version_one_limits_cores(tmp_path):
    own = tmp_path / "own"
    own.write_text("4:cpu,cpuacct:/x\n3:memory:/a\n")
    group = tmp_path / "cpu,cpuacct" / "x"
    group.mkdir(parents=True)
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    unlimited = cores(tmp_path, own)
    (group / "cpu.cfs_quota_us").write_text("90000\n")
    assert (cores(tmp_path, own), unlimited >= 1) == (1, True)
    (tmp_path / "cpu,cpuacct").rename(tmp_path / "cpu")
    assert cores(tmp_path, own) == 1
