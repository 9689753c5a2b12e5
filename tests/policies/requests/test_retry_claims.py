"""Claims of keys: one gateway runs each, its keeper knows which, and nothing is claimed for ever."""

from __future__ import annotations

import pytest

from blockwright.policies.requests import retry_claims
from blockwright.policies.requests.retry_claims import RetryClaims, keeper_of

GATEWAYS = ("g0", "g1", "g2", "far")


def test_keys_of_a_gateway_that_goes_have_other_keepers_and_no_others_move() -> None:
    keys = [str(number) for number in range(400)]
    before = {key: keeper_of(key, GATEWAYS) for key in keys}
    after = {key: keeper_of(key, ("far", "g2", "g0")) for key in keys}
    assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == "g1"}
    assert all(60 < list(before.values()).count(name) < 140 for name in GATEWAYS)
    assert keeper_of("a", ["g1"]) == "g1"


def test_one_gateway_runs_a_key() -> None:
    claims = RetryClaims(window=30.0)
    assert [claims.claim("k", name, 0.0) for name in ("g0", "g1", "g0")] == ["g0"] * 3
    claims.end("k", "g1", 1.0, kept=True)
    claims.end("k", "g0", 2.0, kept=True)
    assert claims.claim("k", "g1", 32.0) == "g0", "the answer is kept as long"
    assert claims.claim("k", "g1", 32.1) == "g1"
    claims.end("k", "g1", 33.0, kept=False)
    assert claims.claim("k", "g2", 33.0) == "g2", "a failure is not kept"
    assert claims.claim("k", "g0", 34.0, instead_of="g2") == "g0", "it had it no more"
    assert claims.claim("k", "g1", 34.0, instead_of="g2") == "g0", "who comes second gets what the first one runs"
    claims.forget("g0")
    assert claims.claim("k", "g1", 35.0) == "g1"


def test_the_number_of_claims_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_claims, "MOST", 3)
    claims = RetryClaims(window=30.0)
    for key in "abc":
        claims.claim(key, "g0", 0.0)
    claims.end("b", "g0", 0.0, kept=True)
    claims.claim("d", "g0", 0.0)
    assert [claims.claim(key, "g1", 0.0) for key in "acd"] == ["g0"] * 3
    assert claims.claim("b", "g1", 0.0) == "g1"
