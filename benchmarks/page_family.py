"""The section on families in docs/performance.md."""

from __future__ import annotations

import family
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
