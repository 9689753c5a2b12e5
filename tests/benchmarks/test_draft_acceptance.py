"""The acceptance that is computed is the one that is counted, and lies within the bounds that coupling has."""

from __future__ import annotations

import draft_acceptance
import numpy as np
import pytest


def test_equal_laws_accept_all_and_disjoint_ones_nothing() -> None:
    p, q = np.array([[0.5, 0.5, 0.0, 0.0]]), np.array([[0.0, 0.0, 0.2, 0.8]])
    assert (draft_acceptance.rejected(p, p), draft_acceptance.rejected(p, q)) == (1.0, 0.0)
    assert (draft_acceptance.coupled(p, p), draft_acceptance.coupled(p, q)) == (1.0, 0.0)


def test_coupling_accepts_what_equal_noise_draws_alike() -> None:
    draw = np.random.default_rng(1)
    p, q = (draw.dirichlet(np.ones(9), size=20) for _ in range(2))
    noise = draw.gumbel(size=(20_000, 9))
    alike = [
        np.mean((np.log(a) + noise).argmax(axis=1) == (np.log(b) + noise).argmax(axis=1)) for a, b in zip(p, q, strict=True)
    ]
    assert draft_acceptance.coupled(p, q) == pytest.approx(float(np.mean(alike)), abs=0.005)
    shared = np.minimum(p, q).sum(axis=1)
    assert float((shared / (2 - shared)).mean()) <= draft_acceptance.coupled(p, q) <= draft_acceptance.rejected(p, q)
