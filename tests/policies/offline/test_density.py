"""Costs of a request and its density: the values of the paper, the exact sums, profiles, bounds."""

from __future__ import annotations

from random import Random

import pytest

from blockwright.policies.offline.density import DENSEST, Costs, density
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.tests.policies.offline.reference_tree import answer_cost, random_costs, reading, token_cost

LLAMA_ON_A100 = Costs.of_model(parameters=8.0e9, hidden=4096, layers=32, kv_width=1024, compute=312e12, bandwidth=2.039e12)


@pytest.mark.parametrize(("prompt", "answer", "lowest", "highest"), [(512, 256, 3.73, 3.80), (256, 16384, 0.096, 0.096)])
def test_the_check_values_of_the_paper(prompt: int, answer: int, lowest: float, highest: float) -> None:
    """Llama-3.1-8B on an A100, within 3 %."""
    assert lowest * 0.97 <= LLAMA_ON_A100.rho(prompt, answer) <= highest * 1.03


def test_terms_are_those_of_the_formula() -> None:
    """2 P (p + d) + 4 p^2 H L, and 4 H_kv L (p d + d (d + 1) / 2), by the peaks."""
    p, d = 512, 256
    comp = (2 * 8.0e9 * (p + d) + 4 * p * p * 4096 * 32) / 312e12
    mem = 4 * 1024 * 32 * (p * d + d * (d + 1) / 2) / 2.039e12
    assert LLAMA_ON_A100.comp(p, d) == pytest.approx(comp)
    assert LLAMA_ON_A100.mem(p, d) == pytest.approx(mem)
    assert LLAMA_ON_A100.rho(p, d) == pytest.approx(comp / mem)


def test_values_of_four_bytes_take_twice_as_long_to_read() -> None:
    sizes = {"parameters": 1e6, "hidden": 64, "layers": 2, "kv_width": 32, "compute": 1e9, "bandwidth": 1e9}
    assert Costs.of_model(**sizes, value_bytes=4).mem(3, 5) == pytest.approx(2 * Costs.of_model(**sizes).mem(3, 5))


def test_a_request_costs_what_its_tokens_cost() -> None:
    random = Random(0)
    for _ in range(200):
        costs = random_costs(random)
        prompt = random.randint(0, 40)
        answer = random.randint(0, 40)
        behind = random.randint(0, prompt)
        tokens = [token_cost(costs, place) for place in range(prompt)]
        assert costs.comp(prompt, answer) == pytest.approx(sum(tokens) + answer_cost(costs, answer))
        assert costs.prompt(prompt - behind, behind) == pytest.approx(sum(tokens[behind:]))
        assert costs.mem(prompt, answer) == pytest.approx(reading(costs, prompt, answer))


def test_a_profile_tells_the_density_of_its_machine() -> None:
    measured = Coefficients(base=1.0, read=2.0, token=3e-6, beyond=1e-6, row=5e-6, context=2e-9, prefill=8e-9)
    costs = Costs.of_coefficients(measured)
    assert costs == Costs(token=4e-6, attend=4e-9, read=2e-9, sample=5e-6)
    pairs = 100 * 101 / 2  # that a prompt of 100 tokens has behind its mask and on the diagonal
    assert costs.prompt(100) == pytest.approx(100 * 4e-6 + pairs * 8e-9, rel=0.01)


def test_density_is_a_number_whatever_takes_no_time() -> None:
    assert density(1.0, 0.0) == density(1.0, 1e-300) == DENSEST
    assert density(0.0, 1.0) == 0.0
    assert density(0.0, 0.0) == 1.0
    assert density(3.0, 2.0) == 1.5


@pytest.mark.parametrize(
    ("values", "says"),
    [((0.0, 1.0, 1.0), "token is 0"), ((1.0, -1.0, 1.0), "attend is -1"), ((1.0, 0.0, float("nan")), "read")],
)
def test_costs_that_cannot_be_are_refused(values: tuple[float, float, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Costs(*values)


def test_a_machine_without_a_peak_is_refused() -> None:
    with pytest.raises(ValueError, match="bandwidth 0 byte/s; give both"):
        Costs.of_model(parameters=1, hidden=1, layers=1, kv_width=1, compute=1, bandwidth=0)
