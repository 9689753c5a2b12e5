"""The settings of launching: who starts workers beside those of the head's machine, and what each of them needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ...policies.cluster.launching import EXAMPLE, LaunchTemplate, TemplateError
from ...policies.cluster.worker_size import LEAST
from .autoscaling import AutoscaleSettings
from .errors import SettingsError
from .joining import JoinSettings
from .part import BYTES, COUNT, AllowedTexts, AtMost, SettingsPart, Texts
from .workers import MOST_THREADS, MOST_WORKERS, WorkerSettings

LOCAL = "local"
COMMAND = "command"
RAY = "ray"
WAIT = "wait"
_OF = {  # setting -> the launchers that heed it
    "launched_workers": (COMMAND, RAY, WAIT),
    "launch_command": (COMMAND,),
    "launch_hosts": (COMMAND,),
    "launch_cores": (COMMAND, RAY),
    "launch_memory": (COMMAND, RAY),
    "launch_devices": (COMMAND, RAY),
    "launch_labels": (COMMAND, RAY),
    "ray_address": (RAY,),
    "wish_file": (WAIT,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings(SettingsPart):
    """The launcher of further workers, how many always run, and what each needs."""

    launcher: Annotated[
        str,
        "who starts workers beyond workers: local (this machine), command (launch_command, such as ssh or srun), ray (a Ray "
        "cluster; pip install 'blockwright[ray]') or wait (an engine starts them; blockwright:workers_wanted says how many)",
        AllowedTexts(LOCAL, COMMAND, RAY, WAIT),
    ] = LOCAL
    launched_workers: Annotated[
        int, "workers beside those of this machine that always run, started by the launcher", COUNT, AtMost(MOST_WORKERS)
    ] = 0
    launch_command: Annotated[
        str,
        "with launcher=command, the command that starts a worker, such as 'ssh {host} blockwright worker --join -'; it gets "
        "the join text on standard input; {name}, {cores}, {bytes} and {devices} are filled in, too",
    ] = ""
    launch_hosts: Annotated[str, "the hosts for {host} in launch_command, separated by commas"] = ""
    launch_cores: Annotated[
        int, "kernel threads of each launched worker, {cores} and Ray's CPUs; 0: the cores of its machine", COUNT,
        AtMost(MOST_THREADS),
    ] = 0  # fmt: skip
    launch_memory: Annotated[
        int, "memory of each launched worker, {bytes} and Ray's memory; 0: memory, or its machine's share", COUNT, BYTES
    ] = 0
    launch_devices: Annotated[int, "cards of each launched worker: {devices} and Ray's GPUs", COUNT, AtMost(64)] = 0
    launch_labels: Annotated[Texts, "label: value of each launched worker, and of its Ray node"] = field(
        default_factory=dict
    )
    ray_address: Annotated[str, "with launcher=ray, the address of the Ray cluster; empty: the one of this machine"] = ""
    wish_file: Annotated[
        str, "with launcher=wait, a file for the number of workers that an engine should run, for its scripts"
    ] = ""

    @property
    def hosts(self) -> list[str]:
        """The hosts of launched workers."""
        return [part.strip() for part in self.launch_hosts.split(",") if part.strip()]

    @property
    def is_local(self) -> bool:
        """True if all workers are started on this machine."""
        return self.launcher == LOCAL

    @property
    def places(self) -> bool:
        """True if workers are started from here; else an engine starts them."""
        return self.launcher != WAIT

    @property
    def template(self) -> LaunchTemplate:
        """The command's template. Raises SettingsError."""
        try:
            template = LaunchTemplate(self.launch_command)
            template.check_hosts(self.hosts)
        except TemplateError as error:
            raise SettingsError(f"launch_command {error}") from None
        return template

    def check_together(self) -> None:
        for name, launchers in _OF.items():
            if getattr(self, name) and self.launcher not in launchers:
                raise SettingsError(
                    f"{name} is set, but launcher is {self.launcher}, which does not use it; choose "
                    f"launcher={' or '.join(launchers)}, or leave {name} out"
                )
        for name, value in self.launch_labels.items():
            if not value:
                raise SettingsError(f"launch_labels.{name} is empty; give a value, or leave the label out")
        if self.launcher == COMMAND:
            if not self.launch_command:
                raise SettingsError(f"launcher is {COMMAND}, but launch_command is empty; give one such as '{EXAMPLE}'")
            placeholders = self.template.placeholders
            if self.launch_devices and "devices" not in placeholders:
                raise SettingsError(
                    f"launch_devices is {self.launch_devices}, but launch_command has no {{devices}}; put {{devices}} where "
                    "the number goes, or leave launch_devices out"
                )
        if 0 < self.launch_memory < LEAST:
            raise SettingsError(
                f"launch_memory is {self.launch_memory}, which holds no model; give at least {LEAST} bytes, or 0"
            )

    def check_beside(self, joining: JoinSettings, worker: WorkerSettings, autoscaling: AutoscaleSettings) -> None:
        """Refuse launched workers that could not join, and a launcher that is asked for nothing."""
        if self.is_local:
            return
        if not joining.listen:
            raise SettingsError(
                f"launcher is {self.launcher}, but the head listens nowhere for its workers; give --listen tcp://HOST:PORT "
                "and --keys FOLDER"
            )
        scales, always = autoscaling.autoscale != "off", worker.workers + self.launched_workers
        if not scales and not self.launched_workers:
            raise SettingsError(
                f"launcher is {self.launcher}, but no worker is asked of it; give launched_workers, or autoscale"
            )
        if always > MOST_WORKERS:
            raise SettingsError(
                f"launched_workers is {self.launched_workers} beside {worker.workers} workers; give at most "
                f"{MOST_WORKERS - worker.workers}"
            )
        if scales and autoscaling.autoscale_max_workers < always:
            raise SettingsError(
                f"autoscale_max_workers is {autoscaling.autoscale_max_workers}, but {always} workers run always "
                f"(workers and launched_workers); give at least {always}"
            )
        worker.check_single("launcher", "adds single workers")
