"""Workload of a simulation: requests from published traces, or drawn from a named law, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..policies.model.lineage import page_hashes
from ..policies.plan.sampling import SamplingParams
from ..policies.prediction.instance_load import STOP
from ..policies.prediction.lengths import clipped
from ..policies.requests.urgency import urgency
from ..policies.sweep.events import Submission
from .description import WorkloadSpec
from .drafts import DraftSpec
from .model_spec import ModelSpec
from .traces import BLOCK, Clients, TraceError, TraceRequest, cut, has_rates, read_trace

GREEDY = SamplingParams(temperature=0.0)
_TIERS = ("priority", "flex", "default")  # service tiers of urgent, batch and normal requests
OWN = 1 << 30  # token ids from here on are in prompts that share nothing


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request: seconds from the beginning, model, lengths.

    ``blocks`` has the ids of its prompt's blocks (``traces.py``), or ``tokens`` all its tokens, where known.
    """

    number: int
    at: float
    model: str
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    allowed: int = 0  # tokens of the answer; 0: as many as it has
    expected: int = 0  # tokens of the answer as estimated beforehand
    tenant: str = ""  # the account that pays; "": the model's
    priority: int = 0
    salt: bytes = b""

    @property
    def total(self) -> int:
        """The most tokens, prompt and answer."""
        return self.prompt + (self.allowed or self.output)

    def prompt_tokens(self) -> list[int]:
        """Return the tokens of the prompt."""
        tokens = [*self.tokens] or [id for block in self.blocks for id in [block] * BLOCK][: self.prompt]
        return tokens + [OWN + self.number] * (self.prompt - len(tokens))

    def submission(
        self, route: str, page_size: int, *, hashed: bool, timeout: float, drafts: DraftSpec | None = None
    ) -> Submission:
        """Return the submission as the gateway would send it.

        ``hashed``: a prefix cache needs the pages' hashes. ``drafts``: of its model.
        """
        tokens = self.prompt_tokens()
        return Submission(
            request=f"r{self.number}", attempt=1, gateway="simulated", route=route, route_version=1, tokens=tokens,
            prompt_length=self.prompt, page_hashes=page_hashes(tokens, page_size, self.salt) if hashed else [],
            max_length=self.total, stop_tokens=[STOP] if self.allowed else [], sampling=GREEDY,
            tenant=self.tenant or self.model, priority=self.priority, arrival=self.at, timeout=timeout, salt=self.salt,
            expected=self.expected,
            drafts=None if drafts is None else drafts.options(self.model, self.total - self.prompt),
        )  # fmt: skip


def demands(spec: WorkloadSpec, models: Sequence[ModelSpec], seed: int, folder: Path) -> list[WorkloadRequest]:
    """Return all requests, in the order of their times. Paths are relative to ``folder``. Raises TraceError."""
    source = random.Random(f"{seed} workload")
    shapes = list(_shapes(replace(spec, count=spec.count or 1000), seed, folder, source))
    if not shapes:
        raise TraceError(f"{spec.trace or spec.lengths} has no request after {spec.start:g} s; lower start")
    names, shares = [model.name for model in models], [model.share for model in models]
    contexts = {model.name: model.context for model in models}
    made, errors = [], random.Random(f"{seed} estimates")
    classes, weights = random.Random(f"{seed} classes"), (spec.urgent, spec.batch, 1 - spec.urgent - spec.batch)
    for number, shape in enumerate(shapes):
        model = names[0] if len(names) == 1 else source.choices(names, shares)[0]
        prompt, output = (
            min(shape.prompt, spec.most_input or shape.prompt),
            min(shape.output, spec.most_output or shape.output),
        )
        allowed = max(output, min(spec.max_tokens, contexts[model] - prompt)) if spec.max_tokens else 0
        expected = max(1, round(output * _factor(spec, errors)))
        request = WorkloadRequest(number, shape.at or 0.0, model, prompt, output, shape.blocks, (), allowed, expected)
        if spec.urgent or spec.batch:
            request = replace(request, priority=urgency(classes.choices(_TIERS, weights)[0], 0))
        made.append(request)
    return made


def _shapes(spec: WorkloadSpec, seed: int, folder: Path, source: random.Random) -> Iterator[TraceRequest]:
    """Yield times and lengths.

    A file of lengths that is shorter than the workload begins again; a file of times ends it.
    """
    timed: list[TraceRequest] = []
    lengths: list[TraceRequest] = []
    drawn = False  # times and lengths come from rates of clients and quantiles
    if spec.trace:
        drawn = has_rates(folder / spec.trace)
        quantiles = folder / spec.lengths if spec.lengths and drawn else None
        clients = Clients(quantiles, spec.client_model, spec.start, spec.count, seed)
        timed = cut(read_trace(folder / spec.trace, clients), spec.start, spec.count, spec.speed)
    if spec.lengths and not drawn:
        lengths = read_trace(folder / spec.lengths)
        source.shuffle(lengths)
    times = _times(spec, timed, source)
    for n, at in enumerate(times):
        if lengths:
            one = lengths[n % len(lengths)]
        elif timed:
            one = timed[n]
        else:
            one = TraceRequest(None, _draw(spec, spec.input_tokens, source), _draw(spec, spec.output_tokens, source))
        yield replace(one, at=at)


def _times(spec: WorkloadSpec, timed: Sequence[TraceRequest], source: random.Random) -> list[float]:
    """Return seconds from the beginning. With a rate, a trace keeps its bursts and is stretched to that rate."""
    if spec.arrivals == "trace":
        if timed and timed[0].at is None:
            raise TraceError(f"{spec.trace} has no times; give arrivals = 'poisson' and a rate, and this file as lengths")
        times = [one.at or 0.0 for one in timed]
        factor = len(times) / (times[-1] * spec.rate) if spec.rate and times and times[-1] else 1.0
        return [at * factor for at in times]
    shape = 1 / spec.cv**2 if spec.arrivals == "gamma" else 1.0
    now, found = 0.0, []
    for _ in range(min(spec.count, len(timed)) if timed else spec.count):
        found.append(now)
        now += source.gammavariate(shape, 1 / (shape * spec.rate))
    return found


def _factor(spec: WorkloadSpec, source: random.Random) -> float:
    """Return the factor by which an estimate of a length is wrong.

    A Gaussian one is clipped as in the paper's study of length errors.
    """
    if spec.error_law == "lognormal":
        return source.lognormvariate(0.0, spec.length_error)
    return clipped(source.gauss(1.0, spec.length_error))


def _draw(spec: WorkloadSpec, mean: int, source: random.Random) -> int:
    return mean if spec.law == "constant" else max(1, round(source.expovariate(1 / mean)))
