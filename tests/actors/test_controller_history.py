"""What the controller tells people of the last hours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.actors.controller.history import KEPT, History
from blockwright.policies.control.events import ResumeWorker, VacateWorker


def worker(state: str, incarnation: int = 0, restarts: int = 0, cause: str = "") -> Any:
    return SimpleNamespace(state=state, incarnation=incarnation, restarts=restarts, cause=cause, joined=False)


def cluster(routes: int = 0, models: str = "m", **workers: Any) -> Any:
    served = {
        name: SimpleNamespace(
            in_force=routes,
            planned=[None, None],
            deployed=True,
            shown=True,
            draining=False,
            application=SimpleNamespace(name=name, served_as=name),
        )
        for name in models
    }
    applications = dict.fromkeys(models)
    return SimpleNamespace(
        workers=workers,
        changed=workers,
        served=served,
        table=SimpleNamespace(applications=applications),
    )


def texts(history: History) -> list[str]:
    return [event.text for event in history.events]


def test_a_life_a_death_and_a_return(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    history = History()
    for at, state in enumerate(
        (
            cluster(w0=worker("starting")),
            cluster(w0=worker("loading", 1)),
            cluster(w0=worker("loading", 1)),
            cluster(1, w0=worker("ready", 1)),
            cluster(0, w0=worker("starting", 0, 1, "exited -9")),
            cluster(0, w0=worker("loading", 2, 1)),
            cluster(2, w0=worker("ready", 2, 1)),
        )
    ):
        history.tick(state, at / 4)
    assert texts(history) == [
        "worker w0 is being started",
        "worker w0 is up and loads its blocks",
        "worker w0 serves",
        "model m is ready on 1 of 2 routes",
        "worker w0 died: exited -9",
        "worker w0 is being started",
        "model m is ready on 0 of 2 routes",
        "worker w0 is up and loads its blocks",
        "worker w0 serves again, 0.50 s after it died",
        "model m is ready on 2 of 2 routes",
    ]
    assert caplog.messages == texts(history), "with log_level=info each is a line of the log"


def test_what_happens_to_many_models_at_once_is_one_line() -> None:
    history = History()
    history.tick(cluster(1, "abc"), 0.0)
    history.tick(cluster(2, "abcd"), 1.0)
    history.tick(cluster(1, "abcd"), 2.0)
    assert texts(history) == [
        "models a, b, c are ready on 1 of 2 routes",
        "4 models are ready on 2 of 2 routes",
        "4 models are ready on 1 of 2 routes",
    ]
    assert history.events[0].subject == "a, b, c"


def test_times_are_of_the_wall_and_only_the_last_are_kept() -> None:
    history = History()
    for number in range(KEPT + 5):
        history.record(100.0 + number, "gateway", "g1", "x")
    view = history.view(now=400.0, wall=1_000_000.0)
    assert len(view) == KEPT
    assert view[0] == {"number": 6, "at": 999_705.0, "event": "gateway", "subject": "g1", "text": "x"}


def test_a_drain_and_its_end() -> None:
    history = History()
    history.scaled(VacateWorker("w0", 30.0, "an operator asked for it"), 1.0)
    history.scaled(ResumeWorker("w0"), 2.0)
    assert texts(history) == [
        "worker w0 is drained: an operator asked for it",
        "worker w0 is no longer drained: it takes requests again",
    ]
