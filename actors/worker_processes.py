"""The launcher of worker processes: here they are forked from an interpreter that has already imported their modules, and
elsewhere they are started as the settings say.

Loads nothing until it is called: a keeper names the modules, and has no use for the rest.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime.cluster.launcher import Launcher
    from ..runtime.cluster.processes import ForkserverLauncher, KeptForkserver
    from .settings.launching import LaunchSettings
    from .settings.settings import Settings

WORKER_MODULES = ("blockwright.gpu.eager_torch", "blockwright.actors.worker.main")


def worker_launcher(directory: str, kept: KeptForkserver | None = None) -> ForkserverLauncher:
    """Return the launcher. ``directory`` is the sockets' folder, as in the settings; empty for a fresh one. ``kept``: the
    forkserver of a keeper; None: a fresh one."""
    from ..runtime.cluster.processes import ForkserverLauncher

    return ForkserverLauncher(Path(directory) if directory else None, preload=WORKER_MODULES, kept=kept)


def with_further(local: Launcher, settings: Settings) -> Launcher:
    """Return the launcher of all nodes. ``local``: of this machine's. Raises SettingsError."""
    from ..runtime.cluster.further_launcher import FurtherLauncher
    from ..runtime.cluster.launcher import Needs
    from .sizing import launched_names

    launching = settings.launching
    if launching.is_local:
        return local
    needs = Needs(
        cores=launching.launch_cores,
        bytes=launching.launch_memory,
        devices=launching.launch_devices,
        labels=launching.launch_labels,
    )
    return FurtherLauncher(local, _further(launching, local), launched_names(settings), needs)


def _further(launching: LaunchSettings, local: Launcher) -> Launcher:
    from ..runtime.cluster.command_launcher import CommandLauncher
    from ..runtime.cluster.ray_launcher import RayLauncher, has_ray
    from ..runtime.cluster.wait_launcher import WaitLauncher
    from .settings.errors import SettingsError
    from .settings.launching import COMMAND, RAY

    if launching.launcher == COMMAND:
        program = launching.template.program
        if program and shutil.which(program) is None:
            raise SettingsError(
                f"launch_command starts {program}, which is no program on this machine; install it, or give its path"
            )
        return CommandLauncher(launching.template, launching.hosts, local.holder)
    if launching.launcher == RAY:
        if not has_ray():
            raise SettingsError("launcher is ray, but the package ray is not installed here; pip install 'blockwright[ray]'")
        return RayLauncher(launching.ray_address, local.holder)
    file = Path(launching.wish_file).expanduser() if launching.wish_file else None
    if file is not None and not file.parent.is_dir():
        raise SettingsError(f"wish_file is {launching.wish_file}, but {file.parent} is no folder; name a file in a folder")
    if file is not None and file.is_dir():
        raise SettingsError(f"wish_file is {launching.wish_file}, which is a folder; name a file in it")
    return WaitLauncher(file, launching.launched_workers)
