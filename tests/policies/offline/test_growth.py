"""What long sequences will hold at most, beside a step by step count."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.offline.growth import Growth


def counted(sequences: dict[int, tuple[int, int, int]], step: int) -> int:
    """Step by step: (began, positions then, more)."""
    last = max((began + more for began, _, more in sequences.values()), default=step)
    return max(
        (
            sum(positions + at - began for began, positions, more in sequences.values() if at <= began + more)
            for at in range(step, last + 1)
        ),
        default=0,
    )


def test_sequences_of_one_age_hold_all_at_once_and_of_all_ages_half() -> None:
    together, apart = Growth(), Growth()
    for number in range(10):
        together.begin(number, 0, 5, 100)
        apart.begin(number, 0, 10 * number, 100 - 10 * number)
    assert together.peak(0) == 10 * 105
    assert apart.peak(0) == 550
    assert (together.now(0), apart.now(0), len(apart)) == (50, 450, 10)


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_what_a_step_by_step_count_finds(seed: int) -> None:
    chance = random.Random(seed)
    found = Growth()
    sequences = dict[int, tuple[int, int, int]]()
    for step in range(0, 300, 7):
        for request in [one for one, (began, _, more) in sequences.items() if began + more <= step]:
            found.end(request)
            del sequences[request]
        if sequences and chance.random() < 0.2:
            request = chance.choice([*sequences])
            found.end(request)
            del sequences[request]
        new = (step, chance.randrange(50), chance.randint(1, 120))
        assert found.with_one_more(*new) == counted({**sequences, -1: new}, step)
        if chance.random() < 0.7:
            sequences[step] = new
            found.begin(step, *new)
        assert found.peak(step) == counted(sequences, step)
        assert found.now(step) == sum(positions + step - began for began, positions, _ in sequences.values())
    found.end(10**6)
    assert len(found) == len(sequences)


def test_a_sequence_that_outruns_its_estimate_runs_a_little_longer() -> None:
    found = Growth()
    found.begin(1, 0, 0, 100)
    assert found.peak(50) == 100
    assert found.peak(100) == 110
    assert found.peak(200) == 220
    found.end(1)
    assert (found.peak(300), len(found)) == (0, 0)
