"""The exchange book: KV pages on their way from this worker to others, and from others to here.

What travels is named as the prefix index names it, by token hash and lineage, so that at its new worker it is cache like
any other. Here is who wants what and how far it is; ``migration.py`` has the protocol. Pages are sent from the last to the
first, in batches of which few are unanswered: whoever computes the sequence anew begins at the other end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blockwright.policies.plain import Plain, from_plain, to_plain
from blockwright.policies.plan.sweep_plan import PageImport
from blockwright.policies.sweep.events import Export, PageTarget

WINDOW = 2  # batches to one worker that may be unanswered
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


@dataclass(slots=True)
class PageExport:
    """One export under way. ``missing``: pages that were not to be had here."""

    wanted: Export
    streams: list[PageStream]
    missing: int = 0
    reason: str = ""


@dataclass(slots=True)
class PageBatch:
    """Pages that were sent together: of which export, to which of its targets."""

    key: ExportKey
    stream: int


@dataclass(slots=True)
class Landing:
    """A batch that came. Each of ``handles`` is held here until a plan has written it, and published then."""

    source: str
    batch: int
    account: str
    there: int  # pages
    refused: int  # pages
    hashes: list[bytes] = field(default_factory=list)  # of each handle
    handles: list[int] = field(default_factory=list)


class ExchangeBook:
    """See the module."""

    def __init__(self) -> None:
        self._next = 1  # number of the next batch sent
        self.exports: dict[ExportKey, PageExport] = {}  # in the order in which they were asked for
        self.batches: dict[int, PageBatch] = {}  # sent and not answered
        self._arrived: list[tuple[PageImport, Landing]] = []  # no plan writes them yet
        self._planned: dict[int, list[Landing]] = {}  # by the open plan that writes them

    def begin(self, incarnation: int) -> None:
        """Number batches from a base of this life: no answer to an earlier life means one of this."""
        self._next = (incarnation << 32) + 1

    # out -------------------------------------------------------------------------------------------------------------

    def next(self) -> tuple[ExportKey, int] | None:
        """The stream that may send a batch now: of those whose worker has fewer than ``WINDOW`` unanswered ones that with
        the fewest pages to go (the shortest stall first)."""
        flying: dict[str, int] = {}
        for batch in self.batches.values():
            worker = self.exports[batch.key].streams[batch.stream].to.worker
            flying[worker] = flying.get(worker, 0) + 1
        best: tuple[ExportKey, int] | None = None
        least = 0
        for key, export in self.exports.items():
            for place, stream in enumerate(export.streams):
                pages = stream.left - export.wanted.since
                if pages > 0 and flying.get(stream.to.worker, 0) < WINDOW and (best is None or pages < least):
                    best, least = (key, place), pages
        return best

    def send(self, key: ExportKey, stream: int) -> int:
        """A batch of this stream leaves; its number."""
        number, self._next = self._next, self._next + 1
        self.batches[number] = PageBatch(key, stream)
        self.exports[key].streams[stream].flying += 1
        return number

    def answered(self, number: int) -> tuple[ExportKey, PageStream] | None:
        """The stream of a batch, which is unanswered no more; None where nobody waits for it."""
        batch = self.batches.pop(number, None)
        if batch is None:
            return None
        stream = self.exports[batch.key].streams[batch.stream]
        stream.flying -= 1
        return batch.key, stream

    def end(self, key: ExportKey) -> PageExport:
        """It is over, whatever is on its way."""
        self.batches = {number: batch for number, batch in self.batches.items() if batch.key != key}
        return self.exports.pop(key)

    # in --------------------------------------------------------------------------------------------------------------

    def arrive(self, pages: PageImport, landing: Landing) -> None:
        """The next plan writes these pages, or has the device forget what came."""
        self._arrived.append((pages, landing))

    def take(self, plan: int) -> list[PageImport]:
        """What came, for the plan that is being made."""
        arrived, self._arrived = self._arrived, []
        if arrived:
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

    def cut(self, pieces: dict[int, list[int]]) -> None:
        """Handles were split: handle -> those that it is now."""
        for landing in self.landings():
            pairs = zip(landing.hashes, landing.handles, strict=True)
            parts = [(token_hash, piece) for token_hash, handle in pairs for piece in pieces.get(handle, [handle])]
            landing.hashes, landing.handles = [part[0] for part in parts], [part[1] for part in parts]

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> ExchangeBook:
        return ExchangeBook.restore(self.snapshot()) if self.exports or self.landing else self._empty()

    def _empty(self) -> ExchangeBook:
        copy = ExchangeBook()
        copy._next = self._next
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "next": self._next,
            "exports": to_plain(list(self.exports.values())),
            "batches": [[number, *to_plain(batch)[1:]] for number, batch in self.batches.items()],
            "arrived": [[to_plain(pages), to_plain(landing)] for pages, landing in self._arrived],
            "planned": [[plan, to_plain(landings)] for plan, landings in self._planned.items()],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> ExchangeBook:
        book = cls()
        book._next = data["next"]
        exports = from_plain(list[PageExport], data["exports"])
        book.exports = {(export.wanted.gateway, export.wanted.number): export for export in exports}
        book.batches = {number: PageBatch((key[0], key[1]), stream) for number, key, stream in data["batches"]}
        book._arrived = [(from_plain(PageImport, p), from_plain(Landing, landing)) for p, landing in data["arrived"]]
        book._planned = {plan: from_plain(list[Landing], landings) for plan, landings in data["planned"]}
        return book

    def check(self) -> None:
        """Every unanswered batch is counted where it belongs."""
        flying: dict[tuple[ExportKey, int], int] = {}
        for number, batch in self.batches.items():
            assert number < self._next, f"batch {number} is numbered beyond the next"
            place = batch.key, batch.stream
            flying[place] = flying.get(place, 0) + 1
        for key, export in self.exports.items():
            for at, stream in enumerate(export.streams):
                assert stream.flying == flying.pop((key, at), 0), f"batches of export {key} are counted wrongly"
            busy = any(stream.flying or stream.left > export.wanted.since for stream in export.streams)
            assert busy, f"export {key} is over and was not ended"
        assert not flying, "a batch is of no export"
        for landing in self.landings():
            assert len(landing.hashes) == len(landing.handles), "a page that came has no hash"
