"""The launcher that waits: an engine (Kubernetes, Slurm, systemd) starts workers by itself, and only learns how many.

The wish is in ``ps``, in the admin view of the cluster and in the metric ``blockwright:workers_wanted``, which an engine's
scaler follows; this launcher also writes it into a file, if one is named, for a script that has no HTTP. Has no rights on
any engine.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ...transport.address import PeerId
from ...transport.curve import NodeKeys
from ...transport.interface import Transport
from ...transport.sockets import SocketTransport
from .launcher import Launcher, LaunchError, NodeSpec, OnExit


class WaitLauncher(Launcher):
    """See the module. file: for the number of workers, or None. workers: number that should run from the start."""

    directory = ""

    def __init__(self, file: Path | None = None, workers: int = 0) -> None:
        self._file, self._workers = file, workers

    async def start(self, on_exit: OnExit) -> None:
        """Write the first wish. Raises OSError where the file cannot be written."""
        self._write(self._workers)

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        return SocketTransport(head, listen, keys)

    @property
    def places(self) -> bool:
        return False

    async def spawn(self, spec: NodeSpec) -> int:
        raise LaunchError(f"node {spec.id} is not started: an engine starts workers here (launcher=wait)")

    def kill(self, node: PeerId) -> None:
        """Do nothing: there are no processes here."""

    def list(self) -> dict[PeerId, int]:
        return {}

    async def stop(self) -> None:
        """Leave the file as it is: the next head follows it."""

    def wish(self, workers: int, why: str) -> None:
        self._workers = workers
        with contextlib.suppress(OSError):  # a full disk ends no head, and the wish is elsewhere, too
            self._write(workers)

    def _write(self, workers: int) -> None:
        """Write the wish so that a reader sees the old or the new number."""
        if self._file is not None:
            whole = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            whole.write_text(f"{workers}\n")
            whole.replace(self._file)
