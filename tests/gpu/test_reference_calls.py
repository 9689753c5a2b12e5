"""Calls of the torch reference: rows stay free of each other where a library's sums depend on their number or places."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from blockwright.gpu.cpu.reference import calls
from blockwright.gpu.cpu.reference.calls import FixedCalls, agreeing, variety

BFLOAT16 = torch.bfloat16


@pytest.fixture
def moody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of one row have other bits than those of several, and so has the last of 64."""
    exact = F.linear

    def linear(x_TD: torch.Tensor, weight_QD: torch.Tensor, bias_Q: torch.Tensor | None = None) -> torch.Tensor:
        y_TQ = exact(x_TD.float(), weight_QD.float(), bias_Q)
        y_TQ[-1] += 0.25 * (len(x_TD) in (1, 64))
        return y_TQ.to(x_TD.dtype)

    monkeypatch.setattr(F, "linear", linear)


@pytest.mark.usefixtures("moody")
def test_rows_are_computed_in_numbers_that_agree() -> None:
    assert agreeing(48, 32, False, BFLOAT16) == (16, 4)
    weight_QD, x_TD = torch.randn(48, 32).to(BFLOAT16), torch.randn(71, 32).to(BFLOAT16)
    fixed = FixedCalls()
    together = fixed.linear(x_TD, weight_QD)
    assert together.shape == (71, 48)
    assert all(torch.equal(fixed.linear(x_TD[t : t + 1], weight_QD)[0], together[t]) for t in range(71))
    assert not torch.equal(F.linear(x_TD[:1], weight_QD)[0], together[0])


def test_rows_of_a_large_matrix_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "LARGEST", 48 * 32 - 1)
    assert agreeing(48, 32, True, BFLOAT16) == (1,)


def test_an_element_has_the_bits_of_its_value_at_any_place() -> None:
    """Also at the end of an array, and of a part that a thread would compute."""
    fixed, value = FixedCalls(), torch.randn(1)
    many = fixed.each(torch.tanh, value.repeat(calls.PIECE * 2 + 7).view(-1, 5))
    assert many.shape == ((calls.PIECE * 2 + 7) // 5, 5)
    assert torch.equal(many, fixed.each(torch.tanh, value).expand_as(many))


def test_unlike_processors_and_threads_have_unlike_numerics(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("processor : 0\nvendor_id : A\nmodel : 1\nflags : sse avx2\n\nprocessor : 1\ncpu MHz : 2000\n")
    other.write_text("processor : 0\nvendor_id : A\nmodel : 2\nflags : sse avx2\n")
    names = [variety(1, one), variety(1, other), variety(2, one), variety(1, tmp_path / "none")]
    assert len(set(names)) == 4
    assert variety(1, one) == names[0]
    assert re.fullmatch(r"[a-z0-9]+-[0-9a-f]{8}", names[0])
