"""What is said of KV pages that move between workers: part of the alphabet of ``events.py``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageTarget:
    """Where the pages of some KV layers go: ``first`` .. ``end - 1``, counted along the whole chain."""

    worker: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Export:
    """gateway -> worker: send full pages of a sequence, the last first. Answered by ``Exported``, whatever comes of it.

    ``hashes``: of all full pages of its tokens; those from number ``since`` on are wanted. The sequence goes on meanwhile,
    or has left: then what is cached is sent.
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
    """gateway -> worker: keep the full pages of a request, whose hashes these are, for its next attempt.

    They stay until an attempt has taken them here, until ``Unhold``, or for so many ``seconds``; only an older sequence that
    needs the memory has them given up before. ``attempt`` ends here, if it is here. ``expects``: the pages of ``route`` that
    this worker lacks will come from others, and no younger sequence starts on the memory that they need.
    """

    gateway: str
    request: str
    attempt: int
    route: str  # planned, whether it is in force or not
    account: str
    priority: int
    arrival: float
    hashes: list[bytes]
    seconds: float
    expects: bool = False


@dataclass(frozen=True, slots=True)
class Unhold:
    """gateway -> worker: nothing is to be kept for an attempt after this one, or an earlier one."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """KV layers of one layout: which, and the lineage of each."""

    arena: str
    slot_bytes: int
    layers: list[int]
    lineages: list[bytes]


@dataclass(frozen=True, slots=True)
class PagesArrived:
    """Pages of another worker, in bytes that the device has under ``number``, which is unique at this worker: group by
    group, in a group page by page, of each page the slots of the group's layers. Answered by ``PagesTaken``."""

    source: str
    batch: int  # unique at the source
    number: int
    account: str
    request: str
    hashes: list[bytes]
    groups: list[LayerGroup]


@dataclass(frozen=True, slots=True)
class PagesTaken:
    """target -> source: so many pages of a batch are there now, written or known before; the others had no room, or a
    lineage that the target does not compute."""

    target: str
    batch: int
    there: int
    refused: int


@dataclass(frozen=True, slots=True)
class PagesUnsent:
    """The target of a batch could not be reached."""

    batch: int


@dataclass(frozen=True, slots=True)
class SendPages:
    """Effect: copy slots out between two sweeps, and send them to another worker, where they are a ``PagesArrived``.

    ``slots``: of each group, in the order in which they travel. They stay as they are until the batch is answered.
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
    """Effect: copy slots of an arena to others, after all open plans, before any later plan or ``SendPages``. Nobody reads
    or writes the old ones after that."""

    arena: str
    slots: list[int]
    targets: list[int]


@dataclass(frozen=True, slots=True)
class Exported:
    """Effect: an export is over. ``pages`` of the sequence are at all targets, ``refused`` were not taken by one;
    ``reason``: why not all that were wanted were sent, else empty."""

    gateway: str
    request: str
    number: int
    pages: int
    nbytes: int
    refused: int
    reason: str
