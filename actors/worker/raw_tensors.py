"""Raw tensors between workers: bytes of a tensor as a checkpoint has them, asked for by its hash.

Needed where packed forms differ, and where a store is to keep what comes. Transfers have the lowest class of the links. The
source reads its files on a thread and keeps no state; the asking worker asks for one piece of a tensor after the other, so
that a source that ends owes only what it had not given yet.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator

from ...gpu.errors import CheckpointError
from ...gpu.model.config import TensorRef
from ...gpu.regular_file import open_regular
from ...policies.cluster.parameter_fetch import AHEAD, STALL, batch_bytes
from ...runtime.actor.actor import ActorNode
from ...runtime.base.buffers import Sink
from ...runtime.base.codec import encode, pack, unpack
from ...runtime.base.decoding import decode
from ...transport.link import Slot, Traffic
from .messages import ParametersArrived, RawWanted
from .outbox import Outbox

OnLink = Callable[[str, bytes, list[memoryview]], None]
log = logging.getLogger(__name__)


class PeerLacks(Exception):
    """A worker gives nothing more of a tensor: a sentence."""


class RawTensors:
    """The raw tensors of one worker that travel (see the module).

    watch: has ``lost`` called when a worker ends. memory: the worker's pool in bytes, from which the size of a piece
    follows. find: returns the place of a tensor here by its hash, or None; its owner sets it.
    """

    def __init__(self, node: ActorNode, outbox: Outbox, watch: Callable[[str], None], memory: int) -> None:
        self._node = node
        self._outbox = outbox
        self.find: Callable[[bytes], TensorRef | None] = lambda hash: None
        self._watch = watch
        self._piece = batch_bytes(memory)
        self._number = 0  # the last piece's number; they go down, so that none is a number of packed tensors
        self._asked: dict[int, tuple[str, asyncio.Future[memoryview]]] = {}  # by number: the source, and what comes
        self._turns = asyncio.Semaphore(AHEAD)  # pieces that are on their way
        self._sending: set[asyncio.Task[None]] = set()
        self.sent = 0  # bytes
        self.came = 0

    def stop(self) -> None:
        for task in self._sending:
            task.cancel()

    # out -------------------------------------------------------------------------------------------------------------

    def send(self, wanted: RawWanted) -> None:
        """Read a piece of a tensor, then send it; without the tensor, say so."""
        self._watch(wanted.worker)
        task = asyncio.create_task(self._send(wanted))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, wanted: RawWanted) -> None:
        ref, size = self.find(wanted.tensor), wanted.last - wanted.first
        missing, body = [wanted.tensor], b""
        room: bytearray | Slot | None = None
        if ref is not None and 0 <= wanted.first < wanted.last <= ref.nbytes and size <= self._piece_limit:
            room = self._outbox.room(wanted.worker, size)
            memory = room.view if isinstance(room, Slot) else memoryview(room)
            try:
                await asyncio.to_thread(_read, ref, wanted.first, memory)
                missing = []
            except (OSError, CheckpointError) as error:
                log.warning("a tensor for %s could not be read: %s", wanted.worker, error)
                room = None
        header = pack(encode(ParametersArrived(wanted.number, missing), Sink()))
        try:
            self._outbox.send(wanted.worker, header, body if room is None else room, Traffic.PARAMETERS)
        except Exception as error:  # it is gone, or does not read
            log.warning("a tensor for %s was not sent: %s", wanted.worker, error)
            return
        self.sent += 0 if missing else size

    @property
    def _piece_limit(self) -> int:
        """The bytes of the largest piece that any worker asks for."""
        return batch_bytes(1 << 62)

    # in --------------------------------------------------------------------------------------------------------------

    async def pieces(self, source: str, tensor: bytes, first: int, last: int, take: Callable[[memoryview], None]) -> None:
        """Have the bytes of a tensor taken, on a thread, as they come from a worker. Raises PeerLacks."""
        while first < last:
            async with self._turns:
                piece = await self._ask(source, tensor, first, min(last, first + self._piece))
                await asyncio.to_thread(take, piece)
            first += len(piece)

    async def _ask(self, source: str, tensor: bytes, first: int, last: int) -> memoryview:
        if not self._node.current_incarnation(source):
            raise PeerLacks(f"{source} is not up")
        self._watch(source)
        self._number -= 1
        number = self._number
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._asked[number] = source, future
        self._node.ref(f"{source}/worker").raw.cast(RawWanted(self._node.name, number, tensor, first, last))
        try:
            async with asyncio.timeout(STALL):
                piece = await future
        except TimeoutError:
            raise PeerLacks(f"nothing came from {source} for {STALL:g} s") from None
        finally:
            self._asked.pop(number, None)
        if len(piece) != last - first:
            raise PeerLacks(f"{source} has not got it")
        self.came += len(piece)
        return piece

    def arrived(self, others: OnLink, sender: str, header: bytes, buffers: list[memoryview]) -> None:
        """Take a piece that was asked for here; ``others`` takes what is none."""
        batch: ParametersArrived = decode(ParametersArrived, unpack(header))
        if batch.number >= 0:
            return others(sender, header, buffers)
        source, future = self._asked.get(batch.number, ("", None))
        if future is not None and source == sender and not future.done():
            future.set_result(memoryview(b"") if batch.missing else buffers[0])
        return None

    def lost(self, worker: str) -> None:
        """Expect nothing more from a worker that has ended."""
        for source, future in self._asked.values():
            if source == worker and not future.done():
                future.set_exception(PeerLacks(f"{worker} died"))


def _read(ref: TensorRef, first: int, memory: memoryview) -> None:
    """Fill ``memory`` with the bytes of a tensor from ``first`` on."""
    fd, at = open_regular(ref.path), 0
    try:
        for offset, length in _stretches(ref, first, first + len(memory)):
            while length:
                got = os.preadv(fd, [memory[at : at + length]], offset)
                if not got:
                    raise CheckpointError(f"{ref.path} ends within tensor {ref.name}; download it again")
                at += got
                offset, length = offset + got, length - got
    finally:
        os.close(fd)


def _stretches(ref: TensorRef, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each contiguous piece of bytes ``first`` to ``last`` (exclusive) of a tensor."""
    whole, step = (ref.stretch, ref.step) if ref.stretch else (ref.nbytes, 0)
    while first < last:
        number, inside = divmod(first, whole)
        length = min(whole - inside, last - first)
        yield ref.offset + number * step + inside, length
        first += length
