"""The serving actors over 1,000 seeds of kills, drops, delays and duplicates: every request ends with the right tokens or a
typed error, and nothing is left of it. ``game.py`` has the properties, ``strikes.py`` the kinds of messages.

``make nightly`` plays them all, any run as many as hit each kind of message.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from functools import cache
from itertools import product
from typing import Any

import pytest

from blockwright.actors.worker import reports
from blockwright.actors.worker.coalesced_news import CoalescedNews
from blockwright.actors.worker.messages import GatewayNews
from blockwright.policies.cluster import report_sequence
from blockwright.policies.plan.sweep_plan import SweepPlan
from blockwright.runtime.testing import seeds
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts, some, spans
from blockwright.tests.serving.device import SimulatedExecutor
from blockwright.tests.serving.game import REQUESTS, Game, has_tier
from blockwright.tests.serving.late import OF_LEASES
from blockwright.tests.serving.strikes import ACTIONS, KINDS, Coverage

CELLS = [(kind, action) for kind in KINDS for action in ACTIONS]  # the first seeds strike at one each
MORE = 4  # games of a turn in which no message is missing, but a late one has never been planted
TURNS = 8  # and so do the seeds after them, if the message did not come
PART = 12
PARTS = 74
DAILY = 0
AT_ONCE = 5  # kinds of messages that a game strikes at, in any run
OF_GROWTH = ("LeaseRevoked", "GrowthWanted", "GrowthGranted")
SOON = 3.0  # virtual seconds
LOADING = ("load", "answer to load", "status", "answer to status", "routes", "answer to routes", "up")


class Played:
    """The sums over games that were played."""

    def __init__(self) -> None:
        self.coverage, self.planted = Coverage(), set[str]()
        self.outcomes: Counter[str] = Counter()
        self.counters: Counter[str] = Counter()
        self.attempts: Counter[int] = Counter()

    def add(self, game: Game) -> None:
        assert sum(game.outcomes.values()) == REQUESTS, game.seed
        self.coverage.add(game.strikes)
        self.outcomes += game.outcomes
        self.counters += game.counters
        self.attempts += game.attempts
        self.planted |= game.house.late.keys()

    def check(self, *, well: float) -> None:
        """Assert that late answers were planted, memory was scarce, requests moved on, and the share ``well`` ended well."""
        assert self.planted >= OF_LEASES, OF_LEASES - self.planted
        assert self.outcomes["done"] + self.outcomes["cancelled"] >= well * sum(self.outcomes.values()), self.outcomes
        scarce = ("preemptions", "cached_tokens", "parked", "evicted_pages", "hops of 3")
        assert all(self.counters[name] > 0 for name in scarce), self.counters
        assert sum(self.attempts[n] for n in self.attempts if n > 1) >= 20, self.attempts


@claim(
    "Every request ends with the right tokens or a typed error under random kills, losses, delays and duplicates",
    of="faults",
)
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_every_request_ends_with_the_right_tokens_or_a_typed_error(part: int) -> None:
    for seed in seeds(PART, first=len(CELLS) + part * PART):
        game = Game(seed).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed


@claim("Late answers of earlier attempts, leases and lives change nothing, under random faults", of="faults")
@pytest.mark.nightly
@pytest.mark.parametrize("each", ["cell", "own"])
def test_each_action_has_hit_every_kind_of_message_errors_are_the_exception_and_memory_is_scarce(each: str) -> None:
    """Play one seed for each kind and each action, unless a seed before has hit it besides its own ("own": there, too).

    For the cells that these have not hit, play the seeds whose turn is next. 1,000 and some together with those above.
    """
    played, turn = Played(), 0
    while turn < TURNS:
        missing = played.coverage.missing()
        if not missing and played.planted >= OF_LEASES:
            break
        for cell in missing or CELLS[:MORE]:
            if not missing or each == "own" or not played.coverage.hit(cell):
                played.add(Game(turn * len(CELLS) + CELLS.index(cell)).play())
        turn += 1
    missing = played.coverage.missing()
    assert not missing, f"in {turn} turns never: {missing}\n{played.coverage.table()}"
    assert len(KINDS) * len(ACTIONS) >= 100
    played.check(well=0.9)


@claim("Late answers of earlier attempts, leases and lives change nothing, under random faults", of="faults")
def test_few_games_hit_every_kind_of_message_and_memory_is_scarce() -> None:
    """Strike at several kinds in a game, each time with other actions, until each kind was hit."""
    played, turn = Played(), 0
    while turn < TURNS:
        missing = played.coverage.missing_kinds(turn)
        if not missing and played.planted >= OF_LEASES:
            break
        cells = missing or [(kind, "delay") for kind in OF_GROWTH]
        for group in (cells[place : place + AT_ONCE] for place in range(0, len(cells), AT_ONCE)):
            wanted = [cell for cell in group if not missing or not played.coverage.hit_by_any(cell[0])]
            if wanted:
                strikes = [(kind, action, 1) for kind, action in wanted]
                strikes += [("tokens", "drop", 2)] * any(kind == "replay" for kind, _ in wanted)
                played.add(Game(turn * len(CELLS) + CELLS.index(wanted[0]), strikes=strikes).play())
        turn += 1
    missing = played.coverage.missing_kinds(turn)
    assert not missing, f"in {turn} turns never: {missing}\n{played.coverage.table()}"
    played.check(well=0.7)


@pytest.mark.parametrize("span", [range(6, 12), pytest.param(range(12), marks=pytest.mark.nightly)], ids=str)
def test_gateways_that_take_little_at_a_time_lose_nothing(monkeypatch: pytest.MonkeyPatch, span: range) -> None:
    """Reports that have not been sent wait at the workers and are joined, under the same faults."""
    monkeypatch.setattr(report_sequence, "ACKNOWLEDGE_EVERY", 2)
    monkeypatch.setattr(reports, "WINDOW", 3)
    held, add = Counter[bool](), CoalescedNews.add

    def counted(one: CoalescedNews, news: Collection[GatewayNews]) -> None:
        before = len(one.news)
        add(one, news)
        held[len(one.news) < before + len(news)] += 1

    monkeypatch.setattr(CoalescedNews, "add", counted)
    for seed in span:
        game = Game(seed).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
    assert held[True] > 10, "tokens were joined"


@pytest.mark.parametrize("span", spans(1, 10, 3), ids=str)
def test_without_faults_every_request_gets_its_tokens(span: range) -> None:
    for seed in span:
        game = Game(seed, faults=False).play()
        assert set(game.outcomes) <= {"done", "cancelled"}, seed


@pytest.mark.nightly
def test_a_game_replays_in_another_process() -> None:
    """Whatever the hashes of strings are there."""
    seed, digest = 23, Game(23).play().sim.trace.digest
    program = f"from blockwright.tests.serving.game import Game; print(Game({seed}).play().sim.trace.digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split()[-1] == digest


LOST = ("routes", "up", "down", "LeaseWanted", "LeaseGranted", "LeaseReturned", "FlightDone", "address book")


@pytest.mark.parametrize(
    ("kind", "number"),
    some(product(LOST, range(5)), *product(("routes", "up", "LeaseReturned"), (0,)), *product(("address book",), (1, 2))),
)
def test_each_of_the_first_messages_of_a_kind_may_be_lost(kind: str, number: int) -> None:
    """Of these nobody waits for an answer: what is lost must be noticed by what comes after, or by a heartbeat."""
    game = Game(1001 + number, strikes=[(kind, "drop", 1 + number)]).play()
    assert set(game.outcomes) <= {"done", "cancelled", "connection lost"}, game.outcomes


@cache
def opened_undisturbed() -> float:
    return Game(1, faults=False).play().opened


@pytest.mark.parametrize("number", some((1, 5, 2), 1))
@pytest.mark.parametrize("kind", some(LOADING, *LOADING[::3]))
def test_a_worker_is_out_for_seconds_whatever_message_is_lost_while_it_loads(kind: str, number: int) -> None:
    """Of every kind that is sent until then; ``WHOLE`` bounds what follows the faults of the other tests."""
    game = Game(1, faults=False, strikes=[(kind, "drop", number)]).play()
    assert game.opened < opened_undisturbed() + SOON


@claim(
    "Under random faults, tokens with drafts by a lower tier and from its hidden states equal the ones without", of="drafts"
)
@pytest.mark.parametrize("part", parts(10, 1))
def test_games_with_a_lower_tier_draft_with_it_and_enter_at_its_exit(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One game in ``1 / TIERED`` has a tier. Each request's answer is the one of the whole model alone (``Game``)."""
    drawn, draft = [0], SimulatedExecutor._draft

    def counted(executor: SimulatedExecutor, plan: SweepPlan, rows: list[tuple[int, int, int]], *more: Any) -> None:
        drawn[0] += len(rows)
        draft(executor, plan, rows, *more)

    monkeypatch.setattr(SimulatedExecutor, "_draft", counted)
    counters = Counter[str]()
    for seed in [seed for seed in range(500) if has_tier(seed)][part * 8 : part * 8 + 8]:
        counters += Game(seed).play().counters
    assert drawn[0] > 30
    assert counters["drafted_tokens"] > 100
    assert counters["entered_tokens"] > 0
