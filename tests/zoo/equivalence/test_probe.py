"""A probe has as many tokens as were asked for; other tokenizers are compared where both end a token, on shared tokens."""

from __future__ import annotations

import pytest
import torch

from blockwright.gpu.errors import CheckpointError
from blockwright.zoo.equivalence import probe as module
from blockwright.zoo.equivalence.probe import TokenTexts, cut, paired_probe, same_probe

NAMES = ("one", "two")
LETTERS = "abcdefghijklmnop"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of 40 tokens in rows of 8."""
    for name, value in (("ROWS", 5), ("LENGTH", 8), ("TOKENS", 40), ("LEAST_POSITIONS", 5)):
        monkeypatch.setattr(module, name, value)


def test_a_probe_is_cut_to_its_size() -> None:
    rows = [tuple(range(n)) for n in (3, 12, 8, 8, 8, 20, 9)]
    assert [len(row) for row in cut(rows, "text")] == [3, 8, 8, 8, 8, 5]
    with pytest.raises(CheckpointError, match=r"^text has 11 tokens; a comparison needs 40 \(5 x 8\); give a longer text$"):
        cut(rows[:2], "text")
    with pytest.raises(CheckpointError, match="has 0 tokens"):
        cut([], "text")


def vocabulary(*words: str, special: tuple[str, ...] = ("<s>",)) -> TokenTexts:
    """Tokens by id: special ones first, then words."""
    named = [(True, one.encode()) for one in special] + [(False, one.encode()) for one in words]
    return dict(enumerate(named))


def test_positions_are_those_where_both_end_a_token() -> None:
    own = vocabulary(*LETTERS)
    other = vocabulary(*reversed(LETTERS), " ab", "cd", special=("<s>", "</s>"))
    ids = {text: token for token, (_, text) in other.items()}
    # "<s> | a b | c d" against "<s> | ab | cd": the blank that a tokenizer adds in front does not count
    row = (0, 1, 2, 3, 4)
    other_row = (0, ids[b" ab"], ids[b"cd"])
    found = paired_probe([row, row], [other_row, other_row], own, other, NAMES)
    assert found.places == (((0, 2, 4), (0, 1, 2)),) * 2
    assert found.tokens == 6
    assert not found.same_tokens
    texts = [[table[token] for token in tokens] for table, tokens in zip((own, other), found.shared, strict=True)]
    assert texts[0] == texts[1]
    assert {*texts[0]} == {(True, b"<s>"), *((False, letter.encode()) for letter in LETTERS)}
    turned = found.turned()
    assert turned.rows == found.other_rows
    assert turned.places[0] == ((0, 1, 2), (0, 2, 4))
    assert turned.turned() == found


def test_strangers_are_refused() -> None:
    own, other = vocabulary(*LETTERS), vocabulary(*LETTERS.upper(), special=("<bos>",))
    with pytest.raises(CheckpointError, match=r"of one \(17 tokens\) and two \(17\) share 0; a comparison needs 16; name"):
        paired_probe([(0, 1)], [(0, 1)], own, other, NAMES)
    with pytest.raises(CheckpointError, match="end together at 2 places of the probe text; a comparison needs 5; name"):
        paired_probe([(0, 1)], [(0, 1)], own, vocabulary(*LETTERS, "x"), NAMES)


def test_the_digest_is_of_rows_and_prompts() -> None:
    first, second = same_probe([(1, 2), (3,)]), same_probe([(1, 2), (4,)])
    assert first.digest([]) == same_probe([(1, 2), (3,)]).digest([])
    assert len({first.digest([]), second.digest([]), first.digest([1])}) == 3
    assert first.tokens == torch.tensor([2, 1]).sum()
