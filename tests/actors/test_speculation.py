"""Guesses of hidden states beside forecasts: every policy that has replicas of workers is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.actors.checkpoints import OpenedCheckpoints
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.speculation import with_drafting_chains
from blockwright.policies.prediction.dispatching import POLICIES
from blockwright.tests.claims import claim

OPENED: dict[str, Any] = {"a": None}  # a checkpoint that is not looked at before the dispatch


@claim("Guesses of hidden states are refused beside every dispatch that has replicas of workers", of="adaptive")
@pytest.mark.parametrize("dispatch", [name for name, one in POLICIES.items() if one.looks])
def test_every_policy_that_looks_at_replicas_is_refused(dispatch: str) -> None:
    chosen = Settings(
        applications={"a": "a"}, speculate={"a": "hidden"}, dispatch=dispatch, workers=2, pipelines={"a": 2}, device="cpu"
    )
    assert chosen.dispatching.predicts
    with pytest.raises(SettingsError, match=f"speculate.a is hidden, and dispatch is {dispatch}: forecasts know no guesses"):
        with_drafting_chains(chosen, OpenedCheckpoints(OPENED, {}))
