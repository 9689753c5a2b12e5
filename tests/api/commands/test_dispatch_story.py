"""Why a request went where it went, in words."""

from __future__ import annotations

from typing import Any

from blockwright.api.commands.dispatch_story import decision
from blockwright.api.commands.request_story import report
from blockwright.tests.api.commands.test_request_story import VIEW
from blockwright.tests.claims import claim

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


@claim("A request tells its candidates, forecasts, choice and what happened", of="prediction")
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
