"""The life of a request: its stages, the events that change them, and a table of both.

``TABLE`` has an entry for each stage and event: the next stage, or the reason why the event cannot come then. A request's
stage is changed by ``following`` alone, through ``RequestRecord.apply``. What people see of a stage is in ``WORDS``.
"""

from __future__ import annotations

from enum import Enum, auto


class LifeStage(Enum):
    """The stage of a request's life."""

    QUEUED = auto()  # waits here for the first attempt, on the tier on which it is
    ASKED = auto()  # waits here, and a dispatcher is asked for a route
    SENT = auto()  # an attempt is on its way to its home, or waits there
    STREAMING = auto()  # its home has planned the attempt: it computes, or was preempted and waits there
    MOVING = auto()  # as STREAMING, while its pages are copied to the workers of another route
    PAUSED = auto()  # has left its route; the attempt on the next one starts when its pages are there
    RETRIED = auto()  # waits here for another attempt
    HELD = auto()  # has all tokens of its first tier, and waits until its tier is chosen
    ENDED = auto()  # finished, cancelled or failed


class LifeEvent(Enum):
    """An event in a request's life."""

    ASK = auto()  # a dispatcher is asked where the next attempt should go
    PASS = auto()  # the dispatcher has answered, and there is no route to take now
    SEND = auto()  # an attempt starts on a route
    PLAN = auto()  # its home reports the attempt for the first time
    MOVE = auto()  # copies of its pages are asked for, while it decodes on
    STAY = auto()  # its move is withdrawn
    LEAVE = auto()  # its route has ended: it leaves, and workers keep its pages
    HAND_OVER = auto()  # its attempt goes on to the route of its move
    REROUTE = auto()  # another worker gets it, since its own has not begun it
    GIVE_BACK = auto()  # its home returns it, or was not reached
    LOSE = auto()  # a worker of its route has died
    RESTART = auto()  # its attempt is given up here: its tokens have a gap, or its route is gone
    HOLD = auto()  # its last token has come before its tier is chosen
    GO_UP = auto()  # the top tier is chosen: it begins anew there
    FINISH = auto()  # its last token is delivered
    STOP = auto()  # its client has the whole text
    CANCEL = auto()  # its client is gone
    REFUSE = auto()  # its home gives it back for good
    FAIL = auto()  # it is too late, poison, or cut off by the end of the server


_S, _E = LifeStage, LifeEvent
_HERE = "no worker has it"
_UNASKED = "no dispatcher is asked"
_PLACED = "it has a route already"
_COMPLETE = "its answer is complete"
_UNPLANNED = "its home reports the attempt first (PLAN)"
_UNSENT = "its attempt is not sent yet"
_NO_TOKEN = "the choice of a tier waits for its first tokens"
_OVER = "it has ended"

_ENDINGS: dict[LifeEvent, LifeStage | str] = {_E.STOP: _S.ENDED, _E.CANCEL: _S.ENDED, _E.FAIL: _S.ENDED}
_RETURNS: dict[LifeEvent, LifeStage | str] = {_E.GIVE_BACK: _S.RETRIED, _E.LOSE: _S.RETRIED, _E.RESTART: _S.RETRIED}
_AT_HOME: dict[LifeEvent, LifeStage | str] = dict.fromkeys(
    (_E.PLAN, _E.MOVE, _E.STAY, _E.LEAVE, _E.HAND_OVER, _E.REROUTE, _E.GIVE_BACK, _E.LOSE, _E.RESTART, _E.HOLD, _E.FINISH,
     _E.REFUSE), _HERE,
)  # fmt: skip
_UNQUEUED: dict[LifeEvent, LifeStage | str] = dict.fromkeys((_E.ASK, _E.PASS, _E.SEND), _PLACED)

TABLE: dict[LifeStage, dict[LifeEvent, LifeStage | str]] = {
    _S.QUEUED: {**_AT_HOME, **_ENDINGS, _E.ASK: _S.ASKED, _E.PASS: _UNASKED, _E.SEND: _S.SENT, _E.GO_UP: _NO_TOKEN},
    _S.ASKED: {
        **_AT_HOME, **_ENDINGS,
        _E.ASK: "a dispatcher is asked already", _E.PASS: _S.RETRIED, _E.SEND: _S.SENT, _E.GO_UP: _S.QUEUED,
    },
    _S.RETRIED: {**_AT_HOME, **_ENDINGS, _E.ASK: _S.ASKED, _E.PASS: _UNASKED, _E.SEND: _S.SENT, _E.GO_UP: _S.QUEUED},
    _S.SENT: {
        **_UNQUEUED, **_RETURNS, **_ENDINGS,
        _E.PLAN: _S.STREAMING, _E.MOVE: "it has no pages to copy: it is handed over at once", _E.STAY: "it does not move",
        _E.LEAVE: _S.PAUSED, _E.HAND_OVER: _S.SENT, _E.REROUTE: _S.SENT,
        _E.HOLD: _UNPLANNED, _E.GO_UP: _S.QUEUED, _E.FINISH: _UNPLANNED, _E.REFUSE: _S.ENDED,
    },
    _S.STREAMING: {
        **_UNQUEUED, **_RETURNS, **_ENDINGS,
        _E.PLAN: "it is planned already", _E.MOVE: _S.MOVING, _E.STAY: "it does not move",
        _E.LEAVE: _S.PAUSED, _E.HAND_OVER: _S.SENT, _E.REROUTE: _S.SENT,
        _E.HOLD: _S.HELD, _E.GO_UP: _S.QUEUED, _E.FINISH: _S.ENDED, _E.REFUSE: _S.ENDED,
    },
    _S.MOVING: {
        **_UNQUEUED, **_RETURNS, **_ENDINGS,
        _E.PLAN: "it is planned already", _E.MOVE: "a request has one move: the former is withdrawn first (STAY)",
        _E.STAY: _S.STREAMING, _E.LEAVE: "its move is withdrawn first (STAY)", _E.HAND_OVER: _S.SENT,
        _E.REROUTE: "it goes elsewhere already",
        _E.HOLD: _S.HELD, _E.GO_UP: _S.QUEUED, _E.FINISH: _S.ENDED, _E.REFUSE: _S.ENDED,
    },
    _S.PAUSED: {
        **_UNQUEUED, **_RETURNS, **_ENDINGS,
        _E.PLAN: _UNSENT, _E.MOVE: _UNSENT, _E.STAY: "it has left its route",
        _E.LEAVE: _S.PAUSED, _E.HAND_OVER: _S.SENT, _E.REROUTE: "it goes elsewhere already",
        _E.HOLD: _UNSENT, _E.GO_UP: _S.QUEUED, _E.FINISH: _UNSENT, _E.REFUSE: _S.ENDED,
    },
    _S.HELD: {
        **_AT_HOME, **_ENDINGS, **dict.fromkeys((_E.ASK, _E.PASS, _E.SEND), _COMPLETE),
        _E.HOLD: _COMPLETE, _E.GO_UP: _S.QUEUED, _E.FINISH: _S.ENDED,
    },
    _S.ENDED: dict.fromkeys(LifeEvent, _OVER),
}  # fmt: skip

WORDS = {
    LifeStage.QUEUED: "waiting",
    LifeStage.ASKED: "waiting",
    LifeStage.RETRIED: "waiting",
    LifeStage.SENT: "running",
    LifeStage.STREAMING: "running",
    LifeStage.MOVING: "running",
    LifeStage.PAUSED: "running",
    LifeStage.HELD: "held",
}
OUTCOMES = {
    LifeEvent.FINISH: "finished",
    LifeEvent.STOP: "finished",
    LifeEvent.CANCEL: "cancelled",
    LifeEvent.REFUSE: "failed",
    LifeEvent.FAIL: "failed",
}
WAITING = frozenset(stage for stage, word in WORDS.items() if word == "waiting")


def following(request: str, stage: LifeStage, event: LifeEvent) -> LifeStage:
    """Return the next stage. Raises AssertionError for an event that cannot come in this stage."""
    found = TABLE[stage][event]
    if isinstance(found, str):
        raise AssertionError(f"request {request} is {stage.name}: {event.name} cannot come, since {found}")
    return found


def page() -> str:
    """Return the table as text: a line for each event, a column for each stage; a dot where the event cannot come."""
    stages = [stage for stage in LifeStage if stage is not LifeStage.ENDED]
    width = max(len(stage.name) for stage in LifeStage) + 1
    lines = [" " * width + "".join(f"{stage.name:<{width}}" for stage in stages)]
    for event in LifeEvent:
        cells = [TABLE[stage][event] for stage in stages]
        named = "".join(f"{cell.name if isinstance(cell, LifeStage) else '.':<{width}}" for cell in cells)
        lines.append(f"{event.name:<{width}}{named}")
    return "\n".join(line.rstrip() for line in lines) + "\n"
