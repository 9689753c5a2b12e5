"""The bottlenecks of one worker: which surrogate drafts for each application now, chosen anew each second.

A block instance here serves every sequence whose route passes it. Its time to empty its queue is the tokens that these
sequences still have to pass, times the bytes of the block: all blocks of a worker are read at the same speed. An application
drafts while one of its blocks that have surrogates is among the slowest (``policies/adaptive/speculation.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..adaptive.guessing import guesses_for
from ..adaptive.speculation import DraftingChain, bottlenecks, drafting_chains
from ..model.chain import Block, Chain, Kind
from ..model.partition import cut_blocks
from ..plain import Plain, from_plain, to_plain
from .columns import Status
from .row_table import RowTable

PERIOD = 1.0  # seconds between two choices


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block of an application: components ``first`` to ``last - 1``, which read ``nbytes`` for a token."""

    id: bytes
    first: int
    last: int
    nbytes: int


class Bottlenecks:
    """The drafting chain of each application on one worker (see the module)."""

    def __init__(self) -> None:
        self._drafting: dict[str, list[DraftingChain]] = {}  # by application
        self._blocks: dict[str, list[PlacedBlock]] = {}  # by application; empty while none speculates
        self._chosen: dict[str, str] = {}  # application -> drafting chain; absent: it draws no drafts now
        self._due = 0.0  # time of the next choice
        self.choices = 0  # changes of the choice since the start

    def learn(self, chains: Iterable[Chain]) -> None:
        """Adopt the chains of a publication. The next plan chooses anew."""
        known = list(chains)
        self._drafting, self._due = drafting_chains(known), 0.0
        self._blocks = _blocks(known) if self._drafting else {}
        self._chosen = {name: chain for name, chain in self._chosen.items() if name in self._drafting}

    def drafter(self, application: str, model: str) -> str:
        """Return what drafts now where ``model`` was asked for: that model, or the chain of a surrogate; "": none."""
        models = [one.model for one in self._drafting.get(application, ())]
        return self._chosen.get(application, "") if model in models else model

    def guesses(self, application: str) -> bool:
        """Return whether an application's hidden states are guessed now: the block before them is among the slowest."""
        chosen = self._chosen.get(application, "")
        return any(one.name == chosen and guesses_for(one.model, application) for one in self._drafting.get(application, ()))

    def left(self, application: str, name: str) -> bool:
        """Return whether a draft row of the chain ``name`` is a surrogate's whose block is not among the slowest now."""
        names = [one.name for one in self._drafting.get(application, ())]
        return name in names and self._chosen.get(application, "") != name

    def choose(self, rows: RowTable, now: float) -> None:
        """Choose anew if it is time."""
        if not self._drafting or now < self._due:
            return
        times = self._times(rows)
        if times:  # else the first sequence that comes is looked at
            self._due = now + PERIOD
        chains = [[block.id for block in blocks] for blocks in self._blocks.values()]
        able = {
            block.id
            for name, drafting in self._drafting.items()
            for block in self._blocks.get(name, ())
            if any(_passes(one, block) for one in drafting)
        }
        slow = bottlenecks(times, chains, able)
        chosen: dict[str, str] = {}
        for name, drafting in self._drafting.items():
            here = [block for id in slow for block in self._blocks.get(name, ()) if block.id == id]
            found = next((one.name for block in here for one in drafting if _passes(one, block)), "")
            if found:
                chosen[name] = found
        self.choices += chosen != self._chosen
        self._chosen = chosen

    def _times(self, rows: RowTable) -> dict[bytes, float]:
        """Return the time that each block here needs to empty its queue, in bytes that are read."""
        times: dict[bytes, float] = {}
        for s in rows.live():
            if rows.status[s] in (Status.FREE, Status.LEAVING) or rows.is_draft_row(s) or rows.is_offline(s):
                continue
            local, of = rows.route[s], rows.submission[s]
            hop = local.route.hops[local.hop]
            answer = min(of.expected or of.max_length, of.max_length - of.prompt_length)
            left = max(of.prompt_length + answer - rows.computed[s], 1)
            for block in self._blocks.get(local.route.application, ()):
                if hop.first <= block.first and block.last <= hop.last:
                    times[block.id] = times.get(block.id, 0.0) + left * block.nbytes
        return times

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> Bottlenecks:
        copy = Bottlenecks()
        copy._drafting, copy._blocks = self._drafting, self._blocks  # a publication replaces these
        copy._chosen = self._chosen
        copy._due, copy.choices = self._due, self.choices
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "drafting": [[name, to_plain(some)] for name, some in self._drafting.items()],
            "blocks": [[name, to_plain(some)] for name, some in self._blocks.items()],
            "chosen": [[name, chain] for name, chain in self._chosen.items()],
            "counts": [self._due, self.choices],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> Bottlenecks:
        found = cls()
        found._drafting = {name: from_plain(list[DraftingChain], some) for name, some in data["drafting"]}
        found._blocks = {name: from_plain(list[PlacedBlock], some) for name, some in data["blocks"]}
        found._chosen = dict(data["chosen"])
        found._due, found.choices = data["counts"]
        return found

    def check(self) -> None:
        """Raise AssertionError unless each application drafts with a chain of its own."""
        for name, chain in self._chosen.items():
            assert chain in [one.name for one in self._drafting.get(name, ())], f"{chain} drafts for {name} and is unknown"


def _passes(chain: DraftingChain, block: PlacedBlock) -> bool:
    """Return whether the surrogate of a chain stands for a part of a block."""
    return block.first < chain.last and chain.first < block.last


def _blocks(chains: Sequence[Chain]) -> dict[str, list[PlacedBlock]]:
    """Return the blocks of each application.

    They are cut anew: a chain that came before its drafting chains was published in longer blocks.
    """
    borders = {one.application: [block.first for block in _placed(one.blocks)] for one in chains}
    cut = cut_blocks({one.application: one.components for one in chains}, borders)
    return {one.application: _placed(cut[one.application]) for one in chains if not one.drafts_for}


def _placed(blocks: Sequence[Block]) -> list[PlacedBlock]:
    found: list[PlacedBlock] = []
    first = 0
    for block in blocks:
        last = first + len(block.components)
        nbytes = sum([c.nbytes for c in block.components if c.kind is not Kind.EMBEDDING])
        found.append(PlacedBlock(block.id, first, last, nbytes))
        first = last
    return found
