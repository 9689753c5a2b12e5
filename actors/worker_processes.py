"""Launcher of worker processes: they are forked from an interpreter that has already imported their modules."""

from __future__ import annotations

from pathlib import Path

from ..runtime.cluster.processes import ForkserverLauncher


def worker_launcher(directory: str) -> ForkserverLauncher:
    """Return the launcher. ``directory`` is the sockets' folder, as in the settings; empty for a fresh one."""
    preload = ["blockwright.gpu.eager_torch", "blockwright.actors.worker.main"]
    return ForkserverLauncher(Path(directory) if directory else None, preload=preload)
