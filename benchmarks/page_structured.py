"""The section of docs/performance.md on constrained answers (``structured.py``), for ``page.py``."""

from __future__ import annotations

from harness import OURS
from stored import Result, table
from structured import CALM, FREE, OFF, THREADS, VOCABULARY


def of_structured(result: Result) -> str:
    compared = (
        ("S, 32 requests, each with its own schema, tokens/s", "S/own", "out_tok_per_s", FREE),
        ("M, the same", "M/own", "out_tok_per_s", FREE),
        ("other streams while 5 schemas of 400 fields a second are new, tokens/s", "new", "out_tok_per_s", CALM),
        ("the same, 99th percentile of pauses, ms", "new", "p99_gap_ms", CALM),
        ("longest pause of 32 streams after kill -9 of a worker, ms", "kill", "pause_ms", FREE),
        ("4 requests that are mostly forced, `forced=on` against `off`, tokens/s", "forced", "out_tok_per_s", OFF),
    )
    rows = [
        (what, result.text(case, metric), result.text(case, metric, peer), result.ratio(case, metric, peer))
        for what, case, metric, peer in compared
    ]
    mask = {metric: result.text("masks", metric) for metric in ("mean_us", "p999_us")}
    free = {metric: result.text("masks", metric, FREE) for metric in ("mean_us", "p999_us")}
    alone = [result.text("masks", "alone_us", subject) for subject in (OURS, THREADS)]
    grown = {metric: result.text("import", metric) for metric in ("ms", "mb")}
    return f"""The same requests with a constraint and without take turns on one server. The bars: 0.82 of the speed on S and
0.93 on M; 0.8 of it and 2.2 times the pauses while grammars are new; 1.1 times the pause after a kill; 1.4 times the speed
with `forced=on`.

{table(("", "with", "without", "ratio"), rows)}

With {VOCABULARY:,} tokens, the mask of a row and the greedy choice under it take {mask["mean_us"]} us of processor time on
average and {mask["p999_us"]} us in 999 of 1,000 cases (bars: 60 and 2,000); the choice of a free row takes {free["mean_us"]}
and {free["p999_us"]}. Making masks of 32 rows that the library remembers takes {alone[0]} us a row by one call for each,
and {alone[1]} us by the library's own two threads. {result.percent("forced", "share")} of the tokens with `forced=on` were
forced. The modules of constraints add {grown["ms"]} ms and {grown["mb"]} MB to a gateway's import (bars: 5 and 2)."""
