"""Which answers are scored, which of their tokens, in which order, and what is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockwright.policies.adaptive.similarity import (
    MOST_WAITING,
    PATIENCE,
    TRIES,
    AnswersToScore,
    ServedAnswer,
    Similarity,
    compared,
    idle_home,
    is_scored,
    varied_spans,
)

ANSWER = ServedAnswer("r1", "m", "m", "m~1", (1, 2, 3, 4, 5, 6), ((3, 6),))


def test_the_share_is_the_same_for_an_id_and_grows_with_the_setting() -> None:
    names = [f"cmpl-g0-{number}" for number in range(2000)]
    chosen = {share: {name for name in names if is_scored(name, share)} for share in (0.0, 0.1, 0.5, 1.0)}
    assert not chosen[0.0]
    assert chosen[1.0] == {*names}
    assert 150 < len(chosen[0.1]) < 250
    assert chosen[0.1] < chosen[0.5]
    assert {name for name in names if is_scored(name, 0.1)} == chosen[0.1]


@pytest.mark.parametrize(
    ("chains", "spans"),
    [
        ([(0, "m~1")], [(3, 9)]),
        ([(0, "m")], []),
        ([(0, "m~1"), (2, "m")], [(3, 5)]),
        ([(0, "m"), (2, "m~1"), (4, "m~2")], [(5, 7), (7, 9)]),
        ([(0, "m~1"), (0, "m"), (6, "m~1")], []),
    ],
)
def test_only_tokens_of_variants_count(chains: list[tuple[int, str]], spans: list[tuple[int, int]]) -> None:
    assert varied_spans({"m~1", "m~2"}, chains, 3, 9) == spans


def test_what_the_listed_chain_would_have_chosen_counts_as_agreed() -> None:
    scores = [(-9.0, 7), (-9.0, 7), (-0.5, 1), (-2.0, 3), (-0.1, 1)]  # of the tokens behind the first one
    assert compared(ANSWER, scores) == Similarity(1, 3, 2, pytest.approx(-2.6))
    assert compared(ANSWER, scores[:-1]) == Similarity(1, 2, 1, pytest.approx(-2.5)), "as long as the context"
    twice = compared(ANSWER, scores).plus(compared(ANSWER, scores))
    assert twice.view() == {"answers": 2, "tokens": 6, "agreed": 4 / 6, "logprob": pytest.approx(-5.2 / 6)}
    assert Similarity().view() == {"answers": 0, "tokens": 0, "agreed": 0.0, "logprob": 0.0}


def test_a_route_is_idle_if_none_of_its_workers_has_a_request() -> None:
    routes = [("w2", ("w2",)), ("w0", ("w0", "w1"))]
    assert idle_home(routes, {}) == "w0"
    assert idle_home(routes, {"w1"}) == "w2"
    assert idle_home(routes, {"w1", "w2"}) == ""


def test_answers_have_their_turn_one_by_one_where_the_listed_chain_is_idle() -> None:
    queue = AnswersToScore(1.0)
    other = replace(ANSWER, request="r2", listed="n", model="n")
    queue.add(ANSWER)
    queue.add(other)
    assert queue.listed() == {"m": "m", "n": "n"}
    assert queue.first({"n": "", "m": ""}, 1.0) is None
    assert queue.first({"n": "w1"}, 2.0) == other
    assert (queue.home, queue.first({"m": "w0"}, 2.0)) == ("w1", None), "one after the other"
    assert not queue.is_late(2.0 + PATIENCE)
    assert queue.is_late(2.1 + PATIENCE)
    assert queue.end(Similarity(1, 4, 3, -1.0)) == other
    assert queue.found == {("n", "m~1"): Similarity(1, 4, 3, -1.0)}
    assert queue.first({"m": "w0"}, 3.0) == ANSWER


def test_an_answer_that_gives_way_is_tried_again_some_times() -> None:
    queue = AnswersToScore(1.0)
    queue.add(ANSWER)
    for tried in range(TRIES):
        assert queue.first({"m": "w0"}, 0.0) == replace(ANSWER, tried=tried)
        queue.end(None)
    assert not len(queue)
    assert queue.end(None) is None
    assert not queue.found


def test_the_oldest_answer_is_dropped_for_lack_of_room() -> None:
    queue = AnswersToScore(1.0)
    for number in range(MOST_WAITING + 1):
        queue.add(replace(ANSWER, request=f"r{number}"))
    assert len(queue) == MOST_WAITING
    assert queue.first({"m": "w0"}, 0.0) == replace(ANSWER, request="r1")
