"""The controller's benchmark measures what it says: all is served before it begins, and a beat at rest changes nothing."""

from __future__ import annotations

import asyncio

import controller
import controller_step as step
from controller_node import node
from harness import Options, Report, misses

CASES = {"rest/state", "rest/node", "publication", "death", "return", "application"}


def test_at_rest_every_application_is_served_on_every_worker() -> None:
    state = step.at_rest(4, 3)
    assert len(state.routes) == 12
    assert {worker.state for worker in state.workers.values()} == {"ready"}
    version = state.version
    assert step.rest(state, 1.0) > 0
    assert asyncio.run(node(state, step.HEARTBEAT, 1.0)) > 0
    assert state.version == version
    state.check()


def test_a_death_a_return_and_one_more_application_are_what_is_timed() -> None:
    state = step.at_rest(4, 3)
    assert set(step.changes(state, 3)) == {"death", "return", "application"}
    assert (len(state.routes), state.workers["w1"].restarts) == (12, 1)
    assert list(state.holdings.blocks) == ["a0", "a1", "a2", "a3"]


def test_every_case_of_a_process_is_reported_and_the_bars_are_judged(monkeypatch, capsys) -> None:
    asked: list[tuple[int, int]] = []

    def measured(python: object, workers: int, applications: int) -> list[tuple[str, dict[str, float]]]:
        asked.append((workers, applications))
        return step.main(3, 2, 0.5)

    monkeypatch.setattr(controller, "measured", measured)
    controller.main(Options(quick=True, json=None))
    assert asked == [(1000, 100), (100, 10)]
    shown = capsys.readouterr().out
    assert all(f"{size}/{case} " in shown for size in controller.SIZES for case in CASES)
    report = Report("controller", {})
    report.add("1000x100/rest/state", controller.OURS, {"core_share": 0.051})
    report.add("1000x100/rest/node", controller.OURS, {"core_share": 0.049})
    report.add("1000x100/publication", controller.OURS, {"message_megabytes": 0.7})
    assert misses(report, controller.BARS) == ["1000x100/rest/state core_share: 0.051, the bar is at most 0.05"]
