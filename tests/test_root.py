"""What ``import blockwright`` offers."""

import subprocess
import sys

import pytest

import blockwright
from blockwright.tests.claims import claim


def test_every_name_can_be_had() -> None:
    for name in blockwright.__all__:
        assert getattr(blockwright, name).__name__ == name
    assert set(blockwright.__all__) <= set(dir(blockwright))


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'Clustre'; it has .*Cluster"):
        blockwright.Clustre  # noqa: B018


@claim("`import blockwright` loads no launcher, and a server loads Ray in no process of ours but one", of="faults")
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("blockwright", ("blockwright.runtime.cluster", "ray")),
        ("blockwright.runtime", ("blockwright.runtime.cluster.command_launcher", "blockwright.runtime.cluster.ray", "ray")),
        ("blockwright.actors.worker_processes", ("blockwright.runtime.cluster.ray_driver", "ray")),
    ],
)
def test_no_launcher_is_loaded_before_it_is_asked_for(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith(absent)] == []
