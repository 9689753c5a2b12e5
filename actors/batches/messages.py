"""Events that the state machine of batches takes and effects that it asks for. Values only; ids are batches'."""

from __future__ import annotations

from dataclasses import dataclass

from .port import BatchEnding, OpenBatch


@dataclass(frozen=True, slots=True)
class BatchesSeen:
    """All open batches of the store, in the order in which they were made."""

    batches: tuple[OpenBatch, ...]


@dataclass(frozen=True, slots=True)
class BatchChecked:
    """Its lines are checked, and what is left of them can run."""

    batch: str


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """Nothing of it runs or is left to do: all lines are answered, or it was stopped, or has failed as a whole."""

    batch: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class BatchWritten:
    """Its files are there, and it has its last status."""

    batch: str


@dataclass(frozen=True, slots=True)
class BatchStuck:
    """What was asked for could not be done now."""

    batch: str


BatchEvent = BatchesSeen | BatchChecked | BatchEnded | BatchWritten | BatchStuck


@dataclass(frozen=True, slots=True)
class LoadBatch:
    """Check its lines."""

    batch: str


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Answer its lines."""

    batch: str


@dataclass(frozen=True, slots=True)
class StopBatch:
    """End what runs of it, at the next sweep; ``BatchEnded`` follows."""

    batch: str


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Write its files with what there is."""

    batch: str
    ending: BatchEnding


BatchEffect = LoadBatch | RunBatch | StopBatch | WriteBatch
