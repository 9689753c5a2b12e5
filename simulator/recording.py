"""Recording of live workers from their event logs: a workload, and instances like those workers.

A log is replayed on a machine like the one that made it (``policies/sweep/event_log.py``): its tokens, routes and memory are
exact. For a request, only the first submission and the final length of the answer count, whichever workers served it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..policies.plan.coefficients import TERMS, Coefficients
from ..policies.plan.cost import features
from ..policies.plan.fit import fit, predict
from ..policies.plan.sweep_plan import SweepPlan
from ..policies.sweep.event_log import Applied, Began, Committed, Entry, Planned
from ..policies.sweep.events import Submission, TokensEmitted
from ..policies.sweep.state import SweepState
from .description import DescriptionError, WorkloadSpec
from .traces import TraceError
from .workload import WorkloadRequest

NEVER = float("inf")
# Minimum number of sweeps to fit terms: all of them, or a sweep and its tokens; fewer give only a mean.
FITTED_TERMS = ((20, TERMS), (4, ("base", "token")), (1, ("base",)))


@dataclass(slots=True)
class _Recorded:
    """One request: its first submission and the time of that, its model, and its final number of tokens."""

    at: float
    submission: Submission
    model: str
    length: int
    first: float = NEVER  # times of its first and its last token
    ended: float = NEVER

    def heard(self, emitted: TokensEmitted, now: float) -> None:
        self.length = max(self.length, emitted.position + len(emitted.tokens))
        self.first = min(self.first, now)
        if emitted.finish:
            self.ended = now


@dataclass(slots=True)
class _Plans:
    """Plans of one file: the open ones with the times at which they were made, the last one's end, and the current time."""

    open: dict[int, tuple[SweepPlan, float]] = field(default_factory=dict)
    ended: float = 0.0
    now: float = 0.0


@dataclass(slots=True)
class Recording:
    """A recording (see the module).

    Add the files of a run in any order of workers, but one worker's files in the order in which they were written.
    """

    workers: dict[str, SweepState] = field(default_factory=dict)  # state at the end of their logs
    sweeps: dict[str, list[tuple[SweepPlan, float]]] = field(default_factory=dict)  # by worker: each with its seconds
    busy: dict[str, float] = field(default_factory=dict)  # by worker: seconds of these from the end of the sweep before
    _requests: dict[str, _Recorded] = field(default_factory=dict)

    def add(self, worker: str, began: Began, entries: Iterable[Entry]) -> None:
        """Add one file. For a worker that failed, it is read up to the failing call."""
        state, plans = SweepState.restore(began.snapshot), _Plans()
        for entry in entries:
            try:
                self._feed(worker, state, plans, entry)
            except Exception:  # as in the worker: the next entry is ``Failed``
                break
            for effect in state.take_effects().news:
                if isinstance(effect, TokensEmitted) and (known := self._requests.get(effect.request)) is not None:
                    known.heard(effect, plans.now)
        self.workers[worker] = state

    def _feed(self, worker: str, state: SweepState, plans: _Plans, entry: Entry) -> None:
        if isinstance(entry, Applied | Planned | Committed):
            plans.now = entry.now
        match entry:
            case Applied(event=event, now=now):
                if isinstance(event, Submission):
                    self._note(event, now, state)
                state.apply(event, now)
            case Planned(now=now):
                plan = state.plan(now)
                if plan is not None:
                    plans.open[plan.number] = (plan, now)
            case Committed(result=result, now=now):
                plan, made = plans.open.pop(
                    result.number, (SweepPlan(result.number), now)
                )  # a plan that was open when the file began has no entry
                state.commit(plan, result, now)
                if plan.row and result.seconds > 0:
                    self.sweeps.setdefault(worker, []).append((plan, result.seconds))
                    self.busy[worker] = self.busy.get(worker, 0.0) + now - max(made, plans.ended)
                plans.ended = now

    def _note(self, submission: Submission, now: float, state: SweepState) -> None:
        known = self._requests.get(submission.request)
        local = state.parts.routes.home(submission.route)
        if local is not None and known is None:
            length = len(submission.tokens)
            self._requests[submission.request] = _Recorded(now, submission, local.route.application, length)
        elif known is not None and now < known.at:
            known.at, known.submission = now, submission

    def outcomes(self, spec: WorkloadSpec) -> tuple[list[float], list[float]]:
        """Return the recorded results of ``demands(spec)``.

        These are the seconds until the first and until the last token, for requests that have it.
        """
        wanted = self._wanted(spec)
        first = [one.first - one.at for one in wanted if one.first < NEVER]
        return first, [one.ended - one.at for one in wanted if one.ended < NEVER]

    def demands(self, spec: WorkloadSpec) -> list[WorkloadRequest]:
        """Return the answered requests: ``count`` of them from ``start`` seconds after the first on, at ``speed``.

        Raises TraceError.
        """
        found, began = [], self._began
        for n, one in enumerate(self._wanted(spec)):
            of, at = one.submission, one.at - began - spec.start
            found.append(
                WorkloadRequest(
                    number=n,
                    at=at / spec.speed,
                    model=one.model,
                    prompt=of.prompt_length,
                    output=one.length - of.prompt_length,
                    tokens=tuple(of.tokens[: of.prompt_length]),
                    allowed=of.max_length - of.prompt_length if one.length < of.max_length else 0,
                    expected=of.expected,
                    tenant=of.tenant,
                    priority=of.priority,
                    salt=of.salt,
                )
            )
        if not found:
            raise TraceError(f"no request in the logs was answered after {spec.start:g} s; give other logs, or lower start")
        return found

    def _wanted(self, spec: WorkloadSpec) -> list[_Recorded]:
        since = self._began + spec.start
        found = [one for one in self._answered if one.at >= since]
        return found[: spec.count] if spec.count else found

    @property
    def _answered(self) -> list[_Recorded]:
        """The answered requests, by arrival time."""
        found = [one for one in self._requests.values() if one.length > one.submission.prompt_length]
        return sorted(found, key=lambda one: (one.at, one.submission.request))

    @property
    def _began(self) -> float:
        return min((one.at for one in self._answered), default=0.0)

    def coefficients(self, worker: str) -> tuple[Coefficients, str]:
        """Return coefficients fitted to a worker's sweeps, or to all workers' if it has none.

        Also return a sentence that names the data of the fit. Raises DescriptionError.
        """
        of, whose = ([worker], "its log") if worker in self.sweeps else ([*self.sweeps], "the logs of others")
        timed = [(features(plan, 0.0, 0.0), seconds) for name in of for plan, seconds in self.sweeps[name]]
        if not timed:
            why = "and no other log has one; give instances.N.profile=FILE"
            raise DescriptionError(f"the log of {worker!r} has no sweep with a time, {why}")
        terms = next(terms for fewest, terms in FITTED_TERMS if len(timed) >= fewest)
        samples = [
            ([value if name in terms else 0.0 for name, value in zip(TERMS, counts, strict=True)], seconds)
            for counts, seconds in timed
        ]
        found = fit(samples, 0.0, 0.0)
        # A fit to relative errors gives little weight to disturbed sweeps, and ignores the time between sweeps: it is added
        # here.
        part = sum(self.busy[name] for name in of) / sum(predict(counts, found) for counts, _ in samples)
        found = replace(found, **{term: part * getattr(found, term) for term in TERMS})
        says = f"{len(timed)} sweep{'s' * (len(timed) > 1)} of {whose}"
        if len(terms) == 1:
            return found, f"the mean of {says}, too few to fit anything: {found.base:.3g} s, whatever is in it"
        few = f", too few to fit more than {found.base:.3g} s and {found.token:.3g} s a token" if terms is not TERMS else ""
        return found, f"a fit to {says}{few}"

    def described(self) -> dict[str, Any]:
        """Return a description of instances with these workers' memory and limits. Raises DescriptionError."""
        models: dict[str, dict[str, Any]] = {}
        instances = []
        for name, state in self.workers.items():
            config, memory = state.config, state.parts.memory
            for local in state.parts.routes.all_in_force():
                if len(local.route.hops) > 1:
                    where = ", ".join(hop.worker for hop in local.route.hops)
                    raise DescriptionError(
                        f"the logs have a route over {where}; describe the cluster in CONFIG, with stages"
                    )
                size = memory.page_bytes(local.spans) // config.page_size
                model = {"name": local.route.application, "kv_bytes": max(4, size + -size % 4), "context": local.max_length}
                models.setdefault(local.route.application, model)
            fields = ("page_size", "chunk_size", "sweep_tokens", "max_rows", "prefix_cache", "memory_chunk")
            same = {one: getattr(config, one) for one in fields}
            instances.append({"name": name, "memory": memory.total_bytes - memory.parameter_bytes, "profile": "", **same})
        return {"workload": {"arrivals": "log"}, "models": list(models.values()), "instances": instances}
