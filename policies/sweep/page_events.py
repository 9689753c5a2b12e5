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
