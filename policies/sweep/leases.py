"""The lease book: reservations of rows and pages for sequences that cross workers, and their rows in flight.

A sequence is planned by its home alone. Before it starts, the home asks each host of the route for a *lease*: a row and
pages for its prompt. Before the sequence outgrows them the lease grows, so that a row in flight never waits for memory.
This file records the leases; ``pipeline.py`` has the protocol. The life of a lease, at the home (above) and at a host
(below):

    ASKED -> GRANTED -> ASKED (the next host) ... GRANTED -> HELD -> gone
    QUEUED -> LENT (-> REVOKED) -> gone

While it is held, its row leaves and comes back once for each token. Chunks of a prompt follow one another without waiting
for the one before, since each passes every stage behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from ..plain import Plain, from_plain, to_plain
from .events import Flight


class Stage(IntEnum):
    """The stage of a lease's life."""

    NEW = 0
    ASKED = 1  # home: a host has been asked
    GRANTED = 2  # home: that host has made room; the next one is asked, or the sequence starts
    HELD = 3  # home: all hosts have made room
    QUEUED = 4  # host: asked for, waits for room
    LENT = 5  # host: row and pages are reserved
    REVOKED = 6  # host: as LENT, until the home returns it, as requested


class LeaseStep(IntEnum):
    """An event in a lease's life."""

    ASK = 0
    GRANT = 1
    START = 2
    QUEUE = 3
    REVOKE = 4


_NEXT: dict[tuple[Stage, LeaseStep], Stage] = {
    (Stage.NEW, LeaseStep.ASK): Stage.ASKED,
    (Stage.ASKED, LeaseStep.GRANT): Stage.GRANTED,
    (Stage.GRANTED, LeaseStep.ASK): Stage.ASKED,
    (Stage.GRANTED, LeaseStep.START): Stage.HELD,
    (Stage.NEW, LeaseStep.QUEUE): Stage.QUEUED,
    (Stage.QUEUED, LeaseStep.START): Stage.LENT,
    (Stage.LENT, LeaseStep.REVOKE): Stage.REVOKED,
}


@dataclass(slots=True)
class Lease:
    """The lease of one sequence."""

    home: str  # worker that plans the sequence
    number: int  # unique at the home, never used again
    stage: Stage = Stage.NEW
    granted: int = 0  # home: number of hosts that have made room, in the order of asking
    cached: int = 1 << 30  # home: leading pages that all hosts so far have in their prefix caches
    path: str = ""  # home: hosts of the route; sequences with the same hosts share microbatches
    away: tuple[int, ...] = ()  # home: plans with which the row left and is not back, oldest first
    flying: int = 0  # home: how many of these have run; their results are in flight
    left: int = 0  # home: the last plan with which it left: its microbatch
    pages: int = 0  # pages that every host asked so far has (home), or that this one has (host)
    wanted: int = 0  # the same after the last request is granted
    growing: int = 0  # home: hosts that have not granted it yet
    urgent: bool = False  # waits for memory here, while others may wait for what it holds

    def apply(self, step: LeaseStep) -> None:
        """Go to the next stage. Raises AssertionError for a step that is impossible now."""
        following = _NEXT.get((self.stage, step))
        assert following is not None, f"lease {self.number} of {self.home} is {self.stage.name}: {step.name} cannot come"
        self.stage = following


class LeaseTable:
    """The leases of one worker by sequence, and the flights that have arrived for guests."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._next = 1  # number of the next lease
        self._leases: dict[int, Lease] = {}  # by sequence
        self._sequences: dict[tuple[str, int], int] = {}  # (home, number) -> sequence
        self._urgent: set[int] = set()  # see ``Lease.urgent``
        self._away: dict[tuple[int, str], int] = {}  # (plan, path) -> rows that left with it and are not back
        self._flights: list[tuple[Flight, list[int]]] = []  # arrived and not planned, with the guest of each row
        self._void: list[int] = []  # numbers of flights that no plan will take: the device may forget them

    def begin(self, incarnation: int) -> None:
        """Number leases from a base of this life, so that no number of an earlier life matches."""
        self._next = (incarnation << 32) + 1

    # at the home -----------------------------------------------------------------------------------------------------

    def ask(self, s: int, pages: int, path: str) -> Lease:
        """Record a request to one more host of ``path`` for ``s``.

        All hosts are asked for the same ``pages`` as the first.
        """
        lease = self._leases.get(s)
        if lease is None:
            lease = self._enter(s, Lease(self._worker, self._next, pages=pages, wanted=pages, path=path))
            self._next += 1
        lease.apply(LeaseStep.ASK)
        return lease

    def grant(self, s: int, cached: int) -> int:
        """Record a grant with ``cached`` leading pages; return the number of hosts that have granted."""
        lease = self._leases[s]
        lease.apply(LeaseStep.GRANT)
        lease.granted += 1
        lease.cached = min(lease.cached, cached)
        return lease.granted

    def hold(self, s: int) -> None:
        """Mark ``s`` urgent: all hosts have made room, and it is to start."""
        lease = self._leases[s]
        lease.urgent = True
        self._urgent.add(s)

    def want(self, s: int, pages: int, hosts: int) -> bool:
        """Record a wish for more pages; return whether ``hosts`` hosts are to be asked. Only one wish is open at a time."""
        lease = self._leases[s]
        if lease.growing or pages <= lease.wanted:
            return False
        lease.wanted, lease.growing = pages, hosts
        return True

    def grow(self, s: int) -> None:
        """Record that one host has granted more pages."""
        lease = self._leases[s]
        lease.growing -= 1
        if not lease.growing:
            lease.pages = lease.wanted

    def pages(self, s: int) -> int:
        """Return the pages of its lease, see ``Lease.pages``."""
        return self._leases[s].pages

    def cached(self, s: int) -> int:
        """Return the leading pages of ``s`` that all its hosts have."""
        lease = self._leases.get(s)
        return lease.cached if lease is not None else 1 << 30

    def path(self, s: int) -> str:
        """Return the hosts of its route, see ``Lease.path``."""
        return self._leases[s].path

    def left(self, s: int) -> int:
        """Return the last plan with which it left, see ``Lease.left``."""
        return self._leases[s].left

    def depart(self, s: int, plan: int) -> int:
        """Record that plan ``plan`` sends the row on; return the number of the lease."""
        lease = self._leases[s]
        assert lease.stage is Stage.HELD, f"lease {lease.number} of {lease.home} is {lease.stage.name}: it cannot DEPART"
        lease.away, lease.left = (*lease.away, plan), plan
        self._away[plan, lease.path] = self._away.get((plan, lease.path), 0) + 1
        return lease.number

    def is_away(self, s: int) -> bool:
        """Return whether the row is in an open plan or in flight."""
        lease = self._leases.get(s)
        return lease is not None and bool(lease.away)

    def flying(self, s: int) -> int:
        """Return how many of its rows are in flight, see ``Lease.flying``."""
        lease = self._leases.get(s)
        return lease.flying if lease is not None else 0

    def sent(self, s: int) -> None:
        """Record that the next plan with the row has run: the row is in flight."""
        lease = self._leases[s]
        assert lease.flying < len(lease.away), f"lease {lease.number} of {lease.home} flies more often than it left"
        lease.flying += 1

    def bring_back(self, s: int) -> None:
        """Record that the row that left first is back."""
        lease = self._leases[s]
        assert lease.flying > 0, f"lease {lease.number} of {lease.home} is back and was not away"
        lease.flying -= 1
        self._forget(lease, 1)

    def recall(self, s: int) -> int:
        """Forget all rows away; return how many were in flight. The plans of the others are still open."""
        lease = self._leases.get(s)
        if lease is None:
            return 0
        self._forget(lease, len(lease.away))
        flew, lease.flying = lease.flying, 0
        return flew

    def _forget(self, lease: Lease, plans: int) -> None:
        for plan in lease.away[:plans]:
            self._away[plan, lease.path] -= 1
            if not self._away[plan, lease.path]:
                del self._away[plan, lease.path]
        lease.away = lease.away[plans:]

    def microbatches(self, path: str) -> list[int]:
        """Return the plans with rows away on this path."""
        return [plan for plan, other in self._away if other == path]

    # at a host -------------------------------------------------------------------------------------------------------

    def queue(self, s: int, home: str, number: int, pages: int, *, urgent: bool) -> None:
        """Record that ``home`` wants a row and pages for ``s``, which waits. ``urgent``: it has those of other hosts."""
        self._enter(s, Lease(home, number, wanted=pages)).apply(LeaseStep.QUEUE)
        if urgent:
            self.hold(s)

    def await_pages(self, s: int, pages: int) -> None:
        """Record that the home wants ``pages`` in total."""
        lease = self._leases[s]
        if lease.stage is Stage.LENT:
            lease.wanted, lease.urgent = pages, True
            self._urgent.add(s)

    def extend(self, s: int) -> int:
        """Record that the guest has all wanted pages; return the number of its lease."""
        lease = self._leases[s]
        lease.pages, lease.urgent = lease.wanted, False
        self._urgent.discard(s)
        return lease.number

    def wanted(self, s: int) -> int:
        """Return the wanted pages, see ``Lease.wanted``."""
        return self._leases[s].wanted

    def revoke(self, s: int) -> None:
        """Mark a lease revoked, and ask its home to return it."""
        lease = self._leases[s]
        lease.apply(LeaseStep.REVOKE)
        lease.urgent = False
        self._urgent.discard(s)

    def lent(self) -> list[int]:
        """Return the guests whose leases may be revoked."""
        return [s for s, lease in self._leases.items() if lease.stage is Stage.LENT]

    @property
    def revoked(self) -> bool:
        """True while a home still has to return a revoked lease."""
        return any(lease.stage is Stage.REVOKED for lease in self._leases.values())

    def guests(self, flight: Flight) -> list[int]:
        """Return the guests of a flight whose leases are here."""
        return [s for row in flight.rows if (s := self.find(flight.home, row.lease)) is not None]

    def arrive(self, flight: Flight) -> list[int] | None:
        """Record an arrived flight and return its guests; None, and it is void, if a lease of it is gone.

        Leases end with their route, which all rows of a flight share, and one by one where a home gives sequences up that
        have rows on their way, because another of their hosts is lost. Anything else that needs the memory has to wait until
        the home returns the lease.
        """
        guests = self.guests(flight)
        if len(guests) < len(flight.rows):
            self._void.append(flight.number)
            return None
        self._flights.append((flight, guests))
        return guests

    def next_flight(self) -> tuple[Flight, list[int]] | None:
        """Return the flight that has waited longest, with the guest of each row."""
        return self._flights[0] if self._flights else None

    def take_flight(self) -> None:
        """Remove the next flight: a plan computes its rows."""
        del self._flights[0]

    def cancel_flights(self, leaving: set[int]) -> list[int]:
        """Cancel flights whose guests all leave, since the components may be gone; return those guests."""
        cancelled: list[int] = []
        kept: list[tuple[Flight, list[int]]] = []
        for flight, guests in self._flights:
            if leaving.issuperset(guests):
                self._void.append(flight.number)
                cancelled += guests
            else:
                kept.append((flight, guests))
        self._flights = kept
        return cancelled

    def guests_in_flights(self) -> list[int]:
        """Return the guests of flights that no plan has taken, each as often as it occurs."""
        return [s for _, guests in self._flights for s in guests]

    @property
    def pending(self) -> bool:
        """True if the device has flights to forget."""
        return bool(self._void)

    def take_void(self) -> list[int]:
        """Return the flights that the device may forget with the plan being made."""
        void, self._void = self._void, []
        return void

    # both ------------------------------------------------------------------------------------------------------------

    def _enter(self, s: int, lease: Lease) -> Lease:
        self._leases[s] = lease
        self._sequences[lease.home, lease.number] = s
        return lease

    def start(self, s: int) -> None:
        """Record that ``s`` has a row and pages here."""
        if (lease := self._leases.get(s)) is not None:
            lease.apply(LeaseStep.START)
            self.extend(s)

    @property
    def urgent(self) -> set[int]:
        """The sequences that wait here while others may wait for what they hold: see ``Lease``."""
        return self._urgent

    def find(self, home: str, number: int) -> int | None:
        """Return the sequence of a lease."""
        return self._sequences.get((home, number))

    def home(self, s: int) -> str:
        """Return the worker that plans a guest."""
        return self._leases[s].home

    def number(self, s: int) -> int:
        return self._leases[s].number

    def end(self, s: int) -> Lease | None:
        """End the lease of a sequence that has left or starts anew; None: it had none."""
        lease = self._leases.pop(s, None)
        self._urgent.discard(s)
        if lease is not None:
            del self._sequences[lease.home, lease.number]
        return lease

    def __len__(self) -> int:
        return len(self._leases)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> LeaseTable:
        copy = LeaseTable(self._worker)
        copy._next = self._next
        copy._sequences = self._sequences.copy()
        copy._away = self._away.copy()
        copy._leases = {s: replace(lease) for s, lease in self._leases.items()}
        copy._flights = self._flights.copy()
        copy._void = self._void.copy()
        copy._urgent = self._urgent.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "worker": self._worker,
            "next": self._next,
            "leases": [[s, *to_plain(lease)[1:]] for s, lease in self._leases.items()],
            "flights": [[to_plain(flight), guests.copy()] for flight, guests in self._flights],
            "void": self._void.copy(),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> LeaseTable:
        book = cls(data["worker"])
        book._next, book._void = data["next"], list(data["void"])
        for s, *fields in data["leases"]:
            lease = book._enter(s, from_plain(Lease, ["Lease", *fields]))
            for plan in lease.away:
                book._away[plan, lease.path] = book._away.get((plan, lease.path), 0) + 1
            if lease.urgent:
                book._urgent.add(s)
        book._flights = [(from_plain(Flight, flight), list(guests)) for flight, guests in data["flights"]]
        return book

    def check(self, live: set[int]) -> None:
        """Raise AssertionError unless leases match sequences one to one, rows away are counted, and flights have guests."""
        assert self._leases.keys() <= live, "a lease is kept for a sequence that has left"
        named = {(lease.home, lease.number): s for s, lease in self._leases.items()}
        assert self._sequences == named, "leases and sequences do not correspond"
        away: dict[tuple[int, str], int] = {}
        for lease in self._leases.values():
            assert not lease.away or lease.stage is Stage.HELD, f"lease {lease.number} is misplaced"
            assert 0 <= lease.flying <= len(lease.away), f"lease {lease.number} flies more often than it left"
            for plan in lease.away:
                away[plan, lease.path] = away.get((plan, lease.path), 0) + 1
            if lease.home == self._worker:
                assert lease.stage < Stage.QUEUED, f"lease {lease.number} is our own and queued"
                assert lease.number < self._next, f"lease {lease.number} is numbered beyond the next"
                assert not lease.urgent or lease.stage is Stage.GRANTED, f"lease {lease.number} waits to start, and has"
                assert (lease.wanted > lease.pages) == (lease.growing > 0), f"no host should extend lease {lease.number}"
            else:
                assert lease.stage >= Stage.QUEUED, f"lease {lease.number} of {lease.home} is at the wrong end"
                assert lease.stage is Stage.REVOKED or lease.urgent >= (lease.wanted > lease.pages > 0), "no host extends it"
                assert lease.stage is not Stage.REVOKED or not lease.urgent, "a revoked lease grows"
        assert self._urgent == {s for s, lease in self._leases.items() if lease.urgent}, "who is urgent is not known"
        assert self._away == away, "rows that are away are counted wrongly"
        assert all(s in self._leases for _, guests in self._flights for s in guests), "a flight has no lease"
