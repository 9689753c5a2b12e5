"""Predictions are right as often as they should be, and their texts have the tokens that were meant."""

from __future__ import annotations

from pathlib import Path

import drafts
import page
import pytest
from harness import OURS, Report
from models import EOS
from stored import Result
from tokenizers import Tokenizer

ANSWER = [EOS + 1 + n for n in range(400)]


@pytest.mark.parametrize("right", [0.0, 0.5, 0.95, 1.0])
def test_a_prediction_has_the_tokens_of_the_answer_as_often_as_asked(tmp_path: Path, right: float) -> None:
    drafts.spell(tmp_path, 1000)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = drafts.predicted(ANSWER, right, 1000, seed=1)
    tokens = tokenizer.encode(text).ids
    assert len(tokens) == len(ANSWER)
    assert tokenizer.decode(tokens) == text
    assert sum(a == b for a, b in zip(tokens, ANSWER, strict=True)) / len(ANSWER) == pytest.approx(right, abs=0.06)


def test_requests_without_drafts_say_so_and_the_policy_chooses_for_itself() -> None:
    assert drafts.drafting("x", drafts.OFF) == {"draft": "off"}
    assert drafts.drafting("x", "g4") == {"prediction": {"type": "content", "content": "x"}, "draft_tokens": 4}
    assert drafts.drafting("x", drafts.POLICY)["draft_tokens"] == 0
    assert drafts.Turn(1.0, [], rounds=4, accepted=6).of_round == 2.5


def test_the_page_has_a_row_for_each_case() -> None:
    report = Report("drafts", {})
    for case in drafts.Plan(dtypes=("f32",), requests=(1,)).cases():
        for subject in ("off", "g1", "g2", "g4", "g8", "policy"):
            report.add(f"{case}/{subject}", OURS, {"out_tok_per_s": 10.0, "tokens_per_round": 1.0, "of_ideal": 0.5})
    text = page.SECTIONS["drafts"][1](Result(report.document()))
    assert text.count("| S f32 | 1 |") == len(drafts.RIGHT)
    assert "10 (0.5)" in text
