"""The section of docs/performance.md on the order of an offline batch (``offline_order.py``), for ``page.py``."""

from __future__ import annotations

from stored import Result, table

COLUMNS = (
    ("all, s", "sequence_s"),
    ("tree", "tree_s"),
    ("estimates", "estimates_s"),
    ("order", "order_s"),
    ("parts", "parts_s"),
    ("peak memory MB", "peak_mb"),
    ("units", "units"),
)
WORDS = {
    "mixed": "eight sources, conversations among them",
    "alike": "950 tokens shared by all",
    "chains": "each begins with a part of another",
}


def of_offline_order(result: Result) -> str:
    rows = [
        (
            WORDS.get(case, case),
            *(result.text(case, metric) for _, metric in COLUMNS),
            result.percent(case, "sharing"),
            result.percent(case, "waste_share"),
        )
        for case in result.cases("sequence_s")
    ]
    turn, own = result.text("loop", "turn_ms"), result.text("loop", "own_ms")
    return f"""From 100,000 prompts of 1,000 tokens to the order in which they run, and to the parts of eight workers:
seconds of one core, and the peak memory of the process with the prompts, 400 MB (bars: 60 s, 2,048 MB). Shared is what
of the prompt tokens the best order shares; twice, what splitting nodes computes twice.

{table(("", *(name for name, _ in COLUMNS), "shared", "twice"), rows)}

While a job of 50,000 requests begins, is ordered anew, gains a worker, loses one and has one take of the others, the longest
turn of the event loop that drives it is {turn} ms (bar 50); its own processor time in a turn is {own} ms at most."""
