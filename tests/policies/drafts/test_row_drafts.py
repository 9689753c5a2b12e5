"""The drafts of a sequence: their source, their number, and the pauses without any."""

from __future__ import annotations

from collections.abc import Callable

from blockwright.policies.drafts.acceptance import Acceptance
from blockwright.policies.drafts.length import FIRST_PAUSE, LONGEST_PAUSE, MISSED
from blockwright.policies.drafts.options import LARGEST, PREDICTION, PROMPT, SOURCES, DraftOptions
from blockwright.policies.drafts.row_drafts import RowDrafts

FREE: Callable[[int], int] = lambda _: 1  # noqa: E731
DEAR: Callable[[int], int] = lambda drafts: 1000 * (1 + drafts)  # noqa: E731


def row(options: DraftOptions, prompt_length: int = 3) -> RowDrafts:
    return RowDrafts(options, prompt_length, "base", {source: Acceptance() for source in SOURCES})


def drafted(drafts: RowDrafts, tokens: list[int], most: int = 4, cost: Callable[[int], int] = FREE) -> list[int]:
    return drafts.draft(tokens, len(tokens), most, 0, cost)


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
        assert drafted(drafts, [1, 2, 3, *answer[: place + 1]], most=3) == text[place + 1 : place + 4], place


def test_a_prediction_is_found_again_after_tokens_that_it_lacks_and_tokens_that_the_answer_lacks() -> None:
    text = [5, 6, 7, 5, 8, 9, 5, 10, 11, 5, 12, 13, 5, 14, 15]
    for answer, then in (
        ([*text[:4], 70, 71, 72, 73, *text[4:6]], text[6:9]),
        ([*text[:4], 5, *text[4:6]], text[6:9]),
        ([*text[:3], *text[7:9]], text[9:12]),
        ([*text[7:9], *text[4:6]], text[6:9]),  # in another order
        ([*text, 70, *text[4:6]], text[6:9]),  # from its end back
    ):
        assert drafted(row(DraftOptions(prediction=text)), [1, 2, 3, *answer], most=3) == then, answer


def test_a_text_that_repeats_itself_is_not_stuck_before_a_wrong_token() -> None:
    """The place that agrees best is the one before a wrong token, again and again."""
    answer = [7] * 40
    text = [8 if place in (10, 20, 21, 30) else 7 for place in range(40)]
    drafts, tokens, stood = row(DraftOptions(tokens=1, prediction=text)), [1, 2, 3], 0
    for token in answer:
        tokens.append(token)
        stood += drafted(drafts, tokens, most=1) == [7]
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
    assert drafted(drafts, [7, 8, 9, 7], most=1, cost=DEAR) == [8]
    assert len(drafted(row(DraftOptions(True, LARGEST)), [7, 7], most=100)) == LARGEST


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
