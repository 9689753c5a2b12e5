"""The section of docs/performance.md on a burst (``overload.py``); ``page.py`` puts it in its place."""

from __future__ import annotations

from harness import OURS
from overload import SETS, SYSTEMS
from stored import Result, table

WORDS = {OURS: "drop", "preempt": "replicas that preempt", "pipelines": "pipelines always"}


def of_overload(result: Result) -> str:
    rows = [
        (name, WORDS[system], *(result.text(name, metric, system) for metric in ("ttft_p50", "ttft_p99", "tpot_p50")))
        for name in SETS
        for system in SYSTEMS
    ]
    idle = [
        (case, subject, result.text(case, "seconds", subject), result.text(case, "idle", subject))
        for case in dict.fromkeys(result.cases("idle"))
        for subject in ("token-count", "greedy", OURS)
    ]
    return f"""Eight simulated H100s with Qwen-2.5-14B, a base load at 60 % of the KV memory, twice that for 30 s: seconds
until the first token, and of each further one. Dropping does not pay yet (decision 39).

{table(("lengths", "", "TTFT P50", "TTFT P99", "TPOT P50"), rows)}

Microbatches of random prompts with outliers, by stages: seconds, and the part of stage time that is idle.

{table(("", "", "seconds", "idle"), idle)}"""
