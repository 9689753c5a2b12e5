"""The command ``explain``: the request that it asks for, and the story of its phases and of its route."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from blockwright.api.commands import CommandError, explain
from blockwright.api.commands.cli import main
from blockwright.api.commands.explain import chain_lines, decision, draft_lines, phases, report
from blockwright.tests.claims import claim

asked: list[str] = []


class Session:
    """A server that remembers no request."""

    def get(self, path: str, holds: str = "") -> Any:
        asked.append(path)
        raise CommandError("there is no such request", 2)


@contextlib.contextmanager
def connected(arguments: argparse.Namespace, known: object) -> Iterator[Session]:
    yield Session()


@pytest.mark.parametrize(
    ("id", "path"),
    [
        ("cmpl-1", "cmpl-1"),
        ("a/b", "a%2Fb"),
        ("../models", "..%2Fmodels"),
        ("a?limit=1", "a%3Flimit%3D1"),
        ("\udcff", "%FF"),
    ],
)
def test_an_id_is_no_path(monkeypatch: pytest.MonkeyPatch, id: str, path: str) -> None:
    monkeypatch.setattr(explain, "connected", connected)
    asked.clear()
    assert main(["explain", id]) == 2
    assert asked == [f"/v1/requests/{path}"]


@pytest.mark.parametrize("id", ["", ".", ".."])
def test_what_cannot_be_an_id(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], id: str) -> None:
    monkeypatch.setattr(explain, "connected", connected)
    asked.clear()
    assert (main(["explain", id]), asked) == (2, [])
    assert "give the ID of a request, or --last" in capsys.readouterr().err


def test_each_choice_has_its_chain() -> None:
    """A request that no variant has served has no such line."""
    own = {"choice": 0, "listed": "a", "used": "a", "why": ""}
    other = {"choice": 1, "listed": "a", "used": "a~1", "why": "less work is ahead there"}
    back = {"choice": 2, "listed": "a", "used": "a", "why": "its variant has no route any more"}
    assert chain_lines([own]) == chain_lines([own, {**own, "choice": 1}]) == []
    assert chain_lines([other]) == ["  chain: a~1 in the place of a: less work is ahead there"]
    assert chain_lines([own, other, back]) == [
        "  chain of choice 0: a, its own",
        "  chain of choice 1: a~1 in the place of a: less work is ahead there",
        "  chain of choice 2: a, its own: its variant has no route any more",
    ]
    donated = {**other, "donors": ["b", "c"]}
    assert chain_lines([donated]) == ["  chain: a~1 in the place of a, with blocks of b and c: less work is ahead there"]
    scored = {**other, "similarity": {"answers": 1, "tokens": 8, "agreed": 0.75, "logprob": -0.5}}
    assert chain_lines([scored])[1:] == [
        "  similarity: 75.0% of 8 tokens are the likeliest of a, mean log-probability -0.500"
    ]


HOPS = [{"worker": "w0", "first": 0, "last": 3}, {"worker": "w1", "first": 3, "last": 8}]
EVENTS = [
    {"at": 0.0, "event": "arrived", "prompt_tokens": 1200, "max_tokens": 64},
    {"at": 0.0, "event": "queued", "ahead": 2},
    {"at": 1.0, "event": "dispatched", "attempt": 1, "route": "r", "hops": HOPS},
    {"at": 1.5, "event": "first_plan", "attempt": 1},
    {"at": 1.5, "event": "prefill", "computed": 512, "cached": 512, "of": 1200},
    {"at": 2.0, "event": "prefill", "computed": 768, "cached": 512, "of": 1200},
    {"at": 2.5, "event": "first_token"},
    {"at": 3.0, "event": "preempted"},
    {"at": 4.0, "event": "worker_died", "worker": "w1", "cause": "killed"},
    {"at": 4.0, "event": "dispatched", "attempt": 2, "route": "q", "hops": HOPS[:1]},
    {"at": 4.75, "event": "resumed", "attempt": 2},
    {"at": 5.0, "event": "returned", "reason": "route"},
    {"at": 5.0, "event": "gap", "expected": 3, "got": 5},
    {"at": 5.25, "event": "resumed", "attempt": 3},
    {"at": 7.0, "event": "finished", "reason": "stop"},
]
VIEW = {
    "id": "cmpl-1",
    "state": "finished",
    "attempt": 3,
    "prompt_tokens": 1200,
    "emitted_tokens": 40,
    "events": EVENTS,
}


def test_drafts_are_reported_by_source_or_why_there_are_none() -> None:
    counts = {"rounds": 4, "drafted": 10, "accepted": 6}
    drafts = {"sources": {"prompt": counts}, "reason": ""}
    message = "  drafts from the prompt: 10 verified, 6 accepted (60 %), 2.50 tokens a step in 4 steps"
    assert message in report({**VIEW, "drafts": drafts})
    assert draft_lines({**drafts, "reason": "so"}) == [message, "  no drafts any more: so"]
    assert draft_lines({"sources": {}, "reason": "so"}) == ["  no drafts: so"]
    lower = {"prompt": True, "prediction_tokens": 0, "tiers": ["m:4"], "sources": {"prompt": counts}, "reason": "so"}
    assert draft_lines(lower) == [message, "  no drafts by a tier: so"]
    assert draft_lines({**lower, "prompt": False, "sources": {}}) == ["  no drafts: so"]
    by_tiers = {**drafts, "sources": {"tier": counts}, "tiers": ["m:3", "m:4"]}
    assert draft_lines(by_tiers)[0].startswith("  drafts from a lower tier (m:3 or m:4): 10 verified")
    assert draft_lines({"sources": {}, "reason": ""}) == ["  no drafts so far: no step had any to verify"]
    assert draft_lines({"sources": {}, "reason": ""}, ended=True) == ["  no drafts: no step had any to verify"]
    assert "  no drafts: no step had any to verify" in report({**VIEW, "drafts": {"sources": {}, "reason": ""}})


def test_it_says_who_claims_the_components_of_the_route() -> None:
    one = {"worker": "w0", "first": 0, "last": 6, "by": "serving", "why": "it is served", "held": True, "paused_by": []}
    other = {**one, "worker": "w1", "by": "copies", "why": "a burst", "held": False, "paused_by": ["drains", "drops"]}
    lines = report({**VIEW, "claims": [one, other]})
    assert "  w0 has components 0 to 5 for serving: it is served" in lines
    rest = ", not all of them are loaded, takes no new requests (drains, drops)"
    assert f"  w1 has components 0 to 5 for copies: a burst{rest}" in lines


def test_prompt_tokens_that_began_at_an_exit_are_shown() -> None:
    parts = "64 began behind layer 4, 1,024 began behind layer 10"
    expected = f"  of a prompt of 1,200 tokens {parts}: a lower tier had computed the layers below"
    assert expected in report({**VIEW, "entered": {"10": 1024, "4": 64}})
    assert not [line for line in report({**VIEW, "entered": {}}) if "began" in line]


@pytest.mark.parametrize(
    ("view", "line"),
    [
        ({"parked_steps": 1, "parked_seconds": 0.0204}, "  parked: 0.020 s, 1 step in which lower tiers went on alone"),
        ({"parked_steps": 1200, "parked_seconds": 3}, "  parked: 3.000 s, 1,200 steps in which lower tiers went on alone"),
        ({"parked_steps": 2}, "  parked: 2 steps in which lower tiers went on alone"),
        ({"parked_steps": 0, "parked_seconds": 0.0}, None),
    ],
)
def test_parked_time_is_shown(view: dict[str, float], line: str | None) -> None:
    parked = [shown for shown in report({**VIEW, **view}) if "parked" in shown]
    assert parked == ([] if line is None else [line])


def test_the_choice_of_a_tier_is_reported() -> None:
    event = {"at": 0.5, "event": "tier_chosen", "tier": "m", "up": True, "confidence": 0.4321, "theta": 0.7}
    tier = {
        "tier": "m", "start": "m:4", "escalated": True, "confidence": 0.4321, "theta": 0.7, "measure": "mean", "tokens": 16,
        "seconds": 0.5,
    }  # fmt: skip
    lines = report({**VIEW, "events": [*EVENTS[:-1], event, EVENTS[-1]], "tier": tier})
    sure = "(mean confidence 0.432 of 16 tokens, theta 0.7, chosen after 0.500 s)"
    assert f"  tier: m, escalated from m:4 {sure}" in lines
    assert any(line.endswith("confidence 0.432, 0.7 is enough: goes up to m") for line in lines)
    assert f"  tier: m:4 {sure}" in report({**VIEW, "tier": {**tier, "tier": "m:4", "escalated": False}})
    waiting = {**tier, "tier": "", "confidence": None, "seconds": None}
    assert "  tier: not chosen yet, starts on m:4" in report({**VIEW, "tier": waiting})
    names = ["arrived", "first_plan", "first_token", "tier_chosen", "dispatched", "first_plan", "first_token", "finished"]
    events = [{"at": float(at), "event": name, "up": True} for at, name in enumerate(names)]
    assert dict(phases(events)) == {"queue": 3.0, "prefill": 2.0, "decode": 2.0}, "it begins anew, and waits anew"


@claim("A request explains its route, its waits, its prefill and its failovers without any text", of="observability")
def test_every_event_is_a_sentence() -> None:
    lines = report(VIEW)
    assert lines[:2] == ["cmpl-1: finished", "  1,200 prompt tokens, 40 emitted, 3 attempts"]
    assert [line.partition(" s  ")[2] for line in lines[2 : 2 + len(EVENTS)]] == [
        "arrived with 1,200 tokens, at most 64 to come",
        "queued behind 2",
        "attempt 1 on w0 [0:3] -> w1 [3:8]",
        "started on its worker",
        "prefill: 512 of 1,200 tokens, 512 of them found in the cache",
        "prefill: 768 of 1,200 tokens, 512 of them found in the cache",
        "first token",
        "preempted: its memory was needed; its tokens will be recomputed",
        "worker w1 died (killed)",
        "attempt 2 on w0 [0:3]",
        "attempt 2 continues where the last one ended",
        "returned by its worker (route)",
        "tokens were lost on the way (expected 3, got 5); computed again",
        "attempt 3 continues where the last one ended",
        "finished: stop",
    ]
    assert lines[-1] == "    1.000 s  failover  ######"


def test_the_tenant_is_named_if_there_is_one() -> None:
    assert report({**VIEW, "model": "tiny", "tenant": "team-a"})[0] == "cmpl-1 of tiny, tenant team-a: finished"


def test_one_that_waits_says_where_and_fits_80_columns() -> None:
    waiting = {"id": f"cmpl-gw0-{'f' * 24}", "model": "demo-checkpoint", "state": "waiting", "place": 6, "queued": 12}
    lines = report({**VIEW, **waiting, "starts_in": 15.4})
    assert lines[:2] == [f"{waiting['id']} of demo-checkpoint: waiting", "  at place 6 of 12, starts in about 15 s"]
    assert max(map(len, lines)) <= 80
    assert report({**VIEW, **waiting, "starts_in": None})[1] == "  at place 6 of 12"
    assert report({**VIEW, "place": 0})[1].endswith("3 attempts")


def test_what_was_expected_of_its_length_is_reported() -> None:
    asked = {"at": 0.0, "event": "arrived", "prompt_tokens": 1200, "max_tokens": 64, "expected_tokens": 37}
    end = {"at": 7.0, "event": "finished", "reason": "stop", "expected_tokens": 37, "tokens": 41}
    lines = [line.partition(" s  ")[2] for line in report({**VIEW, "events": [asked, end]})]
    assert lines[2:4] == [
        "arrived with 1,200 tokens, at most 64 to come, 37 expected",
        "finished: stop (expected 37 tokens, was 41)",
    ]


def test_how_long_a_dispatcher_was_asked_is_reported() -> None:
    asked = {"at": 0.5, "event": "asked", "seconds": 0.0042, "policy": "ours", "fell_back": "", "candidates": 2}
    late = {**asked, "policy": "", "fell_back": "dispatcher_late"}
    lines = [line.partition(" s  ")[2] for line in report({**VIEW, "events": [asked, late]})]
    assert lines[2:4] == [
        "a dispatcher was asked for 4.2 ms (ours)",
        "a dispatcher was asked for 4.2 ms (no policy, fell back: dispatcher_late)",
    ]


@claim("`explain` shows where the time of a request went", of="command-line")
def test_the_phases_add_up() -> None:
    assert phases(EVENTS) == [("queue", 1.5), ("prefill", 1.0), ("decode", 2.5), ("paused", 1.0), ("failover", 1.0)]


@pytest.mark.parametrize(
    ("names", "spent"),
    [
        (["arrived"], []),
        (["arrived", "dispatched", "cancelled"], [("queue", 2.0)]),
        (["arrived", "first_plan", "worker_died", "resumed", "first_token", "finished"], None),
        (["arrived", "unheard_of"], [("queue", 1.0)]),
    ],
)
def test_stories_that_end_elsewhere(names: list[str], spent: list[tuple[str, float]] | None) -> None:
    events = [{"at": float(at), "event": name} for at, name in enumerate(names)]
    wanted = [("queue", 1.0), ("prefill", 2.0), ("decode", 1.0), ("failover", 1.0)] if spent is None else spent
    assert phases(events) == wanted


@claim("Drops and restores are shown in `/admin/cluster`, `ps`, `top` and `explain`", of="parameter-dropping")
def test_a_pause_is_a_phase_and_a_move_without_one_is_none() -> None:
    names = [
        "arrived",
        "first_plan",
        "first_token",
        "moving",
        "dispatched",
        "resumed",
        "moved",
        "paused",
        "resumed",
        "finished",
    ]
    spent = phases([{"at": float(at), "event": name} for at, name in enumerate(names)])
    assert spent == [("queue", 1.0), ("prefill", 1.0), ("decode", 6.0), ("paused", 1.0)]


def test_a_preempted_request_is_paused_until_its_next_start() -> None:
    names = ["arrived", "first_plan", "preempted", "prefill", "first_token", "preempted", "prefill", "prefill", "finished"]
    spent = phases([{"at": float(at), "event": name} for at, name in enumerate(names)])
    assert spent == [("queue", 1.0), ("prefill", 2.0), ("decode", 3.0), ("paused", 2.0)]


def test_an_event_of_a_later_release_is_shown_as_it_is() -> None:
    view = {**VIEW, "attempt": 1, "events": [{"at": 0.0, "event": "taken", "to": "w3"}, {"at": 1.0, "event": "rested"}]}
    assert [line.partition(" s  ")[2] for line in report(view)[2:4]] == ["taken: to w3", "rested"]
    assert "1 attempt" in report(view)[1]


def test_a_move_is_reported() -> None:
    away = {"source": "w0", "target": "w1"}
    events = [
        {"at": 1.0, "event": "moving", **away, "pages": 9},
        {"at": 2.0, "event": "moved", **away, "pages": 10, "bytes": 1, "recomputed": 7, "paused": 0.0369},
        {"at": 3.0, "event": "not_moved", "reason": "worker w1 died"},
        {"at": 4.0, "event": "paused", **away, "reason": "parameters were dropped"},
        {"at": 5.0, "event": "rerouted", "source": "w0", "target": "w1+w0", "reason": "parameters were dropped"},
        {"at": 5.5, "event": "copying", **away, "pages": 1200, "bytes": 99},
        {"at": 6.0, "event": "moved", **away, "pages": 0, "bytes": 0, "recomputed": 0, "paused": 0.0},
        {"at": 7.0, "event": "numerics", "source": "amx-1", "target": "avx2-1", "tokens": 1207},
    ]
    lines = report({**VIEW, "events": events})
    assert "moves from w0 to w1: 9 pages are copied meanwhile" in lines[2]
    assert "moved from w0 to w1: 10 pages copied, 7 tokens recomputed, paused 37 ms" in lines[3]
    assert "stays where it is: worker w1 died" in lines[4]
    again = "its 1,207 tokens are computed again with those of avx2-1"
    assert f"no worker with the numerics amx-1 is left for it: {again}" in lines[9]
    assert "pauses while its pages go from w0 to where they are needed: parameters were dropped" in lines[5]
    assert "goes from w0 to w1+w0 before anything was computed: parameters were dropped" in lines[6]
    assert "1,200 pages of it are copied from w0 to w1 while it computes" in lines[7]
    assert "moved from w0 to w1: nothing had been computed" in lines[8]


def test_who_waits_behind_nobody_is_first_in_line() -> None:
    view = {**VIEW, "events": [{"at": 0.0, "event": "queued", "ahead": 0}]}
    assert report(view)[2].endswith("queued, first in line")


LOAD = {"waiting_blocks": 0, "total_blocks": 64, "sent_last_minute": 3, "in_flight": 1}
TAKEN = {
    **LOAD, "route": "m@w1", "home": "w1", "load": [2.5, -4.0], "running": 2, "waiting": 0, "free_blocks": 12,
    "cached_blocks": 3, "forecast": {"first_token": 0.25, "last_token": 2.0, "delayed": 0.5, "preemptions": 0},
}  # fmt: skip
OTHER = {
    **LOAD, "route": "m@w10", "home": "w10", "load": [None, -4.0], "running": 9, "waiting": 12, "free_blocks": 0,
    "cached_blocks": 0, "forecast": {"first_token": None, "last_token": None, "delayed": 0.0, "preemptions": 3},
}  # fmt: skip
DISPATCH: dict[str, Any] = {
    "at": 0.0, "seconds": 0.0042, "policy": "ours", "route": "m@w1", "fell_back": "", "unanswered": {"late": 1}, "rank": 1,
    "ranked": 3, "candidates": [TAKEN, OTHER], "actual": {"first_token": 0.3, "last_token": 2.5},
    "error": {"first_token": 0.1667, "last_token": 0.2},
}  # fmt: skip


@claim("A request shows its candidates, forecasts, choice and outcome", of="prediction")
def test_candidates_the_choice_and_what_happened() -> None:
    story = report({**VIEW, "dispatch": DISPATCH})
    assert story[story.index("route m@w1, chosen by ours in 4.2 ms, rank 1 of 3") :] == [
        "route m@w1, chosen by ours in 4.2 ms, rank 1 of 3",
        "predictors without an answer: 1 late",
        "  route      load  running  waiting  free  cached  in flight  first token  last token  others lose",
        "* m@w1     2.5 -4        2        0    12       3          1      0.250 s     2.000 s      0.500 s",
        "  m@w10  never -4        9       12     0       0          1        never       never      0.000 s",
        "first token: predicted after 0.250 s, it came after 0.300 s (17% off)",
        "last token: predicted after 2.000 s, it came after 2.500 s (20% off)",
    ]


def test_while_it_runs_without_forecasts_and_when_nobody_answered() -> None:
    running = {**DISPATCH, "actual": {"first_token": None, "last_token": None}, "error": None}
    assert decision(running)[-1] == "last token: predicted after 2.000 s, it has not come"
    nothing = dict.fromkeys(("running", "waiting", "free_blocks", "cached_blocks", "in_flight", "forecast"))
    plain = {**DISPATCH, "policy": "min-qpm", "rank": 0, "unanswered": {}, "candidates": [{**TAKEN, **nothing, "load": [3]}]}
    assert decision(plain)[1:] == [
        "  route  load  running  waiting  free  cached  in flight  first token  last token  others lose",
        "* m@w1      3        -        -     -       -          -            -           -            -",
    ]
    replaced = {**plain, "route": "m@x~3@w1", "candidates": [{**TAKEN, **nothing, "route": "m@x~3@w1", "load": [3]}]}
    assert [line.split()[1] for line in decision(replaced)] == ["m@x@w1,", "load", "m@x@w1"], "no version's name is shown"
    silent = {**DISPATCH, "policy": "", "fell_back": "dispatcher_late", "candidates": [], "rank": 0, "unanswered": {}}
    assert decision(silent) == [
        "route m@w1, chosen in 4.2 ms",
        "fell back: the dispatcher did not answer in time: the gateway chose by outstanding work",
    ]


def test_the_chain_its_reasons_and_switches_are_told() -> None:
    events = [
        {"at": 0.0, "event": "arrived", "prompt_tokens": 9, "max_tokens": 16},
        {"at": 0.0, "event": "chain", "used": "m~1", "listed": "m", "why": "its worker has KV of 8 of 9 tokens"},
        {"at": 1.0, "event": "chain", "used": "m", "listed": "m", "why": "an estimate of 1 s against 2 s", "position": 1200},
        {"at": 1.5, "event": "switched", "source": "w1", "target": "w0", "cached": 8, "recomputed": 1000, "paused": 0.25},
    ]
    switch = {
        "at": 1.0, "source": "m~1", "target": "m", "position": 1200, "why": "an estimate of 1 s against 2 s", "stay": 2.0,
        "go": 1.0, "outcome": {}, "took": 1.25,
    }  # fmt: skip
    outcome = {"cached": 32, "recomputed": 60, "paused": 0.5}
    forced = {**switch, "why": "its model has no route now", "go": None, "position": 3, "choice": 1, "outcome": outcome}
    view = {
        "id": "r",
        "state": "finished",
        "attempt": 2,
        "prompt_tokens": 9,
        "emitted_tokens": 16,
        "home": None,
        "route": [],
    }
    lines = report({**view, "model": "m", "events": events, "variant": "m~1", "switches": [switch, forced]})
    text = "\n".join(lines)
    for sentence in (
        "is served by m~1 in the place of m: its worker has KV of 8 of 9 tokens",
        "goes back to the chain of m after 1,200 tokens of the answer: an estimate of 1 s against 2 s",
        "went over from w1 to w0: 8 tokens found there, 1,000 recomputed, paused 250 ms",
        "  switch: from m~1 to m after 1,200 tokens, an estimate of 1 s against 2 s; it took 1.25 s",
        "  switch of choice 1: from m~1 to m after 3 tokens, since its model has no route now: 32 tokens found there, "
        "60 recomputed, paused 500 ms; it took 1.25 s",
    ):
        assert sentence in text
