"""Blocks that were unloaded: each actor hears once when the last plan that was open then has ended."""

from __future__ import annotations

from typing import Any

from blockwright.actors.worker.block_endings import BlockEndings


class Plans:
    """The numbers of a state's plans that matter here."""

    def __init__(self) -> None:
        self.number, self.open_plans = 5, 2  # plans 3 and 4 are open


class Block:
    """An actor that notes that its plans have ended."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self.name, self.heard = name, heard
        self.ended = self

    def cast(self) -> None:
        self.heard.append(self.name)


def test_a_block_has_ended_with_the_last_plan_that_was_open() -> None:
    plans: Any = Plans()
    heard: list[str] = []
    endings = BlockEndings(plans)
    first: Any = Block("first", heard)
    endings.await_plans(first)
    assert heard == []
    plans.number, plans.open_plans = 6, 2  # plan 3 has ended, and plan 5 was made
    second: Any = Block("second", heard)
    endings.await_plans(second)
    assert heard == []
    plans.open_plans = 1  # plan 4 has ended
    endings.notify()
    assert heard == ["first"]
    plans.open_plans = 0
    endings.notify()
    endings.notify()
    assert heard == ["first", "second"]


def test_a_block_that_no_open_plan_names_has_ended_at_once() -> None:
    plans: Any = Plans()
    plans.open_plans = 0
    heard: list[str] = []
    block: Any = Block("block", heard)
    BlockEndings(plans).await_plans(block)
    assert heard == ["block"]
