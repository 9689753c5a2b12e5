"""The sections of docs/performance.md on forecasts and simulated clusters, for ``page.py``."""

from __future__ import annotations

from functools import partial

from fidelity import LIVE, LOAD, LOGGED, METRICS, WORKERS
from stored import Result, table


def of_forecast(result: Result) -> str:
    columns = (
        ("median", "p50_ms"),
        ("99 % below", "p99_ms"),
        ("by the sweep machine, step by step", "machine_ms"),
        ("sweeps", "sweeps"),
    )
    rows = []
    for case in result.cases("p99_ms"):
        running, waiting = case.removeprefix("forecast/").split("-")
        name = f"{running.removesuffix('running')} running, {waiting.removesuffix('waiting')} waiting"
        rows.append((name, *(result.text(case, metric) for _, metric in columns)))
    return f"""Milliseconds to forecast when a further request would have its first and last token on a worker, and whom it
would delay (bar: 99 % below 5 with 64 running and 64 waiting requests):

{table(("", *(name for name, _ in columns)), rows)}"""


def of_predictors(result: Result) -> str:
    of_sweep, of_ask = (partial(result.text, case) for case in ("sweep/64rows", "ask/64running-64waiting"))
    return f"""A worker takes {of_sweep("us")} microseconds to plan and commit a sweep of 64 sequences, or
{of_sweep("fed_us")} if a predictor follows it; the predictor takes {of_sweep("replica_us")} to repeat it. With 64 running
and 64 waiting requests, a forecast for an actor in the same process takes {of_ask("p50_ms")} milliseconds in the median and
{of_ask("p99_ms")} at the 99th percentile (bar 5); just the load takes {of_ask("load_ms")}."""


def of_simulation(result: Result) -> str:
    rows = []
    for case in result.cases("times_real_time"):
        count, policy, *more = case.split("/")
        words = {"choices-2": "of two drawn", "ahead": "plans ahead"}
        rows.append((count, " ".join([policy, *(words[one] for one in more)]), result.spread(case, "times_real_time")))
    return f"""Simulated seconds per second of one core: 12 instances with the constants of Llama-2-7B at 30 requests per
second (bars: 100; with forecasts on two random instances 5, on all instances 1), and 1,000 instances at 2,500 requests per
second (bar 1). Every instance runs the scheduler of the live workers.

{table(("instances", "dispatch", "times real time"), rows)}"""


def of_fidelity(result: Result) -> str:
    rows = []
    for case in result.cases("ttft_error"):
        truth = LOGGED if case.endswith("/from") else LIVE
        for name, words in zip(METRICS, ("TTFT", "latency"), strict=True):
            for share, kind in (("", "mean"), ("_p99", "P99")):
                found = (result.text(case, f"{name}{share}_ms", subject) for subject in (truth, "blockwright"))
                rows.append((case, f"{words}, {kind}", *found, result.percent(case, f"{name}{share}_error")))
    pairs = [result.text("four/order", f"pairs_{how}") for how in ("apart", "wrong")]
    return f"""The same 300 requests (Azure's conversation trace, shortened, at {100 * LOAD["one"]:.0f} % and
{100 * LOAD["four"]:.0f} % of the capacity that the simulator predicts) on live workers and in the simulator, three times.
The cost of a sweep was measured by `blockwright profile` in the same run (mean error on held-out sweeps
{result.percent("profile", "mape")}), and the overhead of HTTP and gateway with requests to the idle server; nothing is
fitted to the trace. `one`: S float32, one thread, real kernels; `four`: {WORKERS} workers slowed down to a profile's pace.
`from`: `blockwright simulate --from` compared with what the logs recorded. Milliseconds; the bars are 15 % for means and 25
% for P99. Pairs of policies whose live means differ by more than the spread of their runs: {pairs[0]}; of these, in another
order in the simulator: {pairs[1]}.

{table(("", "", "live", "simulated", "error"), rows)}"""
