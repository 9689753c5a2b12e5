"""Claims about requests, and the rules by which each is settled: the table behind ``settling.py``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ...model.chain import Route
from ..refusal import RequestRefused
from .lifecycle import LifeEvent
from .record import RequestRecord


@dataclass(frozen=True, slots=True, eq=False)
class RequestClaim:
    """A claim that an event of a request's life has come: by its client, its home, a move, a switch, a death or a limit."""

    record: RequestRecord
    event: LifeEvent
    reason: str = ""
    refused: RequestRefused | None = None  # the answer to its client, if it fails
    route: Route | None = None  # where it goes on


class Then(Enum):
    """The place of a request after its attempt or its wait is over."""

    PLACE = auto()  # an attempt on the route of the claim
    QUEUE = auto()  # it waits here, and is tried after all others that lost a route with it
    TRY = auto()  # it waits here, and starts again if there is a route now
    ANEW = auto()  # an attempt at its home if it can be, else as TRY
    KEEP = auto()  # nothing: its answer is kept
    END = auto()  # nothing: it has ended


class Frees(Enum):
    """The route that others may take because a request leaves."""

    NOTHING = auto()
    ITS_OWN = auto()  # the route on which it ran alone
    RESERVED = auto()  # that one, or one that is reserved for it


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule by which claims of one event are settled. ``settle`` follows it in the order of the fields."""

    cancels: bool = False  # its home is to forget the attempt
    frees: Frees = Frees.NOTHING
    withdraws: bool = True  # its claim on another route is void
    then: Then = Then.END


RULES = {
    LifeEvent.LEAVE: Rule(withdraws=False, then=Then.PLACE),  # its workers keep its pages, so nothing is cancelled
    LifeEvent.HAND_OVER: Rule(cancels=True, withdraws=False, then=Then.PLACE),
    LifeEvent.REROUTE: Rule(cancels=True, withdraws=False, then=Then.PLACE),
    LifeEvent.GIVE_BACK: Rule(frees=Frees.ITS_OWN, then=Then.TRY),
    LifeEvent.LOSE: Rule(cancels=True, then=Then.QUEUE),
    LifeEvent.RESTART: Rule(cancels=True, then=Then.TRY),
    LifeEvent.HOLD: Rule(frees=Frees.RESERVED, then=Then.KEEP),
    LifeEvent.GO_UP: Rule(cancels=True, frees=Frees.RESERVED, then=Then.ANEW),
    LifeEvent.FINISH: Rule(frees=Frees.RESERVED),
    LifeEvent.STOP: Rule(cancels=True, frees=Frees.RESERVED),
    LifeEvent.CANCEL: Rule(cancels=True, frees=Frees.RESERVED),
    LifeEvent.REFUSE: Rule(frees=Frees.RESERVED),
    LifeEvent.FAIL: Rule(cancels=True, frees=Frees.RESERVED),
}
