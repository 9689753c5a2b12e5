"""Calls of few tokens are the team's or the first thread's alone, by what both ways took; no bit depends on it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from blockwright.gpu.native.library import library
from blockwright.tests.gpu.native_oracle import Chain, NativeRig, Shape

CALLS = 20_000


class PaceRecord(ctypes.Structure):
    """``bw_pace`` of native.h, as ``bw_pace_of`` begins it."""

    _fields_ = [
        ("key", ctypes.c_uint32),
        ("helped", ctypes.c_int32),
        ("left", ctypes.c_int32),
        ("trial", ctypes.c_int32),
        ("ns", ctypes.c_float * 2),
    ]


class Calls:
    """Calls whose time is a function of the way that is chosen (1: the team's) and their number."""

    def __init__(self, nanoseconds: Callable[[int, int], int]) -> None:
        self._pace, self._nanoseconds, self._number = PaceRecord(key=1, helped=1, left=64), nanoseconds, 0

    def run(self, count: int) -> int:
        """How many of so many calls are the team's."""
        helped = 0
        for _ in range(count):
            way = library().bw_pace_next(ctypes.byref(self._pace))
            helped += way
            library().bw_pace_took(ctypes.byref(self._pace), ctypes.c_int64(self._nanoseconds(way, self._number)))
            self._number += 1
        return helped


def test_the_way_that_is_slower_is_tried_ever_more_rarely() -> None:
    faster_alone, faster_together = Calls(lambda way, n: 1000 + 100 * way), Calls(lambda way, n: 1500 - 500 * way)
    assert faster_alone.run(64) == 64, "the team begins"
    assert faster_alone.run(CALLS) < CALLS * 0.03
    assert faster_together.run(CALLS) > CALLS * 0.99
    much = Calls(lambda way, n: 9000 - 8000 * way)
    assert much.run(CALLS) > CALLS * 0.998


def test_a_team_that_brings_little_leaves_the_cores_to_others() -> None:
    assert Calls(lambda way, n: 1000 - 30 * way).run(CALLS) < CALLS * 0.08, "only trials are the team's"


@pytest.mark.parametrize("faster", [0, 1])
def test_a_change_of_what_is_faster_is_noticed(faster: int) -> None:
    calls = Calls(lambda way, n: 1000 if (way == faster) == (n < CALLS) else 1100)
    calls.run(CALLS)
    settled = calls.run(2000) and calls.run(CALLS)
    assert settled < CALLS * 0.03 if faster else settled > CALLS * 0.97


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_calls_computed_either_way_have_equal_bits(dtype: torch.dtype) -> None:
    chain = Chain(Shape(layers=1), dtype)
    sizes = {"rows": 3, "max_length": 320, "max_tokens": 320}
    alone, team = NativeRig(chain, 1, **sizes), NativeRig(chain, 3, **sizes)
    for position in range(300):
        batch = [(0, position, 1), (2, position, 1)]
        assert torch.equal(team.logits(batch), alone.logits(batch)), f"position {position}"
