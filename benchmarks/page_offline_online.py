"""The section of docs/performance.md on offline requests beside online ones (``offline_online.py``), for ``page.py``."""

from __future__ import annotations

from offline_online import READ, SHORTER, WITHOUT, WORKERS
from stored import Result, table

WHERE = {"online": "simulated", "live": f"{WORKERS} workers", "linear": "simulated, no roofline"}
RATIOS = ("ttft_mean_ratio", "ttft_p99_ratio", "token_mean_ratio", "token_p99_ratio")


def of_offline_online(result: Result) -> str:
    rows = []
    for case in result.cases("filled_share"):
        where, load = case.split("/load")
        without = (result.text(case, metric, WITHOUT) for metric in ("ttft_mean_s", "token_mean_s"))
        ratios = (result.text(case, metric) for metric in RATIOS)
        possible = result.percent(case, "possible_share") if where == "linear" else ""
        rows.append((WHERE[where], f"{load} %", *without, *ratios, result.percent(case, "filled_share"), possible))
    head = ("", "load", "TTFT s", "token s", "mean TTFT", "P99", "mean token", "P99", "filled", "possible")
    return f"""Online requests at parts of the tokens a second that workers compute when all their rows are taken, without
offline requests and beside an offline queue that never ends. `TTFT s`, `token s`: means without; the four ratios are with,
as a part of without (bar: at most 1.05); `filled`: tokens a second of offline requests, as a part of capacity minus online
(bar: at least 80 %). A sweep takes {1e3 * READ:g} ms, in which it computes eight tokens, and as long for each eight more;
without a roofline each token takes its time, and the bars exclude each other: `possible` is what idle time and 5 % allow
([why](decisions/offline.md)). Lengths of ShareGPT, a {SHORTER}th of them, at
Poisson's times.

{table(head, rows)}"""
