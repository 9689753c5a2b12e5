"""The exchange book: KV pages on their way from this worker to others, and from others to here.

What travels is named as the prefix index names it, by token hash and lineage, so that at its new worker it is cache like
any other. Here is who wants what and how far it is; ``migration.py`` has the protocol. Pages are sent from the last to the
first, in batches of which few are unanswered: whoever computes the sequence anew begins at the other end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..plain import Plain, from_plain, to_plain
from ..plan.sweep_plan import PageImport
from .page_events import Export, PageTarget

BATCH_BYTES = 4 << 20  # that travel together, or one page where that has more
WINDOW = 2  # whole batches to one worker that may be unanswered; of smaller ones as many as have the bytes of these
ExportKey = tuple[str, int]  # gateway, its number


@dataclass(slots=True)
class PageStream:
    """Pages of one export to one of its targets."""

    to: PageTarget
    left: int  # pages below may still have to be sent, the last first
    flying: int = 0  # batches that were sent and are not answered
    there: int = 0  # pages
    refused: int = 0  # pages
    nbytes: int = 0  # sent

    def send(self, left: int, nbytes: int) -> None:
        """One more batch leaves, or (no bytes) there was nothing to send, of the pages from ``left`` on."""
        self.left = left
        self.nbytes += nbytes
        self.flying += nbytes > 0

    def answer(self, there: int, refused: int) -> None:
        """A batch is answered."""
        self.flying -= 1
        self.there += there
        self.refused += refused

    def end(self, since: int) -> None:
        """Nothing more leaves."""
        self.left = since


@dataclass(slots=True)
class PageExport:
    """One export under way. ``missing``: pages that were not to be had here."""

    wanted: Export
    streams: list[PageStream]
    missing: int = 0
    reason: str = ""

    @property
    def busy(self) -> bool:
        """Whether anything is still to be sent, or to be answered."""
        return any(stream.flying or stream.left > self.wanted.since for stream in self.streams)

    def miss(self, pages: int) -> None:
        self.missing += pages

    def give_up(self, place: int) -> None:
        """The worker of a stream is out of reach."""
        stream = self.streams[place]
        stream.end(self.wanted.since)
        self.reason = f"worker {stream.to.worker} cannot be reached"


@dataclass(frozen=True, slots=True)
class PageBatch:
    """Pages that were sent together: of which export, to which of its targets, and their bytes."""

    key: ExportKey
    stream: int
    nbytes: int


@dataclass(slots=True)
class Landing:
    """A batch that came. Each of ``handles`` is held here until a plan has written it, and published then."""

    source: str
    batch: int
    account: str
    request: str
    there: int  # pages
    refused: int  # pages
    hashes: list[bytes]  # of each handle
    handles: list[int]

    def cut(self, pieces: Mapping[int, list[int]]) -> None:
        """Handles were split: handle -> those that it is now."""
        pairs = zip(self.hashes, self.handles, strict=True)
        parts = [(token_hash, piece) for token_hash, handle in pairs for piece in pieces.get(handle, [handle])]
        self.hashes, self.handles = [part[0] for part in parts], [part[1] for part in parts]


class ExchangeBook:
    """See the module."""

    def __init__(self) -> None:
        self._next = 1  # number of the next batch sent
        self.imported = False  # pages have come in this life
        self.exports: dict[ExportKey, PageExport] = {}  # in the order in which they were asked for
        self._batches: dict[int, PageBatch] = {}  # sent and not answered
        self._arrived: list[tuple[PageImport, Landing]] = []  # no plan writes them yet
        self._planned: dict[int, list[Landing]] = {}  # by the open plan that writes them

    def begin(self, incarnation: int) -> None:
        """Number batches from a base of this life: no answer to an earlier life means one of this."""
        self._next = (incarnation << 32) + 1

    # out -------------------------------------------------------------------------------------------------------------

    def open(self, wanted: Export) -> ExportKey:
        """An export begins."""
        key = wanted.gateway, wanted.number
        self.exports[key] = PageExport(wanted, [PageStream(target, len(wanted.hashes)) for target in wanted.to])
        return key

    def next(self) -> tuple[ExportKey, int] | None:
        """The stream that may send a batch now: of those whose worker has less than ``WINDOW`` unanswered that with the
        fewest pages to go (the shortest stall first). An answer takes a few sweeps, whatever the size of the batch."""
        flying: dict[str, tuple[int, int]] = {}
        for batch in self._batches.values():
            worker = self.exports[batch.key].streams[batch.stream].to.worker
            count, nbytes = flying.get(worker, (0, 0))
            flying[worker] = count + 1, nbytes + batch.nbytes
        full = {to for to, (count, nbytes) in flying.items() if count >= WINDOW and nbytes > (WINDOW - 1) * BATCH_BYTES}
        best: tuple[ExportKey, int] | None = None
        least = 0
        for key, export in self.exports.items():
            for place, stream in enumerate(export.streams):
                pages = stream.left - export.wanted.since
                if pages > 0 and stream.to.worker not in full and (best is None or pages < least):
                    best, least = (key, place), pages
        return best

    def send(self, key: ExportKey, place: int, left: int, missing: int, nbytes: int) -> int:
        """Pages of a stream from ``left`` on leave, but for those that are missing; the number of the batch."""
        export, number = self.exports[key], self._next
        export.miss(missing)
        export.streams[place].send(left, nbytes)
        if nbytes:
            self._next += 1
            self._batches[number] = PageBatch(key, place, nbytes)
        return number

    def answered(self, number: int, there: int, refused: int) -> tuple[ExportKey, int] | None:
        """The stream of a batch, which is unanswered no more; None where nobody waits for it."""
        batch = self._batches.pop(number, None)
        if batch is None:
            return None
        self.exports[batch.key].streams[batch.stream].answer(there, refused)
        return batch.key, batch.stream

    def give_up(self, key: ExportKey, place: int) -> None:
        """The worker of a stream is out of reach: nothing more goes there, and nothing is answered."""
        for number in [n for n, batch in self._batches.items() if (batch.key, batch.stream) == (key, place)]:
            self.answered(number, 0, 0)
        self.exports[key].give_up(place)

    def end(self, key: ExportKey) -> PageExport:
        """It is over, whatever is on its way."""
        self._batches = {number: batch for number, batch in self._batches.items() if batch.key != key}
        return self.exports.pop(key)

    # in --------------------------------------------------------------------------------------------------------------

    def arrive(self, pages: PageImport, landing: Landing) -> None:
        """The next plan writes these pages, or has the device forget what came."""
        self._arrived.append((pages, landing))

    def take(self, plan: int) -> list[PageImport]:
        """What came, for the plan that is being made."""
        arrived, self._arrived = self._arrived, []
        if arrived:
            self.imported = True
            self._planned[plan] = [landing for _, landing in arrived]
        return [pages for pages, _ in arrived]

    def landed(self, plan: int) -> list[Landing]:
        """The plan has run: what it has written."""
        return self._planned.pop(plan, [])

    def landings(self) -> list[Landing]:
        """All that are not written yet."""
        return [landing for _, landing in self._arrived] + [one for many in self._planned.values() for one in many]

    @property
    def landing(self) -> bool:
        """Whether pages are here that cannot be found yet."""
        return bool(self._arrived or self._planned)

    def cut(self, pieces: Mapping[int, list[int]]) -> None:
        """Handles were split: handle -> those that it is now."""
        for landing in self.landings():
            landing.cut(pieces)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> ExchangeBook:
        return ExchangeBook.restore(self.snapshot())

    def snapshot(self) -> dict[str, Plain]:
        return {
            "next": self._next,
            "imported": self.imported,
            "exports": to_plain(list(self.exports.values())),
            "batches": [[number, *to_plain(batch)[1:]] for number, batch in self._batches.items()],
            "arrived": [[to_plain(pages), to_plain(landing)] for pages, landing in self._arrived],
            "planned": [[plan, to_plain(landings)] for plan, landings in self._planned.items()],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> ExchangeBook:
        book = cls()
        book._next, book.imported = data["next"], data["imported"]
        exports = from_plain(list[PageExport], data["exports"])
        book.exports = {(export.wanted.gateway, export.wanted.number): export for export in exports}
        book._batches = {
            number: PageBatch((key[0], key[1]), stream, nbytes) for number, key, stream, nbytes in data["batches"]
        }
        book._arrived = [(from_plain(PageImport, p), from_plain(Landing, landing)) for p, landing in data["arrived"]]
        book._planned = {plan: from_plain(list[Landing], landings) for plan, landings in data["planned"]}
        return book

    def check(self) -> None:
        """Every unanswered batch is counted where it belongs."""
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
        for landing in self.landings():
            assert len(landing.hashes) == len(landing.handles), "a page that came has no hash"
