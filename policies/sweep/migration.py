"""KV migration: pages of sequences move between workers, sent from here and imported here.

A gateway asks for the full pages of a sequence (``Export``), which runs on meanwhile. They are copied out between two
sweeps and sent from the last to the first. A target imports the pages that it lacks, if memory is free or holds older
cache, and if its routes compute them in exactly the same way. It publishes them, so that an attempt that starts there
finds them by the ordinary look-up. An outgoing page is not pinned: the device copies it before any later plan, and so
before anything is written there. Pages of a paused request are kept until it comes (``pinning.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..memory.cache_news import MarkPages
from ..model.runs import Span
from ..plan.sweep_plan import ImportGroup, PageImport
from .columns import Status
from .page_events import (
    Export,
    Exported,
    LayerGroup,
    PagesArrived,
    PagesTaken,
    PagesUnsent,
    SendPages,
)
from .page_transfers import BATCH_BYTES, ExportKey, PageExport, PageStream, ReceivedBatch
from .parts import Parts
from .pinning import Pinning

Layer = tuple[int, bytes, str, int]  # KV layer, lineage, arena, slot


class Migration:
    """The migration procedures of one worker (see the module). Owns nothing itself."""

    def __init__(self, parts: Parts, holding: Pinning) -> None:
        self._parts, self._pinning = parts, holding

    # out -------------------------------------------------------------------------------------------------------------

    def export(self, event: Export) -> None:
        """Start to send the available pages of a sequence."""
        key = self._parts.page_transfers.open(event)
        if self._parts.memory.pages.redundant:
            self._read(key)
        self._pump()
        self._settle(key)

    def _read(self, key: ExportKey) -> None:
        """End the marks of redundant pages that an export reads."""
        export = self._parts.page_transfers.exports[key]
        for page in range(export.wanted.since, len(export.wanted.hashes)):
            for handle in self._handles(export, page):
                self._parts.memory.pages.unmark(handle)

    def mark(self, event: MarkPages) -> None:
        """Mark redundant pages, or end marks. Pages that are in use or that an export reads are not marked."""
        pages, exports = self._parts.memory.pages, self._parts.page_transfers.exports.values()
        read = {token_hash for export in exports for token_hash in export.wanted.hashes[export.wanted.since :]}
        for key in event.redundant:
            handle = pages.find_key(key)
            if handle is not None and handle in pages.idle and key[0] not in read:
                pages.mark(handle)
        for key in event.kept:
            if (handle := pages.find_key(key)) is not None:
                pages.unmark(handle)

    def taken(self, event: PagesTaken) -> None:
        """Handle a target's answer to a batch."""
        if (found := self._parts.page_transfers.answered(event.batch, event.there, event.refused)) is not None:
            self._pump()
            self._settle(found[0])

    def unsent(self, event: PagesUnsent) -> None:
        """Handle a batch whose target is unreachable."""
        if (found := self._parts.page_transfers.answered(event.batch, 0, 0)) is not None:
            self._parts.page_transfers.give_up(*found)
            self._settle(found[0])

    def lost(self, worker: str) -> None:
        """Handle the death of a node: nothing more is sent there, or for a gateway there.

        A batch that arrived whole from it is as good as any.
        """
        book = self._parts.page_transfers
        for key, export in list(book.exports.items()):
            if export.wanted.gateway.partition("/")[0] == worker:
                book.end(key)
                continue
            for place, stream in enumerate(export.streams):
                if stream.to.worker == worker:
                    book.give_up(key, place)
            self._settle(key)
        self._pump()

    def _pump(self) -> None:
        while (found := self._parts.page_transfers.next(self._sharers)) is not None:
            self._send(*found)
            self._settle(found[0])

    def _sharers(self, key: ExportKey, page: int) -> int:
        """Return the number of sequences that list a page of an export; 1 for a cached one."""
        pages = self._parts.memory.pages
        handles = self._handles(self._parts.page_transfers.exports[key], page)
        return max([pages.references(handle) for handle in handles], default=1) or 1

    def _settle(self, key: ExportKey) -> None:
        """Report to the gateway when nothing is left to be sent or answered."""
        book = self._parts.page_transfers
        if key not in book.exports or book.exports[key].busy:
            return
        export = book.end(key)
        wanted, streams = export.wanted, export.streams
        reason = export.reason or (f"{export.missing} pages were not there" if export.missing else "")
        there = min((stream.there for stream in streams), default=0)
        nbytes, refused = sum(stream.nbytes for stream in streams), sum(stream.refused for stream in streams)
        done = Exported(wanted.gateway, wanted.request, wanted.number, there, nbytes, refused, reason)
        self._parts.outgoing.emit(done)
        self._pinning.exported(wanted.request, wanted.attempt, wanted.to)

    def _send(self, key: ExportKey, place: int) -> None:
        """Send the next batch of a stream, if any of its pages is here."""
        pages, outgoing = self._parts.memory.pages, self._parts.outgoing
        export = self._parts.page_transfers.exports[key]
        wanted, stream = export.wanted, export.streams[place]
        left = stream.left
        missing = 0
        size = 0
        page_bytes = 0
        shape: list[tuple[int, bytes, str]] = []
        hashes, listed = list[bytes](), list[list[Layer]]()
        while left > wanted.since and (not hashes or size + page_bytes <= BATCH_BYTES):
            layers = self._layers(export, stream, left - 1)
            outline = [(layer, lineage, arena) for layer, lineage, arena, _ in layers]
            if hashes and layers and outline != shape:
                break  # spans were cut anew: the rest travels in another batch
            left -= 1
            if not layers:
                missing += 1
                continue
            hashes.append(wanted.hashes[left])
            listed.append(layers)
            shape = outline
            page_bytes = sum(pages.allocator(arena).slot_bytes for _, _, arena in outline)
            size += page_bytes
        number = self._parts.page_transfers.send(key, place, left, missing, size)
        if not hashes:
            return
        outgoing.count("exported_pages", len(hashes))
        outgoing.count("exported_bytes", size)
        arenas = dict.fromkeys(arena for _, _, arena in shape)
        groups = [_group(arena, pages.allocator(arena).slot_bytes, shape) for arena in arenas]
        slots = [[slot for layers in listed for _, _, arena, slot in layers if arena == group.arena] for group in groups]
        outgoing.order(SendPages(stream.to.worker, number, wanted.account, wanted.request, hashes, groups, slots))

    def _layers(self, export: PageExport, stream: PageStream, page: int) -> list[Layer]:
        """Return the locations of the layers of a page that a target wants; empty if the page is not here, or not whole."""
        pages, found = self._parts.memory.pages, list[Layer]()
        for handle in self._handles(export, page):
            span = pages.span(handle)
            for layer, lineage, slot in zip(
                range(span.layer, span.layer + span.layers), span.lineages, pages.slots(handle), strict=True
            ):
                if stream.to.first <= span.kv_layer + layer - span.layer < stream.to.end:
                    found.append((layer, lineage, span.arena, slot))
        return found

    def _handles(self, export: PageExport, page: int) -> list[int]:
        """Return the page's handles from the sequence, if it has computed the page; else from the cache."""
        parts = self._parts
        rows = self._parts.rows
        wanted = export.wanted
        s = self._find(wanted)
        if (
            s is not None
            and rows.status[s] == Status.RUNNING
            and (page + 1) * rows.page_size <= min(rows.computed[s], rows.impure_from[s])
        ):
            return rows.page(s, page)
        local = parts.routes.known(wanted.route)
        if local is None:
            return []
        handles = [parts.memory.pages.find(wanted.hashes[page], span) for span in local.spans]
        return [] if None in handles[: local.kv_spans] else [handle for handle in handles if handle is not None]

    def _find(self, wanted: Export) -> int | None:
        """Return the sequence, at home or a guest, of the wanted attempt."""
        rows = self._parts.rows
        s = rows.find(wanted.request)
        if s is None:
            guests = [g for g in rows.live() if rows.is_guest(g) and rows.submission[g].request == wanted.request]
            s = next((g for g in guests if rows.submission[g].attempt == wanted.attempt), None)
        return s if s is not None and rows.submission[s].attempt == wanted.attempt else None

    # in --------------------------------------------------------------------------------------------------------------

    def arrived(self, event: PagesArrived) -> None:
        """Import the pages that are lacking here. They can be found once a plan has written them."""
        pages, outgoing = self._parts.memory.pages, self._parts.outgoing
        spans, layers = self._spans(event.groups), sum(len(sent.layers) for sent in event.groups)
        whole = bool(spans) and sum(span.layers for span in spans) == layers
        at = {(sent.arena, layer): place for sent in event.groups for place, layer in enumerate(sent.layers)}
        places: dict[str, list[int]] = {sent.arena: [] for sent in event.groups}
        slots: dict[str, list[int]] = {sent.arena: [] for sent in event.groups}
        widths = {sent.arena: len(sent.layers) for sent in event.groups}
        hashes = list[bytes]()
        handles = list[int]()
        there = 0
        for page, token_hash in enumerate(event.hashes):
            lacking = [span for span in spans if pages.find(token_hash, span) is None]
            taken = [(span, handle) for span in lacking if (handle := self._take(span, event.account)) is not None]
            for span, handle in taken:
                hashes.append(token_hash)
                handles.append(handle)
                first = page * widths[span.arena]
                places[span.arena] += [first + at[span.arena, span.layer + i] for i in range(span.layers)]
                slots[span.arena] += pages.slots(handle)
                outgoing.count("imported_bytes", pages.page_bytes(span))
            complete = whole and len(taken) == len(lacking)
            there += complete
            outgoing.count("imported_pages", complete and bool(taken))
        refused = len(event.hashes) - there
        outgoing.count("refused_pages", refused)
        groups, offset = list[ImportGroup](), 0
        for sent in event.groups:
            if slots[sent.arena]:
                groups.append(ImportGroup(sent.arena, offset, places[sent.arena], slots[sent.arena]))
            offset += sent.slot_bytes * len(sent.layers) * len(event.hashes)
        received = ReceivedBatch(event.source, event.batch, event.account, event.request, there, refused, hashes, handles)
        self._parts.page_transfers.arrive(PageImport(event.number, groups), received)

    def _spans(self, groups: Sequence[LayerGroup]) -> list[Span]:
        """Return the spans of planned routes whose layers all arrived, computed as they would be here."""
        if not self._parts.config.prefix_cache:
            return []
        came: dict[int, tuple[bytes, str, int]] = {}
        for group in groups:
            for layer, lineage in zip(group.layers, group.lineages, strict=True):
                came[layer] = lineage, group.arena, group.slot_bytes
        found: dict[tuple[int, bytes], Span] = {}
        for local in self._parts.routes.planned():
            for span in local.spans:
                size = self._parts.memory.pages.allocator(span.arena).slot_bytes
                layers = enumerate(span.lineages, span.layer)
                if all(came.get(layer) == (lineage, span.arena, size) for layer, lineage in layers):
                    found[span.layer, span.lineage] = span
        return list(found.values())

    def _take(self, span: Span, account: str) -> int | None:
        """Take a page for an import, at the cost of older cache; None if running sequences might need it for their next
        tokens.
        """
        running = len(self._parts.queue.running)
        if not self._parts.memory.fits({span.arena: span.layers * (1 + running)}):
            return None
        return self._parts.memory.allocate_page(span, account)

    def written(self, plan: int) -> None:
        """Publish the pages that the plan has written, and answer their senders."""
        pages = self._parts.memory.pages
        for received in self._parts.page_transfers.written(plan):
            for token_hash, handle in zip(received.hashes, received.handles, strict=True):
                pages.publish(handle, token_hash)
                if not self._pinning.written(received.request, token_hash, handle):
                    pages.release([handle], received.account)
            answer = PagesTaken(self._parts.config.worker, received.batch, received.there, received.refused)
            self._parts.outgoing.send(received.source, answer)


def _group(arena: str, slot_bytes: int, shape: Sequence[tuple[int, bytes, str]]) -> LayerGroup:
    """Return the layers of one layout."""
    inside = [(layer, lineage) for layer, lineage, other in shape if other == arena]
    return LayerGroup(arena, slot_bytes, [layer for layer, _ in inside], [lineage for _, lineage in inside])
