"""The section of docs/performance.md on simulated offline batches (``offline.py``), for ``page.py``."""

from __future__ import annotations

from harness import OURS
from offline_runs import BALANCE, CHATS, DFS, OVERLAPS, TRACES, VLLM
from stored import NONE, Result, number, table

SUBJECTS = {
    OURS: "ours", DFS: "NanoFlow-DFS", BALANCE: "NanoFlow-Balance", VLLM: "vLLM-DFS", "nanoflow-dfs-weight": "DFS by weight",
    "nanoflow-lpm": "longest prefix",
}  # fmt: skip
# Llama-3.1-8B on one A100: what the paper reports, and where ours is found
PAPER = (
    ("over NanoFlow-DFS, traces 1 to 4", "+19.3 to +22.7 %", [f"sim/trace{n}" for n in TRACES], "gain"),
    ("over NanoFlow-DFS, mean of the grid", "+22.5 %", ["sim/grid"], "mean_gain"),
    ("over NanoFlow-DFS, the grid's worst and best", "+14 to +34 %", ["sim/grid"], "worst_gain best_gain"),
    ("over vLLM-DFS, traces 1 to 4", "up to +44 %", [f"sim/trace{n}" for n in TRACES], "gain_vllm"),
    ("over NanoFlow-Balance, traces 1 and 2", "+36 %", ["sim/trace1", "sim/trace2"], "gain_balance"),
    ("over NanoFlow-DFS, other chat sources", "+8 to +31 %", [f"sim/chat-{chat}" for chat in CHATS], "gain"),
    ("over depth-first order with our steps, mean of the grid", "", ["sim/grid"], "mean_gain_paced"),
    ("the same, the grid's worst and best", "", ["sim/grid"], "worst_gain_paced best_gain_paced"),
    ("over NanoFlow-DFS, trace 2 with 200,000 requests", "", ["sim/large"], "gain"),
    ("over depth-first order with our steps, the same", "", ["sim/large"], "gain_paced"),
    ("of the optimum, the same", "", ["sim/large"], "optimum_share"),
    ("of the optimum", "86.55 %", ["sim/grid"], "optimum_share"),
    ("of depth-first order's sharing", "97 % or more", ["sim/grid"], "sharing_share"),
    (
        "the same, worst, of the grid and of points drawn thrice",
        "",
        ["sim/grid", "sim/seeds"],
        "worst_sharing",
    ),
    ("over NanoFlow-DFS, points drawn thrice, worst and mean", "", ["sim/seeds"], "worst_gain mean_gain"),
    ("the same, most between two draws of a point", "", ["sim/seeds"], "gain_spread"),
)


def of_offline(result: Result) -> str:
    beside = [
        (what, paper, *(_range(result, [f"{case}/{overlap}" for case in cases], metrics) for overlap in OVERLAPS))
        for what, paper, cases, metrics in PAPER
    ]
    rows = [
        (
            case.removeprefix("sim/"),
            *(_rate(result, case, subject) for subject in SUBJECTS),
            _percent(result.value(case, "sharing_share")),
        )
        for case in [f"sim/{name}/{overlap}" for name in (*(f"trace{n}" for n in TRACES), "grid") for overlap in OVERLAPS]
    ]
    changed = dict.fromkeys(subject for case, _, subject in result.report().samples if case == "sim/trace1/ideal")
    ablations = [
        (name, *(_beside(result, f"sim/trace{n}/{overlap}", name) for n in TRACES for overlap in OVERLAPS))
        for name in changed
        if name not in SUBJECTS
    ]
    head = ("", *(f"{n} {overlap}" for n in TRACES for overlap in OVERLAPS))
    step, count = result.text("scanner/100000", "p99_us"), result.document["settings"].get("requests", NONE)
    return f"""A simulated A100 with Llama-3.1-8B and 60 GB for KV; batches of {count} requests of BurstGPT, OpenVid and
MMLU ([why](decisions/offline.md)). The engine, its memory and its prefix cache are
the same for all orders. Overlap is ideal, or calibrated by NanoFlow's measured interference, by which equal steps are
1.20 times as fast as without overlap at most (the rest of what is gained over vLLM is tails that only read parameters).

{table(("what BlendServe reports", "paper", *OVERLAPS), beside)}

Bars are judged against NanoFlow-DFS as published: its steps take as many tokens as they can, ours as many as the batch's
density asks for. Depth-first order with our steps is better where the memory-heavy source comes early in the order of tokens
and the batch is small, else worse.

Tokens a second, prompts in full, in brackets of what the back end could do at best; at last what prefixes ours shares of
all that depth-first order shares:

{table(("", *SUBJECTS.values(), "sharing"), rows)}

Ours with something changed, times ours as it is, on traces 1 to 4:

{table(head, ablations)}

Among 100,000 requests a scheduling step of the scanner takes {step} us at the 99th percentile (bar 200)."""


def _range(result: Result, cases: list[str], metrics: str) -> str:
    """From the least to the most: gains as percents more, shares as percents."""
    found = [value for case in cases for metric in metrics.split() if (value := result.value(case, metric)) is not None]
    if not found:
        return NONE
    more = "gain" in metrics and "spread" not in metrics
    texts = [f"{100 * (value - 1):+.0f}" if more else f"{100 * value:.1f}" for value in (min(found), max(found))]
    return f"{' to '.join(dict.fromkeys(texts))} %"


def _rate(result: Result, case: str, subject: str) -> str:
    return f"{result.text(case, 'tok_per_s', subject)} ({_percent(result.value(case, 'optimum_share', subject))})"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def _beside(result: Result, case: str, name: str) -> str:
    value, ours = result.value(case, "tok_per_s", name), result.value(case, "tok_per_s")
    return NONE if value is None or not ours else number(value / ours)
