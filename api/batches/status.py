"""The states of a batch in the words of OpenAI's API, which the store keeps too, and those of who runs it."""

from __future__ import annotations

from enum import StrEnum

from ...actors.batches.port import BatchEnding


class BatchStatus(StrEnum):
    """In the order in which they come."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


# Those that somebody has to work on.
OPEN = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)

LAST = {
    BatchEnding.COMPLETED: BatchStatus.COMPLETED,
    BatchEnding.CANCELLED: BatchStatus.CANCELLED,
    BatchEnding.EXPIRED: BatchStatus.EXPIRED,
}
# Of those that are open, and of which nothing more is computed; what the store has noted comes before it.
ENDING = {BatchStatus.CANCELLING: BatchEnding.CANCELLED, BatchStatus.FINALIZING: BatchEnding.COMPLETED}
