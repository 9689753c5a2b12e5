"""Guesses of hidden states in a plan under way: the surrogate's steps, what leaves behind them, and the likeness at the end.

A guess is computed on the rows' own hidden states, which are put back behind it. Owns both copies until the plan ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..policies.plan.sweep_plan import Departure, Step, SweepPlan
from .device import Device
from .sweep_columns import SweepColumns

Guessed = Callable[[SweepPlan, Step, Departure, memoryview], None]  # takes a guess at once, on the device's thread


class SweepGuesses:
    """The guesses of one plan (see the module)."""

    def __init__(self, columns: SweepColumns, device: Device, guessed: Guessed) -> None:
        self._columns, self._device = columns, device
        self._guessed = guessed
        self._left = [guess.steps for guess in columns.plan.guesses]  # steps of the surrogate to come
        self._true: dict[int, memoryview] = {}  # hidden states before the surrogate
        self._sent: dict[int, memoryview] = {}
        self.likeness: list[list[float]] = [[] for _ in columns.plan.guesses]

    def step(self, step: Step, body: Any, width: int) -> None:
        """Compute a step of a surrogate. Behind the last one the guess leaves, and the true hidden states return."""
        number, plan = step.guess - 1, self._columns.plan
        guess, at = plan.guesses[number], self._columns.rows(step.batch)
        if self._left[number] == guess.steps:
            self._true[number] = self._device.read(width, at)
        self._device.step(body, width, at, [])
        self._left[number] -= 1
        if self._left[number]:
            return
        if guess.sent.batch:
            self._sent[number] = self._device.read(width, self._columns.rows(guess.sent.batch))
            self._guessed(plan, step, guess.sent, self._sent[number])
        self._device.arrive(width, at, self._true.pop(number))

    def compare(self, step: Step, head: Any, width: int) -> None:
        """Measure the likeness of a guess to the hidden states that its rows have now."""
        number = step.guess - 1
        at = self._columns.rows(step.batch)
        self.likeness[number] = self._device.likeness(head, width, at, self._sent.pop(number))
