"""The states of a batch in the words of OpenAI's API, which the store uses, too, and their mapping to the runner's."""

from __future__ import annotations

from enum import StrEnum

from ...actors.batches.port import BatchEnding


class BatchStatus(StrEnum):
    """The states, in their order."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


# States of batches with work left.
OPEN = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)

LAST = {
    BatchEnding.COMPLETED: BatchStatus.COMPLETED,
    BatchEnding.CANCELLED: BatchStatus.CANCELLED,
    BatchEnding.EXPIRED: BatchStatus.EXPIRED,
}
# The endings of open batches whose computation is over; an ending that the store has recorded takes precedence.
ENDING = {BatchStatus.CANCELLING: BatchEnding.CANCELLED, BatchStatus.FINALIZING: BatchEnding.COMPLETED}
