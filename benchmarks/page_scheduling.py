"""The sections of docs/performance.md on dispatch policies, for ``page.py``.

They show the results of ``scheduling.py`` and ``scheduling_live.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import scheduling_live as live
from harness import OURS
from scheduling import FLEET, LIMITS, PROVISIONING, RATE, REFERENCE, RELIEF, SAME_LIMIT, SETTINGS, START, SUBJECTS
from stored import NONE, Result, table

# Requests a second at the limit of 3 s: Llumnix-, Block with known lengths, Block with its tagger.
PAPER = {"batch-24": (23.9, 27.9, 27.2)}
# Percent below Llumnix-, at 32 requests a second: mean and P99 of the TTFT, of the latency.
PAPER_CUTS = {"block": "88.1, 78.6, 19.9, 12.6", "block*": "23.6, 10.8, 3.6, 0.8"}
RANKS = ("best_share", "rank_mean")
WORDS = {OURS: "ours", f"{OURS}*": "ours*", "block": "Block", "block*": "Block*"}


def of_scheduling(result: Result) -> str:
    loads = [case for case in dict.fromkeys(result.cases("ttft_p99_s")) if case.startswith("load/")]
    lengths = result.document["settings"].get("lengths", NONE)
    return f"""Twelve simulated instances with the constants of "Block" (Da and Kalyvianaki), there A30 GPUs with Llama-2-7B;
ShareGPT's lengths ({lengths}). P99 of the time to the first token / mean latency, in seconds, at fractions of the rate that
Llumnix- can serve with a P99 below 10 s; `*`: the length estimates are as bad as those of the paper's tagger.

{_curves(result, loads)}

Improvement over `{REFERENCE}` at that rate in percent, with 95 % intervals over seeds; the bars for the P99 of the TTFT are
75 and 25. The paper's figures are for 32 requests per second.

{_cuts(result)}

The reduction of the P99 of the TTFT against `{REFERENCE}` at each load on the same traces, in percent with the same
intervals (none where there is one seed):

{_cuts_by_load(result, loads)}

Requests per second with a P99 of the TTFT below {LIMITS[0]:g} / {LIMITS[1]:g} s (bar at batch 24: 1.1 times Llumnix-):

{_capacities(result)}

The same rate when dispatchers know less, or requests arrive differently, one seed: the P99 of the TTFT with `{REFERENCE}`
where it was measured, and the improvement over it in percent, or else over the rate itself:

{_studies(result)}

Autoscaling from {START} of {FLEET} instances, when a latency of {PROVISIONING[RELIEF][1]} s is measured (relief) or one of
{PROVISIONING[OURS][1]} s is forecast (preemptive; with this limit no more instances are started), at {RATE:g} requests per
second: P99 of the latency in seconds / mean number of instances paid for.

{_provisioning(result)}

Length estimators: mean error in tokens, relative error, share within 50 and within 100 tokens (the paper's tagger: 78.8,
24.4 %, 69.9 %, 77.2 %).

{_estimates(result)}

How often the choice was the best one in hindsight, and its mean rank among twelve:

{_ranks(result)}"""


def _pair(result: Result, case: str, subject: str, *metrics: str) -> str:
    return " / ".join(result.text(case, metric, subject) for metric in metrics)


def _cut(result: Result, case: str, subject: str, metric: str) -> str:
    parts = [result.value(case, f"{metric}_cut{end}", subject) for end in ("", "_low", "_high")]
    if None in parts:
        return NONE
    cut, low, high = (round(100 * part) for part in parts if part is not None)
    return f"{cut} ({low} to {high})" if low < high else f"{cut}"


def _curves(result: Result, loads: Sequence[str]) -> str:
    head = ("", *(case.removeprefix("load/") for case in loads))
    rows = (
        (f"`{name}`", *(_pair(result, case, name, "ttft_p99_s", "latency_mean_s") for case in loads)) for name in SUBJECTS
    )
    return table(head, rows)


def _cuts(result: Result) -> str:
    metrics = ("ttft_mean", "ttft_p99", "latency_mean", "latency_p99")
    head = ("", "mean TTFT", "P99 TTFT", "mean latency", "P99 latency", "the paper's four")
    rows = (
        (words, *(_cut(result, "load/1.00", subject, metric) for metric in metrics), PAPER_CUTS.get(subject, NONE))
        for subject, words in WORDS.items()
    )
    return table(head, rows)


def _cuts_by_load(result: Result, loads: Sequence[str]) -> str:
    head = ("", *(case.removeprefix("load/") for case in loads))
    words = {"po2": "two drawn", **WORDS}
    rows = ((name, *(_cut(result, case, subject, "ttft_p99") for case in loads)) for subject, name in words.items())
    return table(head, rows)


def _capacities(result: Result) -> str:
    rows = []
    for setting in SETTINGS:
        case, metrics = f"capacity/{setting}", [f"qps_{limit:g}s" for limit in LIMITS]
        ratios = " / ".join(result.ratio(case, metric, REFERENCE) for metric in metrics)
        paper = ", ".join(f"{qps:g}" for qps in PAPER.get(setting, ())) or NONE
        rows.append((setting, *(_pair(result, case, name, *metrics) for name in (REFERENCE, *WORDS)), ratios, paper))
    return table(("", "Llumnix-", *WORDS.values(), "ours by Llumnix-", "the paper's Llumnix-, Block, Block*"), rows)


def _studies(result: Result) -> str:
    rows = []
    for case in dict.fromkeys(result.cases("ttft_p99_s")):
        if not case.startswith(("load/", "provisioning/")):
            cuts = (_cut(result, case, subject, "ttft_p99") for subject in ("block", OURS))
            rows.append((case, result.text(case, "ttft_p99_s", REFERENCE), *cuts))
    return table(("", f"`{REFERENCE}`, s", "Block", "ours"), rows)


def _provisioning(result: Result) -> str:
    cases = [case for case in dict.fromkeys(result.cases("instances")) if case.startswith("provisioning/")]
    rows = (
        (case, *(_pair(result, case, who, "latency_p99_s", "instances") for who in (RELIEF, OURS, *SAME_LIMIT)))
        for case in cases
    )
    return table(("", "relief", "preemptive", *SAME_LIMIT), rows)


def _estimates(result: Result) -> str:
    rows = []
    for case in result.cases("relative_error"):
        shares = (result.percent(case, metric) for metric in ("relative_error", "acc_50", "acc_100"))
        rows.append((case.removeprefix("estimates/"), result.text(case, "mean_error"), *shares))
    return table(("", "error", "relative", "within 50", "within 100"), rows)


def _ranks(result: Result) -> str:
    rows = [
        (row["case"], f"`{row['subject']}`", *(result.text(row["case"], metric, row["subject"]) for metric in RANKS))
        for row in result.document["rows"]
        if row["metric"] == RANKS[0]
    ]
    return table(("", "", "best", "rank"), rows)


def of_live(result: Result) -> str:
    loads = [f"real4/load{load}" for load in live.Plan().loads]
    head = (*(f"{case.removeprefix('real4/load')} %" for case in loads), "capacity")
    curves = [
        (f"`{name}`", *(f"{result.spread(case, 'ttft_p99_s', name)}, {result.text(case, 'latency_mean_s', name)}"
                        for case in loads), result.spread("real4/capacity", "capacity_rps", name))
        for name in live.POLICIES
    ]  # fmt: skip
    near = ("ttft_mean_s", "latency_p99_s", "preemptions", "memory_used", "memory_spread")
    others = [(f"`{name}`", *(result.text(loads[-1], metric, name) for metric in near)) for name in live.POLICIES]
    asked = [
        (case.removeprefix("asking/load"), result.text(case, "asked_ms"), result.text(case, "asked_share", scale=100),
         result.percent(case, "fell_back"))
        for case in result.cases("asked_ms") if case != "busy"
    ]  # fmt: skip
    subjects = (live.ALONE, live.PO2, OURS)
    rates = [result.spread("busy", "out_tok_per_s", name) for name in subjects]
    sweeps = ", ".join(result.text("busy", "sweep_ms", name) for name in subjects)
    waits = ", ".join(
        f"{result.text('busy', 'asked_ms', name)} ({result.text('busy', 'asked_share', name, 100)} % of the latency)"
        for name in subjects[1:]
    )
    return f"""{live.WORKERS} worker processes with a tiny model, slowed down to the pace of a larger one, with KV memory for
{live.PAGES * live.PAGE} tokens each; ShareGPT's lengths, 16 times shorter and known in advance; arrivals from the Azure
trace; three seeds. `{OURS}` is the policy `ours`, `{live.PO2}` compares forecasts on two random workers. P99 of the TTFT in
seconds (with the smallest and the largest of the seeds) and mean latency, at percentages of {live.RATE:g} requests per
second. The capacity is the rate at which that P99 reaches {live.LIMIT:g} s, at most the highest load measured:

{table(("", *head), curves)}

At {loads[-1].removeprefix("real4/load")} %: mean TTFT and P99 latency in seconds, preemptions per request, the share of KV
memory in use, and its standard deviation over the workers:

{table(("", "mean TTFT", "P99 latency", "preemptions", "in use", "deviation"), others)}

Milliseconds that requests waited for a dispatcher, the percentage of their latency (bar {100 * live.SHARE:g}), and the share
of requests that it could not decide:

{table(("", "ms", "%", "fell back"), asked)}

With workers at full speed on all cores, {live.TOGETHER} requests at a time: {rates[0]} tokens per second without
predictors, {rates[1]} with `{live.PO2}`, {rates[2]} with `{OURS}` (bar: {1 - live.SHARE:g} times the first); milliseconds
per sweep: {sweeps}; milliseconds to ask: {waits}."""
