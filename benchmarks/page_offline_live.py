"""The section of docs/performance.md on an offline batch on a real cluster (``offline_live.py``), for ``page.py``."""

from __future__ import annotations

from harness import OURS
from offline_live import CASE, DEPTH_FIRST, RANDOM, SHARES, VLLM, WORKERS, Plan
from stored import Result, table

WORDS = {OURS: "ours", DEPTH_FIRST: "depth-first", RANDOM: "random", VLLM: "vLLM"}
COLUMNS = ("tok_per_s", "seconds", "work_s", "sharing", "load_cv", "sweeps")


def of_offline_live(result: Result) -> str:
    case = f"{CASE}/{Plan().count}"
    rows = [(words, *(result.text(case, name, subject) for name in COLUMNS)) for subject, words in WORDS.items()]
    sources = ", ".join(f"{share:.0%} {name}" for name, share in SHARES.items())
    equal, density = result.text(case, "equal"), result.text(case, "density")
    words = (
        f"{Plan().count:,} requests ({sources}) to {WORKERS} workers of one core each; prompt and answer tokens a second, "
        "where a prompt that is cached counts in full. *Work* is the cost of all sweeps by the cost model, on each worker, "
        "*spread* the standard deviation of a sweep's cost by its mean. The part of the answers that are token by token "
        f"those of the other orders is {equal}; compute by memory time, as the workers measured it, is {density}. A row of "
        "dashes was not installed."
    )
    return words + "\n\n" + table(["", "tokens/s", "seconds", "work, s", "sharing", "spread", "sweeps"], rows)
