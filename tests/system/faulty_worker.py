"""A worker whose device hangs in one sweep, as a kernel that never returns does: once, when the marker file is there.

Run as a module it is the server itself (same arguments), with workers of this kind.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from blockwright.actors.worker import main as worker_main
from blockwright.actors.worker.messages import WorkerConfig
from blockwright.gpu.executor import Executor
from blockwright.policies.plans import SweepPlan, SweepResult
from blockwright.runtime import Node

HANG = "BLOCKWRIGHT_HANG"  # environment: the marker's path; whoever removes it hangs


async def start(node: Node, config: WorkerConfig) -> None:
    """Entry of the worker process."""
    execute = Executor.execute

    def hanging(self: Executor, plan: SweepPlan) -> SweepResult:
        try:
            Path(os.environ[HANG]).unlink()
        except FileNotFoundError:
            return execute(self, plan)
        threading.Event().wait()
        raise AssertionError("never returns")

    Executor.execute = hanging  # type: ignore[method-assign]
    await worker_main.start(node, config)


if __name__ == "__main__":
    from blockwright.actors import topology
    from blockwright.api.cli import main

    topology.WORKER = "blockwright.tests.system.faulty_worker:start"
    raise SystemExit(main())
