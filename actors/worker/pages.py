"""Page carrier: moves KV pages between workers as bytes, copied by the device and carried by the links.

The sweep machine decides which pages are sent and how arriving pages are used (``policies/sweep/migration.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...gpu.executor import Executor
from ...policies.sweep.events import Event
from ...policies.sweep.page_events import MoveSlots, PagesArrived, PagesUnsent, SendPages
from ...runtime.base.buffers import Sink
from ...runtime.base.codec import encode, pack, unpack
from ...runtime.base.decoding import decode
from ...transport.link import Slot, Traffic
from .device_thread import DeviceQueue
from .outbox import Outbox

log = logging.getLogger(__name__)
OTHER_SIZE = (
    "worker %s sends pages of %s tokens, and this worker's have %d, so they are computed anew here; start all workers with "
    "one page_size"
)


class PageCarrier:
    """KV page transfers of one worker (see the module).

    ``apply`` passes an event to the sweep machine. ``do`` runs a device operation that must succeed. ``fail`` is called with
    an error of the device. ``watch`` monitors another worker. ``page_size`` is this worker's, in tokens.
    ``number``: arrivals are numbered from it on.
    """

    def __init__(
        self,
        device: DeviceQueue,
        outbox: Outbox,
        apply: Callable[[Event], None],
        do: Callable[[Callable[[Executor], object]], None],
        fail: Callable[[BaseException], None],
        watch: Callable[[str], None],
        page_size: int,
        number: int = 0,
    ) -> None:
        self._device = device
        self._outbox = outbox
        self._apply = apply
        self._do = do
        self._fail = fail
        self._watch = watch
        self._page_size = page_size
        self._others: set[str] = set()  # workers with pages of another size
        self._number = number  # the last arrival's number

    def perform(self, effect: SendPages | MoveSlots) -> None:
        """Have the device copy the slots before any later plan. Pages that are to be sent leave after the copy."""
        if isinstance(effect, MoveSlots):
            self._do(lambda ex: ex.pages.move(effect.arena, effect.slots, effect.targets))
            return
        self._watch(effect.worker)
        pieces = [(group.arena, slots) for group, slots in zip(effect.groups, effect.slots, strict=True)]
        size = sum(group.slot_bytes * len(slots) for group, slots in zip(effect.groups, effect.slots, strict=True))
        room = self._outbox.room(effect.worker, size)
        memory = room.view if isinstance(room, Slot) else room
        copied = self._device.call(lambda ex: ex.pages.export(pieces, memory))
        copied.add_done_callback(partial(self._copied, effect, room))

    def _copied(self, effect: SendPages, room: bytearray | Slot, copied: asyncio.Future[None]) -> None:
        if copied.cancelled():
            return
        if (error := copied.exception()) is not None:
            self._fail(error)
            return
        header = PagesArrived("", effect.batch, 0, effect.account, effect.request, effect.hashes, effect.groups)
        try:
            self._outbox.send(effect.worker, pack(encode(header, Sink())), room, Traffic.KV)
        except Exception as error:
            log.warning("%d pages for %s were not sent: %s", len(effect.hashes), effect.worker, error)
            self._apply(PagesUnsent(effect.batch))

    def arrived(self, sender: str, header: bytes, buffers: list[memoryview]) -> None:
        """Hand arriving pages to the device. It keeps them until a plan writes them or drops them."""
        pages: PagesArrived = decode(PagesArrived, unpack(header))
        sizes = {group.arena.rpartition("-")[2] for group in pages.groups} - {str(self._page_size)}
        if sizes and sender not in self._others:
            self._others.add(sender)
            log.warning(OTHER_SIZE, sender, min(sizes), self._page_size)
        self._number += 1
        number = self._number
        self._do(lambda ex: ex.pages.put(number, buffers[0]))
        self._apply(replace(pages, source=sender, number=number))
