"""The sections of docs/performance.md on a burst and on pipelines, for ``page.py``.

They show the results of ``overload.py``, ``overload_live.py`` and ``pipelines.py``.
"""

from __future__ import annotations

import overload_live as live
from harness import OURS
from overload import ABLATIONS, COMPUTE_BOUND, MEMORY_BOUND
from overload_runs import BASELINES, SYSTEMS
from pipelines import LIMIT, REPLICAS, WHOLE
from stored import Result, table

WORDS = {OURS: "drop", "pipelines": "pipelines always", "swap": "swap to the host", "endless-memory": "endless memory"}
MAIN = (
    "base",
    "peak",
    "ttft_p50",
    "ttft_p99",
    "rise",
    "tpot_p50",
    "tpot_p99",
    "tokens_per_s",
    "preemptions",
    "slo_5",
    "slo_10",
)
CHANGED = (
    "ttft_p99", "after_ttft_p50", "tpot_p50", "dropped", "restored", "capacity", "stall", "stall_most",
    "activation_wait_p99", "bubbles",
)  # fmt: skip
PIPELINED = ("tpot_p50", "tpot_p99", "tokens_per_s", "bubbles")
HEAD = (
    "lengths",
    "",
    "KV",
    "most",
    "TTFT P50",
    "P99",
    "rise",
    "TPOT P50",
    "P99",
    "tokens/s",
    "preempted",
    "SLO 5",
    "SLO 10",
)
LIVE = (
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_quiet_s",
    "tpot_burst_s",
    "tpot_after_s",
    "kv_base",
    "kv_peak",
    "preemptions",
    "same",
)
PAPER = (
    ("P99 TTFT against all baselines, times lower", "12.7 to 72.2", "ttft_p99", True),
    ("P50 TPOT, against the best baseline", "+15.8 to +22.7 %", "tpot_p50", False),
)


def of_overload(result: Result) -> str:
    rows = [
        (name, WORDS.get(system, system), *(result.text(name, metric, system) for metric in MAIN))
        for name in (*MEMORY_BOUND, COMPUTE_BOUND)
        for system in SYSTEMS
        if result.value(name, "ttft_p99", system) is not None
    ]
    beside = [
        (what, paper, *(_beside(result, name, metric, lower) for name in MEMORY_BOUND))
        for what, paper, metric, lower in PAPER
    ]
    last = MEMORY_BOUND[-1]
    changed = [(name, *(result.text(f"{last}/{name}", metric) for metric in CHANGED)) for name in ABLATIONS]
    endless = [
        (
            WORDS.get(name, name),
            *(result.text(f"{last}/endless", metric, name) for metric in ("late", "ttft_p99", "capacity")),
        )
        for name in ("preempt", OURS)
    ]
    idle = [
        (case, subject, result.text(case, "seconds", subject), result.text(case, "idle", subject))
        for case in dict.fromkeys(case for case in result.cases("idle") if case.startswith("lookahead"))
        for subject in ("token-count", "greedy", OURS)
    ]
    return f"""Eight simulated H100s with Qwen-2.5-14B and about 60 % of the KV memory in use, then twice the load for 20 or
30 s ([why](decisions/parameter-dropping.md)). Seconds until the first token (TTFT), of each further one
(TPOT); KV before the burst and at most, as a share of all; how much later first tokens came in the worst five seconds than
before; answer tokens a second of an instance in the burst; shares that miss 5 and 10 times the medians of the best
baseline. Pipelines all the time have four instances.

{table(HEAD, rows)}

{table(("KunServe's table, and ours", "paper", *MEMORY_BOUND), beside)}

Ablations, on {last} and four instances; stalls of stale sequences in seconds, what activations wait for KV in chunks, idle
share of stage time while sequences run:

{table(("", "TTFT P99", "after", "TPOT P50", "drops", "restores", "KV", "stall", "most", "waits P99", "bubbles"), changed)}

A burst that does not end: seconds until first tokens take half a second, and the KV memory that a drop makes of it.

{table(("", "until late", "TTFT P99", "KV"), endless)}

Microbatches of random prompts with outliers, by stages: seconds, and the part of stage time that is idle.

{table(("", "", "seconds", "idle"), idle)}"""


def of_overload_live(result: Result) -> str:
    plan, many = live.Plan(), ("first_page_s", "left_s", "drop_s", "stall_s", "stall_most_s", "exchange_mb_per_s")
    rows = [
        (f"{workers}", WORDS.get(system, system), *(result.text(f"real{workers}", metric, system) for metric in LIVE))
        for workers in plan.workers
        for system in plan.of(workers)
    ]
    drops = [
        (
            f"{n}",
            *(result.text(f"real{n}", metric) for metric in ("drop", "restore", "restored_s", "stale", "recomputed", *many)),
        )
        for n in plan.workers
    ]
    return f"""Two and four real workers with parameters in {live.SHARE:.0%} of their memory, at the pace of the simulated
H100 {live.SCALE} times as slow, for requests {live.SCALE} times shorter; {live.BASE:.0%} of the KV memory in use, then twice
the load for {plan.burst:g} s ([why](decisions/parameter-dropping.md)). Seconds to the first token (TTFT),
and of each further one (TPOT) before, in and after the burst; KV before it and at most, as shares of what replicas have;
preemptions of a request; the part of the requests whose tokens are those of the first row.

{table(("workers", "", "TTFT P50", "P99", "TPOT before", "in", "after", "KV", "most", "preempted", "same"), rows)}

After the burst begins when its last request has ended and dropped parameters are back in both systems that are compared.
Drops: how many, restores, seconds after the burst until the last was over; requests that paused, tokens computed again;
seconds from the order to the first page on freed memory, until all had left, until all ran again; their mean and longest
pause; MB copied a second.

{table(("", "drops", "restores", "over", "stale", "again", "first page", "left", "all", "pause", "most", "MB/s"), drops)}"""


def of_pipelines(result: Result) -> str:
    rows = [
        (
            case,
            subject,
            *(result.text(case, metric, subject) for metric in ("tpot_p50", "tpot_p99", "tokens_per_s", "bubbles")),
        )
        for case in result.cases("tpot_p50")
        for subject in (REPLICAS, LIMIT, WHOLE, OURS)
    ]
    return f"""Four simulated H100s with Qwen-2.5-14B as replicas, two pipelines of two, one of four
([why](decisions/scheduling.md)); memory for KV beside a whole model, stages. Seconds for each further token (TPOT), tokens
a second, idle share of stage time while sequences run.

{table(("", "", "TPOT P50", "P99", "tokens/s", "idle"), rows)}"""


def _beside(result: Result, name: str, metric: str, lower: bool) -> str:
    """Against the baselines: how many times lower, from the best to the worst; or by how many percent more than the best."""
    found = sorted(value for system in BASELINES if (value := result.value(name, metric, system)))
    ours = result.value(name, metric)
    if not ours or not found:
        return result.text(name, metric)
    return f"{found[0] / ours:.1f} to {found[-1] / ours:.1f}" if lower else f"{100 * (ours / found[0] - 1):+.1f} %"
