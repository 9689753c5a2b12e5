"""The sub-states of a worker's sweep machine, and a snapshot of all.

Each owns its data, has a ``check``, and knows no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..memory.worker_memory import WorkerMemory
from ..plain import Plain, from_plain, to_plain
from ..plan.coefficients import Coefficients
from ..plan.sweep_plan import Edit
from .ageing import Ageing
from .bottlenecks import Bottlenecks
from .columns import Place, Status
from .config import SweepConfig
from .draft_table import DraftTable
from .events import ComponentsPlaced, DeviceOrder, Effects, GatewayNews, PeerMessage
from .fair_share import FairShare
from .grammar_table import GrammarTable
from .guesses import GuessTable
from .leases import LeaseTable
from .local_routes import LocalRoutes
from .page_pins import PagePins
from .page_transfers import PageTransfers
from .pending_pages import PendingPages
from .return_timeouts import ReturnTimeouts
from .row_table import RowTable
from .sequence_queue import SequenceQueue
from .tier_lines import TierLines
from .tier_turns import AUTO, TierTurns

COUNTERS = (
    "prompt_tokens", "cached_tokens", "generated_tokens", "computed_tokens", "preemptions", "refused", "expired",
    "entered_tokens", "offline_tokens", "offline_yielded", "draft_rounds", "drafted_tokens", "accepted_tokens",
    "forced_tokens", "guessed_states", "accepted_guesses", "urgent_preemptions", "class_rises",
    "short_sweeps", "rows_sat_out",
    "moved_slots", "exported_pages", "exported_bytes", "imported_pages", "imported_bytes", "refused_pages",
)  # fmt: skip


class Outgoing:
    """The machine's output: effects for the shell, table edits for the next plan, counters for the metrics."""

    def __init__(self) -> None:
        self._effects = Effects()
        self._with_plan: list[ComponentsPlaced] = []  # emitted once the plan that maps their memory has been made
        self._edits: list[Edit] = []
        self.edited = True  # False: no device runs the plans, so table edits are not needed
        self.counters = dict.fromkeys(COUNTERS, 0)

    def emit(self, news: GatewayNews) -> None:
        """Emit news for its gateway."""
        self._effects.news.append(news)

    def emit_all(self, news: Iterable[GatewayNews]) -> None:
        self._effects.news.extend(news)

    def send(self, worker: str, message: PeerMessage) -> None:
        """Emit a message to another worker."""
        self._effects.messages.setdefault(worker, []).append(message)

    def order(self, order: DeviceOrder) -> None:
        """Emit an order to this worker's own device or loader."""
        self._effects.orders.append(order)

    def order_placed(self, placed: ComponentsPlaced, unmapped: bool) -> None:
        """Emit a placement. If its memory may be ``unmapped``, it is emitted after the next plan, which maps the memory."""
        if unmapped:
            self._with_plan.append(placed)
        else:
            self.order(placed)

    @property
    def placing(self) -> bool:
        """True if an effect waits for the next plan."""
        return bool(self._with_plan)

    def withdraw(self, component: bytes) -> None:
        """Cancel waiting placements of a load with a component that has gone."""
        self._with_plan = [placed for placed in self._with_plan if component not in placed.components]

    def plan_made(self) -> None:
        self._effects.orders.extend(self._with_plan)
        self._with_plan = []

    def leave_edits(self) -> None:
        """Stop collecting table edits from now on."""
        self.edited = False

    def edit(self, edit: Edit) -> None:
        if self.edited:
            self._edits.append(edit)

    def count(self, counter: str, n: int = 1) -> None:
        self.counters[counter] += n

    def take_effects(self) -> Effects:
        effects, self._effects = self._effects, Effects()
        return effects

    def take_edits(self) -> list[Edit]:
        edits, self._edits = self._edits, []
        return edits

    def fork(self) -> Outgoing:
        """Return a copy without the effects, since emitted effects are no part of the state."""
        copy = Outgoing()
        copy._edits = self._edits.copy()
        copy._with_plan = self._with_plan.copy()
        copy.counters = self.counters.copy()
        copy.edited = self.edited
        return copy

    def snapshot(self) -> dict[str, Plain]:
        counters = self.counters.copy()
        edits, placed = to_plain(self._edits), to_plain(self._with_plan)
        return {"edits": edits, "edited": self.edited, "with_plan": placed, "counters": counters}

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> Outgoing:
        outgoing = cls()
        outgoing.edited = data["edited"]
        outgoing._edits, outgoing.counters = from_plain(list[Edit], data["edits"]), dict(data["counters"])
        outgoing._with_plan = from_plain(list[ComponentsPlaced], data["with_plan"])
        return outgoing


class Parts:
    """The sub-states of one worker: one of each."""

    def __init__(self, config: SweepConfig) -> None:
        self.config = config
        self.rows = RowTable(config.max_rows, config.page_size, config.prefix_cache)
        self.now = 0.0  # the time of the call that is being handled; no part of the state
        costs = config.input_cost, config.output_cost
        tiers, ageing = TierLines(config.tier_weights, *costs), Ageing(config.class_ageing)
        self.queue = SequenceQueue(FairShare(config.tenant_weights, *costs), tiers, ageing)
        shares, reserve = config.tenant_kv_share, config.kv_reserve
        sizes = config.budget, config.memory_chunk, config.slot_unit, config.granule
        self.memory = WorkerMemory(*sizes, shares, reserve, grammars_counted=config.grammars_counted)
        self.leases = LeaseTable(config.worker)
        self.page_transfers = PageTransfers()
        self.page_pins = PagePins()
        self.return_timeouts = ReturnTimeouts()
        self.pending_pages = PendingPages()
        self.drafts = DraftTable()
        self.bottlenecks = Bottlenecks()
        self.guesses = GuessTable()
        self.grammars = GrammarTable()
        hidden = config.hidden_pages if config.prefix_cache else "off"
        self.routes = LocalRoutes(config.worker, config.numerics, hidden, tier_fairness=config.tier_fairness)
        self.turns = TierTurns()
        self.outgoing = Outgoing()

    def tier(self, s: int) -> int:
        """Return the place of a sequence's tier among those of its family here (see ``LocalRoutes.tier``)."""
        return self.routes.tier(self.rows.route[s].route.id)

    def learn(self, costs: Coefficients) -> None:
        """Set the cost of sweeps here."""
        self.config = replace(self.config, costs=costs)

    def at(self, now: float) -> None:
        """Set the time of the call that is being handled."""
        self.now = now
        if (news := self.memory.pages.news) is not None:
            news.at(now)

    def enqueue(self, s: int) -> None:
        """Let a sequence wait for its start in the queue."""
        rows = self.rows
        self.queue.push(rows.key(s), rows.tenant[s], rows.tier[s], rows.since[s])

    def dequeue(self, s: int) -> None:
        """Take a sequence out of the queue."""
        self.queue.remove(self.rows.key(s), self.rows.tenant[s])

    @property
    def looks_ahead(self) -> bool:
        """True if sequences at home cross workers, so that the cost of sweeps matters."""
        return len(self.leases) > 0 and any(self.rows.place[s] == Place.FORWARD for s in self.queue.running)

    @property
    def weighs_turns(self) -> bool:
        """True if tiers are here whose turns follow from the cost of sweeps."""
        return self.routes.tiers > 1 and self.config.tier_sweeps == AUTO

    @property
    def edits_wanted(self) -> bool:
        """True if memory that was taken or given back justifies a plan without rows.

        If rows of guests are expected, their plan will do, unless a load waits: a sweep of its own would keep the guests
        waiting.
        """
        return self.memory.pending and (self.outgoing.placing or not len(self.leases))

    def forget_pages(self) -> None:
        """Drop cached pages of models that are gone.

        Pages of models with a part of their parameters here are kept: these dropped the rest for a burst, and the worker
        that computes it again finds the pages.
        """
        self.memory.forget_pages(self.routes.spans(self.memory.residence.holders()))

    def forget(self) -> None:
        """Forget accounts of models that are served no more, once they have no sequences, no pages, and no raised counter.

        Such an account is as good as new.
        """
        if self.routes.ended:
            living = {self.rows.tenant[s] for s in self.rows.live()}
            self.drafts.forget(self.routes.ended - living)
            idle = [name for name in sorted(self.routes.ended) if name not in living and self.memory.forget(name)]
            self.routes.ended.difference_update([name for name in idle if self.queue.forget(name)])

    def fork(self) -> Parts:
        copy = Parts(self.config)
        copy.now = self.now
        copy.rows, copy.queue = self.rows.fork(), self.queue.fork()
        copy.memory = self.memory.fork()
        copy.leases = self.leases.fork()
        copy.return_timeouts = self.return_timeouts.fork()
        copy.page_transfers, copy.page_pins = self.page_transfers.fork(), self.page_pins.fork()
        copy.drafts, copy.turns = self.drafts.fork(), self.turns.fork()
        copy.grammars, copy.bottlenecks = self.grammars.fork(), self.bottlenecks.fork()
        copy.guesses = self.guesses.fork()
        copy.pending_pages = self.pending_pages.fork()
        copy.routes = self.routes.fork()
        copy.outgoing = self.outgoing.fork()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        """Return the whole state as plain data, without effects that were not taken."""
        return {
            "config": to_plain(self.config),
            "rows": self.rows.snapshot(),
            "queue": self.queue.snapshot(),
            "memory": self.memory.snapshot(),
            "leases": self.leases.snapshot(),
            "page_transfers": self.page_transfers.snapshot(),
            "page_pins": self.page_pins.snapshot(),
            "return_timeouts": self.return_timeouts.snapshot(),
            "pending_pages": self.pending_pages.snapshot(),
            "drafts": self.drafts.snapshot(),
            "bottlenecks": self.bottlenecks.snapshot(),
            "guesses": self.guesses.snapshot(),
            "grammars": self.grammars.snapshot(),
            "turns": self.turns.snapshot(),
            "routes": self.routes.snapshot(),
            "outgoing": self.outgoing.snapshot(),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> Parts:
        config = from_plain(SweepConfig, data["config"])
        parts = cls(config)
        parts.queue = SequenceQueue.restore(data["queue"])
        parts.rows = RowTable.restore(data["rows"])
        parts.memory = WorkerMemory.restore(data["memory"])
        parts.leases = LeaseTable.restore(data["leases"])
        parts.page_transfers = PageTransfers.restore(data["page_transfers"])
        parts.page_pins = PagePins.restore(data["page_pins"])
        parts.return_timeouts = ReturnTimeouts.restore(data["return_timeouts"])
        parts.pending_pages = PendingPages.restore(data["pending_pages"])
        parts.drafts = DraftTable.restore(data["drafts"])
        parts.bottlenecks = Bottlenecks.restore(data["bottlenecks"])
        parts.guesses = GuessTable.restore(data["guesses"])
        parts.grammars = GrammarTable.restore(data["grammars"])
        parts.turns = TierTurns.restore(data["turns"])
        parts.routes = LocalRoutes.restore(data["routes"])
        parts.outgoing = Outgoing.restore(data["outgoing"])
        return parts

    def check(self, named: dict[int, int]) -> None:
        """Raise AssertionError unless every part is right and they agree.

        ``named``: how many open plans name each sequence.
        """
        rows, live = self.rows, self.rows.live()
        for s in self.leases.guests_in_flights():
            named[s] = named.get(s, 0) + 1
        for s in live:
            away = self.leases.flying(s)
            assert rows.open[s] == named.get(s, 0) + away, f"sequence {s} is in other plans than it counts"
        rows.check(self.config.max_rows)
        self.routes.check()
        self.leases.check(set(live))
        self.page_transfers.check()
        self.page_pins.check()
        draft_rows = {s for s in live if rows.is_draft_row(s)}
        staying = [s for s in draft_rows if rows.status[s] != Status.LEAVING]
        self.drafts.check({s: rows.plain_until[s] for s in live}, staying)
        self.turns.check(self.config.tier_turns)
        self.bottlenecks.check()
        self.guesses.check({s for s in live if rows.is_guest(s)})
        self.grammars.check({s: rows.held[s] for s in live})
        self.return_timeouts.check({s for s in live if rows.is_guest(s)})
        running = [s for s in rows.with_status(Status.RUNNING) if not rows.is_guest(s) and s not in draft_rows]
        waiting = [(rows.key(s), rows.tenant[s]) for s in rows.with_status(Status.WAITING)]
        tiers = {s: tier for s in live if (tier := rows.tier[s]) is not None}
        self.queue.check(waiting, [rows.key(s) for s in running], tiers)
        makers = {s for s in live if rows.status[s] != Status.LEAVING and not rows.is_guest(s) and s not in draft_rows}
        self.pending_pages.check(makers, set(rows.with_status(Status.PARKED)))
        listed = {handle: 1 for received in self.page_transfers.received_batches() for handle in received.handles}
        entered = [handle for s in live for _, handle in rows.entered[s]]
        for handle in [*self.page_pins.handles(), *entered, *[handle for s in live for handle in rows.handles(s)]]:
            listed[handle] = listed.get(handle, 0) + 1
        self.memory.check(listed, self.grammars.users())
