"""Events and effects of the batches' state machine. Values only; ids are batch ids."""

from __future__ import annotations

from dataclasses import dataclass

from .port import BatchEnding, OpenBatch


@dataclass(frozen=True, slots=True)
class BatchesSeen:
    """All open batches of the store, in order of creation."""

    batches: tuple[OpenBatch, ...]


@dataclass(frozen=True, slots=True)
class BatchChecked:
    """A batch with checked lines; the remaining ones can run."""

    batch: str


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """A batch with nothing running or left to do: all lines are answered, it was stopped, or it failed as a whole."""

    batch: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class BatchWritten:
    """A batch with its files written and its final status."""

    batch: str


@dataclass(frozen=True, slots=True)
class BatchStuck:
    """A batch for which the last requested step could not be done now."""

    batch: str


BatchEvent = BatchesSeen | BatchChecked | BatchEnded | BatchWritten | BatchStuck


@dataclass(frozen=True, slots=True)
class LoadBatch:
    """Order to check a batch's lines."""

    batch: str


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Order to answer a batch's lines."""

    batch: str


@dataclass(frozen=True, slots=True)
class StopBatch:
    """Order to end a batch's running requests at the next sweep; ``BatchEnded`` follows."""

    batch: str


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Order to write a batch's files with the results so far."""

    batch: str
    ending: BatchEnding


BatchEffect = LoadBatch | RunBatch | StopBatch | WriteBatch
