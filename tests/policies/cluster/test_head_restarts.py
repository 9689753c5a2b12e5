"""Restarts of heads: when a keeper starts another one, and when it ends all."""

from __future__ import annotations

import signal

import pytest

from blockwright.policies.cluster.head_restarts import MOST, PERIOD, EndAll, HeadRestarts

KILLED = -signal.SIGKILL


@pytest.mark.parametrize("status", [0, 1, 2, 130])
def test_a_head_that_ended_by_itself_is_the_end_of_all(status: int) -> None:
    assert HeadRestarts(300.0, 2.0).ended(status, 5.0) == EndAll(status)


def test_a_head_that_a_signal_ended_is_followed_by_another() -> None:
    assert HeadRestarts(300.0, 2.0).ended(KILLED, 5.0) is None


def test_without_grace_the_heads_end_is_everybodys() -> None:
    assert HeadRestarts(0.0, 2.0).ended(KILLED, 5.0) == EndAll(KILLED)


def test_a_signal_that_was_passed_on_ends_all_until_another_head_began() -> None:
    restarts = HeadRestarts(300.0, 2.0, passed={signal.SIGHUP})
    assert restarts.ended(-signal.SIGHUP, 5.0) == EndAll(-signal.SIGHUP)
    assert restarts.ended(KILLED, 5.0) is None
    restarts.began()
    assert restarts.ended(-signal.SIGHUP, 6.0) is None


def test_heads_that_end_again_and_again_are_given_up() -> None:
    restarts = HeadRestarts(300.0, 2.0)
    assert [restarts.ended(KILLED, float(n)) for n in range(MOST)] == [None] * MOST
    given_up = restarts.ended(KILLED, float(MOST))
    assert given_up is not None
    assert given_up.status == 1
    assert given_up.why == f"{MOST + 1} heads ended within {PERIOD:g} s; the last one by signal 9"


def test_heads_that_end_seldom_are_not() -> None:
    restarts = HeadRestarts(300.0, 2.0)
    assert all(restarts.ended(KILLED, n * PERIOD) is None for n in range(3 * MOST))


def test_a_stopped_head_is_replaced_after_the_silence_and_a_hung_one_much_later() -> None:
    restarts = HeadRestarts(300.0, 2.0)
    assert restarts.lost(100.0, stopped=True) == ""  # it has yet to come up
    restarts.heard(100.0)
    assert restarts.lost(102.0, stopped=True) == ""
    assert restarts.lost(102.1, stopped=True) == "it was stopped"
    assert restarts.lost(110.0, stopped=False) == ""
    assert restarts.lost(110.1, stopped=False) == "it has hung for 10 s"
    restarts.heard(110.2)
    assert restarts.lost(112.0, stopped=True) == ""
    restarts.began()
    assert restarts.lost(500.0, stopped=True) == ""


def test_a_long_silence_makes_a_hung_head_wait_longer() -> None:
    restarts = HeadRestarts(300.0, 4.0)
    restarts.heard(0.0)
    assert restarts.lost(20.0, stopped=False) == ""
    assert restarts.lost(20.1, stopped=False) == "it has hung for 20 s"


def test_without_grace_nothing_is_replaced() -> None:
    restarts = HeadRestarts(0.0, 2.0)
    restarts.heard(0.0)
    assert restarts.lost(1e6, stopped=True) == ""
