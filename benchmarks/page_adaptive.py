"""The sections of docs/performance.md on adaptive chains, for ``page.py``: one for each of their scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import adaptive
import adaptive_absent
import adaptive_hidden
import adaptive_kv
import adaptive_live
import adaptive_simulated
import adaptive_stitches
import adaptive_surrogates
import adaptive_tokens
import drafts
import transfers
from harness import Bar
from stored import Result, table

AHEAD, COLD, SHORT = adaptive_absent.CASES
SITUATIONS = {
    AHEAD: "`proactive_copies=on`: all begin alike, one owner, a slow link",
    COLD: "`cold_kv=least-waste`: a small cache and a large one",
    SHORT: "`cold_kv=least-waste`: two small caches",
}


def of_adaptive(result: Result) -> str:
    """Return the words and the tables of a result of ``adaptive.py``."""
    metrics = ("accepted", "worst_lost", "recall")
    rows = []
    for name in (*(f"noise-{strength:g}" for strength in adaptive.STRENGTHS), "ladder"):
        cells = (
            " / ".join(result.text(f"{name}/{how}", metric) for how in (adaptive.DAMAGE, adaptive.ALONE))
            for metric in metrics
        )
        rows.append((name.replace("ladder", "all"), result.text(f"{name}/{adaptive.DAMAGE}", "pairs"), *cells))
    columns = ("variants", "lost", "worst", "fullest", "similarity", "agreed")
    served = [case for case in result.cases("variants") if "noise" not in case]
    lost = [(case.removeprefix("equal/"), *(result.text(case, one) for one in columns)) for case in served]
    settings = result.document["settings"]
    return f"""Blocks of the demo checkpoint against copies with noise of {len(adaptive.STRENGTHS)} strengths, judged
as `zoo equivalence` judges them: with the measurement of damage / by similarity alone. Answers lost in 100 are of
prompts that chose nothing ({settings.get("held_out")} of them); recall is the share of the pairs that lose at most 1
which count. The bars: none that counts loses more than {adaptive.WORST:g}, and all pairs of the two lowest strengths
count.

{table(("", "pairs", "accepted", "most lost by an accepted pair", "recall"), rows)}

Variants that `adaptive.NAME=equal` makes of the pairs that count, each served alone to the same prompts: of the
ladder and of the demo's near fine-tunes. *Lost* is the mean of answers lost in 100 (bar 2 for all), *fullest* the
same of the variants with most blocks swapped, *similarity* the cosine of vocabulary probabilities at the tokens of
the answers, and *agreed* the share of tokens that both chains choose.

{table(("", "variants", "lost", "most lost", "fullest", "similarity", "agreed"), lost)}"""


def of_adaptive_live(result: Result) -> str:
    """Return the words and the table of a result of ``adaptive_live.py``."""
    case, words = adaptive_live.CASE, {"off": "no variant", "equal": "a variant", "both": "the block on both"}
    rows = [(what, result.spread(f"{case}/{name}", "tokens_per_s")) for name, what in words.items()]
    bar = adaptive_live.BARS[0].at_least
    return f"""All requests ask for one of two models, whose own blocks fit on one of two workers only; its equivalent
lies on the other. The ideal has the model's blocks on both workers. Tokens per second:

{table(("", "median (least to most)"), rows)}

The variant reaches {result.text(case, "gain")} of the gain of the ideal (bar {bar:g}; a dash: the ideal gains less
than 5 %)."""


def of_adaptive_simulated(result: Result) -> str:
    """Return the words and the table of a result of ``adaptive_simulated.py``."""
    rows = []
    for bar in adaptive_simulated.BARS:
        p95 = (result.text(f"{bar.case}/{subject}", "p95_s") for subject in adaptive_simulated.SUBJECTS)
        switches = result.text(f"{bar.case}/equal", "switches")
        rows.append((bar.case, *p95, result.percent(bar.case, "cut"), result.text(bar.case, "gain"), switches))
    settings = result.document["settings"]
    return f"""The paper's twelve devices, simulated, with families of {settings.get("family")} fine-tunes of which
each is on {settings.get("copies")} devices. P95 of the latency in seconds, without variants, with them, and of an
ideal where every model is everywhere and a switch costs nothing: a relaxation. The gain is the part of the ideal's
cut that variants reach (bar {adaptive_simulated.BARS[0].at_least:g}; a dash: the ideal cuts less than 5 %).

{table(("", "off", "equal", "ideal", "ideal's cut", "gain", "switches of a request"), rows)}"""


def of_kv(result: Result) -> str:
    """Return the words and the table of a result of ``adaptive_kv.py``."""
    rows = []
    for load in adaptive_kv.LOADS:
        for metric, what in (("ratio", "P95 over the least"), ("moved_mb", "MB moved"), ("cached", "found")):
            cells = (result.text(f"load-{load:g}/{mode}", metric) for mode in adaptive_kv.MODES)
            rows.append((f"{load:g}", what, *cells))
    bar = adaptive_kv.BARS[0].at_most
    return f"""Conversations on four simulated instances with a profile of the machine. P95 of the latency over the
least of the three modes of `kv_dispatch` at that load (bar for `owner`: {bar:g}), KV that was copied, and the share
of the prompt tokens that was found.

{table(("load", "", *adaptive_kv.MODES), rows)}"""


def of_absent(result: Result) -> str:
    """Return the words and the table of a result of ``adaptive_absent.py``."""
    rows = []
    for case, what in SITUATIONS.items():
        pairs = (
            f"{result.text(case, metric, adaptive_absent.WITHOUT)} / {result.text(case, metric)}"
            for metric in ("first_s", "cached", "moved")
        )
        rows.append((what, *pairs, result.percent(case, "saved")))
    return f"""Conversations that come back after a pause, simulated, without / with a rule for KV that waits for
them: mean seconds to the first token, share of the prompt tokens that was found, tokens of KV that were copied, and
the part of the time that the rule saves. Both rules are off by default.

{table(("", "first token, s", "found", "copied", "saved"), rows)}"""


def of_stitches(result: Result) -> str:
    """Return the words and the table of a result of ``adaptive_stitches.py``."""
    columns = ("similarity", "least", "alone", "loss", "loss_least", "loss_alone")
    rows = [
        (case.removeprefix("stitch/"), *(result.text(case, one) for one in columns)) for case in result.cases("similarity")
    ]
    return f"""Stitches between the demo checkpoint and a wider copy of it in another basis, with noise in its layers:
the cosine of the vocabulary probabilities of the chain that goes over at a point, on validation rows, and the loss;
of the trained stitches, by least squares, and of a stitch that was trained for this point alone. The bar: nowhere
below least squares.

{table(("components", "trained", "least squares", "alone", "loss", "least squares", "alone"), rows)}"""


def of_surrogates(result: Result) -> str:
    """Return the words and the table of a result of ``adaptive_surrogates.py``."""
    rows = [
        (case.removeprefix("surrogate-"), *(result.text(case, one) for one in ("time", "bytes", "apart")))
        for case in result.cases("apart")
    ]
    return f"""Surrogates of blocks of M, with half of the heads and columns, at one row on one thread: their time and
their bytes over the block's, and how far these are apart (bar {adaptive_surrogates.APART:g}).

{table(("", "time", "bytes", "apart"), rows)}"""


def of_adaptive_tokens(result: Result) -> str:
    """Return the words and the table of a result of ``adaptive_tokens.py``."""
    columns = ("tokens_per_round", "saved", "own", "speedup", "ideal", "of_ideal")
    rows = [
        (case.removeprefix("tokens-"), *(result.text(case, one) for one in columns)) for case in result.cases("of_ideal")
    ]
    return f"""Drafts by the chain with the surrogate of a slow block (`speculate=tokens`), greedy; the smaller the
number behind the type, the more drafts stand, and g is the number of drafts. *Saved* is the part of a passage's
kernels that the surrogate saves, *own* the server's part of a token's processor time without drafts. The ideal is the
recorded tokens of a round, times a token's measured time without drafts, over the time of a round's kernels and what
the server takes for one sweep (bar {drafts.IDEAL:g} of it). Answers are the same tokens.

{table(("", "tokens a round", "saved", "own", "speed-up", "ideal", "of it"), rows)}"""


def of_hidden(result: Result) -> str:
    """Return the words and the table of a result of ``adaptive_hidden.py``."""
    columns = ("similarity", "accepted", "speedup", "ideal", "of_ideal", "perfect", "exact")
    rows = [
        (case.removeprefix("hidden/"), *(result.text(case, one) for one in columns)) for case in result.cases("accepted")
    ]
    bar = adaptive_hidden.bars()[0].at_least
    return f"""Guesses of hidden states in a paced pipeline of two workers (`speculate=hidden`): time per token
without guesses over the one with them. The ideal has the recorded verdicts and the stages: accepted S + max(B, rest),
refused S + B + rest (bar {bar:g} of it; a dash: the ideal gains less than 5 %). *Perfect* is the ideal of a surrogate
that takes a fiftieth of its block and is always right, *exact* the speed-up where no guess stands. The blocks are
layers of the demo checkpoint; *quiet* ones add a tenth of what they would.

{table(("block", "similarity", "accepted", "speed-up", "ideal", "of it", "perfect", "exact"), rows)}"""


def of_transfers(result: Result) -> str:
    """Return the words and the table of a result of ``transfers.py``."""
    words = {
        "blockwright": "by traffic",
        transfers.MOVED: "placed without traffic, then relocated",
        transfers.START: "at the start",
        transfers.FRAGMENTATION: "`fragmentation`",
    }
    rows = [
        (what, *(result.text("zoos", metric, name) for metric in ("transfers", "p90", "unserved")))
        for name, what in words.items()
    ]
    return f"""Transfers between workers over the optimum of all placements, found by enumeration, in
{result.document["settings"].get("zoos")} random zoos of up to 4 workers and 6 chains (bar for the median:
{transfers.BARS[0].at_most:g}). 99 stands for a chain without a route; chains without one in 100 are on the right.

{table(("", "median", "90th percentile", "without a route"), rows)}"""


ADAPTIVE: dict[str, tuple[str, Callable[[Result], str]]] = {
    "adaptive": ("Equivalent blocks and variants", of_adaptive),
    "adaptive_live": ("A variant on a real cluster", of_adaptive_live),
    "adaptive_simulated": ("Variants on twelve devices, simulated", of_adaptive_simulated),
    "adaptive_kv": ("Dispatch by KV", of_kv),
    "adaptive_absent": ("KV of conversations that are away", of_absent),
    "adaptive_stitches": ("Stitches", of_stitches),
    "adaptive_surrogates": ("Surrogates at one row", of_surrogates),
    "adaptive_tokens": ("Drafts across a slow block", of_adaptive_tokens),
    "adaptive_hidden": ("Guesses of hidden states", of_hidden),
    "transfers": ("Transfers between workers", of_transfers),
}
WITH_IDEALS: dict[str, Sequence[Bar]] = {  # there is no bar where the ideal gains less than 5 %
    "adaptive_live": adaptive_live.BARS,
    "adaptive_simulated": adaptive_simulated.BARS,
    "adaptive_hidden": adaptive_hidden.bars(),
}
ALWAYS: dict[str, Sequence[Bar]] = {
    "adaptive": adaptive.BARS,
    "adaptive_kv": adaptive_kv.BARS,
    "adaptive_surrogates": adaptive_surrogates.Plan().bars(),
    "adaptive_tokens": adaptive_tokens.bars(adaptive_tokens.Plan()),
    "transfers": transfers.BARS,
}


def adaptive_bars(name: str, result: Result) -> list[Bar]:
    """Return the bars by which a result of one of these sections is judged."""
    if name == "adaptive_stitches":
        return adaptive_stitches.bars(result.cases("above_least"))
    judged = [bar for bar in WITH_IDEALS.get(name, ()) if result.value(bar.case, bar.metric) is not None]
    return [*judged, *ALWAYS.get(name, ())]
