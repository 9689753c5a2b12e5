"""A switch must gain a third of its estimate, and a route must be that much worse for a second."""

from blockwright.policies.requests.chain_switch import HOLD, WorseRoutes, gains


def test_a_third_must_be_gained() -> None:
    assert gains(9.0, 5.9)
    assert not gains(9.0, 6.0)
    assert not gains(0.0, 0.0)


def test_a_route_must_be_worse_for_a_while_and_then_anew() -> None:
    routes = WorseRoutes()
    worse, better = {"r": (9.0, 1.0), "s": (1.0, 9.0)}, {"r": (9.0, 8.0)}
    assert routes.note(worse, 0.0) == []
    assert routes.note(worse, HOLD / 2) == []
    assert routes.note(better, HOLD * 0.9) == [], "for a moment it is not"
    assert routes.note(worse, HOLD) == []
    assert routes.note(worse, 2 * HOLD) == ["r"]
    assert routes.note(worse, 2.5 * HOLD) == []
    assert routes.note(worse, 3 * HOLD) == ["r"]
    assert routes.note({}, 4 * HOLD) == routes.note(worse, 5 * HOLD) == []
