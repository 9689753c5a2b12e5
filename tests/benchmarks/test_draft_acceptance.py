"""The acceptance that is counted is the one of two laws, within the bounds that coupling has."""

from __future__ import annotations

import draft_acceptance
import numpy as np
import pytest


def test_equal_laws_accept_all_and_disjoint_ones_nothing() -> None:
    p, q = np.array([[0.5, 0.5, 0.0, 0.0]]), np.array([[0.0, 0.0, 0.2, 0.8]])
    assert (draft_acceptance.rejected(p, p), draft_acceptance.rejected(p, q)) == (1.0, 0.0)
    assert (draft_acceptance.coupled(p, p, 50, 1), draft_acceptance.coupled(p, q, 50, 1)) == (1.0, 0.0)


def test_coupling_accepts_within_the_bounds_of_daliri() -> None:
    draw = np.random.default_rng(1)
    p, q = (draw.dirichlet(np.ones(9), size=40) for _ in range(2))
    by_rule = draft_acceptance.rejected(p, q)
    each = np.minimum(p, q).sum(axis=1)
    assert float((each / (2 - each)).mean()) - 0.02 < draft_acceptance.coupled(p, q, 400, 1) < by_rule + 0.02
    assert draft_acceptance.coupled(p[:1], np.array([np.eye(9)[3]]), 4000, 1) == pytest.approx(p[0, 3], abs=0.03)
