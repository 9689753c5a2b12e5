"""The section of docs/performance.md on a thousand simulated workers, for ``page.py``."""

from __future__ import annotations

from collections.abc import Iterable

from cells import KNOWN, OUTAGES, POLICIES, UNDISTURBED
from harness import OURS
from stored import NONE, Result, table

SHAPES = {"one": "one cell", "by-session": "8 cells by session", "by-model": "8 cells by model"}
WORDS = {
    UNDISTURBED: "the burst alone",
    "outage/head-0s": "a tenth of the workers dies",
    "outage/head-10s": "the same, the head away for 10 s",
    "outage/head-60s": "the same, the head away for 60 s",
    "outage/cut-warm": "a tenth cut off for 30 s, back warm",
    "outage/cut-cold": "the same, back cold",
    "outage/roll-again": "a roll, sequences computed again",
    "outage/roll-grace": "a roll, sequences end first",
}
KNOWS = {
    "exact": "all, exactly",
    "500ms": "a state of up to 0.5 s",
    "2000ms": "a state of up to 2 s",
    "alone": "only its own",
}


def of_cells(result: Result) -> str:
    settings = result.document["settings"]
    workers, gateways = settings.get("workers", 0), settings.get("gateways", 0)
    messages = {name: _beside(result, name) for name in ("head_per_s", "gateway_reports_per_s", "sweeps_per_s")}
    some = (f"choice/{workers // settings.get('cells', 1)}", f"choice/{workers}")
    few, many = [result.text(case, "cpu_us") for case in some]
    rest = [result.text("rest", name, scale=100) for name in ("beats_share", "core_share")]
    rounds, origin, spent = [result.text("distribution", name) for name in ("rounds", "origin_share", "head_s")]
    return f"""{workers:,} simulated workers under the live policies: declared servers with a model of 3 billion parameters,
the lengths of Azure's conversation trace. P99 of the time to the first token in seconds, with one cell or 8 of an eighth
of the workers behind a balancer that hashes the session or the model, by what each of {gateways} gateways knows of the work
of workers. The first three policies are those of routers of vLLM and SGLang; live gateways know their own requests.

{table(("", "a gateway knows", *(f"`{name}`" for name in POLICIES)), _cells(result))}

A choice among {some[0].removeprefix("choice/")} / {workers} workers takes {few} / {many} microseconds of a gateway.

With a burst of twice the traffic for 10 s: P99 of the time to the first token in seconds, by that with the burst alone,
requests lost, requests that went on elsewhere, and parameters that were read, in models. Without a head nothing is started
or loaded; who comes back warm reads nothing (bars: 0 lost, 0 read).

{table(("", "P99", "ratio", "lost", "went on elsewhere", "read"), _outages(result))}

Messages a second, and beside them the estimate of the design: {messages["head_per_s"]} at the head,
{messages["gateway_reports_per_s"]} reports at each gateway, with {messages["sweeps_per_s"]} sweeps a second of a worker like
an A30. Reports are not joined by time; if a worker joined its own within 20 ms, a gateway would get
{result.text("messages", "joined_reports_per_s")}.

A distribution of one model to all workers, which have no files of it, takes {rounds} rounds and {origin} times the model's
bytes from the origin (bars: log2 N + 2, 1.1), and {spent} s of the head's processor. The head's node at rest takes
{rest[0]} % of a core, {rest[1]} % with a whole publication to all gateways every minute (bar 5)."""


def _cells(result: Result) -> Iterable[tuple[str, ...]]:
    for known in KNOWN:
        for shape, words in SHAPES.items():
            cells = [result.text(f"cells/{shape}/{known}", "ttft_p99_s", name) for name in POLICIES]
            if cells[-1] != NONE:
                yield words, KNOWS[known], *cells


def _outages(result: Result) -> Iterable[tuple[str, ...]]:
    for case in (UNDISTURBED, *OUTAGES):
        figures = ("ttft_p99_s", "ratio", "lost", "restarts", "read_models")
        yield WORDS[case], *(result.text(case, name) for name in figures)


def _beside(result: Result, name: str) -> str:
    return f"{result.text('messages', name, OURS)} ({result.text('messages', name, 'section 9')})"
