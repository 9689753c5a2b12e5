"""Rows of a family's segments: each row counts once in a sweep, drafts or not, and removed families are forgotten."""

from __future__ import annotations

from blockwright.actors.worker.messages import SegmentRows
from blockwright.actors.worker.sweep_figures import SegmentFigures
from blockwright.policies.drafts.options import DraftOptions
from blockwright.tests.policies.sweep_world import World, chain, replica, submission, tier

TOP = chain("base", 4)
LOW, MIDDLE = tier(TOP, 1), tier(TOP, 3)
FAMILY = [TOP, LOW, MIDDLE]


def world(*chains: object) -> World:
    served = [TOP, LOW, MIDDLE] if not chains else [*chains]
    return World(["w0"], served, [replica("w0", one) for one in served], chunk_size=16, max_rows=6, sweep_tokens=48)  # type: ignore[arg-type]


def run(made: World, figures: SegmentFigures) -> None:
    """Make and commit plans until nothing is to be done."""
    worker = made.workers["w0"]
    while (plan := worker.state.plan(made.now)) is not None:
        result = worker.device.execute(plan, worker.state.batch(plan.number))
        worker.state.commit(plan, result, made.now)
        figures.record(plan, worker.state.parts.routes)
        made.collect(worker)


def test_rows_of_all_tiers_count_for_the_segments_that_they_pass() -> None:
    made, figures = world(), SegmentFigures()
    for name, target in (("low", LOW), ("middle", MIDDLE), ("top", TOP)):
        prompt = [*range(ord(name[0]), ord(name[0]) + 6)]
        made.submit(submission(name, prompt, 9, f"{target.application}@w0"))
    run(made, figures)
    assert figures.view() == [
        SegmentRows("base", 1, 1, sweeps=3, rows=9),
        SegmentRows("base", 2, 3, sweeps=3, rows=6),
        SegmentRows("base", 4, 4, sweeps=3, rows=3),
    ]


def test_a_row_with_drafts_by_a_tier_counts_once_in_a_sweep() -> None:
    made, figures = world(), SegmentFigures()
    drafts = DraftOptions(tokens=3, tiers=[LOW.application])
    made.submit(submission("drafting", [*range(6)], 30, "base@w0", drafts=drafts))
    made.submit(submission("plain", [*range(50, 56)], 30, "base@w0"))
    run(made, figures)
    low, *above = figures.view()
    assert made.workers["w0"].state.counters["draft_rounds"] > 0
    assert low.sweeps < low.rows <= 2 * low.sweeps
    assert [(one.sweeps, one.rows) for one in above] == [(low.sweeps, low.rows)] * 2


def test_a_family_that_goes_is_forgotten_and_a_model_alone_has_no_segments() -> None:
    made, figures = world(), SegmentFigures()
    made.submit(submission("top", [*range(6)], 9, "base@w0"))
    run(made, figures)
    assert len(figures.view()) == 3
    made.serve([TOP], [replica("w0", TOP)])
    made.submit(submission("more", [*range(6)], 9, "base@w0"))
    run(made, figures)
    assert figures.view() == []
