"""Generator of docs/performance.md from the stored results: every figure of the page is in a file of ``benchmarks/results``.

    python benchmarks/page.py

It owns the page's text. A figure that is in no file is a dash; a missing file is a section that says so. Bars come from the
scripts; missed bars are listed at the end.
"""

from __future__ import annotations

import json
import math
import runpy
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import cells
import contended
import controller
import deltas
import draft_models
import drafts
import family
import fidelity
import forecast
import harness
import head_death
import large
import links
import offline
import offline_live
import offline_online
import offline_order
import on_demand
import one_machine
import overload
import overload_live
import pipelines
import predictors
import scheduling
import scheduling_live
import serving
import simulation
import structured
import sweep
import tenants
import tier_fairness
import tier_sweeps
from harness import BESIDE, OURS, ROOT, Bar
from kernels_products import FLOAT32, TORCH
from models import CONFIG_DTYPES, SIZES, shapes
from page_adaptive import ADAPTIVE, adaptive_bars
from page_cells import of_cells
from page_drafts import of_draft_models, of_drafts
from page_family import of_family, of_family_sweeps, of_tier_fairness, of_tier_sweeps
from page_faults import of_failover, of_head_death
from page_messages import of_actors, of_links, of_nodes, of_one_machine, of_tokens
from page_offline import of_offline
from page_offline_live import of_offline_live
from page_offline_online import of_offline_online
from page_offline_order import of_offline_order
from page_overload import of_overload, of_overload_live, of_pipelines
from page_prediction import of_fidelity, of_forecast, of_predictors, of_simulation
from page_scheduling import of_live, of_scheduling
from page_structured import of_structured
from stored import NONE, Result, table
from tenants_models import ALONE, MERGED, RANK

PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
WIDTH = 120  # characters of a line of the page
HEAD = """# Performance

`python benchmarks/page.py` generates this page from the files in `benchmarks/results/`; do not edit it. `make bench`
repeats all but the last thirty-five sections in under half an hour (for those use `make bench ONLY="forecast
predictors simulation cells fidelity tenants drafts draft_models family family_sweeps tier_sweeps tier_fairness large
on_demand scheduling scheduling_live overload overload_live pipelines offline offline_order offline_live offline_online
structured adaptive adaptive_live adaptive_simulated adaptive_kv adaptive_absent adaptive_stitches adaptive_surrogates
adaptive_tokens adaptive_hidden transfers head_death"`) and reports what changed by more than the spread of the runs;
`STORE=1` replaces the files and the page. Each file names its commit, machine and versions.

Figures are medians. Shared machines are noisy, so the subjects of a comparison take turns within one run, and ratios say
more than absolute numbers. A bar is the figure that we aim for; the last section lists what misses its bar. The models
are random Llamas: S has 27 million parameters (12 layers, hidden size 384), M has 169 million (12 layers, hidden size
1024). A sweep is one step of a worker, that is of all its running sequences.

All figures are of CPUs. `python benchmarks/gpu.py` measures a CUDA card and judges its bars; no card has run it yet."""


def of_serving(result: Result) -> str:
    rows, memory = [], ("peak_rss_mb", "transformers")
    for case in result.cases("out_tok_per_s"):
        size, dtype, count = case.split("/")
        speed = (result.text(case, "out_tok_per_s"), result.text(case, "out_tok_per_s", "transformers"))
        ratio = result.ratio(case, "out_tok_per_s", "transformers")
        peaks = f"{result.text(case, memory[0])} / {result.text(case, *memory)}"
        rows.append((f"{size} {dtype}", count[1:], *speed, ratio, peaks))
    shares = ", ".join(
        f"{' '.join(case.split('/')[:2])} {result.percent(case, 'outside_kernels_share')} and "
        f"{result.text(case, 'gateway_us_per_token')} us"
        for case in result.cases("outside_kernels_share")
    )
    start = {stage: result.text(f"startup/{stage}", "start_s") for stage in ("live", "ready", "first_token")}
    peer = result.text("startup/first_token", "start_s", "transformers")
    return f"""128 prompt tokens and 128 new tokens per request, greedy, over HTTP, one worker on all cores; compared with
transformers' `generate` on the same prompts as one static batch, in a separate process. Tokens per second:

{table(("", "requests", "blockwright", "transformers", "ratio", "peak memory MB, ours / theirs"), rows)}

The bars are for 32 requests: 1.2 times transformers in float32, 3 times in bfloat16. Memory is the sum over all
processes, including the prefix cache. At 32 streams, the share of a sweep outside the kernels, and the gateway's CPU time
per streamed token: {shares}.

After the process starts (S bfloat16), `/health/live` answers within {start["live"]} s, the server is ready after
{start["ready"]} s and has generated its first token after {start["first_token"]} s; transformers needs {peer} s for its
first token."""


def of_contended(result: Result) -> str:
    rows = []
    for case in (case.removesuffix("/alone") for case in result.cases("out_tok_per_s") if case.endswith("/alone")):
        shares = [result.percent(f"{case}/{load}", "share") for load in contended.SHARES]
        ratios = [result.ratio(f"{case}/{load}", "out_tok_per_s", contended.ONE_THREAD) for load in contended.LOADS]
        size, dtype, count = case.split("/")
        rows.append(
            (f"{size} {dtype}", count[1:], result.text(f"{case}/alone", "out_tok_per_s"), *shares, " / ".join(ratios))
        )
    head = ("", "requests", "tokens/s alone", "left with 4 of 16 ms", "left with always", "times `threads=1`")
    return f"""Another process competes for the CPU, either for 4 ms of every 16 or all the time. The bars: at least 75 % and
60 % of the throughput without it, and never less than a server with `threads=1` reaches under the same conditions
(alone / 4 of 16 ms / always).

{table(head, rows)}"""


def of_tenants(result: Result) -> str:
    rows = []
    for case in result.cases("out_tok_per_s"):
        if case.startswith("20apps/"):
            for metric, digits in (("out_tok_per_s", "tokens/s"), ("p50_s", "median, s"), ("p95_s", "P95, s")):
                ratios = " / ".join(result.ratio(case, metric, peer) for peer in (MERGED, ALONE))
                cells = (result.text(case, metric, subject) for subject in tenants.SUBJECTS)
                rows.append((" ".join(case.split("/")[1:]), digits, *cells, ratios))
    weights = {s: result.text("20apps/weights", "weight_bytes", s, 1e-6) for s in (*tenants.SUBJECTS, tenants.DISTINCT)}
    added = result.text("20apps/weights", "lora_share", scale=100)
    same = result.ratio("tenants/same-load", "out_tok_per_s", tenants.ONE)
    late = [result.text("hot/add", "delay_sweeps", subject) for subject in (OURS, tenants.QUIET)]
    size, dtype = result.document["settings"].get("model", "W/f32").split("/")
    millions = sum(map(math.prod, shapes(SIZES[size]).values())) / 1e6
    return f"""Twenty applications of two random base models ({size}, {millions:.0f} million parameters in
{CONFIG_DTYPES[dtype]}): 12 LoRA, 4 BitFit and 4 full
fine-tunes that change the upper third of the layers, with uneven request rates, in the memory of {tenants.HELD:g} whole
models, one worker on all cores. "Merged" serves each base together with its LoRA and BitFit tenants, and each full
fine-tune separately; "per-model" serves every application separately, loaded on demand. "Closed": {tenants.CLIENTS} clients
with one request each. Loads are percentages of what the better baseline reaches when closed. The bars: closed, 1.5 and 1.9
times the tokens of merged and per-model; at 90 %, 0.75 and 0.6 times their P95.

{table(("", "", "shared", "merged", "per-model", "ratios"), rows)}

Parameters take {weights[OURS]} MB (distinct tensors: {weights[tenants.DISTINCT]}, bar 1.02 times that; merged
{weights[MERGED]}, per-model {weights[ALONE]}). One more LoRA takes {added} % of a model (bar 1 %). Eight LoRA tenants with
the load of one reach {same} times its tokens per second (bar 0.85). Adding a LoRA while 16 streams run delays them by
{late[0]} sweeps (bar 2; without an addition {late[1]})."""


def of_kernels(result: Result) -> str:
    beside = any(subject == BESIDE for _, _, subject in result.report().samples)
    head = ("", *("decode 1", "decode 8", "decode 32", "prefill 128", "prefill 256", "31 decode + prefill 128"))
    rows = []
    for model in dict.fromkeys(case.rpartition("/")[0] for case in result.cases("min_ms")):
        cells = []
        for step in ("decode1", "decode8", "decode32", "prefill128", "prefill256", "mixed"):
            ratio = f" ({result.ratio(f'{model}/{step}', 'min_ms', BESIDE)})" if beside else ""
            cells.append(result.text(f"{model}/{step}", "min_ms") + ratio)
        rows.append((model.replace("/", " "), *cells))
    note = "; in brackets, the ratio to another checkout that took turns with it" if beside else ""
    return f"Shortest sweep in milliseconds{note}.\n\n{table(head, rows)}{_of_products(result)}"


def _of_products(result: Result) -> str:
    """Return the paragraph and the table of single products; nothing where the result has none."""
    rows = [
        (
            *case.split("/"),
            result.text(case, "gflops"),
            result.ratio(case, "gflops", TORCH),
            result.ratio(case, "gflops", FLOAT32) if "/bf16/" in case else "",
        )
        for case in result.cases("gflops")
    ]
    head = ("instruction set", "type", "shape", "rows", "GFLOP/s", "relative to torch", "relative to float32")
    title = "Single products of M, relative to torch's `F.linear` and, in bfloat16, to ours in float32:"
    return f"\n\n{title}\n\n{table(head, rows)}" if rows else ""


def of_accuracy(result: Result) -> str:
    rows = [
        (
            case.removeprefix("all/"),
            *(result.text(case, f"{how}_ratio_{what}") for what in ("mean", "p999") for how in ("average", "worst")),
        )
        for case in result.cases("average_ratio_mean")
    ]
    head = (
        "",
        "mean error, average",
        "mean error, worst model",
        "99.9th percentile, average",
        "99.9th percentile, worst model",
    )
    return f"""The error of bfloat16 log-probabilities, compared with float64 arithmetic on the same weights, divided by the
error of transformers, over {result.document["settings"]["models"]} random models
of all families. The bars: 1.02 on average, 1.25 for any one model.

{table(head, rows)}"""


def of_sweep(result: Result) -> str:
    lines = (
        ("plan and commit, 48 rows (bar 80)", "sweep/48rows", "sweep_us"),
        ("plan and commit, 256 rows (bar 450)", "sweep/256rows", "sweep_us"),
        ("one of 64 sweeps in a jump, 256 rows", "jump/256rows", "sweep_us"),
        ("fork, 256 rows (bar 1,000)", "fork/256rows", "p50_us"),
        ("the same with all memory in cached pages (bar 1,000)", "fork/256rows-cache-full", "p50_us"),
        ("one variant more, where 100 of 32 layers are", "publication/100x32layers", "p50_us"),
    )
    made = table(("", "microseconds"), [(name, result.spread(case, metric)) for name, case, metric in lines])
    return f"How long a worker takes to decide what runs next, with decoding sequences of 12 layers:\n\n{made}"


def of_deltas(result: Result) -> str:
    words = {"qv": "queries and values", "attention": "all of attention", "all": "all seven products"}
    rows = [
        (
            model.replace("/", " "),
            *(
                f"{result.text(f'{model}/{targets}', 'ratio')} ({result.text(f'{model}/{targets}', 'bytes_ratio')})"
                for targets in words
            ),
        )
        for model in dict.fromkeys(case.rpartition("/")[0] for case in result.cases("ratio"))
    ]
    return f"""The time of a sweep of 32 decoding sequences of 8 LoRA tenants, rank 16, relative to a sweep of the base model
(bar 1.12), by where the adapters are; in brackets, the bytes it reads relative to the base weights:

{table(("", *words.values()), rows)}"""


def of_controller(result: Result) -> str:
    lines = (("a death", "death"), ("a return, until all is loaded", "return"), ("one more application", "application"))
    rows = [(what, *(result.text(f"{size}/{case}", "cpu_ms") for size in controller.SIZES)) for what, case in lines]
    state, node = (result.value(f"1000x100/rest/{what}", "core_share") for what in ("state", "node"))
    shares = [NONE if share is None else f"{100 * share:.2g} %" for share in (state, node)]
    costs = (result.text("1000x100/publication", metric) for metric in ("encode_ms", "megabytes"))
    made = table(("", "1,000 workers, 100 applications", "100 workers, 10 applications"), rows)
    return f"""1,000 simulated workers of 100 applications that send heartbeats twice a second, without any news, cost the
controller {shares[0]} of a core, and the whole head {shares[1]} (bar 5 %). Milliseconds of CPU time to decide about

{made}

A new recipient gets all routes, which takes {" ms and ".join(costs)} MB at 1,000 workers, in pieces of at most 2 MiB; after
that, a gateway only gets changes."""


def of_large(result: Result) -> str:
    rows = []
    for case in result.cases("start_s"):
        speeds = (result.text(f"{case}/tenants{count}", "out_tok_per_s") for count in large.TENANTS)
        first = result.text(f"{case}/tenants1", "ttft_s")
        memory = (result.text(case, metric, scale=1e-3) for metric in ("weights_mb", "memory_mb"))
        rows.append((case.replace("/", " "), result.text(case, "start_s"), *memory, first, *speeds))
    counts = [f"tokens/s, {count} tenant{'s' * (count > 1)}" for count in large.TENANTS]
    head = ("", "start, s", "weights, GB", "peak memory, GB", "first token, s", *counts)
    tokens = result.document["settings"].get("new_tokens", NONE)
    return f"""Random Llamas of 1.1 and 3.0 billion parameters in bfloat16 with {large.TENANTS[-1]} LoRA adapters of rank
{RANK} on queries and values, one worker on all cores. Every tenant sends one request at the same time: {large.PROMPT}
prompt tokens and {tokens} new tokens, over HTTP. The start ends when all adapters are ready. The first token is
measured with a single request. Tokens per second count answers over the whole time, prompts included.
Memory is the sum over all processes.

{table(head, rows)}"""


def of_on_demand(result: Result) -> str:
    case = "S/f32"
    names = {"half": "half", "all": "as many", OURS: "twice as many"}
    rows = [
        (words, *(result.text(case, metric, who) for metric in ("ttft_ms", "ttft_p95_ms", "swaps")))
        for who, words in names.items()
    ]
    return f"""S float32 with LoRA adapters of rank 16 on all linear modules, and memory for 8 of them; each request goes to
a random adapter, always at the same rate. Milliseconds to the first token; the bar is 3 times the median of the first row.

{table(("adapters, relative to the number that fits", "median", "95th percentile", "swaps in a round"), rows)}"""


SECTIONS: dict[str, tuple[str, Callable[[Result], str]]] = {
    "serving": ("Serving", of_serving),
    "contended": ("On a busy machine", of_contended),
    "kernels": ("Kernels", of_kernels),
    "deltas": ("Deltas", of_deltas),
    "accuracy": ("Accuracy", of_accuracy),
    "failover": ("Failover", of_failover),
    "sweep": ("Scheduling", of_sweep),
    "controller": ("Controller", of_controller),
    "actors": ("Actors", of_actors),
    "tokens": ("Messages for streamed tokens", of_tokens),
    "one_machine": ("One machine, before and after many", of_one_machine),
    "links": ("Links", of_links),
    "nodes": ("Nodes", of_nodes),
    "forecast": ("Forecasts", of_forecast),
    "predictors": ("Predictors", of_predictors),
    "simulation": ("Simulated clusters", of_simulation),
    "cells": ("A thousand simulated workers", of_cells),
    "fidelity": ("Simulated beside real clusters", of_fidelity),
    "tenants": ("Tenants", of_tenants),
    "drafts": ("Drafts", of_drafts),
    "draft_models": ("Drafts by models and tiers", of_draft_models),
    "family": ("Families", of_family),
    "family_sweeps": ("Choices of a family", of_family_sweeps),
    "tier_sweeps": ("Steps of several tiers", of_tier_sweeps),
    "tier_fairness": ("Fairness between tiers", of_tier_fairness),
    "large": ("Larger models", of_large),
    "on_demand": ("Adapters on demand", of_on_demand),
    "scheduling": ("Dispatch", of_scheduling),
    "scheduling_live": ("Dispatch on a real cluster", of_live),
    "overload": ("A burst", of_overload),
    "overload_live": ("A burst on real workers", of_overload_live),
    "pipelines": ("Pipelines beside replicas", of_pipelines),
    "offline": ("Offline batches, simulated", of_offline),
    "offline_order": ("The order of a batch", of_offline_order),
    "offline_live": ("An offline batch on a real cluster", of_offline_live),
    "offline_online": ("Offline requests beside online ones", of_offline_online),
    "structured": ("Constrained answers", of_structured),
    **ADAPTIVE,
    "head_death": ("The head dies", of_head_death),
}


BARS: dict[str, Sequence[Bar]] = {  # those that are always the same
    "cells": cells.BARS,
    "controller": controller.BARS,
    "deltas": deltas.BARS,
    "family": family.BARS,
    "forecast": forecast.BARS,
    "head_death": head_death.BARS,
    "links": links.BARS,
    "offline": offline.BARS,
    "offline_live": offline_live.Plan().bars(),
    "offline_online": offline_online.Plan().bars(),
    "offline_order": offline_order.BARS,
    "on_demand": on_demand.BARS,
    "one_machine": one_machine.BARS,
    "overload": overload.BARS,
    "overload_live": overload_live.Plan().bars(),
    "pipelines": pipelines.BARS,
    "predictors": predictors.BARS,
    "scheduling": scheduling.BARS,
    "simulation": simulation.BARS,
    "structured": structured.bars(structured.Plan()),
    "sweep": sweep.BARS,
    "tier_fairness": tier_fairness.BARS,
}


def bars_of(name: str, result: Result) -> list[Bar]:
    if name in ADAPTIVE:
        return adaptive_bars(name, result)
    match name:
        case "serving":
            return serving.bars(serving.Plan())
        case "contended":
            return contended.bars(contended.Plan())
        case "accuracy":
            limits = {"average": 1.02, "worst": 1.25}
            return [
                Bar(case, f"{how}_ratio_{what}", at_most=limit)
                for case in result.cases("average_ratio_mean")
                for what in ("mean", "p999")
                for how, limit in limits.items()
            ]
        case "actors":
            # by its path: the package has a folder of that name
            return list(runpy.run_path(str(ROOT / "benchmarks" / "actors.py"))["BARS"])
        case "fidelity":
            return fidelity.bars()
        case "scheduling_live":
            return scheduling_live.Plan().bars()
        case "drafts":
            return drafts.bars(drafts.Plan())
        case "draft_models":
            return [bar for bar in draft_models.bars(draft_models.Plan()) if result.value(bar.case, bar.metric) is not None]
        case "tier_sweeps":
            return tier_sweeps.bars(result.report(), tier_sweeps.Plan())
        case "tenants":
            return tenants.bars(tenants.Plan())
        case "nodes":
            return [
                Bar("import", "import_ms", at_most=150.0),
                *(Bar(way, "crash_ms", at_most=50.0) for way in ("ipc", "tcp-with-keys")),
            ]
    return list(BARS.get(name, ()))


def section(name: str, result: Result | None) -> str:
    title, words = SECTIONS[name]
    command = f"`python benchmarks/{name}.py`"
    if result is None:
        return f"## {title}\n\nNot measured for this page yet; {command} measures it."
    machine, when, commit = (result.document[key] for key in ("machine", "when", "commit"))
    measured = f"{command}, {machine['cores']} cores of {machine['cpu']}, {when[:10]}, commit {commit[:10]}"
    return f"## {title}\n\n{words(result)}\n\nMeasured by {measured}."


def wrapped(text: str) -> str:
    """Lines of one width; tables, titles and lists stay as they are."""
    return "\n\n".join(
        part if part[0] in "|#-" else textwrap.fill(part, WIDTH, break_long_words=False, break_on_hyphens=False)
        for part in text.split("\n\n")
    )


def page(folder: Path) -> str:
    """The whole text."""
    found = {name: folder / f"{name}.json" for name in SECTIONS}
    results = {name: Result(json.loads(path.read_text())) if path.exists() else None for name, path in found.items()}
    missed = [
        f"- {name}: {sentence}"
        for name, result in results.items()
        if result is not None
        for sentence in harness.misses(result.report(), bars_of(name, result))
    ]
    last = "\n".join(missed) if missed else "Everything that was measured meets its bar."
    parts = [HEAD, *(section(name, result) for name, result in results.items()), f"## What falls short\n\n{last}"]
    return wrapped("\n\n".join(parts)) + "\n"


def write(target: Path, folder: Path) -> None:
    target.write_text(page(folder))


if __name__ == "__main__":
    write(PAGE, RESULTS)
