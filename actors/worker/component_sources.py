"""Component sources: where a worker gets what no folder of its machine has: its store, named workers, the origin.

First the documents of the components, which say what their tensors are, then the tensors themselves, raw and one after the
other. Everything is compared with its hash before it is used, also what a worker gave. What a source still owes when it ends
comes from the next one, and what was damaged on the way, or in the store, comes anew from another. Which workers are asked
the controller says (``policies/cluster/parameter_sources.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...gpu.errors import CheckpointError
from ...gpu.model.config import ComponentSpec, TensorRef
from ...gpu.model.deltas import DeltaConfig
from ...gpu.weights.identity import hash_tensor
from ...policies.control.loads import LoadBlock, SourcesWanted
from ...runtime.actor.actor import ActorNode
from ...runtime.base.errors import RemoteError, RuntimeFault
from ...zoo.by_hash import (
    document_of,
    document_path,
    is_wanted,
    of_wanted,
    own_tensors,
    read_by_hash,
    specs_by_hash,
    wanted_hash,
    wanted_tensors,
    with_tensors,
)
from ...zoo.errors import OriginError
from ...zoo.origin import RELATIVE, Origin, open_origin
from ...zoo.records import StoredComponent, StoredTensor
from ...zoo.store import ArrivingTensor, Store, is_in_memory
from ..settings.sources import SourceSettings
from .raw_tensors import PeerLacks, RawTensors

log = logging.getLogger(__name__)
ANSWER = 5.0  # seconds for a worker's answer with documents
TOGETHER = 2  # components that are fetched or read at a time
ORIGIN = "the origin"  # among sources; no worker has a name with a space
TRIES = 3  # times that an origin is asked for the rest of a tensor, as long as each time something comes


@dataclass(slots=True)
class Expected:
    """A tensor that loads of this worker wait for. ref: where it is, if it is here; arriving: if it lies in memory."""

    loads: int = 0
    ref: TensorRef | None = None
    arriving: ArrivingTensor | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ComponentSources:
    """The sources of one worker (see the module).

    raw: the transfers between workers. resident: tells whether a component or delta is in this worker's memory.
    """

    def __init__(
        self,
        node: ActorNode,
        raw: RawTensors,
        resident: Callable[[bytes], bool],
        store: Store | None,
        origin: Origin | None,
    ) -> None:
        self._node = node
        self._resident = resident
        self._store = store
        self._origin = origin
        self.raw = raw
        raw.find = self._find
        self._documents: dict[bytes, StoredComponent] = {}  # of components and deltas, by id
        self._specs: dict[bytes, ComponentSpec] = {}  # that have files here, by id of what they load
        self._hashed: dict[TensorRef, bytes] = {}  # of tensors of deltas in files here
        self._places: dict[bytes, TensorRef] = {}  # of tensors in files here, by hash
        self._expected: dict[str, Expected] = {}  # by hash
        self._turns = asyncio.Semaphore(TOGETHER)
        self._sums = Counter[str]()

    @classmethod
    def open(
        cls, node: ActorNode, raw: RawTensors, resident: Callable[[bytes], bool], settings: SourceSettings
    ) -> ComponentSources:
        """Return the sources that the settings name."""
        store = Store.open(settings.store, settings.store_size) if settings.store else None
        return cls(node, raw, resident, store, open_origin(settings.origin) if settings.origin else None)

    def stop(self) -> None:
        """End transfers. The worker ends."""
        self.raw.stop()
        if self._origin is not None:
            self._origin.close()

    def counters(self) -> dict[str, float]:
        """Return sums over this worker's life."""
        names = ("stored_parameter_bytes", "origin_parameter_bytes", "unstored_parameter_bytes", "damaged_parameters")
        held = sum(one.arriving.in_memory for one in self._expected.values() if one.arriving is not None)
        return {
            **{name: float(self._sums[name]) for name in names},
            "sent_parameter_bytes": float(self.raw.sent),
            "fetched_parameter_bytes": float(self.raw.came),
            "staged_parameter_bytes": float(held),
        }

    @property
    def keeps(self) -> bool:
        """True if there is a store, which keeps raw tensors."""
        return self._store is not None

    @property
    def full(self) -> str:
        """The sentence on why the store keeps nothing more, or ""."""
        return self._store.full if self._store is not None else ""

    # what this worker can give ---------------------------------------------------------------------------------------

    def know(self, specs: Sequence[ComponentSpec]) -> None:
        """Note specs whose tensors are in files here, so that other workers can have them."""
        for spec in specs:
            self._specs[spec.name] = spec
            for role, ref in spec.tensors.items() if spec.delta is None else ():
                if role in spec.hashes and not (wanted_hash(ref) or is_in_memory(ref)):
                    self._places[spec.hashes[role]] = ref

    def _find(self, hash: bytes) -> TensorRef | None:
        """Return where a tensor is here, for another worker."""
        held = self._expected.get(hash.hex())
        return held.ref if held is not None and held.ref is not None else self._places.get(hash)

    async def documents(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return the documents of components and deltas, each empty if this worker cannot give it."""
        return [await asyncio.to_thread(self._document, id) for id in ids]

    def _document(self, id: bytes) -> bytes:
        if (stored := self._documents.get(id)) is not None:
            return stored.encoded()
        if (spec := self._specs.get(id)) is None:
            return b""
        hashes: Mapping[str, bytes] = spec.hashes
        if spec.delta is not None:
            for ref in (ref for ref in spec.delta.tensors.values() if ref not in self._hashed):
                if known := wanted_hash(ref):  # of a mirror, which has documents alone
                    self._hashed[ref] = bytes.fromhex(known)
                    continue
                self._hashed[ref] = hash = hash_tensor(ref)
                self._places[hash] = ref
            hashes = {role: self._hashed[ref] for role, ref in spec.delta.tensors.items()}
        return document_of(spec, hashes) if own_tensors(spec).keys() == hashes.keys() else b""

    # documents -------------------------------------------------------------------------------------------------------

    async def specs(
        self, block: LoadBlock, page_size: int, kv_dtype: str, fault: CheckpointError
    ) -> list[ComponentSpec] | SourcesWanted:
        """Return the specs of a block that no folder has, for the reason ``fault``; else what is to be named sources for.

        Raises CheckpointError if the named sources have not got it.
        """
        pairs = list(zip(block.ids, block.deltas or [b""] * len(block.ids), strict=True))
        ids = [id for pair in pairs for id in pair if id]
        await asyncio.to_thread(self._look_into_store, pairs)
        lacking = [id for id in ids if id not in self._documents]
        if lacking and block.sources is not None:
            await self._fetch_documents(pairs, block.sources)
            lacking = [id for id in ids if id not in self._documents]
            if lacking:
                raise self._nowhere(fault, block.sources, f"{len(lacking)} of {len(ids)} components")
        if lacking:
            return SourcesWanted(lacking)
        return specs_by_hash(block.ids, block.deltas, self._documents, page_size, kv_dtype)

    def _nowhere(self, fault: CheckpointError, sources: Sequence[str], what: str) -> CheckpointError:
        origin = f"the origin {self._origin.where}" if self._origin is not None else "no origin is set (--set origin=...)"
        asked = f"{', '.join(sources)} did not give it" if sources else "no other worker has it"
        given = f"{origin} did not give {what}" if self._origin is not None else origin
        return CheckpointError(f"{fault}; by its hash {asked} either, and {given}")

    def _look_into_store(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        if self._store is not None:
            for id, delta in self._unknown(pairs):
                if (raw := self._store.document(document_path(id, delta=delta))) is not None:
                    self._learn(pairs, id, raw, "the store")

    def _unknown(self, pairs: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bool]]:
        """Yield what has no document yet, shared components first: a delta is read by its component's configuration."""
        yield from ((id, False) for id, _ in pairs if id not in self._documents)
        yield from ((delta, True) for _, delta in pairs if delta and delta not in self._documents)

    def _learn(self, pairs: Sequence[tuple[bytes, bytes]], id: bytes, raw: bytes, source: str) -> bool:
        """Take a document, if it is the one of this identity; return whether it is."""
        base = next((self._documents.get(shared) for shared, delta in pairs if delta == id), None)
        config = base.config if base is not None and not isinstance(base.config, DeltaConfig) else None
        try:
            self._documents[id] = read_by_hash(raw, id, config)
        except OriginError as error:
            log.warning("a document of %s is not taken: %s", source, error)
            self._sums["damaged_parameters"] += 1
            return False
        return True

    async def _fetch_documents(self, pairs: Sequence[tuple[bytes, bytes]], sources: Sequence[str]) -> None:
        for source in sources:
            if unknown := list(self._unknown(pairs)):
                try:
                    asked = self._node.ref(f"{source}/worker").documents(
                        [id for id, _ in unknown], timeout=ANSWER, returns=list[bytes]
                    )
                    answers: list[bytes] = await asked
                except (RuntimeFault, RemoteError) as error:
                    log.warning("%s gave no documents: %s", source, error)
                    continue
                for (id, delta), raw in zip(unknown, answers, strict=False):
                    if raw and self._learn(pairs, id, raw, source):
                        self._keep_document(id, delta, raw)
        if self._origin is not None:
            await asyncio.to_thread(self._documents_of_origin, pairs, self._origin)

    def _documents_of_origin(self, pairs: Sequence[tuple[bytes, bytes]], origin: Origin) -> None:
        for id, delta in self._unknown(pairs):
            try:
                raw = origin.read(document_path(id, delta=delta), self._count)
            except OriginError as error:
                log.warning("the origin did not give a component: %s", error)
                return
            if self._learn(pairs, id, raw, f"the origin {origin.where}"):
                self._keep_document(id, delta, raw)

    def _keep_document(self, id: bytes, delta: bool, raw: bytes) -> None:
        if self._store is not None:
            self._store.keep_document(document_path(id, delta=delta), raw)

    def _count(self, nbytes: int) -> None:
        self._sums["origin_parameter_bytes"] += nbytes

    # tensors ---------------------------------------------------------------------------------------------------------

    async def lacking(self, specs: Sequence[ComponentSpec], *, failed: bool = False) -> list[bytes]:
        """Return the ids of specs whose tensors are neither in this worker's memory nor in its store.

        ``failed``: a load has, so that nothing of it is in memory, or soon will not be.
        """
        away = [spec for spec in specs if is_wanted(spec) and (failed or not self._resident(spec.name))]
        return await asyncio.to_thread(self._lacking, away) if away else []

    def _lacking(self, specs: Sequence[ComponentSpec]) -> list[bytes]:
        return [spec.name for spec in specs if any(self._stored(ref) is None for ref in wanted_tensors(spec).values())]

    def _stored(self, ref: TensorRef) -> TensorRef | None:
        return self._store.find(of_wanted(ref)) if self._store is not None else None

    def expect(self, spec: ComponentSpec) -> None:
        """Note that a load needs the spec's tensors until ``release``: one that two components use comes once."""
        for ref in wanted_tensors(spec).values():
            self._expected.setdefault(wanted_hash(ref), Expected()).loads += 1

    def release(self, spec: ComponentSpec) -> None:
        """Let go of the spec's tensors that only lie in memory."""
        for ref in wanted_tensors(spec).values():
            one = self._expected[wanted_hash(ref)]
            one.loads -= 1
            if not one.loads:
                del self._expected[wanted_hash(ref)]
                if one.arriving is not None:
                    one.arriving.close()

    async def here(
        self, spec: ComponentSpec, roles: Sequence[str], sources: Sequence[str], *, last: bool = False
    ) -> ComponentSpec:
        """Return the spec with places of these tensors, fetched from workers if need be, as far as they have them.

        ``last``: what they have not got comes from the origin. Raises CheckpointError if that is in vain, too.
        """
        need = {role: ref for role, ref in wanted_tensors(spec).items() if role in roles}
        async with self._turns:
            places = await asyncio.gather(*(self._place(ref, sources, last) for ref in need.values()))
        pairs = zip(need, places, strict=True)
        found = with_tensors(spec, {role: place for role, place in pairs if place is not None})
        self.know([found])
        return found

    def distrust(self, spec: ComponentSpec, ref: TensorRef) -> bool:
        """Note that a tensor differs from its hash; return whether it was the store's, which has it no more."""
        if self._store is None or not self._store.holds(ref):
            return False
        self._sums["damaged_parameters"] += 1
        log.warning("%s of the store differs from its hash, and is fetched anew", ref.path)
        self._store.discard(ref)
        damaged = [hash for hash, place in self._places.items() if place == ref]
        for hash in damaged:
            del self._places[hash]
            if (one := self._expected.get(hash.hex())) is not None:
                one.ref = None
        return True

    async def _place(self, ref: TensorRef, sources: Sequence[str], last: bool) -> TensorRef | None:
        one = self._expected[wanted_hash(ref)]
        async with one.turn:
            if one.ref is None:
                if (stored := await asyncio.to_thread(self._stored, ref)) is not None:
                    self._sums["stored_parameter_bytes"] += stored.nbytes
                    one.ref = stored
                else:
                    one.ref = await self._fetch(one, of_wanted(ref), sources, last)
            return one.ref

    async def _fetch(self, one: Expected, tensor: StoredTensor, sources: Sequence[str], last: bool) -> TensorRef | None:
        """Return the place of a tensor that came from named workers, or else with ``last`` from the origin."""
        if one.arriving is None:
            one.arriving = await asyncio.to_thread(ArrivingTensor, tensor, self._store)
        arriving = one.arriving
        faults, givers = list[str](), list[str]()
        waiting, again = [*sources, *([ORIGIN] if last and self._origin is not None else [])], False
        while waiting:
            source, before = waiting.pop(0), arriving.filled
            try:
                if source != ORIGIN:
                    await self.raw.pieces(source, bytes.fromhex(tensor.hash), before, tensor.nbytes, arriving.append)
                elif self._origin is not None:
                    await asyncio.to_thread(self._from_origin, self._origin, arriving)
            except (PeerLacks, OriginError) as error:
                faults.append(str(error))
            givers += [source] if arriving.filled > before else []
            if not arriving.whole:
                continue  # the next one gives the rest
            if (ref := await asyncio.to_thread(arriving.finish)) is not None:
                self._count_unstored(arriving)
                return ref
            self._damaged(tensor, givers, faults)
            if len(givers) > 1 and not again:  # one of them gave good bytes, perhaps: each is asked for the whole
                waiting, again = [*waiting, *givers], True
            givers = []
        if not last:
            return None
        raise CheckpointError(
            f"tensor {tensor.hash[:12]} came from nowhere ({'; '.join(dict.fromkeys(faults)) or 'no source is known'})"
        )

    def _damaged(self, tensor: StoredTensor, givers: Sequence[str], faults: list[str]) -> None:
        text = f"what {', '.join(givers)} gave differs from its hash"
        log.warning("tensor %s: %s, and is fetched from elsewhere", tensor.hash[:12], text)
        self._sums["damaged_parameters"] += 1
        faults.append(text)

    def _from_origin(self, origin: Origin, arriving: ArrivingTensor) -> None:
        """Read the rest of a tensor, again from where a connection broke. Raises OriginError."""
        path, offset = RELATIVE.tensor(arriving.tensor.hash), arriving.offset
        for attempt in range(TRIES):
            before = arriving.filled
            try:
                for piece in origin.stream(path, offset + arriving.filled, self._count):
                    arriving.append(piece)
                if arriving.whole:
                    return
                fault = OriginError(f"{origin.where}/{path} ends after {arriving.filled} of {arriving.tensor.nbytes} bytes")
            except OriginError as error:
                fault = error
            if arriving.filled == before or attempt == TRIES - 1:
                raise fault

    def _count_unstored(self, arriving: ArrivingTensor) -> None:
        """Count what the store does not keep."""
        if arriving.in_memory and self._store is not None:
            self._sums["unstored_parameter_bytes"] += arriving.in_memory
