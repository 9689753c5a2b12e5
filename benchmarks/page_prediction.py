"""The sections of docs/performance.md on forecasts and simulated clusters; ``page.py`` puts them in their places."""

from __future__ import annotations

from functools import partial

from fidelity import LIVE, LOAD, LOGGED, METRICS, WORKERS
from stored import Result, table


def of_forecast(result: Result) -> str:
    columns = (("median", "p50_ms"), ("99 % below", "p99_ms"), ("by the machine itself", "machine_ms"), ("sweeps", "sweeps"))
    rows = []
    for case in result.cases("p99_ms"):
        running, waiting = case.removeprefix("forecast/").split("-")
        name = f"{running.removesuffix('running')} running, {waiting.removesuffix('waiting')} waiting"
        rows.append((name, *(result.text(case, metric) for _, metric in columns)))
    return f"""Milliseconds until it is known when one more request would have its first and last token at a worker, and whom
it would delay (bar: 99 % below 5 at 64 running and 64 waiting):

{table(("", *(name for name, _ in columns)), rows)}"""


def of_predictors(result: Result) -> str:
    of_sweep, of_ask = (partial(result.text, case) for case in ("sweep/64rows", "ask/64running-64waiting"))
    return f"""Microseconds to plan and commit a sweep of 64 rows: {of_sweep("us")}, with a predictor that follows
{of_sweep("fed_us")}; to repeat it there {of_sweep("replica_us")}. Milliseconds of an answer with a forecast beside
64 running and 64 waiting requests, asked by an actor of the same process: {of_ask("p50_ms")} in the median,
{of_ask("p99_ms")} at the 99th percentile (bar 5); of the load alone {of_ask("load_ms")}."""


def of_simulation(result: Result) -> str:
    rows = []
    for case in result.cases("times_real_time"):
        count, policy, *more = case.split("/")
        words = {"choices-2": "of two drawn", "ahead": "plans ahead"}
        rows.append((count, " ".join([policy, *(words[one] for one in more)]), result.spread(case, "times_real_time")))
    return f"""Virtual seconds of a cluster for each second of one core: 12 instances with the constants of Llama-2-7B at 30
requests a second (bars: 100, with forecasts of two drawn instances 5, of all 1), and 1,000 at 2,500 (bar 1). Every instance
runs the scheduler of live workers.

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
    return f"""The same 300 requests (Azure's conversation trace, shorter, at {100 * LOAD["one"]:.0f} % and
{100 * LOAD["four"]:.0f} % of what the simulator says the workers could take) on served workers and in the simulator, three
times. What a sweep costs was measured by `blockwright profile` in the same run (mean error of held-out sweeps
{result.percent("profile", "mape")}), what HTTP and gateway add by requests to the idle server; nothing is fitted to the
trace. `one`: S float32, one thread, real kernels; `four`: {WORKERS} workers held to a slower profile's pace. `from`:
`blockwright simulate --from` beside what its logs say it was. Milliseconds; the bars are 15 % for means and 25 % for P99.
Pairs of policies whose live means lie further apart than their runs: {pairs[0]}; ordered otherwise by the simulator:
{pairs[1]}.

{table(("", "", "was", "simulated", "error"), rows)}"""
