"""The simulation as a pytest fixture. Switched on in a conftest.py at the root of the tests:

    pytest_plugins = ["blockwright.runtime.testing.pytest_plugin"]

    @pytest.mark.seeds(100)                     # 100 tests, test_pay[0] to test_pay[99]; without it one, with seed 0
    def test_pay(simulation):                   # not async: the simulation is the event loop
        simulation(nodes=3, faults=5, setup=setup).run(scenario)

A failing seed is run again by its test's name, or by BLOCKWRIGHT_SEED for tests of any seed.
"""

from __future__ import annotations

from functools import partial

import pytest

from .simulation import Simulation, seeds


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "seeds(count): run the test with this many seeds of its `simulation`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "simulation" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("seeds")
        metafunc.parametrize("simulation", seeds(marker.args[0] if marker is not None else 1), indirect=True)


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> partial[Simulation]:
    """Return a ``Simulation`` with the test's seed."""
    return partial(Simulation, seed=request.param)
