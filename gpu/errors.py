"""Errors of this package. Standard library only.

GpuError
+-- CheckpointError   the caller's: the checkpoint cannot be served (one sentence: item, number, remedy)
+-- BackendError      the machine's: a back end is not available here, or was asked for something that it cannot do
+-- ExecutorError     ours: a plan or a call names something that does not exist; the worker and the device disagree
"""

from __future__ import annotations


class GpuError(Exception):
    """Base of this package's errors; never raised itself."""


class CheckpointError(GpuError, ValueError):
    """A checkpoint that cannot be served. The message is one sentence for the person who named it."""


class BackendError(GpuError):
    """A back end that cannot be opened or cannot hold what it is given."""


class ExecutorError(GpuError):
    """A plan or a call that does not fit what the executor holds."""
