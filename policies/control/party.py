"""Parties: who decides what belongs where. Each owns its own reasons and knows no other party."""

from __future__ import annotations

from collections.abc import Iterable

from .claims import Change
from .events import Effect, Event
from .holdings import Holdings

Conclusions = Iterable[Change | Effect | Event]  # what a party answers; all parties hear an event in turn


class Party:
    """A party of the controller (see the module). Whatever it reads in ``view`` it leaves as it is."""

    def handle(self, event: Event, view: Holdings, now: float) -> Conclusions:
        """Return what follows from an event, in order. All of it is concluded from the view as it is now."""
        return ()

    def settle(self, view: Holdings, now: float) -> Conclusions:
        """Return what follows from the changes that the event has made so far; asked again until nothing does."""
        return ()

    def check(self, view: Holdings) -> None:
        """Raise AssertionError when an invariant is broken, or a claim has no reason any more."""
