"""The section on drafts in docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable

import draft_acceptance
import draft_models
import drafts
from stored import Result, table

SUBJECTS = (drafts.OFF, *(f"g{g}" for g in drafts.FIXED), drafts.POLICY)
COLUMNS = ("off", *(f"{g}" for g in drafts.FIXED), "policy", "policy / best")


def _rows(result: Result, named: Callable[[str], str]) -> list[tuple[str, ...]]:
    """Return a row for each case; ``named``: the words for its source."""
    rows = []
    for case in dict.fromkeys(case.rpartition("/")[0] for case in result.cases("tokens_per_round")):
        size, dtype, requests, source = case.split("/")
        cells = [result.text(f"{case}/{subject}", "out_tok_per_s") for subject in SUBJECTS]
        for at, g in enumerate(drafts.FIXED, 1):
            cells[at] += f" ({result.text(f'{case}/g{g}', 'of_ideal')})"
        best = result.text(f"{case}/{drafts.POLICY}", "of_best")
        rows.append((f"{size} {dtype}", requests[1:], named(source), *cells, best))
    return rows


def of_draft_models(result: Result) -> str:
    """Return the words and the table of a result of ``draft_models.py``."""

    def named(source: str) -> str:
        kind = draft_models.MODEL if source.startswith(draft_models.MODEL) else draft_models.TIER
        return f"{kind}, {source.removeprefix(kind)}"

    layers = draft_models.LAYERS
    missing = [case for case in draft_models.Plan().cases() if result.value(f"{case}/{drafts.POLICY}", "of_best") is None]
    return f"""Drafts by another model of {layers} layers that shares nothing with the target, and by the target's own tier
of {layers} layers, greedy. The layers above write less into the hidden states by the factor in the third column: the smaller
it is, the more drafts stand. Tokens for each second of processor time of a worker with one thread; in brackets, the speed-up
divided by the ideal of the kernels, which counts each pass of the source (bar {drafts.IDEAL:g}); on the right, the policy
relative to the best of the other columns (bar {drafts.BEST:g}). Answers are the same tokens in all columns.

{table(("", "requests", "source", *COLUMNS), _rows(result, named))}

Not measured yet: {", ".join(missing) or "nothing"}."""


def of_drafts(result: Result) -> str:
    """Return the words and the tables of a result of ``drafts.py``."""
    rows = _rows(result, lambda source: source[1:])
    head = ("", "requests", "right", *COLUMNS)
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
position, divided by their time for all positions of the round (bar {bar}); on the right, the policy relative
to the best of the other columns (bar {drafts.BEST:g}).

{table(head, rows)}

With predictions that are always wrong, the policy's tokens per second relative to those without drafts (bar
{drafts.NEVER:g}): {vain}. Milliseconds of the kernels by positions: {steps}.{accepted}"""
