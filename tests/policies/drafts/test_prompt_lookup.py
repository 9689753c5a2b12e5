"""The place with the longest agreement is found, the latest of equals, in time that does not grow with the text."""

from __future__ import annotations

import random

from blockwright.policies.drafts.prompt_lookup import EXAMINED, LONGEST, TokenIndex, continuation


def place(text: list[int], end: int | None = None) -> int:
    index = TokenIndex()
    index.extend(text, len(text) if end is None else end)
    return index.find(text, text, len(text) if end is None else end)


def slow_place(text: list[int]) -> int:
    """Return what ``place`` should, by looking at every place."""
    best, length = -1, 0
    for at in range(len(text) - 1, 0, -1):
        same = 0
        while same < min(LONGEST, at) and text[at - 1 - same] == text[len(text) - 1 - same]:
            same += 1
        if same > length:
            best, length = at, same
    return best


def test_the_longest_agreement_wins_and_the_latest_of_equals() -> None:
    assert place([1, 2, 3, 9, 2, 3, 8, 1, 2, 3]) == 3  # 1 2 3, although 2 3 occurs later
    assert place([2, 3, 7, 2, 3, 8, 2, 3]) == 5
    assert place([1, 2, 3]) == -1
    assert place([]) == -1
    assert place([4]) == -1


def test_it_is_what_a_search_of_the_whole_text_finds() -> None:
    chance = random.Random(3)
    for _ in range(300):
        text = [chance.randrange(chance.choice([2, 5, 20])) for _ in range(chance.randrange(1, EXAMINED))]
        assert place(text) == slow_place(text), text


def test_only_the_latest_occurrences_are_examined() -> None:
    text = [5, 6, 7, *[6, 8] * EXAMINED, 5, 6]
    assert place(text) != 2


def test_a_text_may_grow_beyond_what_is_looked_at() -> None:
    text = [1, 2, 3, 1, 2]
    index = TokenIndex()
    index.extend(text, 3)
    index.extend([*text, 99], 5)
    assert index.size == 5
    assert index.find(text, text, 5) == 2
    index.extend(text, 4)  # nothing to do
    assert index.size == 5


def test_another_text_is_searched_for_the_end_of_this() -> None:
    predicted, answer = [10, 11, 12, 13], [7, 11, 12]
    index = TokenIndex()
    index.extend(predicted, 4)
    assert index.find(predicted, answer, 3) == 3
    assert index.find(predicted, answer, 1) == -1
    assert index.find(predicted, [13], 1) == -1  # nothing follows


def test_a_copy_goes_on_as_its_own_copy() -> None:
    text = [1, 2, 3, 4, 5]
    assert continuation(text, 1, 5, 3) == [2, 3, 4]
    assert continuation(text, 3, 5, 5) == [4, 5, 4, 5, 4]
