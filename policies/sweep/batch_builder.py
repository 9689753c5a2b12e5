"""The batch of a plan being made, and its layout: columns, steps, departures.

Rows of one route are adjacent, so that the rows of most runs are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from ..model.runs import Exit, LocalRoute, Run
from ..plan.sweep_plan import Arrival, Departure, DraftRow, FlightRow, HiddenRows, Step, SweepPlan
from . import draft_steps
from .columns import Place
from .events import Flight
from .guess_steps import lay_out_guesses
from .parts import Parts
from .sequence_queue import Rank
from .tier_turns import WHOLE

SPARE = 4  # divisor; a sweep of 1/4 of the tokens takes less than 2x one without prompts, if decoding is cheap


class BatchBuilder:
    """The rows picked for one plan. ``budget`` counts down the tokens that still fit."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.spare = max(1, budget // SPARE)  # part of it for prompts that delay decoding accounts that were given less
        self.decoding: list[tuple[Rank, str]] = []  # the two accounts with decoding rows that were given least
        self.turn = WHOLE  # which tiers have rows in it
        self.parked: list[int] = []  # running sequences that sit it out, as it is short
        self.starved = False  # some row lacked memory: nothing is admitted
        self.squeezed = False  # some row hit its account's cap: nothing of that account is admitted
        self.capped: set[str] = set()  # accounts at their caps of KV memory: none of their sequences is admitted
        self.local = True  # all rows are at home, and their routes end here
        self.flights: list[tuple[Flight, list[int]]] = []  # flights, each with the guest of each row
        self.guests: set[int] = set()  # guests of these flights
        self.picked: list[int] = []  # at home, in the order of picking
        self.starts: list[int] = []  # first position of each
        self.growing: list[int] = []  # sequences at home whose hosts are asked for more pages
        self.decodes = 0  # number of leading rows with one token, after which one is drawn
        self._counts: dict[int, int] = {}  # sequence -> positions, if not one
        self._undrawn: set[int] = set()  # sequences after which no token is drawn
        self._drafts: dict[int, list[int]] = {}  # sequence -> its drafts, which are verified; 0 for ones drawn in the plan
        self._exits: dict[int, Run] = {}  # sequence -> head of the lower tier that draws its drafts
        self._draft_rows: dict[int, tuple[int, int]] = {}  # draft row that draws drafts -> its sequence and its lead
        self._entered: dict[int, Exit] = {}  # sequence -> the exit at which its positions enter the model

    def add_flight(self, flight: Flight, guests: list[int], tokens: int) -> None:
        self.flights.append((flight, guests))
        self.guests.update(guests)
        self.local = False
        self.budget -= tokens

    def add(self, s: int, start: int, count: int, drawn: bool, local: bool) -> None:
        """Add ``count`` positions of ``s`` from ``start``. ``drawn``: a token is drawn after them."""
        self.local = self.local and local
        self.picked.append(s)
        self.starts.append(start)
        self.budget -= count
        if count != 1:
            self._counts[s] = count
        if not drawn:
            self._undrawn.add(s)

    def add_drafts(self, s: int, start: int, drafts: list[int], local: bool) -> None:
        """Add the next position of ``s`` and the drafted ones behind it."""
        self._drafts[s] = drafts
        self.add(s, start, len(drafts) + 1, drawn=True, local=local)

    def enter(self, s: int, entry: Exit) -> None:
        """Let the positions of ``s`` begin at an exit."""
        self._entered[s] = entry

    def add_tier_drafts(self, s: int, start: int, count: int, head: Run) -> None:
        """Add the next position of ``s`` and ``count`` more, for which the plan draws drafts with this head."""
        self._exits[s] = head
        self.add_drafts(s, start, [0] * count, local=True)

    def add_model_drafts(self, s: int, start: int, count: int, row: int, first: int, lead: int) -> None:
        """Add the next position of ``s`` and ``count`` more, for which the plan draws drafts with a draft row.

        The draft row begins at position ``first`` and has ``lead`` positions before its first draft.
        """
        self.add_drafts(s, start, [0] * count, local=True)
        self._draft_rows[row] = s, lead
        self.add(row, first, lead + count - 1, drawn=False, local=True)

    @property
    def targets(self) -> int:
        """The number of picked rows without the draft rows that draw drafts."""
        return len(self.picked) - len(self._draft_rows)

    def passes(self, head: Run) -> int:
        """Return the passes to an exit after the first, which are made for the rows so far: the most drafts of one."""
        return max([len(self._drafts[s]) for s, other in self._exits.items() if other == head], default=0)

    def guessed(self, plan: SweepPlan, sequences: list[int]) -> list[int]:
        """Return the batch rows with drafts that are verified elsewhere."""
        if not self._drafts or len(plan.verify) == len(self._drafts):
            return []
        return [i for i, s in enumerate(sequences) if s in self._drafts and i not in plan.verify]

    def count_of(self, s: int) -> int:
        """Return the number of positions of a picked sequence."""
        return self._counts.get(s, 1)

    @property
    def plain(self) -> bool:
        """True if all rows decode, and none came from another worker."""
        return not self.flights and len(self.picked) == self.decodes and not self._undrawn and not self._drafts

    def lay_out(self, parts: Parts, plan: SweepPlan) -> list[int]:
        """Fill the plan's columns; return the sequence of each batch row."""
        wanted: list[int] = []  # batch rows after which a token is drawn, here or at the route's end
        sequences = self._lay_out_flights(plan, wanted)
        picked, starts = self._by_route(parts)
        first = len(sequences)
        sequences += picked
        plan.start += starts
        if self._counts or self._undrawn:
            plan.count += [self._counts.get(s, 1) for s in picked]
            wanted += [first + i for i, s in enumerate(picked) if s not in self._undrawn]
        else:
            plan.count += [1] * len(picked)
            wanted += range(first, first + len(picked))
        rows = parts.rows
        plan.row = [rows.row[s] for s in sequences]
        plan.sample = wanted if self.local else [i for i in wanted if rows.route[sequences[i]].next_worker is None]
        if self._drafts:
            plan.verify = [i for i in plan.sample if sequences[i] in self._drafts]
            plan.drafting = [i for i in plan.verify if sequences[i] in self._exits]
        if self._draft_rows:
            places = {s: i for i, s in enumerate(sequences)}
            drawing = sorted((places[row], places[s], lead) for row, (s, lead) in self._draft_rows.items())
            plan.draft_rows = [DraftRow(row, target, lead) for row, target, lead in drawing]
        if not self.plain or not self.local:
            _score(parts, plan, sequences)
        entered = {i: self._entered[s] for i, s in enumerate(sequences) if s in self._entered} if self._entered else {}
        _lay_out_steps(parts, plan, sequences, self._exits, {i: entry.depth for i, entry in entered.items()})
        if entered or parts.routes.keeps_hidden:
            _lay_out_hidden(parts, plan, sequences, entered)
        if not self.local:
            _lay_out_departures(parts, plan, sequences, set(wanted), self._drafts)
            if not parts.routes.single:
                lay_out_guesses(parts, plan, sequences)
        plan.reasons = {"waiting": parts.queue.waiting, "starved": int(self.starved)}
        return sequences

    def _lay_out_flights(self, plan: SweepPlan, wanted: list[int]) -> list[int]:
        sequences: list[int] = []
        for flight, guests in self.flights:
            plan.arrivals.append(Arrival(flight.number, list(range(len(sequences), len(sequences) + len(guests)))))
            for s, row in zip(guests, flight.rows, strict=True):
                if row.sample:
                    wanted.append(len(sequences))
                if row.drafts:
                    self._drafts[s] = row.drafts
                if row.guess:
                    plan.supposed.append(len(sequences))
                sequences.append(s)
                plan.start.append(row.start)
                plan.count.append(row.count)
        return sequences

    def _by_route(self, parts: Parts) -> tuple[list[int], list[int]]:
        """Return the picked rows and their positions, sorted by route id. With a single route nothing is sorted."""
        if parts.routes.single:
            return self.picked, self.starts
        names = [parts.rows.route[s].route.id for s in self.picked]
        order = sorted(range(len(names)), key=names.__getitem__)
        return [self.picked[i] for i in order], [self.starts[i] for i in order]


def _score(parts: Parts, plan: SweepPlan, sequences: list[int]) -> None:
    """Set the batch rows whose prompt log-probabilities are wanted, if the head is here."""
    rows = parts.rows
    plan.score = [
        i for i, s in enumerate(sequences) if rows.scores(s, plan.start[i]) and rows.route[s].next_worker is None
    ]  # fmt: skip


def _lay_out_hidden(parts: Parts, plan: SweepPlan, sequences: list[int], entered: dict[int, Exit]) -> None:
    """Add the batch rows whose hidden states are read at an exit, and those whose hidden states are kept there.

    A row with drafts reads none. It keeps the ones of all its positions: when the last step ends, each has passed all
    layers, also if its draft was drawn in the plan. Those behind a rejected draft are overwritten before their page is
    published.
    """
    route = parts.rows.route
    resumed: dict[tuple[str, int], list[int]] = {}
    kept: dict[tuple[str, int], list[int]] = {}
    for i, entry in entered.items():
        resumed.setdefault((entry.span.arena, route[sequences[i]].column), []).append(i)
    for i, s in enumerate(sequences):
        if (exit := route[s].exit) is not None:
            kept.setdefault((exit.span.arena, exit.span.layer), []).append(i)
    plan.resumed = [HiddenRows(arena, column, batch) for (arena, column), batch in resumed.items()]
    plan.kept = [HiddenRows(arena, column, batch) for (arena, column), batch in kept.items()]


def _lay_out_steps(
    parts: Parts, plan: SweepPlan, sequences: list[int], exits: Mapping[int, Run], entered: dict[int, int]
) -> None:
    """Add one step for each run that a row passes, in order of depth. Heads get only rows that are sampled or scored.

    The steps of rows whose drafts are drawn in the plan are in ``draft_steps.py``. ``exits``: as in ``BatchBuilder``.
    ``entered``: the depth at which a batch row begins, if that is not the first component.
    """
    route = parts.rows.route
    if sequences and parts.routes.single and parts.routes.plain and not entered:
        local, everyone = route[sequences[0]], list(range(len(sequences)))
        for number, run in zip(parts.routes.numbers(local.route.id), local.runs, strict=True):
            members = everyone if not run.head else plan.sample if not plan.score else sorted({*plan.sample, *plan.score})
            if members:
                plan.steps.append(Step(number, members, [], run.nbytes, run.kv_bytes, run.head))
        return
    groups: dict[str, tuple[LocalRoute, list[int]]] = {}
    for i, s in enumerate(sequences):
        groups.setdefault(route[s].route.id, (route[s], []))[1].append(i)
    steps = _steps(parts, plan, groups.values(), entered)
    meets = _Deltas(parts, sequences) if not parts.routes.plain else None
    if plan.drafting or plan.draft_rows:
        heads = {i: exits[sequences[i]] for i in plan.drafting}
        heads |= {row.batch: route[sequences[row.batch]].runs[-1] for row in plan.draft_rows}
        for number, run, members, place, draft in draft_steps.ordered(plan, steps, heads, parts.routes):
            met = meets.of(number, members) if meets is not None else []
            plan.steps.append(Step(number, members, met, run.nbytes, run.kv_bytes, run.head, place, draft))
        return
    for number, (run, members) in sorted(steps.items(), key=lambda item: (item[1][0].depth, item[0])):
        met = meets.of(number, members) if meets is not None else []
        plan.steps.append(Step(number, members, met, run.nbytes, run.kv_bytes, run.head))


class _Deltas:
    """The deltas that the rows of a batch meet in its runs."""

    def __init__(self, parts: Parts, sequences: list[int]) -> None:
        rows, routes = parts.rows, parts.routes
        self._numbers = [rows.delta[s] for s in sequences]  # number of each batch row's route
        self._inside: set[tuple[int, int]] = set()  # (run, number) pairs where the run has deltas of that number
        for local in {rows.route[s].route.id: rows.route[s] for s in sequences}.values():
            for run, touched in zip(local.runs, local.touched, strict=True):
                if touched:
                    self._inside.add((routes.number(run), local.delta))

    def of(self, run: int, batch: list[int]) -> list[int]:
        """Return the delta number of each of these batch rows, 0 if its deltas are in other runs; empty if all are 0."""
        met = [self._numbers[i] if (run, self._numbers[i]) in self._inside else 0 for i in batch]
        return met if any(met) else []


def _steps(
    parts: Parts, plan: SweepPlan, groups: Iterable[tuple[LocalRoute, list[int]]], entered: dict[int, int]
) -> dict[int, tuple[Run, list[int]]]:
    """Return each run, by number, with its batch rows in ascending order."""
    found: dict[int, tuple[Run, list[list[int]]]] = {}  # one list of rows for each route
    everyone = len(plan.sample) == len(plan.row)
    heads = set() if everyone else {*plan.sample, *plan.score}
    for local, batch in groups:
        for run in local.runs:
            members = [i for i in batch if i in heads] if run.head and not everyone else batch
            if entered:
                members = [i for i in members if entered.get(i, 0) <= run.depth]
            if members:
                found.setdefault(parts.routes.number(run), (run, []))[1].append(members)
    return {number: (run, _merged(members)) for number, (run, members) in found.items()}


def _merged(lists: list[list[int]]) -> list[int]:
    """Merge ascending lists. They are sorted once, however many applications share a run."""
    return lists[0] if len(lists) == 1 else sorted(chain.from_iterable(lists))


def _lay_out_departures(
    parts: Parts, plan: SweepPlan, sequences: list[int], wanted: set[int], drafts: dict[int, list[int]]
) -> None:
    """Add a departing flight for each route that goes on elsewhere. Its rows from home are away from now on."""
    rows, leases = parts.rows, parts.leases
    flights: dict[str, Departure] = {}
    for i, s in enumerate(sequences):
        local = rows.route[s]
        if local.next_worker is None:
            continue
        if rows.place[s] == Place.FORWARD:
            leases.depart(s, plan.number)
        if (flight := flights.get(local.route.id)) is None:
            flight = flights[local.route.id] = Departure(local.next_worker, local.route.home, local.width, [], [])
            plan.departures.append(flight)
        flight.batch.append(i)
        flight.rows.append(
            FlightRow(leases.number(s), plan.start[i], plan.count[i], i in wanted, drafts.get(s, []), i in plan.supposed)
        )
