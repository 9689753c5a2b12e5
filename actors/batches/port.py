"""Port of the batch runner: the interface to files, store and lines, which ``api/`` implements. Values and protocols only.

A *batch* is a file of requests (lines, from 0) that are answered when there is capacity. It belongs to the store, not to a
gateway: the process that runs it may die at any moment, and another one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from ...policies.offline.feed import OfflineRequest
from ..gateway.port import GatewayPort


class BatchEnding(Enum):
    """The reason why no more of a batch is computed."""

    COMPLETED = auto()
    CANCELLED = auto()
    EXPIRED = auto()


class RetryLater(Exception):
    """There is no capacity now, or no worker to answer. Retry after ``retry_after`` seconds. Nothing was computed."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch that is not final yet.

    ``account`` is the account that the batch's turn counts for. ``expires_at`` is in seconds of the epoch. ``ending`` None
    means that the batch is to be run; otherwise its files are to be written with the results so far.
    """

    id: str
    account: str
    expires_at: float
    ending: BatchEnding | None = None


@dataclass(frozen=True, slots=True)
class LineJob:
    """A line to be answered: its number in the file, and what the order of the job may depend on."""

    line: int
    request: OfflineRequest


@dataclass(frozen=True, slots=True)
class Answered:
    """A request with its answer or error stored.

    ``output_tokens`` counts all choices, and is 0 for an error. ``cached`` counts prompt tokens.
    """

    output_tokens: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """The lines of a batch that can be answered, or were, by application.

    ``known`` has the number of new tokens of each answered line.
    """

    jobs: Mapping[str, Sequence[LineJob]] = field(default_factory=dict)
    known: Mapping[int, int] = field(default_factory=dict)


class BatchService(Protocol):
    """The store as the batch runner sees it (see the module).

    Every method but ``claim`` and ``resign`` may raise OSError, for instance if the disk is full. Nothing has changed then,
    and the call may be repeated.
    """

    @property
    def port(self) -> GatewayPort: ...

    @property
    def figures(self) -> Mapping[str, dict[str, Any]]:
        """The last figures stored for each batch that runs in this process."""

    def claim(self) -> bool:
        """Try to become the one process that runs batches, among all that share the store. Return whether it is.

        The claim lasts until ``resign`` or the end of the process.
        """

    def resign(self) -> None:
        """Let another process run batches. Idempotent."""

    async def seen(self) -> list[OpenBatch]:
        """Return the batches that need work, in order of creation. Delete expired files."""

    async def load(self, batch: str) -> LoadedBatch | None:
        """Check the lines of a batch and store the errors of invalid ones. Return None if it failed as a whole."""

    async def answer(self, batch: str, line: int, home: str, side: str, sent: Callable[[], None]) -> Answered:
        """Answer a line and store its result. Return when both are done.

        Raises RetryLater. Cancelling the call ends the request. ``sent`` is called in the turn of the loop in which the
        gateway receives the request.
        """

    async def write(self, batch: str, ending: BatchEnding) -> None:
        """Write the files with the results so far, and give the batch its final status. Nothing more is computed.

        ``ending`` is COMPLETED, EXPIRED or CANCELLED. An earlier cancel is not undone.
        """

    async def record_figures(self, batch: str, figures: dict[str, Any]) -> None:
        """Show these figures of a batch under our own key."""

    def waits(self, reasons: Mapping[str, str]) -> None:
        """Show under our own key, from now on, why these batches wait, and that the others do not. The key "" means all."""

    def reason(self, batch: str) -> str:
        """Return why a batch waits, as far as this process knows; empty where it does not."""
