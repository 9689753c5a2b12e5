"""Events and effects about KV pages that move between workers; a part of ``events.py``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageTarget:
    """A target of some KV layers: ``first`` to ``end - 1``, counted along the whole chain."""

    worker: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Export:
    """gateway -> worker: send full pages of a sequence, the last first. Answered by ``Exported`` in any case.

    ``hashes``: of all full pages of its tokens; pages from number ``since`` on are wanted. The sequence runs on meanwhile,
    or has left: then cached pages are sent.
    """

    gateway: str
    request: str
    attempt: int
    number: int  # unique at the gateway
    route: str
    account: str
    hashes: list[bytes]
    since: int
    to: list[PageTarget]


@dataclass(frozen=True, slots=True)
class HoldPages:
    """gateway -> worker: keep the full pages of a request, with these hashes, for its next attempt.

    They stay until an attempt has taken them here, until ``Unhold``, or for ``seconds``; only an older sequence that needs
    the memory ends that earlier. ``attempt`` ends here, if it is here. ``expects``: the pages of ``route`` that this
    worker lacks will come from others, and no younger sequence starts on the memory that they need.
    """

    gateway: str
    request: str
    attempt: int
    route: str  # planned, in force or not
    account: str
    priority: int
    arrival: float
    hashes: list[bytes]
    seconds: float
    expects: bool = False


@dataclass(frozen=True, slots=True)
class Unhold:
    """gateway -> worker: keep nothing for attempts after this one or an earlier one."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """KV layers of one layout, with the lineage of each."""

    arena: str
    slot_bytes: int
    layers: list[int]
    lineages: list[bytes]


@dataclass(frozen=True, slots=True)
class PagesArrived:
    """Pages from another worker; the device has their bytes under ``number``, which is unique at this worker.

    The bytes are ordered by group, within a group by page, and within a page by the group's layers. Answered by
    ``PagesTaken``.
    """

    source: str
    batch: int  # unique at the source
    number: int
    account: str
    request: str
    hashes: list[bytes]
    groups: list[LayerGroup]


@dataclass(frozen=True, slots=True)
class PagesTaken:
    """target -> source: the number of pages of a batch that are there now, written or known before.

    The refused ones had no room, or a lineage that the target does not compute.
    """

    target: str
    batch: int
    there: int
    refused: int


@dataclass(frozen=True, slots=True)
class PagesUnsent:
    """A batch whose target could not be reached."""

    batch: int


@dataclass(frozen=True, slots=True)
class SendPages:
    """Effect: copy slots out between two sweeps and send them to another worker, which gets a ``PagesArrived``.

    ``slots``: of each group, in the order of travel. They are not written until the batch is answered.
    """

    worker: str
    batch: int
    account: str
    request: str
    hashes: list[bytes]
    groups: list[LayerGroup]
    slots: list[list[int]]


@dataclass(frozen=True, slots=True)
class MoveSlots:
    """Effect: copy slots of an arena to others, after all open plans and before any later plan or ``SendPages``.

    The old slots are neither read nor written after that.
    """

    arena: str
    slots: list[int]
    targets: list[int]


@dataclass(frozen=True, slots=True)
class Exported:
    """Effect: report the end of an export.

    ``pages`` of the sequence are at all targets; ``refused`` were not taken by one. ``reason``: why not all wanted pages
    were sent, else empty.
    """

    gateway: str
    request: str
    number: int
    pages: int
    nbytes: int
    refused: int
    reason: str
