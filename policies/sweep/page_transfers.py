"""The exchange book: KV pages in flight from this worker to others and from others to here.

Pages travel under their names in the prefix index, token hash and lineage, so that at the new worker they are cache like
any other. This file records the wishes and their progress; ``migration.py`` has the protocol. Pages are sent from the last
to the first, in batches of which few are unanswered: a worker that recomputes the sequence begins at the other end. Of
several sequences the pages that the fewest list go first; a shared prefix goes last (BlockLLM, 5.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..plain import Plain, from_plain, to_plain
from ..plan.sweep_plan import PageImport
from .page_events import Export, PageTarget

BATCH_BYTES = 4 << 20  # bytes that travel together, or one page if larger
WINDOW = 2  # full batches to one worker that may be unanswered; or smaller ones of the same bytes
ExportKey = tuple[str, int]  # (gateway, its number)


@dataclass(slots=True)
class PageStream:
    """The pages of one export to one of its targets."""

    to: PageTarget
    left: int  # pages below it are still to be sent, the last first
    flying: int = 0  # batches sent and not answered
    there: int = 0  # pages
    refused: int = 0  # pages
    nbytes: int = 0  # sent

    def send(self, left: int, nbytes: int) -> None:
        """Record a batch of the pages from ``left`` on; no bytes: there was nothing to send."""
        self.left = left
        self.nbytes += nbytes
        self.flying += nbytes > 0

    def answer(self, there: int, refused: int) -> None:
        """Record the answer to a batch."""
        self.flying -= 1
        self.there += there
        self.refused += refused

    def end(self, since: int) -> None:
        """Stop the stream: nothing more is sent."""
        self.left = since


@dataclass(slots=True)
class PageExport:
    """One export in progress. ``missing``: pages that were not available here."""

    wanted: Export
    streams: list[PageStream]
    missing: int = 0
    reason: str = ""

    @property
    def busy(self) -> bool:
        """True while anything is to be sent or answered."""
        return any(stream.flying or stream.left > self.wanted.since for stream in self.streams)

    def miss(self, pages: int) -> None:
        self.missing += pages

    def give_up(self, place: int) -> None:
        """Stop the stream to a worker that is unreachable."""
        stream = self.streams[place]
        stream.end(self.wanted.since)
        self.reason = f"worker {stream.to.worker} cannot be reached"


@dataclass(frozen=True, slots=True)
class PageBatch:
    """A batch of pages: its export, the target's place, and its bytes."""

    key: ExportKey
    stream: int
    nbytes: int


@dataclass(slots=True)
class ReceivedBatch:
    """A batch that arrived. Each of ``handles`` is held here until a plan has written it, and published then."""

    source: str
    batch: int
    account: str
    request: str
    there: int  # pages
    refused: int  # pages
    hashes: list[bytes]  # one for each handle
    handles: list[int]

    def cut(self, pieces: Mapping[int, list[int]]) -> None:
        """Replace handles that were split: handle -> its parts."""
        pairs = zip(self.hashes, self.handles, strict=True)
        parts = [(token_hash, piece) for token_hash, handle in pairs for piece in pieces.get(handle, [handle])]
        self.hashes, self.handles = [part[0] for part in parts], [part[1] for part in parts]


class PageTransfers:
    """The pages in flight at one worker (see the module)."""

    def __init__(self) -> None:
        self._next = 1  # number of the next batch
        self.imported = False  # True once pages have arrived in this life
        self.exports: dict[ExportKey, PageExport] = {}  # in the order of the requests
        self._batches: dict[int, PageBatch] = {}  # sent and not answered
        self._arrived: list[tuple[PageImport, ReceivedBatch]] = []  # arrivals that no plan writes yet
        self._planned: dict[int, list[ReceivedBatch]] = {}  # arrivals by the open plan that writes them

    def begin(self, incarnation: int) -> None:
        """Number batches from a base of this life, so that no answer to an earlier life matches one of this life."""
        self._next = (incarnation << 32) + 1

    # out -------------------------------------------------------------------------------------------------------------

    def open(self, wanted: Export) -> ExportKey:
        """Open an export; return its key."""
        key = wanted.gateway, wanted.number
        self.exports[key] = PageExport(wanted, [PageStream(target, len(wanted.hashes)) for target in wanted.to])
        return key

    def next(self, sharers: Callable[[ExportKey, int], int]) -> tuple[ExportKey, int] | None:
        """Return the stream that may send a batch now, or None.

        Among streams whose worker has less than ``WINDOW`` unanswered, it is the one whose next page the fewest sequences
        list: a shared page is of use here for longer. Among equals it has the fewest pages left (the shortest stall first).
        An answer takes a few sweeps, whatever the size of the batch. sharers: of a page of an export.
        """
        flying: dict[str, tuple[int, int]] = {}
        for batch in self._batches.values():
            worker = self.exports[batch.key].streams[batch.stream].to.worker
            count, nbytes = flying.get(worker, (0, 0))
            flying[worker] = count + 1, nbytes + batch.nbytes
        full = {to for to, (count, nbytes) in flying.items() if count >= WINDOW and nbytes > (WINDOW - 1) * BATCH_BYTES}
        ready = [
            (stream.left - export.wanted.since, key, place)
            for key, export in self.exports.items()
            for place, stream in enumerate(export.streams)
            if stream.left > export.wanted.since and stream.to.worker not in full
        ]
        if len(ready) < 2:
            return ready[0][1:] if ready else None
        orders = [(sharers(key, self.exports[key].streams[place].left - 1), pages) for pages, key, place in ready]
        return ready[orders.index(min(orders))][1:]

    def send(self, key: ExportKey, place: int, left: int, missing: int, nbytes: int) -> int:
        """Record that the pages of a stream from ``left`` on are sent, without missing ones; return the batch number."""
        export, number = self.exports[key], self._next
        export.miss(missing)
        export.streams[place].send(left, nbytes)
        if nbytes:
            self._next += 1
            self._batches[number] = PageBatch(key, place, nbytes)
        return number

    def answered(self, number: int, there: int, refused: int) -> tuple[ExportKey, int] | None:
        """Record a batch's answer; return its stream, or None if the batch is not expected any more."""
        batch = self._batches.pop(number, None)
        if batch is None:
            return None
        self.exports[batch.key].streams[batch.stream].answer(there, refused)
        return batch.key, batch.stream

    def give_up(self, key: ExportKey, place: int) -> None:
        """Stop the stream to an unreachable worker: nothing more is sent, and nothing will be answered."""
        for number in [n for n, batch in self._batches.items() if (batch.key, batch.stream) == (key, place)]:
            self.answered(number, 0, 0)
        self.exports[key].give_up(place)

    def end(self, key: ExportKey) -> PageExport:
        """End an export, whatever is in flight."""
        self._batches = {number: batch for number, batch in self._batches.items() if batch.key != key}
        return self.exports.pop(key)

    # in --------------------------------------------------------------------------------------------------------------

    def arrive(self, pages: PageImport, received: ReceivedBatch) -> None:
        """Record arrived pages: the next plan writes them, or has the device forget them."""
        self._arrived.append((pages, received))

    def take(self, plan: int) -> list[PageImport]:
        """Return the arrived pages for the plan being made."""
        arrived, self._arrived = self._arrived, []
        if arrived:
            self.imported = True
            self._planned[plan] = [received for _, received in arrived]
        return [pages for pages, _ in arrived]

    def written(self, plan: int) -> list[ReceivedBatch]:
        """Return what a plan has written, after it has run."""
        return self._planned.pop(plan, [])

    def received_batches(self) -> list[ReceivedBatch]:
        """Return all arrivals that are not written yet."""
        return [received for _, received in self._arrived] + [one for many in self._planned.values() for one in many]

    @property
    def receiving(self) -> bool:
        """True while pages are here that cannot be found yet."""
        return bool(self._arrived or self._planned)

    def cut(self, pieces: Mapping[int, list[int]]) -> None:
        """Replace handles that were split: handle -> its parts."""
        for received in self.received_batches():
            received.cut(pieces)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> PageTransfers:
        return PageTransfers.restore(self.snapshot())

    def snapshot(self) -> dict[str, Plain]:
        return {
            "next": self._next,
            "imported": self.imported,
            "exports": to_plain(list(self.exports.values())),
            "batches": [[number, *to_plain(batch)[1:]] for number, batch in self._batches.items()],
            "arrived": [[to_plain(pages), to_plain(received)] for pages, received in self._arrived],
            "planned": [[plan, to_plain(received_batches)] for plan, received_batches in self._planned.items()],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> PageTransfers:
        book = cls()
        book._next, book.imported = data["next"], data["imported"]
        exports = from_plain(list[PageExport], data["exports"])
        book.exports = {(export.wanted.gateway, export.wanted.number): export for export in exports}
        book._batches = {
            number: PageBatch((key[0], key[1]), stream, nbytes) for number, key, stream, nbytes in data["batches"]
        }
        book._arrived = [(from_plain(PageImport, p), from_plain(ReceivedBatch, received)) for p, received in data["arrived"]]
        book._planned = {
            plan: from_plain(list[ReceivedBatch], received_batches) for plan, received_batches in data["planned"]
        }
        return book

    def check(self) -> None:
        """Raise AssertionError unless every unanswered batch is counted where it belongs."""
        flying: dict[tuple[ExportKey, int], int] = {}
        for number, batch in self._batches.items():
            assert number < self._next, f"batch {number} is numbered beyond the next"
            place = batch.key, batch.stream
            flying[place] = flying.get(place, 0) + 1
        for key, export in self.exports.items():
            for at, stream in enumerate(export.streams):
                assert stream.flying == flying.pop((key, at), 0), f"batches of export {key} are counted wrongly"
            assert export.busy, f"export {key} is over and was not ended"
        assert not flying, "a batch is of no export"
        for received in self.received_batches():
            assert len(received.hashes) == len(received.handles), "a page that came has no hash"
