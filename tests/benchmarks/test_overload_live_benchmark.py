"""A burst on real workers: the same requests for all, at the rate that is meant, and what is read off a run with a drop."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import fidelity
import overload_live as live
import overload_runs as runs
import pytest
from harness import OURS
from models import make_model
from overload_live import Answer, Asked, Outcome, Plan

SMALL = Plan(before=0.5, burst=2.0, after=0.5, outside=4.0)


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "lengths", lambda one: [(256 + 8 * n, 160 + 8 * n) for n in range(64)])
    live.shapes.cache_clear()


def test_in_a_burst_come_twice_as_many_and_a_seed_makes_the_same_again() -> None:
    plan = Plan(before=40.0, burst=30.0, after=20.0, outside=10.0)
    asked = live.requests(1, plan, 10.0)
    quiet, burst, after = (sum(a <= one.at < b for one in asked) for a, b in ((0, 40), (40, 70), (70, 100)))
    assert (quiet / 40, burst / 30) == (pytest.approx(10, rel=0.15), pytest.approx(20, rel=0.15))
    assert after / 30 == pytest.approx(10, rel=0.15)
    assert sorted(asked, key=lambda one: one.at) == asked == live.requests(1, plan, 10.0) != live.requests(2, plan, 10.0)
    assert max(len(one.prompt) + one.tokens for one in asked) <= live.SETTINGS["max_model_len"]
    assert len({one.prompt for one in asked}) == len(asked), "no prompt is cached"


def test_the_quiet_rate_uses_the_part_of_the_memory_that_is_meant() -> None:
    """Little's law: what is in memory is the rate, times how long it is there."""
    tokens, page = 6000.0, live.SETTINGS["page_size"]
    rate = live.quiet_rate(tokens)
    least = live.COSTS["base"] + live.COSTS["read"]
    held = statistics.fmean(answer * (prompt + answer / 2 + page / 2) for prompt, answer in live.shapes())
    sweep = live.BASE * tokens / (rate * held)
    assert least < sweep < 2 * least
    assert 2 < live.quiet_rate(2 * tokens) / rate * 2 < 4, "more at a time, each a little slower"


def test_what_is_read_off_views_and_answers() -> None:
    asked = [Asked(0.1, (1, 2), 3), Asked(0.6, (3, 4), 3), Asked(3.0, (5, 6), 2)]
    times = [[0.2, 0.3, 0.4], [1.6, 1.8, 2.7], [5.1, 5.4]]
    answers = [Answer([7] * len(seen), seen) for seen in times]
    worker = {"counters": {"preemptions": 3}, "memory": {"kv": 60}}
    view: dict[str, Any] = {"workers": [worker, {**worker, "memory": {"kv": 0}}]}
    found = live.figures(SMALL, asked, Outcome(answers, {0.3: view, 2.0: view}, 1000.0), 100)
    assert found["ttft_p99_s"] == pytest.approx(1.0, rel=0.05), "the last one came too long after the burst"
    assert [found[f"tpot_{when}_s"] for when in ("quiet", "burst")] == pytest.approx([0.1, 0.55])
    assert found["ended_s"] == pytest.approx(0.2)
    assert (found["preemptions"], found["kv_base"], found["kv_peak"]) == (2.0, 0.3, 0.3)
    change = {"what": "drop", "group": "w0+w1", "at": 10.0, "seconds": 2.0, "seconds_until_left": 0.5, "requests": 4,
              "stall": 6.0, "stall_worst": 1.9, "copied_bytes": 3_000_000, "recomputed": 5}  # fmt: skip
    seen = [{"at": at, "kv": kv, "cached": 10} for at, kv in ((9.9, 80), (10.1, 90), (10.3, 91))]
    values = {"changes": [change, {**change, "seconds": None}], "counts": {"drop": 2}, "readings": {"w0": seen, "w1": []}}
    moved = live.moved([{"overload": values}], 100)
    assert moved["first_page_s"] == pytest.approx(0.3), "more than there was before"
    assert (moved["stall_s"], moved["stall_most_s"], moved["left_s"], moved["drop_s"]) == (1.5, 1.9, 0.5, 2.0)
    assert (moved["exchange_mb_per_s"], moved["stale"], moved["drop"]) == (2.0, 4, 2)


def outcome(times: list[list[float]], changes: list[dict[str, Any]], groups: dict[str, Any]) -> Outcome:
    result = {"overload": {"changes": changes, "groups": groups}} if changes else {}
    return Outcome([Answer([7] * len(seen), seen) for seen in times], {1.0: {}, 9.0: result}, 1000.0)


def test_outside_begins_when_the_burst_is_over_for_all() -> None:
    """For one when the last request of the burst has ended, at 3.0; for the other when its last restore was over: 4.5."""
    asked = [Asked(1.0, (1, 2), 2), Asked(2.6, (3, 4), 8), Asked(7.0, (5, 6), 2)]
    one = outcome([[1.1, 3.0], [2.7, 4.0, 4.4, 5.0, 5.5, 6.0, 6.5, 7.5], [7.1, 9.0]], [], {})
    changes = [
        {"what": what, "at": at, "seconds": 0.5} for what, at in (("restore", 1003.5), ("restore", 1004.0), ("drop", 1006.0))
    ]
    times = [[1.1, 2.0], [2.7, 2.8, 2.9, 4.6, 5.6, 6.6, 7.6, 7.7], [7.1, 7.2]]
    other, left = outcome(times, changes, {}), outcome(times, changes, {"w0+w1": {}})
    found = live.outside(SMALL, asked, {"one": one, "other": other})
    assert found["one"] == pytest.approx({"tpot_after_s": 0.5, "after_from_s": 2.0})
    assert found["other"] == pytest.approx({"tpot_after_s": 1.0, "after_from_s": 2.0})
    assert live.outside(SMALL, asked, {"one": one, "left": left}) == {"one": {}, "left": {}}, "a pipeline to the end"
    assert live.restored(SMALL, other) == pytest.approx({"restored_s": 2.0})
    assert live.restored(SMALL, one) == live.restored(SMALL, left) == {}


def test_who_is_compared_outside_the_burst_and_what_is_not_measured_twice() -> None:
    plan = Plan()
    assert plan.of(2) == [live.PREEMPT, OURS, live.FLOOR]
    assert plan.of(4) == [*live.SYSTEMS]
    assert "real4 tpot_after_s" in {f"{bar.case} {bar.metric}" for bar in plan.bars()}
    assert not any("after" in bar.metric for bar in Plan.chosen(True).bars()), "the short form ends before"


@pytest.mark.system
@pytest.mark.nightly
async def test_a_burst_on_workers_with_little_memory_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pace = make_model(live.SIZE, "f32", tmp_path / "m"), tmp_path / "pace.json"
    pace.write_text(json.dumps({name: value / 4 for name, value in live.COSTS.items()}))
    monkeypatch.setattr(fidelity, "PAUSE", 0.01)
    monkeypatch.setattr(live, "SAMPLING", 0.2)
    asked = live.requests(1, Plan(before=0.1, burst=0.4, after=0.1, outside=0.0), 60.0)
    settings = {**live.SETTINGS, **live.SYSTEMS[OURS], "workers": 2, "memory": 22 << 20, "pace": pace}
    async with live.served(model, *live.words(settings)) as server:
        memory = (await server.get("/admin/cluster"))["workers"][0]["memory"]["free"]
        outcome = await live.run(server, asked)
    found = live.figures(SMALL, asked, outcome, memory) | live.moved([*outcome.views.values()], memory)
    assert [len(answer.tokens) for answer in outcome.answers] == [one.tokens for one in asked]
    assert found["drop"] >= 1
    assert found["kv_peak"] > 1.0, "pages lie where parameters were"
    assert 0 < found["stall_s"] <= found["stall_most_s"]
    ends = outcome.ended(SMALL, asked)
    assert 0.0 < ends <= max(outcome.views)
    assert (outcome.restored() == float("inf")) is bool(outcome.views[max(outcome.views)]["overload"]["groups"])
