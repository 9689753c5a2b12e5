"""Comparison of orders of a batch on the same simulated engine: ours, and the ones of ``policies/offline/baselines.py``.

All orders share the engine, the memory, the admission rule and the estimates of answers' lengths. Ours pays for its
estimates: the samples run first (beside requests whose length is known beforehand, in the memory that is left), and the
order is made when they have ended. The others get the same estimates for free.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..policies.offline import baselines
from ..policies.offline.density import Costs
from ..policies.offline.estimates import PROBABILITY, Estimates, choose_samples
from ..policies.offline.order import OrderRules, Unit, Weigher, density_order
from ..policies.offline.prefix_tree import PrefixTree
from ..policies.offline.step_time import calibrated, ideal, sequential
from .offline_job import Engine, OfflineJob
from .offline_workload import OfflineWorkload

FIRST_SHARE = 0.1  # fraction of memory for the left side while samples run
BACK_ENDS = {"sequential": sequential, "ideal": ideal, "calibrated": calibrated}


def engine(
    *, parameters: float, hidden: int, layers: int, kv_width: int, compute: float, bandwidth: float, kv_bytes: float
) -> Engine:
    """Return an engine: a device with these FLOP/s and bytes/s and ``kv_bytes`` for KV, and a model of two-byte values."""
    costs = Costs.of_model(
        parameters=parameters, hidden=hidden, layers=layers, kv_width=kv_width, compute=compute, bandwidth=bandwidth
    )
    weights = 2.0 * parameters / bandwidth
    clocks = {name: made(weights) for name, made in BACK_ENDS.items()}
    return Engine(costs=costs, memory=int(kv_bytes / (4.0 * kv_width * layers)), weights=weights, clocks=clocks)


def llama_8b_on_a100() -> Engine:
    """Return the paper's engine: Llama-3.1-8B on an A100 with 80 GB, 60 GB of them for KV."""
    return engine(parameters=8.0e9, hidden=4096, layers=32, kv_width=1024, compute=312e12, bandwidth=2.039e12, kv_bytes=60e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRules:
    """Options of our order.

    ``sampling`` is the fraction of requests that run first; 1 means that all lengths are known beforehand. ``share`` is the
    left side's fraction of memory, instead of the partition by density. ``target`` is the density to aim at, 0 for the
    batch's own. With ``paced``, steps aim at it too.
    """

    sampling: float = PROBABILITY
    order: OrderRules = field(default_factory=OrderRules)
    share: float | None = None
    target: float = 0.0
    paced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineOutcome:
    """The result of one order.

    ``seconds`` and ``bound`` (the best possible) are by back end. ``tokens`` counts prompts and answers, including cached
    ones. ``found`` counts prompt tokens that were cached, ``best`` the ones that depth-first order with unlimited memory
    would find. ``again`` counts tokens computed again after ``stops``. ``timeline``: see ``OfflineJob``.
    """

    seconds: dict[str, float]
    bound: dict[str, float]
    tokens: int
    found: int
    best: int
    again: int
    stops: int
    steps: int
    compute: float
    memory: float
    timeline: array[float]

    def rate(self, back_end: str) -> float:
        """Return the tokens per second."""
        return self.tokens / self.seconds[back_end]

    def optimum_share(self, back_end: str) -> float:
        return self.bound[back_end] / self.seconds[back_end]

    @property
    def sharing_share(self) -> float:
        """The fraction of the possible sharing that was achieved."""
        return self.found / self.best if self.best else 1.0


class OfflineComparison:
    """A workload, and everything that its orders share. ``seed`` is for samples and the random order."""

    def __init__(self, engine: Engine, workload: OfflineWorkload, seed: int = 0) -> None:
        self.engine, self.workload = engine, workload
        chance = random.Random(f"{seed} order")
        self.draws = [chance.random() for _ in workload.prompts]
        self._numbers = [chance.random() for _ in workload.prompts]
        self.tree = PrefixTree(workload.prompts)
        self.truth = Weigher(self.tree, engine.costs, workload.outputs)
        self.whole = self.truth.whole()
        self.bound = {name: clock.bound(self.whole.comp, self.whole.mem) for name, clock in engine.clocks.items()}

    @property
    def orders(self) -> dict[str, Callable[[], list[int]]]:
        return {
            "dfs": lambda: baselines.depth_first(self.tree),
            "dfs-weight": lambda: baselines.depth_first_by_weight(self.tree),
            "lpm": lambda: baselines.longest_prefix(self.tree),
            "random": lambda: baselines.at_random(self._numbers),
        }

    def samples(self, part: float) -> list[int]:
        return choose_samples(self.tree, self.draws, part, self.workload.known)

    def estimates(self, samples: Sequence[int]) -> Estimates:
        """Return what is known when these requests have ended."""
        found = Estimates(self.tree, self.workload.limits, fixed=self.workload.known)
        for request in samples:
            found.finished(request, self.workload.outputs[request])
        return found

    def baseline(self, name: str, *, pace: float | None = None) -> OfflineOutcome:
        """Run the order of that name. ``pace`` is the density that steps aim at."""
        expected = self.estimates(self.samples(PROBABILITY)).outputs()
        units = [Weigher(self.tree, self.engine.costs, expected).unit(self.orders[name]())]
        job = self._job(expected, units, self.whole.rho, pace, None)
        job.run()
        return self._outcome(job)

    def blended(self, rules: OfflineRules = OfflineRules()) -> OfflineOutcome:
        """Run our order."""
        if rules.sampling >= 1.0:
            expected: Sequence[float] = array("d", self.workload.outputs)
            units, rho = self._order(expected, rules)
            job = self._job(expected, units, rules.target or rho, rho, rules.share, paced=rules.paced)
        else:
            samples = self.samples(rules.sampling)
            guessed = self.estimates([]).outputs()
            job = self._job(guessed, self._first(samples, guessed), 1.0, 1.0, FIRST_SHARE, paced=rules.paced)
            job.run({*samples})
            expected = self.estimates(samples).outputs()
            units, rho = self._order(expected, rules, job.scanner.pending())
            job.replace(units, expected, rules.target or rho, rules.share)
            job.pace((rules.target or rho) if rules.paced else None)
        job.run()
        return self._outcome(job)

    def _job(
        self,
        expected: Sequence[float],
        units: Sequence[Unit],
        target: float,
        pace: float | None,
        share: float | None,
        *,
        paced: bool = True,
    ) -> OfflineJob:
        return OfflineJob(
            self.engine, self.tree, self.workload.outputs, expected, units,
            target=target, pace=pace if paced else None, share=share,
        )  # fmt: skip

    def _first(self, samples: Sequence[int], guessed: Sequence[float]) -> list[Unit]:
        """Return the samples for the left side, the longest requests of known length for the right, the rest between."""
        known, chosen = self.workload.known, {*samples}
        rest = [request for request in self.tree.order if request not in chosen]
        first = sorted(samples, key=self.tree.rank.__getitem__)
        last = sorted((one for one in rest if known[one]), key=known.__getitem__)
        middle = [request for request in rest if not known[request]]
        return Weigher(self.tree, self.engine.costs, guessed).units([first, middle, last])

    def _order(
        self, expected: Sequence[float], rules: OfflineRules, requests: Sequence[int] | None = None
    ) -> tuple[list[Unit], float]:
        weigher = Weigher(self.tree, self.engine.costs, expected)
        return density_order(weigher, rules.order, self.engine.memory, requests), weigher.whole().rho

    def _outcome(self, job: OfflineJob) -> OfflineOutcome:
        tree, outputs = self.tree, self.workload.outputs
        return OfflineOutcome(
            seconds=job.seconds, bound=self.bound, tokens=tree.tokens + sum(outputs), found=job.found,
            best=tree.tokens - tree.distinct, again=job.again, stops=job.scanner.retractions, steps=job.step,
            compute=job.compute, memory=job.memory, timeline=job.timeline,
        )  # fmt: skip


def columns(timeline: array[float], count: int) -> list[tuple[float, float]]:
    """Return a job's course as ``count`` equal parts of its steps: mean compute and memory seconds of a step in each."""
    total = sum(timeline[0::3])
    sums = [[0.0, 0.0, 0.0] for _ in range(count)]
    passed = 0.0
    for at in range(0, len(timeline), 3):
        steps, begin = timeline[at], passed
        passed += steps
        column = min(int(begin * count / total), count - 1)
        while begin < passed:
            end = min(passed, (column + 1) * total / count) if column < count - 1 else passed
            part = (end - begin) / steps
            for place in range(3):
                sums[column][place] += part * timeline[at + place]
            begin, column = end, min(column + 1, count - 1)
    return [(compute / steps, memory / steps) if steps else (0.0, 0.0) for steps, compute, memory in sums]
