"""The history of a request: its events, its waits, and what workers have reported about its run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...sweep.events import DraftsVerified, ExitEntered, GuessesJudged, SatOut
from .values import DraftCounts

MAX_EVENTS = 128  # events kept for one request; beyond them only the end is added


@dataclass(slots=True, eq=False)
class ChainSwitch:
    """The change of a request from one chain to another after its first attempt had begun.

    position: tokens of the answer from the chains before. stay, go: the estimates; None: its route had ended, which forced
    it. outcome: what the first token of the new chain has shown; empty: it has not come.
    """

    at: float
    source: str
    target: str
    position: int
    why: str
    stay: float | None = None
    go: float | None = None
    outcome: dict[str, float] = field(default_factory=dict)

    @property
    def forced(self) -> bool:
        return self.go is None

    def view(self, arrival: float, ended: float | None) -> dict[str, Any]:
        """Return the switch for JSON. took: seconds from the switch to the last token, to compare with ``go``."""
        shown = {name: getattr(self, name) for name in ("source", "target", "position", "why", "stay", "go", "outcome")}
        return {"at": self.at - arrival, **shown, "took": None if ended is None else ended - self.at}


@dataclass(slots=True, eq=False)
class RequestHistory:
    """The past of one request, for people. Decides nothing; its waiting time goes to workers."""

    waits_from: float | None = None  # begin of its present wait; None: it does not wait
    waited: float = 0.0  # seconds of its waits that are over, in all attempts
    begun: float | None = None  # start of the first reported plan
    ended: float | None = None  # time of its last token, or when its text was complete
    preemptions: int = 0
    yielded: int = 0  # rows that it gave to urgent requests
    drafts: dict[str, DraftCounts] = field(default_factory=dict)  # verified drafts of all attempts, by source
    guesses: int = 0  # of its hidden states, over all attempts
    accepted: int = 0  # of these, the ones that stood: its text is approximate if there are any
    parked: int = 0  # steps of lower tiers that it sat out
    parked_seconds: float = 0.0  # the time that these took
    entered: dict[int, int] = field(default_factory=dict)  # prompt tokens that began at an exit, by the layers before it
    entered_to: int = 0  # the position up to which ``entered`` counts; what is recomputed counts once
    switches: list[ChainSwitch] = field(default_factory=list)
    events: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)

    def arrived(self, cached: int, tokens: int, now: float) -> None:
        """Note the outcome of a forced switch, which waits for a route first: the new home has computed some of it."""
        if self.switches and (last := self.switches[-1]).forced and not last.outcome:
            last.outcome = {"cached": cached, "recomputed": tokens - cached, "paused": now - last.at}

    def note(self, now: float, event: str, **detail: Any) -> None:
        """Add an event."""
        if len(self.events) < MAX_EVENTS:
            self.events.append((now, event, detail))

    def waiting_time(self, now: float) -> float:
        """Return the seconds that it has waited in all, at its gateway and on workers."""
        return self.waited + (0.0 if self.waits_from is None else max(0.0, now - self.waits_from))

    def begin_wait(self, now: float) -> None:
        """Count from now, unless it waits already."""
        if self.waits_from is None:
            self.waits_from = now

    def end_wait(self, now: float) -> None:
        self.waited, self.waits_from = self.waiting_time(now), None

    def begin_anew(self) -> None:
        """Forget what was reported of an answer that is dropped."""
        self.drafts = {}
        self.guesses = self.accepted = 0
        self.entered = {}
        self.entered_to = 0

    def verified(self, news: DraftsVerified) -> None:
        """Count a round of drafts, or several that were reported together."""
        counts = self.drafts.get(news.source, DraftCounts())
        self.drafts[news.source] = counts.plus(news.rounds, news.drafted, news.accepted)

    def judged(self, news: GuessesJudged) -> None:
        """Count guesses of its hidden states, and the ones that stood."""
        self.guesses += news.guesses
        self.accepted += news.accepted

    def sat_out(self, news: SatOut) -> None:
        """Count steps of lower tiers that it sat out."""
        self.parked += news.sweeps
        self.parked_seconds += news.seconds

    def entered_at(self, news: ExitEntered, virtual: int, begins: int) -> None:
        """Count prompt tokens that began at an exit. Virtual tokens, and those of the answer, do not count."""
        start, end = max(news.start, self.entered_to, virtual), min(news.end, begins)
        if start < end:
            self.entered[news.layers] = self.entered.get(news.layers, 0) + end - start
            self.entered_to = end
