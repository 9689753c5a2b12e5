"""The section on families in docs/performance.md."""

from __future__ import annotations

import family
import family_sweeps
import tier_fairness
import tier_sweeps
from harness import OURS
from stored import NONE, Result, table

NAMES = {
    family.CUT: "cut without training",
    family.STEPS: "one tier after the other",
    family.ONCE: "all tiers at once",
    family.LOW_RANK: "low-rank terms and heads only",
    family.ALONE: "the whole model alone",
    family.SHIPPED: "shipped: `examples/demo-tiers`",
}


def of_family(result: Result) -> str:
    """Return the words and the table of a result of ``family.py``."""
    tiers = (*family.EXITS, 6)
    rows = [(name, *(result.percent(f"{case}/{layers}", "right") for layers in tiers)) for case, name in NAMES.items()]
    steps, batch = (result.document["settings"].get(name, NONE) for name in ("steps", "batch"))
    auto = "; ".join(
        f"from {case.rpartition('/')[2]} layers {result.text(case, 'auto_loss')} points, "
        f"{result.percent(case, 'auto_up')} of the requests go up, {result.percent(case, 'auto_work')} of the top's work "
        f"(an oracle: {result.percent(case, 'oracle_work')})"
        for case in result.cases("auto_loss")
    )
    mib = {name: result.text("memory", f"{name}_bytes", scale=2**-20) for name in ("resident", "distinct", "separate")}
    return f"""The demo checkpoint with exits after 3 and 4 of 6 layers: whole answers right on held-out prompts, after
{steps} steps of {batch} prompts each (the shipped family has had its own number of steps).

{table(("", *(f"{layers} layers" for layers in tiers)), rows)}

`auto` with theta for a loss of one point, on prompts that did not choose theta: {auto or "not measured"}. Parameters of all
tiers of the shipped family: {mib["resident"]} MiB resident, {mib["distinct"]} MiB of distinct tensors, {mib["separate"]} MiB
as separate models. Not measured: {family.STAND_ALONE}."""


def of_family_sweeps(result: Result) -> str:
    """Return the words and the tables of a result of ``family_sweeps.py``."""
    tiers = (*family.EXITS, 6)
    weights = [
        (f"{weight:g}", *(result.percent(f"lambda{weight:g}/{layers}", "right") for layers in tiers))
        for weight in family_sweeps.LAMBDAS
    ]
    chosen = [
        (
            f"{points:g}",
            *(
                f"{result.text(case, 'auto_loss')} / {result.percent(case, 'auto_up')} / {result.percent(case, 'auto_work')}"
                for case in (f"loss{points:g}/{layers}" for layers in family.EXITS)
            ),
        )
        for points in family_sweeps.LOSSES
    ]
    return f"""The weight of the lower tiers' losses in training, with the steps of the table above; whole answers right on
held-out prompts:

{table(("lambda", *(f"{layers} layers" for layers in tiers)), weights)}

`auto` of the shipped family, by the points of right answers that the choice of theta may lose; on prompts that did not
choose theta: points lost / requests that go up / work relative to the top tier:

{table(("points", *(f"from {layers} layers" for layers in family.EXITS)), chosen)}"""


def of_tier_sweeps(result: Result) -> str:
    """Return the words and the table of a result of ``tier_sweeps.py``."""
    rows = []
    for case in result.cases("of_apart"):
        size, streams, _ = case.split("/")
        short, other = f"{size}/{streams}/decoupled", f"{size}/{streams}"
        rows.append(
            (
                size,
                streams.removeprefix("n"),
                f"{result.percent(case, 'saving')} ({result.percent(case, 'ideal')})",
                f"{result.percent(short, 'saving')} ({result.percent(short, 'ideal')})",
                result.text(short, "top_price"),
                result.text(f"{other}/unused", "unused"),
                result.text(f"{other}/fusion", "fused"),
            )
        )
    cases = {size: f"{size}/512/moving-up" for size in tier_sweeps.Plan().sizes}
    moved = "; ".join(
        f"{size} {result.percent(case, 'saving')} (ideal {result.percent(case, 'ideal')})" for size, case in cases.items()
    )
    head = (
        "",
        "streams a tier",
        "saved by one batch (ideal)",
        "saved for the lower tier by short steps (ideal)",
        "top's token then",
        "an exit that no request takes",
        "masked fusion",
    )
    return f"""Random models with an exit after half of their layers, float32, equal numbers of streams on both tiers;
processor time of a worker with one thread. One batch is compared with engines apart (the same kernels in steps of their
own). With every second step short, the lower tier's token gets faster and the top's dearer. Ideals come from kernel times of
the same run; no processor is named by them. Masked fusion is one attention call for all rows with a mask, in the
time of one call for each row.

{table(head, rows)}

Saved of the time to the first token where the lower tier has computed the prompt of 512 tokens: {moved}."""


def of_tier_fairness(result: Result) -> str:
    """Return the words and the tables of a result of ``tier_fairness.py``."""
    rows = [
        (mix, *(result.text(mix, metric, who) for metric in ("jain", "starved_s") for who in (OURS, tier_fairness.OFF)))
        for mix in tier_fairness.MIXES
    ]
    head = ("requests to the lower tiers / the top", "Jain's index", "without", "longest time without a start, s", "without")
    waits = [
        (case.rpartition("/")[2], *(result.text(case, "wait_s", who) for who in (OURS, tier_fairness.NO_AGEING)))
        for case in result.cases("wait_s")
    ]
    layers = ", ".join(map(str, tier_fairness.LAYERS))
    return f"""A family of {layers} layers on one worker in virtual time, whose tiers all have requests waiting. Work is
tokens times layers; Jain's index is 1 where all tiers get as much of it (bar {tier_fairness.JAIN:g}). No tier may wait for a
start longer than the ageing ({tier_fairness.AGEING:g} s) and the longest request. "Without" is `tier_fairness=off`.

{table(head, rows)}

The longest wait of each service class in seconds, beside urgent requests that would fill the worker:

{table(("class", "wait, s", "without ageing"), waits)}"""
