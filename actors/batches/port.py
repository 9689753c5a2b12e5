"""What the runner of batches asks of files, store and lines, which are ``api/``'s. Values and protocols only.

A *batch* is a file of requests (lines, from 0) that are answered when there is room. It belongs to the store, not to a
gateway: whoever runs it may die at any moment, and another one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from ...policies.offline.feed import OfflineRequest
from ..gateway.port import GatewayPort


class BatchEnding(Enum):
    """Why nothing more of a batch is computed."""

    COMPLETED = auto()
    CANCELLED = auto()
    EXPIRED = auto()


class NotNow(Exception):
    """There is no room, or nobody to answer, at this moment: ask again after so many seconds. Nothing was computed."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """``account``: whose turn it is to run one; ``expires_at``: seconds of the epoch; ``ending``: its files are to be
    written, with what there is; None: it is to be run."""

    id: str
    account: str
    expires_at: float
    ending: BatchEnding | None = None


@dataclass(frozen=True, slots=True)
class LineJob:
    """A line that is to be answered: its number in the file, and what an order may know of it."""

    line: int
    request: OfflineRequest


@dataclass(frozen=True, slots=True)
class Answered:
    """A request has its answer, or its error, and the result is kept. ``output_tokens``: of all choices, 0 of an error;
    ``cached``: of the prompt."""

    output_tokens: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """The lines that can be answered, or were, by application; ``known``: new tokens of those that were, by line."""

    jobs: Mapping[str, Sequence[LineJob]] = field(default_factory=dict)
    known: Mapping[int, int] = field(default_factory=dict)


class BatchDesk(Protocol):
    """See the module. Every method but ``claim`` and ``resign`` may raise OSError: the disk is full, say. Then nothing has
    changed, and it may be asked again."""

    @property
    def port(self) -> GatewayPort: ...

    @property
    def figures(self) -> Mapping[str, dict[str, Any]]:
        """What was told last of each batch that runs in this process."""

    def claim(self) -> bool:
        """Whether this process is the one that runs batches, of all that share the store; it stays so until ``resign`` or
        its end."""

    def resign(self) -> None:
        """Another process may. Idempotent."""

    async def seen(self) -> list[OpenBatch]:
        """Those that somebody has to work on, in the order in which they were made. Expired files go."""

    async def load(self, batch: str) -> LoadedBatch | None:
        """Check the lines of a batch: those that are no requests get their errors. None: it has failed as a whole."""

    async def answer(self, batch: str, line: int, home: str, side: str, sent: Callable[[], None]) -> Answered:
        """Answer a line and store what came of it. Returns when both are done. Raises NotNow; leaving it ends it. ``sent``:
        called in the turn of the loop in which the gateway gets it."""

    async def write(self, batch: str, ending: BatchEnding) -> None:
        """Nothing more is computed: write the files, with what there is, and give the batch its last status. ``ending``:
        COMPLETED, EXPIRED, or CANCELLED; a cancel that came before is not undone."""

    async def tell(self, batch: str, figures: dict[str, Any]) -> None:
        """Show this of a batch under our own key."""

    def waits(self, reasons: Mapping[str, str]) -> None:
        """Show from now on, under our own key, that these batches wait, and why; the others do not. "": all."""

    def reason(self, batch: str) -> str:
        """Return why a batch waits, as far as this process knows; empty where it does not."""
