"""The memory pool of one worker as the sweep machine sees it: one pool of chunks, with KV pages and components in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from ..model.chain import PageLayout
from ..model.runs import Span
from ..plain import Plain, to_plain
from ..plan.grammar import Grammar
from ..plan.sweep_plan import MapGroup
from ..requests.account import is_offline_account
from . import eviction
from .chunks import ChunkPool
from .grammar_memory import GrammarMemory
from .packed_tensor import Shortage, TensorPlace, WantedComponent
from .pages import PageTable
from .residence import Residence

MOST_MOVED = 32 << 20  # bytes of slots compacted at once: some 10 ms, in which no sweep runs
EVERYBODY = "*"  # key of the share of accounts without their own


class WorkerMemory:
    """The owner of the pool, the page table and the residence, and the only one that evicts. All sizes are in bytes.

    An account with a share may hold pages for that fraction of what parameters leave to KV. At its cap it gives up its own
    idle pages, and then has to wait: pages that others hold and cache stay as they are.
    """

    def __init__(
        self,
        budget: int,
        chunk_bytes: int,
        slot_unit: int,
        granule: int = 64,
        shares: Mapping[str, float] | None = None,
        kv_reserve: float = 0.0,
        *,
        grammars_counted: bool = True,
    ) -> None:
        self._pool = ChunkPool(budget // chunk_bytes, chunk_bytes)
        self._slot_unit = slot_unit  # bytes; slots are padded to a multiple
        self._shares = dict(shares or {})  # fraction of KV memory, 0 to 1, by account
        self._kv_reserve = kv_reserve  # fraction of what the largest application leaves, 0 to 1: not for others' parameters
        self.cap_hits: dict[str, int] = {}  # by account: own pages evicted, and own sequences preempted, for its cap
        self._orphaned: set[bytes] = set()  # components that are gone but made KV of spans that are still named
        self.pages = PageTable(self._pool, capped=bool(self._shares))
        self.residence = Residence(self._pool, granule)
        self.grammars = GrammarMemory(self._pool, counted=grammars_counted)

    # KV --------------------------------------------------------------------------------------------------------------

    def add_layout(self, layout: PageLayout) -> None:
        self.pages.add_layout(layout.key, -(-layout.raw_bytes // self._slot_unit) * self._slot_unit)

    def allocate_page(self, span: Span, account: str) -> int | None:
        """Return a private page of one span, at the cost of cached ones; None: no room, or none for this account."""
        if self._shares:
            while not self.within_cap(account, self.pages.page_bytes(span) + self.pages.accounts.idle(account)):
                if (handle := self.pages.accounts.oldest(account)) < 0:
                    return None
                self.pages.evict(handle)
                self.hit_cap(account)
        found = eviction.allocate_page(self.pages, span, account)
        while found is None and self.grammars.evict():
            found = eviction.allocate_page(self.pages, span, account)
        return found

    def allocate_pages(self, spans: Sequence[Span], account: str) -> list[int] | None:
        """Take one private page of each span, at the cost of cached ones, or nothing.

        Where there is no memory for hidden states, the page is taken without.
        """
        taken: list[int] = []
        for span in spans:
            handle = self.allocate_page(span, account)
            if handle is None and span.hidden:
                handle = self.allocate_page(span.void, account)
            if handle is None:
                self.pages.release(taken, account)
                return None
            taken.append(handle)
        return taken

    def fits(self, need: Mapping[str, int], kept: Mapping[str, int] | None = None) -> bool:
        """Return whether ``need`` slots, by arena, can be taken one by one without touching cached pages of other arenas.

        ``kept`` slots of idle pages do not count.
        """
        return eviction.shortage(self.pages, need, kept or {}) <= self.grammars.reclaimable()

    def make_room(
        self,
        need: Mapping[str, int],
        kept: Mapping[str, int],
        grammar: Grammar | None = None,
        found: Container[int] | None = None,
    ) -> bool:
        """Make room for slots and a sequence's grammar, see ``eviction.make_room``. Other grammars without users may go.

        ``found``: pages that the sequence will list, if it is known. A grammar takes the chunks of any other cached pages.
        """
        if eviction.make_room(self.pages, need, kept, self.grammars.lacks(grammar), found):
            return True
        idle = [(self.pages.allocator(arena), slots) for arena, slots in self.pages.idle.slots.items()]
        most = self._pool.free + self.grammars.reclaimable(grammar) + sum(one.may_return(slots) for one, slots in idle)
        least = sum(self.pages.allocator(arena).lacks(slots) for arena, slots in need.items())
        if least + self.grammars.lacks(grammar) > most:
            return False
        while eviction.shortage(self.pages, need, kept, lacks := self.grammars.lacks(grammar)) > 0:
            handle = next((handle for handle in self.pages.idle if handle not in (found or ())), -1) if lacks else -1
            if handle >= 0:
                self.pages.evict(handle)
            elif not self.grammars.evict(grammar):
                return False
        return True

    def pages_of(self, spans: Sequence[Span], account: str, alone: str = "", grammar: Grammar | None = None) -> int:
        """Return the pages of one sequence over ``spans`` that fit with no other sequence here.

        ``alone``: count only the parameters of this application. ``grammar``: of the sequence, whose tokens are drawn here.
        """
        used = self.residence.chunks_by_holder().get(alone, 0) if alone else self.residence.used
        used += self.grammars.chunks_alone(grammar)
        pages = self._most_pages(layers_by_arena(spans), self._pool.total - used)
        cap = self._cap_of(account, self._pool.total - used)
        return pages if cap is None else min(pages, cap // self.page_bytes(spans))

    def _most_pages(self, layers: Mapping[str, int], chunks: int) -> int:
        """Return the pages that chunks hold, each with these layers in each arena."""
        most = []
        for arena, count in layers.items():
            slots = self.pages.allocator(arena)
            most.append(max(chunks // slots.group_chunks, 0) * slots.group_slots // count)
        if len(most) == 1:
            return most[0]
        return bisect_right(range(1, min(most) + 1), chunks, key=lambda pages: self._chunks(layers, pages))

    def _chunks(self, layers: Mapping[str, int], pages: int) -> int:
        """Return the chunks of this many pages, each with these layers in each arena."""
        total = 0
        for arena, count in layers.items():
            slots = self.pages.allocator(arena)
            total += -(-pages * count // slots.group_slots) * slots.group_chunks
        return total

    # accounts with caps ----------------------------------------------------------------------------------------------

    @property
    def capped(self) -> bool:
        """True if any account has a cap."""
        return bool(self._shares)

    def cap(self, account: str) -> int | None:
        """Return the limit in bytes of an account's pages now; None: no limit."""
        return self._cap_of(account, self._pool.total - self.residence.used)

    def _cap_of(self, account: str, left: int) -> int | None:
        """Return the cap if parameters leave ``left`` chunks."""
        share = self._share(account)
        return None if share is None else int(share * left * self._pool.chunk_bytes)

    def _share(self, account: str) -> float | None:
        """Return an account's fraction of KV memory.

        Offline accounts, which give way to all others, have only their own.
        """
        return self._shares.get(account, None if is_offline_account(account) else self._shares.get(EVERYBODY))

    def page_bytes(self, spans: Iterable[Span]) -> int:
        """Return the bytes of one page on each of ``spans``."""
        return sum(self.pages.page_bytes(span) for span in spans)

    def within_cap(self, account: str, need: int) -> bool:
        """Return whether the account may take ``need`` bytes one by one, giving up its idle pages.

        Idle pages that are to stay must be included in ``need``.
        """
        cap, accounts = self.cap(account), self.pages.accounts
        return cap is None or accounts.held(account) - accounts.idle(account) + need <= cap

    def hit_cap(self, account: str) -> None:
        """Count a page or sequence of the account that gave way because of its cap."""
        self.cap_hits[account] = self.cap_hits.get(account, 0) + 1

    def forget(self, account: str) -> bool:
        """Forget an account without sequences; return False if it still has cached pages."""
        if not self.pages.accounts.forget(account):
            return False
        self.cap_hits.pop(account, None)
        return True

    # parameters ------------------------------------------------------------------------------------------------------

    def chunks_for(self, spans: Sequence[Span], account: str, pages: int) -> int:
        """Return the chunks that must be left beside parameters for a sequence of ``pages`` pages (as in ``pages_of``)."""
        if not spans:
            return 0
        left, need = self._chunks(layers_by_arena(spans), pages), pages * self.page_bytes(spans)
        if share := self._share(account):
            left = max(left, int(need / (share * self._pool.chunk_bytes)))
            while (
                self._cap_of(account, left) or 0
            ) < need:  # the cap's own arithmetic: with a byte less it would never start
                left += 1
        return left

    def load(
        self, holder: str, components: Sequence[WantedComponent], kept: int, moves: dict[str, dict[int, int]] | None = None
    ) -> list[list[TensorPlace]] | Shortage:
        """Place the tensors of components and deltas, evicting cached pages; all of them, or nothing is changed.

        kept: chunks that must be left to KV afterwards for sequences that run or wait. moves: filled with the moves of
        compacted slots, by arena; None: no compaction.
        """
        residence = self.residence
        chunk = self._pool.chunk_bytes
        total = self._pool.total
        new = {c.id: c for c in components if not residence.holds(c.id)}
        if new:
            need = residence.chunks_for([tensor for c in new.values() for tensor in c.tensors])
            left = total - residence.used - (need or 0)
            lacking = max(kept, self._reserve(holder, components, left)) - left
            if need is None or lacking > 0 or not self._make_all_free(need, moves):
                alone = residence.chunks_of(tensor for c in components for tensor in c.tensors)
                return Shortage((need or alone) * chunk, max(lacking, 1) * chunk, alone > total)
        places = []
        self._orphaned.difference_update(new)
        for component in components:
            found = residence.hold(component.id, holder)
            found = residence.load(component.id, holder, component.tensors) if found is None else found
            assert found is not None, "there is less room than was counted"
            places.append(found)
        return places

    def _reserve(self, holder: str, components: Sequence[WantedComponent], left: int) -> int:
        """Return the chunks that an application loaded beside others leaves to KV. ``left``: chunks it would leave."""
        total, residence = self._pool.total, self.residence
        if left >= self._kv_reserve * total or residence.only(holder):
            return 0
        largest = max(owned + shared for owned, shared in residence.bytes_by_holder().values()) // self._pool.chunk_bytes
        alone = residence.chunks_of(tensor for c in components for tensor in c.tensors)
        return int(self._kv_reserve * max(0, total - max(largest, alone)))

    def _make_all_free(self, need: int, moves: dict[str, dict[int, int]] | None) -> bool:
        """Free ``need`` chunks by evicting cached pages, by compaction, and by evicting grammars without users."""
        while not (self._make_free(need) or self._compact(need, moves)):
            if not self.grammars.evict():
                return False
        return True

    def _make_free(self, need: int) -> bool:
        """Free ``need`` chunks by evicting cached pages, if that is enough; else evict none."""
        if self._pool.free >= need:
            return True
        slots = self.pages.idle.slots
        if need > self._pool.free + sum(self.pages.allocator(arena).may_return(n) for arena, n in slots.items()):
            return False
        pool = self._pool.fork()  # a trial run: a group returns its chunks with its last slot, so counting cannot tell
        return eviction.make_free(self.pages.fork(pool), pool, need) and eviction.make_free(self.pages, self._pool, need)

    def _compact(self, need: int, moves: dict[str, dict[int, int]] | None) -> bool:
        """Free ``need`` chunks by compaction, with eviction of cached pages where needed; if that fails, change nothing."""
        if moves is None:
            return False
        pool = self._pool.fork()
        if eviction.make_compact(self.pages.fork(pool), pool, need, MOST_MOVED) is None:
            return False
        moves.update(eviction.make_compact(self.pages, self._pool, need, MOST_MOVED) or {})
        return True

    def release(self, components: Iterable[bytes], holder: str) -> list[tuple[bytes, list[bytes]]]:
        """Release components of ``holder``; return those no holder needs, each with the packed tensors that go.

        The cached KV that they made stays until ``forget_pages``.
        """
        gone = [(id, tensors) for id in components if (tensors := self.residence.release(id, holder)) is not None]
        self._orphaned.update(id for id, _ in gone)
        return gone

    def forget_pages(self, named: Collection[Span]) -> None:
        """Evict cached pages whose makers are gone: nothing here can use them or make more. ``named`` spans are kept."""
        if self._orphaned:
            eviction.evict_components(self.pages, self._orphaned, named)
            self._orphaned &= {id for span in named for layer in span.components for id in layer}

    # both ------------------------------------------------------------------------------------------------------------

    @property
    def total_bytes(self) -> int:
        return self._pool.total * self._pool.chunk_bytes

    @property
    def free_bytes(self) -> int:
        return self._pool.free * self._pool.chunk_bytes

    @property
    def grammar_bytes(self) -> int:
        return len(self.grammars.chunks) * self._pool.chunk_bytes

    @property
    def parameter_bytes(self) -> int:
        return self.residence.used * self._pool.chunk_bytes

    def left_alone(self) -> dict[str, int]:
        """Return, for each application with parameters here, the bytes left to KV with it alone."""
        total, chunk = self._pool.total, self._pool.chunk_bytes
        return {name: (total - used) * chunk for name, used in self.residence.chunks_by_holder().items()}

    @property
    def pending(self) -> bool:
        """True if there are edits for the device even if nothing is to be computed."""
        return self._pool.pending

    def take_edits(self) -> list[MapGroup]:
        """Return all mappings since the last call, for the plan being made."""
        return self._pool.take_edits()

    def fork(self) -> WorkerMemory:
        chunk = self._pool.chunk_bytes
        copy = WorkerMemory(0, chunk, self._slot_unit, chunk, self._shares, self._kv_reserve)
        copy.cap_hits, copy._orphaned = self.cap_hits.copy(), self._orphaned.copy()
        copy._pool = self._pool.fork()
        copy.pages, copy.residence = self.pages.fork(copy._pool), self.residence.fork(copy._pool)
        copy.grammars = self.grammars.fork(copy._pool)
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "slot_unit": self._slot_unit,
            "shares": self._shares.copy(),
            "cap_hits": self.cap_hits.copy(),
            "kv_reserve": self._kv_reserve,
            "pool": self._pool.snapshot(),
            "pages": self.pages.snapshot(),
            "residence": self.residence.snapshot(),
            "grammars": self.grammars.snapshot(),
            "orphaned": to_plain(self._orphaned),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> WorkerMemory:
        memory = cls(0, 1, data["slot_unit"], 1, data["shares"], data["kv_reserve"])
        memory.cap_hits = dict(data["cap_hits"])
        memory._pool = ChunkPool.restore(data["pool"])
        memory.pages = PageTable.restore(data["pages"], memory._pool, capped=memory.capped)
        memory.residence = Residence.restore(data["residence"], memory._pool)
        memory.grammars = GrammarMemory.restore(data["grammars"], memory._pool)
        memory._orphaned = set(data["orphaned"])
        return memory

    def check(self, listed: dict[int, int], grammars: dict[bytes, int] | None = None) -> None:
        """Raise AssertionError unless every chunk, slot and page is free or owned once.

        ``listed``: readers of each page. ``grammars``: running sequences with each grammar.
        """
        assert self.pages.accounts.ordered == self.capped, "idle pages are ordered by account without need, or not at all"
        self._pool.check([*self.residence.chunks, *self.pages.chunks, *self.grammars.chunks])
        self.grammars.check(grammars or {})
        self.pages.check(listed)
        self.residence.check()
        assert not any(map(self.residence.holds, self._orphaned)), "a component is here, and counts as gone"


def layers_by_arena(spans: Iterable[Span]) -> dict[str, int]:
    """Return the layers of these spans in each arena; a chain with blocks of another model may use several."""
    found: dict[str, int] = {}
    for span in spans:
        found[span.arena] = found.get(span.arena, 0) + span.layers
    return found
