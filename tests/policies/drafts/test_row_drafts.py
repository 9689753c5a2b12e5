"""The drafts of a sequence: their source, their number, and the pauses without any."""

from __future__ import annotations

from collections.abc import Callable

from blockwright.policies.drafts.acceptance import Acceptance
from blockwright.policies.drafts.length import FIRST_PAUSE, LONGEST_PAUSE, MISSED
from blockwright.policies.drafts.options import LARGEST, PREDICTION, PROMPT, SOURCES, TIER, DraftOptions
from blockwright.policies.drafts.row_drafts import TURN, RowDrafts

FREE: Callable[[int], int] = lambda _: 1  # noqa: E731
DEAR: Callable[[int], int] = lambda drafts: 1000 * (1 + drafts)  # noqa: E731


def row(options: DraftOptions, prompt_length: int = 3) -> RowDrafts:
    return RowDrafts(options, prompt_length, "base", {key: Acceptance() for key in (*SOURCES, *options.tiers)})


def drafted(drafts: RowDrafts, tokens: list[int], limit: int = 4, cost: Callable[[int], int] = FREE) -> list[int]:
    return drafts.draft(tokens, len(tokens), limit, 0, cost)


def test_a_prediction_is_followed_left_and_found_again() -> None:
    drafts, prompt = row(DraftOptions(prediction=[10, 11, 12, 13, 14, 15, 16])), [1, 2, 3]
    assert drafted(drafts, [*prompt, 10]) == [11, 12, 13, 14]
    assert drafts.source == PREDICTION
    assert drafted(drafts, [*prompt, 10, 11, 99]) == [13, 14, 15, 16]  # taken for a replacement of 12
    assert drafted(drafts, [*prompt, 10, 11, 99, 14]) == [15, 16]  # or 13 is left out
    assert drafted(drafts, [*prompt, 10, 11, 99, 14, 15, 16]) == []  # its end
    assert drafts.pause == 1


def test_a_common_token_does_not_lead_astray() -> None:
    """The prediction has every token in several places, as a text has its spaces."""
    text = [5, 6, 7, 5, 8, 9, 5, 10, 11, 5, 12, 13, 5, 14, 15]
    for place in range(len(text) - 1):
        drafts, answer = row(DraftOptions(prediction=text)), [*text[:place], 5 + 9 * (text[place] == 5), *text[place + 1 :]]
        assert drafted(drafts, [1, 2, 3, *answer[: place + 1]], limit=3) == text[place + 1 : place + 4], place


def test_a_prediction_is_found_again_after_tokens_that_it_lacks_and_tokens_that_the_answer_lacks() -> None:
    text = [5, 6, 7, 5, 8, 9, 5, 10, 11, 5, 12, 13, 5, 14, 15]
    for answer, then in (
        ([*text[:4], 70, 71, 72, 73, *text[4:6]], text[6:9]),
        ([*text[:4], 5, *text[4:6]], text[6:9]),
        ([*text[:3], *text[7:9]], text[9:12]),
        ([*text[7:9], *text[4:6]], text[6:9]),  # in another order
        ([*text, 70, *text[4:6]], text[6:9]),  # from its end back
    ):
        assert drafted(row(DraftOptions(prediction=text)), [1, 2, 3, *answer], limit=3) == then, answer


def test_a_text_that_repeats_itself_is_not_stuck_before_a_wrong_token() -> None:
    """The place that agrees best is the one before a wrong token, again and again."""
    answer = [7] * 40
    text = [8 if place in (10, 20, 21, 30) else 7 for place in range(40)]
    drafts = row(DraftOptions(tokens=1, prediction=text))
    tokens = [1, 2, 3]
    stood = 0
    for token in answer:
        tokens.append(token)
        stood += drafted(drafts, tokens, limit=1) == [7]
    assert stood > 30


def test_the_answer_so_far_counts_after_a_failover() -> None:
    assert drafted(row(DraftOptions(prediction=[10, 11, 12, 13])), [1, 2, 3, 10, 11]) == [12, 13]


def test_the_prompt_is_looked_up_where_the_prediction_says_nothing() -> None:
    drafts = row(DraftOptions(prompt=True, prediction=[10]))
    assert drafted(drafts, [7, 8, 9, 10, 7]) == [8, 9, 10, 7]
    assert drafts.source == PROMPT
    assert drafted(row(DraftOptions()), [7, 8, 9, 10, 7]) == []


def test_a_fixed_number_asks_no_policy() -> None:
    drafts = row(DraftOptions(prompt=True, tokens=2))
    assert drafted(drafts, [7, 8, 9, 7], cost=DEAR) == [8, 9]
    assert drafted(drafts, [7, 8, 9, 7], limit=1, cost=DEAR) == [8]
    assert len(drafted(row(DraftOptions(True, LARGEST)), [7, 7], limit=100)) == LARGEST


def test_pauses_after_misses_grow_and_end_with_the_first_find() -> None:
    drafts, pauses = row(DraftOptions(prompt=True)), []
    for n in range(6):
        assert not drafted(drafts, list(range(4 + n)))
        pauses.append(drafts.pause)
    assert pauses == [1, 2, 4, MISSED, MISSED, MISSED]
    assert drafted(drafts, [*range(9), 4])
    assert not drafted(drafts, [*range(9), 4, 9])
    assert drafts.pause == 1


def test_where_nothing_is_gained_one_draft_is_a_probe_now_and_then() -> None:
    drafts, played = row(DraftOptions(prompt=True)), []
    for _ in range(14):
        found = drafted(drafts, [7, 8, 9, 7], cost=DEAR)
        played.append(drafts.pause if not found else -len(found))
        if found:
            drafts.record(1, 1)
    pauses = [FIRST_PAUSE << n for n in range(5)]
    assert played[::2] == [*pauses, LONGEST_PAUSE, LONGEST_PAUSE]
    assert played[1::2] == [-1] * 7
    assert len(drafted(drafts, [7, 8, 9, 7], cost=FREE)) == 4
    assert drafted(drafts, [7, 8, 9, 7], cost=DEAR) == []
    assert drafts.pause == FIRST_PAUSE


def test_rounds_count_for_the_application_too() -> None:
    seen = {source: Acceptance() for source in SOURCES}
    drafts = RowDrafts(DraftOptions(prompt=True), 1, "base", seen)
    drafted(drafts, [7, 8, 7])
    drafts.record(2, 1)
    assert seen[PROMPT].reached[:2] == [1, 1]
    assert seen[PROMPT].stood[:2] == [1, 0]
    assert seen[PREDICTION].reached[0] == 0


# tiers ---------------------------------------------------------------------------------------------------------------


def near(drafts: int) -> int:
    """The cost of a round: a position more costs little."""
    return 100 + 5 * drafts


def far(drafts: int) -> int:
    """The cost of a round: a position more costs half a sweep."""
    return 100 + 50 * drafts


def played(
    drafts: RowDrafts, tokens: list[int], right: dict[str, bool], rounds: int, tier: Callable[[int], int]
) -> list[str]:
    """Return the source of each of the last rounds, in which all drafts of the sources that are ``right`` stand."""
    sources: list[str] = []
    while len(sources) < rounds:
        if found := drafts.draft(tokens, len(tokens), 4, 0, near, {"m:4": tier}):
            sources.append(drafts.source)
            drafts.record(len(found), len(found) * right[drafts.source])
    return sources


def test_a_tier_draws_as_many_drafts_as_pay() -> None:
    drafts = row(DraftOptions(tiers=["m:4"]))
    assert drafts.draft([1, 2, 3], 3, 4, 0, FREE, {"m:4": near}) == [0] * 3
    assert (drafts.source, drafts.drafter) == (TIER, "m:4")
    assert drafts.draft([1, 2, 3], 3, 4, 0, FREE, {"m:4": DEAR}) == []
    assert drafts.pause == FIRST_PAUSE
    assert drafts.draft([1, 2, 3], 3, 4, 0, FREE, {}) == [], "it cannot draft here"
    assert row(DraftOptions(tokens=2, tiers=["m:4"])).draft([1, 2, 3], 3, 4, 0, FREE, {"m:4": DEAR}) == [0, 0]


def test_of_a_text_and_a_tier_the_one_that_pays_drafts_and_the_other_has_a_turn() -> None:
    text = [7, 8, 9, 7]
    for right in ({PROMPT: True, TIER: False}, {PROMPT: False, TIER: True}):
        best = PROMPT if right[PROMPT] else TIER
        sources = played(row(DraftOptions(prompt=True, tiers=["m:4"])), text, right, 6 * TURN, near)[2 * TURN :]
        assert sources.count(best) >= len(sources) - 4
        assert 1 <= len(sources) - sources.count(best) <= 4
    both = played(row(DraftOptions(prompt=True, tiers=["m:4"])), text, {PROMPT: True, TIER: True}, 4 * TURN, far)
    assert both.count(PROMPT) >= 4 * TURN - 3, "equally right, it is the cheaper one"


def test_probes_try_the_sources_in_turns() -> None:
    drafts, sources = row(DraftOptions(prompt=True, tiers=["m:4"])), []
    for _ in range(8):
        if drafts.draft([7, 8, 9, 7], 4, 4, 0, DEAR, {"m:4": DEAR}):
            sources.append(drafts.source)
            drafts.record(1, 0)
    assert sources == [PROMPT, TIER, PROMPT, TIER]


def test_the_acceptance_of_each_tier_is_kept_apart() -> None:
    seen = {key: Acceptance() for key in (PREDICTION, PROMPT, "m:2", "m:4")}
    drafts = RowDrafts(DraftOptions(tokens=1, tiers=["m:2", "m:4"]), 1, "m", seen)
    for _ in range(10):
        drafts.draft([1, 2], 2, 4, 0, near, {"m:2": near, "m:4": near})
        drafts.record(1, drafts.drafter == "m:4")
    assert drafts.drafter == "m:4"
    assert seen["m:4"].stood[0] > 5
    assert seen["m:2"].stood[0] == 0
    again = RowDrafts.restore(drafts.snapshot(), seen)
    assert again.snapshot() == drafts.snapshot() == drafts.fork(seen).snapshot()
