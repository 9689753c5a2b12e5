"""Device interface: what the executor obeys plans over. A device owns memory, tables, hidden states, pages and drawn tokens.

Its compute half is a back end (``gpu/backend.py``), which packs and composes. A device may only queue its orders and
return at once: whether a sweep has ended, and with which tokens, is known by its ticket alone. So the executor reads no
tensor and no token. One device for each worker, used by its device thread; any one thread may wait for a ticket.

Legend: N rows of a step, D hidden width.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..policies.model.chain import HiddenLayout, PageLayout
from ..policies.plan.sweep_plan import PageImport, SweepResult
from .backend import Backend
from .sweep_columns import Rows, SweepColumns
from .tables import Tables


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """The sizes that a device makes room for.

    ``rows`` is the number of table rows, ``max_length`` the tokens of a sequence, ``kv_layers`` the KV layers of the longest
    chain, ``max_tokens`` the tokens of a sweep. ``page_size`` is in tokens, ``budget`` (parameters and KV together) and
    ``chunk`` are in bytes. With ``protect`` (for tests), touching memory that is not committed faults, and memory that was
    just committed holds no numbers.
    """

    rows: int
    max_length: int
    kv_layers: int
    max_tokens: int
    page_size: int
    budget: int
    chunk: int
    protect: bool = False


class Arena(Protocol):
    """A reserved range of a device's memory, in chunks. ``policies/`` decides which chunk of the pool lies where.

    An arena whose memory the host can address inherits ``window`` and ``read``.
    """

    chunk: int  # bytes
    committed: int  # chunks in use
    memory: torch.Tensor  # uint8, the whole range; only what is committed may be touched

    def commit(self, first: int, ids: Sequence[int]) -> None:
        """Make the chunks from ``first`` on usable, backed by the pool's chunks ``ids``. What they hold is undefined."""

    def give_back(self, first: int, ids: Sequence[int]) -> None:
        """Take back the pool's chunks ``ids``, which lie from ``first`` on. Nothing that was queued may use them."""

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return the device's memory, uint8 [nbytes], from byte ``offset`` on, for back ends to point to."""

    @contextmanager
    def window(self, offset: int, nbytes: int) -> Iterator[torch.Tensor]:
        """Yield host memory, uint8 [nbytes], that is filled within the context and stands at byte ``offset`` after it.

        Every byte is to be written.
        """
        yield self.view(offset, nbytes)

    def read(self, offset: int, memory: NDArray[np.uint8]) -> None:
        """Copy the bytes from ``offset`` on into host memory, which they fill."""
        memory[:] = self.view(offset, memory.size).numpy()


class Pages(Protocol):
    """KV pages that leave a device, come to it or move on it, and hidden states that are kept as pages."""

    def layout(self, arena: str) -> PageLayout:
        """Return the layout of an arena. Raises ExecutorError for one that does not exist."""

    def size(self, arena: str, slots: int) -> int:
        """Return the bytes of this many slots. Raises ExecutorError for an arena that does not exist."""

    def export(self, groups: Sequence[tuple[str, Sequence[int]]], memory: Any) -> None:
        """Copy the slots of each group (arena, slots) into ``memory`` (writable, bytes-like). They fill it."""

    def move(self, arena: str, slots: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slots of an arena to other slots."""

    def put(self, number: int, pages: Any) -> None:
        """Accept pages from another worker (bytes-like). They are kept by reference until the plan that names ``number``."""

    def perform(self, imports: Sequence[PageImport]) -> None:
        """Write pages that arrived. Raises ExecutorError if they did not arrive or are too short."""


class CardBytes(Protocol):
    """Hidden states that leave, in a buffer of a card's memory. The buffer is lent as long as this object is held."""

    nbytes: int

    @property
    def address(self) -> int:
        """The address in the card's memory, for what copies from there."""

    def copy_to(self, memory: Any) -> None:
        """Copy the bytes to host memory (writable, bytes-like), which they fill. Any thread may."""


Outgoing = memoryview | CardBytes  # of a device whose memory the host can address: the bytes themselves


class Ticket(Protocol):
    """A sweep that was submitted."""

    @property
    def ready(self) -> bool:
        """True if ``wait`` returns at once."""

    def wait(self) -> SweepResult:
        """Return the sweep's result when it has ended. Tickets are waited for in the order of their sweeps."""

    @property
    def departed(self) -> Sequence[Outgoing]:
        """Each departure of the plan, rows in its order. They are complete once ``wait`` has returned."""


class Device(Protocol):
    """The device of one worker (see the module).

    Between ``begin`` and ``end`` a sweep is under way. Its calls come in this order: arrivals and pages read, steps with
    their draws, pages written and departures. ``at`` names batch rows, ``width`` the hidden states they have, and ``delta``
    the number of each row's deltas in the run; none: no row has any.
    """

    sizes: DeviceSizes
    tables: Tables  # of the host: what plans wrote; a device that draws by itself has drawn tokens in its own alone
    pages: Pages
    slice_bytes: int  # of parameters that are packed or copied in one step, between two sweeps

    @property
    def backend(self) -> Backend: ...

    def arena(self, name: str, nbytes: int) -> Arena:
        """Reserve a range of memory. Nothing is committed yet. Raises BackendError if the range cannot be reserved."""

    def add_layout(self, layout: PageLayout, arena: Arena) -> None:
        """Lay the slots of a layout into an arena."""

    def add_width(self, width: int) -> None:
        """Make room for hidden states of this width. Not called on the path of a sweep."""

    def grow(self, max_length: int, kv_layers: int) -> Generator[None, None, bool]:
        """Grow the tables step by step, as ``Tables.grow`` does. Afterwards runs have to be composed anew, if it says so."""

    def begin(self, columns: SweepColumns) -> None:
        """Begin a sweep: check its columns and perform its table edits. Its time counts from here."""

    def arrive(self, width: int, at: Rows, hidden: Any) -> None:
        """Set these rows' hidden states from bytes of another worker, which are read before ``wait`` returns."""

    def take_hidden(self, layout: HiddenLayout, column: int, at: Rows) -> None:
        """Read the hidden states of these rows from the slots that layer ``column`` of the tables names."""

    def put_hidden(self, layout: HiddenLayout, column: int, at: Rows) -> None:
        """Write the hidden states of these rows into the slots that layer ``column`` of the tables names."""

    def step(self, run: Any, width: int, at: Rows, delta: Sequence[int]) -> None:
        """Run a composed body over these rows."""

    def stitch(self, run: Any, width: int, out: int, at: Rows) -> None:
        """Compute hidden states of width ``out`` from these rows' hidden states with a composed stitch."""

    def sample(self, run: Any, width: int, at: Rows, delta: Sequence[int]) -> None:
        """Draw a token after the last position of each row with a composed head, and write it to the tables.

        Of rows that hold drafts one is drawn after each position, up to the first that is not the draft at its place.
        """

    def draft(self, run: Any, width: int, at: Rows, delta: Sequence[int], place: int) -> None:
        """Draw the draft at ``place`` of each row with a composed head, and write it to the tables.

        The draft of another model's row is written to its target's row, too.
        """

    def score(self, run: Any, width: int, at: Rows, delta: Sequence[int]) -> None:
        """Compute log-probabilities of the prompt tokens that follow each row's positions with a composed head."""

    def pool(self, run: Any, width: int, at: Rows) -> None:
        """Pool the states of these rows' positions behind a composed head without logits.

        Rows of the plan's ``sample`` give their vectors in place of tokens.
        """

    def depart(self, width: int, at: Rows) -> None:
        """Copy the hidden states of these rows for another worker: the next entry of the ticket's ``departed``."""

    def read(self, width: int, at: Rows) -> memoryview:
        """Return a copy of these rows' hidden states, as bytes. Only where the host can address them."""

    def likeness(self, run: Any, width: int, at: Rows, other: memoryview) -> list[float]:
        """Return the cosine of the vocabulary probabilities that a composed head gives each row and its other states.

        ``other`` is as ``read`` returned it; each row has one position.
        """

    def end(self) -> Ticket:
        """End the sweep, and return its ticket."""

    def enter(self) -> None:
        """Prepare the calling thread, which alone gives orders from now on."""

    def check(self) -> None:
        """Raise an error if the device has failed for good: nothing works on it any more, and its process must end."""

    def settle(self) -> None:
        """Wait until nothing reads or writes memory for earlier calls (``Backend.settle``)."""

    def progress(self) -> int:
        """Return a number that changes while a sweep runs. Any thread may ask."""
