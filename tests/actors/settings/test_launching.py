"""The settings of launching: what is refused, and what becomes of the names and shares of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.sizing import launched_names, size_rules, worker_names, workers_here
from blockwright.actors.worker_processes import with_further
from blockwright.runtime.cluster import ray_launcher
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.tests.claims import claim

COMMAND = {"launcher": "command", "launch_command": "ssh {host} blockwright worker --join -", "launch_hosts": "a, b"}
ALWAYS = {**COMMAND, "launched_workers": 2}
SCALED = {"autoscale": "relief", "autoscale_latency": 5.0}
HERE = {"launch_command": "sh {host} blockwright worker --join -"}
LISTEN = {"listen": "tcp://127.0.0.1:0", "head_keys": "keys"}


def settings(**values: Any) -> Settings:
    return Settings(**{"applications": {"m": "x"}, **LISTEN, **values})


@claim("A launch command that cannot be used is refused with a sentence", of="serving")
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"launcher": "slurm"}, "launcher is 'slurm'; choose one of local, command, ray, wait"),
        (
            {"launch_hosts": "a"},
            "launch_hosts is set, but launcher is local, which does not use it; choose",
        ),
        ({"launched_workers": 2}, "is local, which does not use it; choose launcher=command or ray or wait, or leave"),
        ({"launcher": "wait", "launch_cores": 2}, "launch_cores is set, but launcher is wait, which does not use it"),
        (
            {**COMMAND, "wish_file": "x"},
            "is command, which does not use it; choose launcher=wait",
        ),
        ({"launcher": "command"}, "launcher is command, but launch_command is empty; give one such as 'ssh {host}"),
        ({**COMMAND, "launch_hosts": ""}, "launch_command has {host}, but there are no hosts; name them in launch_hosts"),
        ({**COMMAND, "launch_command": "srun x"}, "launch_command has no {host}, but there are hosts (a, b)"),
        ({**COMMAND, "launch_command": "ssh {hots}"}, "launch_command has the placeholder {hots}, which there is not"),
        (COMMAND, "launcher is command, but no worker is asked of it; give launched_workers, or autoscale"),
        (
            {**ALWAYS, "listen": "", "head_keys": ""},
            "launcher is command, but the head listens nowhere for its workers",
        ),
        ({**ALWAYS, "launched_workers": 4096}, "launched_workers is 4096 beside 1 workers; give at most 4095"),
        ({**ALWAYS, **SCALED, "autoscale_max_workers": 2}, "autoscale_max_workers is 2, but 3 workers run always"),
        (
            {**ALWAYS, "workers": 2, "pipeline": 2},
            "pipeline is 2, but launcher adds single workers; give 1, or",
        ),
        ({**ALWAYS, "launch_labels": {"zone": ""}}, "launch_labels.zone is empty; give a value, or leave the label out"),
        ({**ALWAYS, "launch_memory": -1}, "launch_memory is -1; give 0 or more"),
        ({**ALWAYS, "launch_memory": 1024}, "launch_memory is 1024, which holds no model; give at least 131072 bytes, or 0"),
        ({**ALWAYS, "launch_devices": 3}, "launch_devices is 3, but launch_command has no {devices}; put {devices} where"),
    ],
)
def test_what_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(**values)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("values", "names", "here"),
    [
        ({}, ["w0"], 1),
        (ALWAYS, ["w0", "w1", "w2"], 1),
        ({**COMMAND, **SCALED, "workers": 2, "autoscale_max_workers": 4}, ["w0", "w1", "w2", "w3"], 2),
        ({"launcher": "wait", "launched_workers": 3}, ["w0"], 1),
        ({**SCALED, "autoscale_max_workers": 3}, ["w0", "w1", "w2"], 3),
    ],
)
def test_only_workers_of_this_machine_share_it(values: dict[str, Any], names: list[str], here: int) -> None:
    made = settings(**values)
    assert (worker_names(made), workers_here(made), launched_names(made)) == (
        names,
        here,
        [] if here == len(names) else names[here:],
    )
    assert size_rules(made, {}).workers == here
    assert made.autoscaling.rules(1, 1 + made.launching.launched_workers).most >= len(names) - 1


def test_no_launcher_is_made_but_the_one_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = InProcessLauncher()
    assert with_further(local, settings()) is local
    launcher = with_further(local, settings(**ALWAYS | HERE))
    assert (launcher.places, [launcher.joins(name) for name in ("w0", "w1", "g1")]) == (True, [False, True, False])
    waiting = with_further(local, settings(launcher="wait", launched_workers=2, wish_file=str(tmp_path / "wish")))
    assert (waiting.places, waiting.joins("w1")) == (False, False)
    with pytest.raises(SettingsError, match="launch_command starts no-such-program, which is no program on this machine"):
        with_further(local, settings(**ALWAYS | {"launch_command": "no-such-program {host}"}))
    assert with_further(local, settings(**ALWAYS | {"launch_command": "/run/{host}/start"})).places, "known at each start"
    monkeypatch.setattr(ray_launcher, "has_ray", lambda: False)
    with pytest.raises(SettingsError, match=r"the package ray is not installed here; pip install 'blockwright\[ray\]'"):
        with_further(local, settings(launcher="ray", launched_workers=2))
    monkeypatch.setattr(ray_launcher, "has_ray", lambda: True)
    launcher = with_further(local, settings(launcher="ray", launched_workers=2))
    assert (launcher.places, launcher.joins("w2")) == (True, True)
    with pytest.raises(SettingsError, match=r"wish_file is .*, but .*/absent is no folder; name a file in a folder"):
        with_further(local, settings(launcher="wait", launched_workers=2, wish_file=str(tmp_path / "absent" / "wish")))
    with pytest.raises(SettingsError, match=r"wish_file is .*, which is a folder; name a file in it"):
        with_further(local, settings(launcher="wait", launched_workers=2, wish_file=str(tmp_path)))
