"""Fitting of the cost model to timed sweeps: at first, and again while a worker runs.

Nonnegative least squares on normal equations (Lawson and Hanson, "Solving Least Squares Problems", 1974, algorithm NNLS).
A sample is divided by its seconds, so that squares of relative errors are minimized, and a disturbed sweep weighs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from .coefficients import TERMS, Coefficients
from .cost import features
from .sweep_plan import SweepPlan

Sample = tuple[Sequence[float], float]  # (features of a sweep, its seconds)
CLOSE = 1e-9  # a smaller slope counts as none
RIDGE = 1e-12  # for columns that are multiples of each other
EVERY = 16  # one in this many sweeps is sampled while a worker runs
REFIT = 32  # samples between two fits, each of which takes some 0.3 ms
MEMORY = 1 / 256  # weight of the last sample in averages, and the rate at which old ones are forgotten
TRUST = 0.5  # weight of the profile, in samples of each term alone
EAGER = 4  # number of first fits without a profile, for which every sweep is sampled
# An unknown device: the shares of the terms in a sweep of one row. Parameters take most of it.
PLAIN = Coefficients(base=0.2, read=1.0, token=0.05, beyond=0.02, row=0.01, context=1e-4, prefill=1e-4)


class NormalEquations:
    """Sums over samples of ``features / seconds``, whose products with the coefficients should be 1."""

    def __init__(self) -> None:
        self._gram = [[0.0] * len(TERMS) for _ in TERMS]
        self._right = [0.0] * len(TERMS)

    def add(self, sample: Sequence[float], keep: float = 1.0) -> None:
        """Add a sample. ``keep``: factor for all earlier samples."""
        for j, value in enumerate(sample):
            line = self._gram[j]
            self._right[j] = keep * self._right[j] + value
            for k, other in enumerate(sample):
                line[k] = keep * line[k] + value * other

    def solve(self, prior: float = 0.0) -> list[float]:
        """Return the nonnegative solution. Each value is drawn to 1 as by ``prior`` samples of it alone."""
        gram = [[value + prior * (j == k) for k, value in enumerate(line)] for j, line in enumerate(self._gram)]
        scale = [gram[j][j] ** -0.5 if gram[j][j] > 0 else 0.0 for j in range(len(gram))]
        gram = [[a * b * value for b, value in zip(scale, line, strict=True)] for a, line in zip(scale, gram, strict=True)]
        right = [a * (value + prior) for a, value in zip(scale, self._right, strict=True)]
        found, free = [0.0] * len(right), list[int]()
        for _ in range(4 * len(right)):  # more than it ever takes
            slope = [b - sum(map(mul, line, found)) for b, line in zip(right, gram, strict=True)]
            steepest = max((j for j in range(len(right)) if j not in free), key=slope.__getitem__, default=0)
            if steepest in free or slope[steepest] <= CLOSE:
                break
            free.append(steepest)
            best = _solved(gram, right, free)
            while negative := [j for j in free if best[j] <= 0]:
                part, last = min((found[j] / (found[j] - best[j]) if found[j] else 0.0, j) for j in negative)
                found = [old + part * (new - old) for old, new in zip(found, best, strict=True)]
                found[last] = 0.0
                free.remove(last)
                best = _solved(gram, right, free)
            found = best
        return [a * value for a, value in zip(scale, found, strict=True)]


def _solved(gram: list[list[float]], right: list[float], free: list[int]) -> list[float]:
    """Return the least squares for some of the values, the others being 0, by elimination in a positive definite matrix."""
    lines = [[*(gram[j][k] + RIDGE * (j == k) for k in free), right[j]] for j in free]
    for i, pivot in enumerate(lines):
        for line in lines[i + 1 :]:
            factor = line[i] / pivot[i]
            line[:] = [a - factor * b for a, b in zip(line, pivot, strict=True)]
    found = [0.0] * len(right)
    for i in reversed(range(len(free))):
        *line, value = lines[i]
        found[free[i]] = (value - sum(line[k] * found[free[k]] for k in range(i + 1, len(free)))) / line[i]
    return found


def fit(samples: Sequence[Sample], parameters: float, kv: float) -> Coefficients:
    """Fit coefficients to samples. parameters, kv: the sizes that the features were made with."""
    equations = NormalEquations()
    for counts, seconds in samples:
        equations.add([value / seconds for value in counts])
    found = equations.solve()
    return Coefficients(**dict(zip(TERMS, found, strict=True)), parameters=parameters, kv=kv)


def predict(counts: Sequence[float], coefficients: Coefficients) -> float:
    """Return the seconds, as ``cost`` of the plan with these features."""
    seconds = 0.0
    for name, value in zip(TERMS, counts, strict=True):
        seconds += value * getattr(coefficients, name)
    return seconds


def relative_errors(samples: Sequence[Sample], coefficients: Coefficients) -> list[float]:
    """Return |predicted - measured| / measured of each sample. Their mean is the MAPE."""
    return [abs(predict(counts, coefficients) - seconds) / seconds for counts, seconds in samples]


class OnlineFit:
    """A fit that follows the present cost of sweeps from a profile: each term is multiplied by a factor, at first 1.

    drift: the fraction by which sweeps take longer now than by the profile, on average (negative: less). error: the mean
    relative error of ``coefficients``, which are fitted again and again. Without a profile it begins with ``PLAIN``,
    scaled to the first sweep, samples every sweep until it has fitted ``EAGER`` times, and is not ``fitted`` before the
    first of these.
    """

    def __init__(self, profile: Coefficients | None = None) -> None:
        self.profile = self.coefficients = profile or PLAIN
        self.fitted = profile is not None
        self.drift = self.error = 0.0
        self._equations = NormalEquations()
        self._factors = [1.0] * len(TERMS)
        self._sweeps = self._samples = self._judged = 0  # judged: samples that the model had to predict
        self._eager = 0 if self.fitted else EAGER * REFIT  # number of first samples for which every sweep is taken

    def record(self, plan: SweepPlan, seconds: float) -> None:
        """Record the device seconds of a sweep. One of ``EVERY`` is sampled."""
        self._sweeps += 1
        if (self._samples >= self._eager and self._sweeps % EVERY) or not plan.row or seconds <= 0:
            return
        counts = features(plan, self.profile.parameters, self.profile.kv)
        if not self.fitted and not self._samples:
            self.profile = _scaled(PLAIN, [seconds / predict(counts, PLAIN)] * len(TERMS))
        terms = [value * getattr(self.profile, name) for name, value in zip(TERMS, counts, strict=True)]
        expected = sum(terms)
        if expected <= 0:
            return
        self._samples += 1
        if self.fitted:
            self._judged += 1
            weight = max(MEMORY, 1 / self._judged)
            now = sum([a * b for a, b in zip(terms, self._factors, strict=True)])
            self.drift += weight * (seconds / expected - 1 - self.drift)
            self.error += weight * (abs(now - seconds) / seconds - self.error)
        self._equations.add([term / seconds for term in terms], 1 - MEMORY)
        if self._samples % REFIT == 0:
            self._factors = self._equations.solve(TRUST)
            self.coefficients, self.fitted = _scaled(self.profile, self._factors), True


def _scaled(of: Coefficients, factors: Sequence[float]) -> Coefficients:
    """Return the coefficients with each term multiplied by a factor."""
    changed = {name: factor * getattr(of, name) for name, factor in zip(TERMS, factors, strict=True)}
    return Coefficients(**changed, parameters=of.parameters, kv=of.kv)
