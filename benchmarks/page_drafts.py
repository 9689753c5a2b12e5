"""The section on drafts in docs/performance.md."""

from __future__ import annotations

import draft_acceptance
import draft_models
import drafts
from stored import Result, table


def of_drafts(result: Result) -> str:
    """Return the words and the tables of a result of ``drafts.py``."""
    columns = (drafts.OFF, *(f"g{g}" for g in drafts.FIXED), drafts.POLICY)
    rows = []
    for case in dict.fromkeys(case.rpartition("/")[0] for case in result.cases("tokens_per_round")):
        size, dtype, requests, right = case.split("/")
        cells = [result.text(f"{case}/{column}", "out_tok_per_s") for column in columns]
        for at, g in enumerate(drafts.FIXED, 1):
            cells[at] += f" ({result.text(f'{case}/g{g}', 'of_ideal')})"
        best = result.text(f"{case}/{drafts.POLICY}", "of_best")
        by_model = right.startswith("model")
        right = f"by a model, {right.removeprefix('model')}" if by_model else right[1:]
        rows.append((f"{size} {dtype}", requests[1:], right, *cells, best))
    head = ("", "requests", "right", "off", *(f"{g}" for g in drafts.FIXED), "policy", "policy / best")
    vain = "; ".join(
        f"{' '.join(case.split('/')[:2])}, {case.split('/')[2][1:]} requests: {result.text(case, 'of_off')}"
        for case in result.cases("of_off")
    )
    steps = "; ".join(
        f"{' '.join(case.split('/')[:2])}, {case.rpartition('/T')[2]}: {result.text(case, 'min_ms')}"
        for case in result.cases("min_ms")
        if case.rpartition("/T")[2] in ("1", "2", "3", "5", "9")
    )
    agreement = "; ".join(
        f"{case.split('/exit')[1].replace('/T', ', ')}: {result.text(case, 'rejection')} / {result.text(case, 'coupling')}"
        for case in result.cases("within")
    )
    beside = (
        f". Rows by a model: drafts of another model with {draft_models.LAYERS} of the 12 layers, for targets whose other "
        "layers write that much less; the ideal counts a pass of it for each draft"
        if any("/model" in case for case in result.cases("tokens_per_round"))
        else ""
    )
    bar = f"{drafts.IDEAL:g}"
    accepted = (
        f"""

Acceptance of drafts at the demo checkpoint's exits (layers, temperature), by the rejection rule / by coupling (bar: at most
{draft_acceptance.CLOSE:g} less): {agreement}."""
        if agreement
        else ""
    )
    return f"""Answers whose `prediction` has each token right with a given probability, greedy, over HTTP, one worker on all
cores. Tokens per second without drafts, with 1, 2, 4 and 8 drafts in a step, and with as many as the policy takes. In
brackets, the speed-up divided by the ideal, which is the recorded tokens of a round times the kernels' time for one
position, divided by their time for all positions of the round (bar {bar}){beside}; on the right, the policy relative
to the best of the other columns (bar {drafts.BEST:g}).

{table(head, rows)}

With predictions that are always wrong, the policy's tokens per second relative to those without drafts (bar
{drafts.NEVER:g}): {vain}. Milliseconds of the kernels by positions: {steps}.{accepted}"""
