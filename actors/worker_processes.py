"""Launcher of worker processes: they are forked from an interpreter that has already imported their modules.

Loads nothing until it is called: a keeper names the modules, and has no use for the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime.cluster.processes import ForkserverLauncher, KeptForkserver

WORKER_MODULES = ("blockwright.gpu.eager_torch", "blockwright.actors.worker.main")


def worker_launcher(directory: str, kept: KeptForkserver | None = None) -> ForkserverLauncher:
    """Return the launcher. ``directory`` is the sockets' folder, as in the settings; empty for a fresh one. ``kept``: the
    forkserver of a keeper; None: a fresh one."""
    from ..runtime.cluster.processes import ForkserverLauncher

    return ForkserverLauncher(Path(directory) if directory else None, preload=WORKER_MODULES, kept=kept)
