"""Parameter carrier: copies packed tensors from one worker's memory to another's, each compared with its checksum.

Transfers have the lowest class of the links, behind hidden states and KV. The device copies tensors out and in, in slices
between sweeps. The source keeps no state: the fetching worker asks for one batch after the other, and reads from the
checkpoint what does not come (``policies/cluster/parameter_fetch.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ...policies.cluster.parameter_fetch import STALL, BatchPart, ParameterFetch, batch_bytes
from ...policies.memory.packed_tensor import PackedTensor, TensorPiece
from ...runtime.actor.actor import ActorNode
from ...runtime.base.buffers import Sink
from ...runtime.base.codec import encode, pack, unpack
from ...runtime.base.decoding import decode
from ...transport.link import Slot, Traffic, Transfer
from .device_thread import DeviceQueue
from .messages import ParametersArrived, ParametersWanted
from .outbox import Outbox

log = logging.getLogger(__name__)
# per component: its tensors, each with its offset in the pool
WantedTensors = Sequence[tuple[bytes, Sequence[tuple[PackedTensor, int]]]]


class Fetch:
    """A load's transfer from one source. ``ready``: by component, done when nothing more will come for it."""

    def __init__(self, source: str, wanted: WantedTensors, batch: int) -> None:
        loop = asyncio.get_running_loop()
        self.source = source
        self.plan = ParameterFetch([(component, [tensor for tensor, _ in tensors]) for component, tensors in wanted], batch)
        self.places = {tensor.id: offset for _, tensors in wanted for tensor, offset in tensors}
        self.ready: dict[bytes, asyncio.Future[None]] = {component: loop.create_future() for component, _ in wanted}
        self.writes: dict[bytes, list[asyncio.Future[None]]] = {}  # by component; already given to the device
        self.timer: asyncio.TimerHandle | None = None
        self.damaged: list[bytes] = []  # tensors that differed from their checksum

    @property
    def lacking(self) -> str:
        """The reason why not everything came, or ""."""
        missing, damaged = len(self.plan.missing), len(self.damaged)
        absent = f"{self.source} has not got {missing} of the tensors" if missing else ""
        spoiled = f"{damaged} damaged tensor{'s' * (damaged != 1)} came from {self.source}" if damaged else ""
        return self.plan.reason or " and ".join(filter(None, (absent, spoiled)))


class ParameterCarrier:
    """Parameter transfers of one worker (see the module).

    ``watch`` has ``lost`` called when a worker ends. ``memory`` is the worker's pool in bytes, from which the size of a
    batch follows.
    """

    def __init__(
        self, node: ActorNode, device: DeviceQueue, outbox: Outbox, watch: Callable[[str], None], memory: int
    ) -> None:
        self._node = node
        self._device = device
        self._outbox = outbox
        self._watch = watch
        self._batch = batch_bytes(memory)
        self._loop = asyncio.get_running_loop()
        self._number = 0  # the last requested batch's number
        self._fetches: list[Fetch] = []
        self._copying = self._writing = 0  # bytes that the device has yet to read or write
        self._transfers: list[Transfer] = []  # transfers that may be under way
        names = ("sent_parameter_bytes", "fetched_parameter_bytes", "unfetched_loads", "damaged_parameters")
        self._sums = dict.fromkeys(names, 0.0)

    def counters(self) -> dict[str, float]:
        """Return sums over this worker's life, and the bytes outside the pool held by transfers now."""
        self._transfers = [one for one in self._transfers if not one.done and one.fault is None]
        staged = self._copying + self._writing + sum(one.size for one in self._transfers)
        return {**self._sums, "staged_parameter_bytes": float(staged)}

    # out -------------------------------------------------------------------------------------------------------------

    def send(self, wanted: ParametersWanted) -> None:
        """Have the device copy pieces of tensors, then send them."""
        self._watch(wanted.worker)
        size, answer = sum(piece.last - piece.first for piece in wanted.pieces), ParametersArrived(wanted.number, [])
        room = self._outbox.room(wanted.worker, size)
        memory = room.view if isinstance(room, Slot) else room
        self._copying += size
        copied = self._device.call_in_steps(
            lambda ex: ex.parameters.read(wanted.pieces, memory, answer.missing, answer.checksums)
        )
        copied.add_done_callback(partial(self._copied, wanted, room, answer, size))

    def _copied(
        self,
        wanted: ParametersWanted,
        room: bytearray | Slot,
        answer: ParametersArrived,
        size: int,
        copied: asyncio.Future[None],
    ) -> None:
        self._copying -= size
        if copied.cancelled():
            return
        if (error := copied.exception()) is not None:
            log.warning("parameters for %s could not be copied: %s", wanted.worker, error)
            answer = ParametersArrived(wanted.number, [piece.id for piece in wanted.pieces])
        body = room if len(answer.missing) < len(wanted.pieces) else b""
        header = pack(encode(answer, Sink()))
        try:
            transfer = self._outbox.send(wanted.worker, header, body, Traffic.PARAMETERS)
        except Exception as error:
            log.warning("parameters for %s were not sent: %s", wanted.worker, error)
            return
        self._transfers.append(transfer)
        self._sums["sent_parameter_bytes"] += transfer.size

    # in --------------------------------------------------------------------------------------------------------------

    def fetch(self, source: str, wanted: WantedTensors) -> Fetch:
        """Begin to fetch tensors from a worker. They are written at their places, which must be mapped."""
        fetch = Fetch(source, wanted, self._batch)
        self._fetches.append(fetch)
        self._go_on(fetch)
        return fetch

    def arrived(self, sender: str, header: bytes, buffers: list[memoryview]) -> None:
        """Write a batch that has arrived, or handle the notice that the source has none of it."""
        batch: ParametersArrived = decode(ParametersArrived, unpack(header))
        for fetch in [one for one in self._fetches if one.source == sender]:
            stretches = fetch.plan.arrived(batch.number, set(batch.missing))
            writes = [self._write(fetch, stretch, buffers[0], batch.checksums) for stretch in stretches]
            if writes:
                self._writing += len(buffers[0])
                asyncio.gather(*writes, return_exceptions=True).add_done_callback(
                    partial(self._written, fetch, batch.number, len(buffers[0]))
                )
            else:
                fetch.plan.written(batch.number)
            self._go_on(fetch)

    def _write(
        self, fetch: Fetch, stretch: BatchPart, body: memoryview, checksums: Mapping[bytes, bytes]
    ) -> asyncio.Future[None]:
        pieces: list[tuple[TensorPiece, int]] = [(piece, fetch.places[piece.id]) for piece in stretch.pieces]
        came = body[stretch.at :][: sum(piece.last - piece.first for piece in stretch.pieces)]
        write = self._device.call_in_steps(lambda ex: ex.parameters.write(pieces, came, checksums, fetch.damaged))
        fetch.writes.setdefault(stretch.component, []).append(write)
        return write

    def _written(self, fetch: Fetch, number: int, size: int, writes: asyncio.Future[list[object]]) -> None:
        self._writing -= size
        fetch.plan.written(number)
        failed = [] if writes.cancelled() else [w for w in writes.result() if isinstance(w, Exception)]
        if failed:
            log.warning("parameters of %s could not be written: %s", fetch.source, failed[0])
            fetch.plan.give_up(str(failed[0]))
        self._go_on(fetch)

    def _go_on(self, fetch: Fetch) -> None:
        """Request further batches, complete the components that have everything, and arm the stall timer."""
        while pieces := fetch.plan.ask(self._number + 1):
            self._number += 1
            if not self._node.current_incarnation(fetch.source):
                fetch.plan.give_up(f"{fetch.source} is not up")
                break
            self._watch(fetch.source)
            wanted = ParametersWanted(self._node.name, self._number, pieces)
            self._node.ref(f"{fetch.source}/worker").parameters.cast(wanted)
        for component in fetch.plan.settled():
            if not fetch.ready[component].done():
                fetch.ready[component].set_result(None)
        if fetch.timer is not None:
            fetch.timer.cancel()
        fetch.timer = self._loop.call_later(STALL, self._stalled, fetch) if fetch.plan.unanswered else None
        if fetch in self._fetches and not fetch.plan.busy:
            self._fetches.remove(fetch)
            self._sums["fetched_parameter_bytes"] += fetch.plan.nbytes
            self._sums["unfetched_loads"] += bool(fetch.lacking)
            self._sums["damaged_parameters"] += len(fetch.damaged)

    def _stalled(self, fetch: Fetch) -> None:
        fetch.plan.give_up(f"nothing came from {fetch.source} for {STALL:g} s")
        self._go_on(fetch)

    def lost(self, worker: str) -> None:
        """Give up on a worker that has died. The missing rest is read from files."""
        for fetch in [one for one in self._fetches if one.source == worker]:
            fetch.plan.give_up(f"{worker} died")
            self._go_on(fetch)

    def drop(self, component: bytes) -> None:
        """Stop fetching a component that no holder needs. Nothing is written for it from now on."""
        for fetch in [one for one in self._fetches if component in one.ready]:
            fetch.plan.drop(component)
            fetch.ready[component].cancel()
            for write in fetch.writes.pop(component, []):
                write.cancel()
            self._go_on(fetch)
