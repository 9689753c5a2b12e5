"""Synthetic offline batches: requests of several sources, mixed for a given density and a given sharing of prefixes.

Follows BlendServe (section "Workloads"): a chat source and OpenVid (answers of thousands of tokens, of lengths that are
known beforehand) make the density, MMLU (few-shot prompts of 57 subjects, answers of two tokens) the sharing. One system
prompt for each source comes before its prompts; the unknown text of a prompt is made up at the right length. Lengths follow
log-normal laws whose answers are fitted so that each source has its density in the paper's table, or come from a trace.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from ..policies.offline.density import Costs
from ..policies.offline.prefix_tree import WIDTH

NORMAL = NormalDist()
SAMPLE = 2000  # quantiles of a source from which its means are computed
Lengths = tuple[int, int]  # tokens of a prompt and of its answer


class WorkloadError(ValueError):
    """An impossible mixture, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSource:
    """A source of requests.

    ``prompt`` is the mean number of tokens of a prompt, including its shared part. ``prompt_spread`` and ``answer_spread``
    are deviations of the logarithms. ``answer`` is the mean number of tokens of an answer; 0 means the number that gives the
    source the density ``rho``. ``sharing`` is the fraction of its prompts' tokens that is shared: by all prompts, by groups
    of ``group_size``, or within each of ``groups``. ``longest`` is the number of tokens of its longest answer. ``known``
    means that answers are as long as requested.
    """

    name: str
    prompt: float
    prompt_spread: float
    answer_spread: float
    rho: float
    sharing: float
    answer: float = 0.0
    group_size: int = 0
    groups: int = 0
    longest: int = 4096
    known: bool = False

    @property
    def followers(self) -> float:
        """The fraction of its requests that find their shared part computed."""
        return 1.0 - 1.0 / self.group_size if self.group_size else 1.0

    @property
    def shared(self) -> float:
        """The number of tokens that a request shares."""
        return self.sharing * self.prompt / self.followers


# Density and sharing: the paper's table. Lengths: BurstGPT's and Azure's code trace as published, ShareGPT's file of the
# traces folder, OpenVid's frames times 256 tokens. The spread of OpenVid's answers follows from its density.
SOURCES = {
    source.name: source
    for source in (
        RequestSource(name="sharegpt", prompt=299, prompt_spread=1.3, answer_spread=0.9, rho=3.12, sharing=0.02),
        RequestSource(
            name="wildchat", prompt=480, prompt_spread=1.1, answer_spread=0.9, rho=2.13, sharing=0.19, group_size=3
        ),
        RequestSource(name="azure", prompt=2048, prompt_spread=0.8, answer_spread=0.8, rho=33.2, sharing=0.01, longest=1024),
        RequestSource(
            name="burstgpt", prompt=608, prompt_spread=0.9, answer_spread=0.9, rho=17.78, sharing=0.02, longest=2048
        ),
        RequestSource(
            name="openvid", prompt=256, prompt_spread=0.3, answer_spread=0.81, rho=0.05, sharing=0.01, answer=16384,
            longest=65536, known=True,
        ),
        RequestSource(
            name="mmlu", prompt=700, prompt_spread=0.1, answer_spread=0.0, rho=54.91, sharing=0.86, answer=2, groups=57,
            longest=8,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OfflineWorkload:
    """A batch of requests.

    ``prompts`` are token ids as bytes (``prefix_tree.packed``). ``outputs`` are the true tokens of each answer, ``limits``
    their limits, ``known`` the lengths known beforehand, else 0. ``sources`` has for each request an index into ``names``.
    """

    prompts: list[bytes]
    outputs: array[int]
    limits: array[int]
    known: array[int]
    sources: bytearray
    names: tuple[str, ...]


def lengths_of(source: RequestSource, costs: Costs, count: int) -> list[Lengths]:
    """Return ``count`` lengths at even quantiles of the laws; prompts and answers are independent."""
    prompts = _law(source.prompt, source.prompt_spread, count, 8192)
    answers = _law(source.answer or _fitted(source, costs), source.answer_spread, count, source.longest)
    random.Random(f"{source.name} {count}").shuffle(answers)
    least = round(source.shared) + 1
    return [(max(prompt, least), answer) for prompt, answer in zip(prompts, answers, strict=True)]


def _law(mean: float, spread: float, count: int, longest: int) -> list[int]:
    """Return lengths of a log-normal law with this mean."""
    middle = math.log(mean) - spread * spread / 2.0
    draws = (math.exp(middle + spread * NORMAL.inv_cdf((number + 0.5) / count)) for number in range(count))
    return [min(max(round(draw), 1), longest) for draw in draws]


def _fitted(source: RequestSource, costs: Costs) -> float:
    """Return the mean answer with which a source has its density: longer answers are less dense."""
    low, high = 1.0, float(source.longest)
    prompts = _law(source.prompt, source.prompt_spread, SAMPLE, 8192)
    for _ in range(30):
        middle = math.sqrt(low * high)
        answers = _law(middle, source.answer_spread, SAMPLE, source.longest)
        random.Random(source.name).shuffle(answers)
        whole = _Means.of(source, costs, list(zip(prompts, answers, strict=True)))
        low, high = (middle, high) if (whole.comp - whole.saved) / whole.mem > source.rho else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class _Means:
    """Mean seconds of a request: compute without sharing, the part of it that sharing saves, memory."""

    comp: float
    saved: float
    mem: float

    @classmethod
    def of(cls, source: RequestSource, costs: Costs, lengths: Sequence[Lengths]) -> _Means:
        comp = sum(costs.comp(prompt, answer) for prompt, answer in lengths) / len(lengths)
        mem = sum(costs.mem(prompt, answer) for prompt, answer in lengths) / len(lengths)
        return cls(comp, source.followers * costs.prompt(source.shared), mem)


def mixed(
    rho: float,
    sharing: float,
    count: int,
    costs: Costs,
    *,
    chat: str = "burstgpt",
    lengths: Sequence[Lengths] = (),
    seed: int = 0,
) -> OfflineWorkload:
    """Return ``count`` requests of a chat source, OpenVid and MMLU.

    The compute-to-memory time ratio is ``rho`` if every shared token is computed once, and sharing saves the fraction
    ``sharing`` of the compute. ``lengths`` are the chat source's, from a trace. Raises WorkloadError if there is no such
    mixture.
    """
    sources = [SOURCES[chat], SOURCES["openvid"], SOURCES["mmlu"]]
    chosen = [lengths_of(source, costs, SAMPLE) for source in sources]
    if lengths:
        chosen[0] = [(max(prompt, 8), max(answer, 1)) for prompt, answer in lengths]
    means = [_Means.of(source, costs, many) for source, many in zip(sources, chosen, strict=True)]
    counts = _counts(means, rho, sharing, count)
    chance = random.Random(f"{seed} {chat} {rho} {sharing}")
    made = [lengths_of(source, costs, many) for source, many in zip(sources, counts, strict=True)]
    if lengths:
        made[0] = [chance.choice(chosen[0]) for _ in range(counts[0])]
    made[1] = _scaled(made, means, counts, costs, rho)
    return _prompts(sources, made, chance)


def _counts(means: Sequence[_Means], rho: float, sharing: float, count: int) -> list[int]:
    """Return the number of requests of each source: two ratios and the sum, solved by Cramer's rule."""
    first = [mean.comp - mean.saved - rho * mean.mem for mean in means]
    second = [mean.saved - sharing * mean.comp for mean in means]
    parts = [
        first[1] * second[2] - first[2] * second[1],
        first[2] * second[0] - first[0] * second[2],
        first[0] * second[1] - first[1] * second[0],
    ]
    total = sum(parts)
    if not total or min(part / total for part in parts) < 0.0:
        raise WorkloadError(f"no mixture has density {rho:g} and sharing {sharing:g}; give others, or another chat source")
    counts = [max(round(count * part / total), 1) for part in parts]
    counts[0] += count - sum(counts)
    return counts


def _scaled(
    made: Sequence[Sequence[Lengths]], means: Sequence[_Means], counts: Sequence[int], costs: Costs, rho: float
) -> list[Lengths]:
    """Return the known answers, all scaled by a factor. A few of them carry much weight, so rounding their number shows."""
    rest = [pair for number, pairs in enumerate(made) if number != 1 for pair in pairs]
    saved = sum(mean.saved * many for mean, many in zip(means, counts, strict=True))
    comp = sum(costs.comp(prompt, answer) for prompt, answer in rest) - saved
    mem = sum(costs.mem(prompt, answer) for prompt, answer in rest)
    low, high = 0.5, 2.0
    for _ in range(30):
        factor = math.sqrt(low * high)
        pairs = [(prompt, max(round(answer * factor), 1)) for prompt, answer in made[1]]
        all_comp = comp + sum(costs.comp(prompt, answer) for prompt, answer in pairs)
        all_mem = mem + sum(costs.mem(prompt, answer) for prompt, answer in pairs)
        low, high = (factor, high) if all_comp > rho * all_mem else (low, factor)
    return pairs


def _prompts(sources: Sequence[RequestSource], made: Sequence[Sequence[Lengths]], chance: random.Random) -> OfflineWorkload:
    """Return token ids: the source's system prompt, the group's shared part, a token that is unique there, and zeros."""
    rows: list[tuple[int, bytes, int, int]] = []
    fresh = list(range(1, sum(map(len, made)) + 1))
    chance.shuffle(fresh)
    for number, (source, pairs) in enumerate(zip(sources, made, strict=True)):
        beginnings = _beginnings(source, len(pairs), chance)
        order = list(range(len(pairs)))
        chance.shuffle(order)
        for at, (prompt, answer) in zip(order, pairs, strict=True):
            shared = beginnings[at % len(beginnings)]
            own = fresh.pop().to_bytes(WIDTH, "big")
            filling = bytes(max(prompt * WIDTH - len(shared) - WIDTH, 0))
            rows.append((number, shared + own + filling, answer, answer if source.known else 0))
    chance.shuffle(rows)
    limits = array("q", [row[3] or max(sources[row[0]].longest, row[2]) for row in rows])
    return OfflineWorkload(
        [row[1] for row in rows], array("q", [row[2] for row in rows]), limits, array("q", [row[3] for row in rows]),
        bytearray(row[0] for row in rows), tuple(source.name for source in sources),
    )  # fmt: skip


def _beginnings(source: RequestSource, count: int, chance: random.Random) -> list[bytes]:
    """Return the beginnings of a source's prompts: its system prompt, then the part that a group's requests share."""
    tokens = max(round(source.shared), 1)
    groups = max(count // source.group_size, 1) if source.group_size else source.groups
    if not groups:
        return [chance.randbytes(WIDTH * tokens)]
    system = chance.randbytes(WIDTH * max(min(tokens // 10, 20), 1))
    return [system + chance.randbytes(WIDTH * tokens - len(system)) for _ in range(groups)]
