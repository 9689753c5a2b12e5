"""What holds for all tests of a zoo."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given to the system outlives a process, and forcing it to a disk takes milliseconds each time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
