"""The command ``batch plan``: the figures of a batch before it runs, and its steps in several orders.

The lines of the file are checked, rendered and tokenized as the server would do it, without a server. The machine is one
worker here, by a profile of it or by a guess.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from . import CommandError, command_errors
from .output import FittedTable, print_tables
from .zoo import zoo_refusals

if TYPE_CHECKING:
    from ...actors.checkpoints import OpenedCheckpoints
    from ...actors.gateway.port import ModelInfo
    from ...actors.settings.settings import Settings
    from ...gpu.weights.checkpoint import Checkpoint
    from ...policies.offline.density import Costs
    from ...policies.offline.order import Unit
    from ...policies.offline.prefix_tree import PrefixTree
    from ...simulator.offline_orders import OfflineOutcome
    from ..batches.local_files import BatchInput
    from ..http.context import Front
    from ..program.progress import Bar

COMPUTE, BANDWIDTH = 50e9, 10e9  # FLOP/s and byte/s of a core without a profile: a guess
REFUSED = 3  # refused lines that are shown
CLIPPED = 0.99  # share of the points of all plots below the upper limit
OTHERS = {"depth first": "dfs", "longest prefix": "lpm", "random": "random"}  # order -> its name in the simulator


def batch_plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", type=Path, help="a file with a request on each line")
    parser.add_argument("--model", metavar="PATH_OR_ID", required=True, help="checkpoint folder or hub id")
    parser.add_argument("--profile", metavar="FILE", help="profile of this machine, from blockwright profile")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the cluster to plan for"
    )


def batch_plan(arguments: argparse.Namespace) -> int:
    """Show a batch before it runs: how much its prompts share, its density, the order
    in which it would run, and what the steps would compute and read in that order
    and in others.

    IN is a file of requests, as for /v1/batches. The lengths of answers are not
    known yet, so each counts with its limit (max_tokens); a real run samples one
    request in a hundred first. Times come from --profile, or from a guess for one
    core without it.
    """
    from ...actors.checkpoints import open_checkpoints
    from ...actors.settings.errors import SettingsError
    from ..settings.options import make_settings

    flags = {"profile": arguments.profile} if arguments.profile else {}
    with command_errors(SettingsError), zoo_refusals():
        settings = make_settings(arguments.model, flags=flags, sets=arguments.set)
        opened = open_checkpoints(settings)
        name, checkpoint = next(iter(opened.checkpoints.items()))
        machine = machine_of(settings, name, checkpoint)
    requests = _requests(arguments.input, settings, opened, name)
    try:
        show(f"{arguments.input} with {name}", plan(requests, machine))
    except ValueError as error:  # a request that never fits into memory
        raise CommandError(f"{error} (--set memory=...)", 2) from None
    return 0


def _requests(path: Path, settings: Settings, opened: OpenedCheckpoints, name: str) -> BatchRequests:
    from ...actors.checkpoints import model_info
    from ...actors.sizing import max_lengths
    from ..program.progress import Bar

    length = max_lengths(settings.requests, {name: opened.checkpoints[name].config})[name]
    info = model_info(opened, name, length, 0)
    with Bar(0, sys.stderr.isatty()) as bar:
        return read_requests(path, settings, info, bar)


@dataclass(slots=True)
class BatchRequests:
    """The lines of a file.

    ``prompts``: packed. ``limits``: most tokens of each answer. ``refused``: line number from 1, reason.
    """

    prompts: list[bytes] = field(default_factory=list)
    limits: array[int] = field(default_factory=lambda: array("q"))
    refused: list[tuple[int, str]] = field(default_factory=list)


class _Served:
    """A stand-in for a gateway that serves one model: the only part of a gateway that checking a line needs."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    def models(self) -> list[ModelInfo]:
        return [self._info]

    def default_model(self) -> str:
        return self._info.id


def read_requests(path: Path, settings: Settings, info: ModelInfo, bar: Bar) -> BatchRequests:
    """Return the requests of a file; raise CommandError if it cannot be read or has no request that could run."""
    import asyncio

    from ..batches.local_files import BatchFileError, BatchInput

    with command_errors(BatchFileError), contextlib.closing(BatchInput(path)) as given:
        found = asyncio.run(_checked(given, settings, info, bar))
    if not found.prompts:
        number, why = found.refused[0]
        raise CommandError(f"{path} has no request that could run; line {number}: {why}", 2)
    return found


async def _checked(given: BatchInput, settings: Settings, info: ModelInfo, bar: Bar) -> BatchRequests:
    from ...policies.offline.prefix_tree import packed
    from ..batches.lines import prepare
    from ..errors import ApiError
    from ..http.auth import ApiCaller

    front, caller = _front(settings, info), ApiCaller()
    found = BatchRequests(refused=[(given.number(line), error.message) for line, error in given.refused.items()])
    bar.begin("reading")
    try:
        for line in given.good():
            try:
                prepared = await prepare(front, caller, given.line(line))
            except ApiError as refused:
                found.refused.append((given.number(line), refused.message))
            else:
                found.prompts.append(packed(prepared.prompt))
                found.limits.append(prepared.limit)
            bar.advance(1)
    finally:
        front.catalog.close()
    found.refused.sort()
    return found


def _front(settings: Settings, info: ModelInfo) -> Front:
    from ...actors.gateway.port import GatewayPort
    from ..http.auth import Keys, ModelAccess, ServiceClasses
    from ..http.body_memory import BodyMemory
    from ..http.catalog import Catalog
    from ..http.context import Front
    from ..http.cors import Cors
    from ..http.hosts import Hosts
    from ..http.limits import TenantLimits
    from ..http.metrics import Metrics
    from ..http.starting import Stages
    from ..text.turn.source import read_turns

    port = cast(GatewayPort, _Served(info))
    return Front(
        port=port,
        settings=settings,
        catalog=Catalog(port, settings.requests.max_characters, read_turns(settings.models.turns)),
        keys=Keys({}, {}),
        metrics=Metrics(dict),
        max_body=settings.requests.largest_body,
        bodies=BodyMemory(settings.requests.largest_body),
        access=ModelAccess(settings.tenants.tenant_models),
        classes=ServiceClasses(settings.tenants.tenant_classes),
        limits=TenantLimits(port),
        cors=Cors(settings.network.cors_origins),
        hosts=Hosts(settings.network),
        stages=Stages(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMachine:
    """The machine of a plan.

    ``positions``: KV positions that a worker holds. ``weights``: seconds of a step that computes nothing. ``measured``: the
    profile's file, or an empty text.
    """

    costs: Costs
    positions: int
    weights: float
    measured: str


def machine_of(settings: Settings, name: str, checkpoint: Checkpoint) -> PlannedMachine:
    """Return a worker on this machine with the settings; raise CommandError, SettingsError."""
    from ...actors.cost_file import check_costs, read_costs
    from ...actors.device_choice import read_machine
    from ...actors.settings.errors import SettingsError
    from ...actors.sizing import serving_dtype, size_rules, widening
    from ...policies.cluster.worker_size import SizeRefused, size_of
    from ...policies.offline.density import Costs

    models = {name: checkpoint.config}
    config, dtype = checkpoint.config, serving_dtype(settings.worker, models)
    check_costs(settings.worker)
    rules = size_rules(settings, models)
    try:
        memory = size_of(read_machine(settings.worker, rules.workers, here=True), rules).memory
    except SizeRefused as refused:
        raise SettingsError(str(refused)) from None
    position = 2 * config.kv_heads * config.head_dim * config.layers * (4 if dtype == "float32" else 2)
    parameters = checkpoint.nbytes * widening(dtype, models)
    if (positions := (memory - parameters) // position) < 1:
        raise CommandError(f"memory is {memory} bytes, of which {name} takes {parameters}; give more (--set memory=...)", 2)
    if (measured := read_costs(settings.worker.profile)) is not None:
        costs, weights = Costs.of_coefficients(measured), measured.base + measured.step + measured.read
    else:
        width = 4 if dtype == "float32" else 2
        weights = parameters / BANDWIDTH
        costs = Costs.of_model(
            parameters=parameters / width,
            hidden=config.hidden,
            layers=config.layers,
            kv_width=config.kv_heads * config.head_dim,
            compute=COMPUTE,
            bandwidth=BANDWIDTH,
            value_bytes=width,
        )
    return PlannedMachine(costs=costs, positions=positions, weights=weights, measured=settings.worker.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTimeline:
    """A batch in one order.

    ``compute``, ``memory``: seconds of a step, as the means over the parts of all steps that a plot shows. ``spread``:
    standard deviation of a step's time, divided by its mean. ``found``: share of prompt tokens found in the cache.
    """

    name: str
    steps: int
    found: float
    seconds: dict[str, float]  # execution model -> seconds
    spread: float
    compute: list[float]
    memory: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The plan. ``whole``: all requests in the order that computes least. ``made``: seconds to build tree and order."""

    requests: BatchRequests
    machine: PlannedMachine
    tree: PrefixTree
    whole: Unit
    units: list[Unit]
    wasted: int
    made: float
    timelines: list[OrderTimeline]


def plan(requests: BatchRequests, machine: PlannedMachine) -> BatchPlan:
    """Order the batch, and simulate it in several orders. Raise ValueError for a request that never fits into memory."""
    import time

    from ...policies.offline.order import Weigher, density_order, waste
    from ...policies.offline.prefix_tree import PrefixTree
    from ...policies.offline.step_time import ideal, sequential
    from ...simulator.offline_job import Engine
    from ...simulator.offline_orders import OfflineComparison, OfflineRules
    from ...simulator.offline_workload import OfflineWorkload

    began = time.perf_counter()
    tree = PrefixTree(requests.prompts)
    weigher = Weigher(tree, machine.costs, requests.limits)
    units, whole = density_order(weigher, memory=machine.positions), weigher.whole()
    made = time.perf_counter() - began
    clocks = {"sequential": sequential(machine.weights), "overlapped": ideal(machine.weights)}
    engine = Engine(costs=machine.costs, memory=machine.positions, weights=machine.weights, clocks=clocks)
    limits = requests.limits  # used as the lengths
    workload = OfflineWorkload(requests.prompts, limits, limits, limits, bytearray(tree.count), ("",))
    compared = OfflineComparison(engine, workload)
    found = {"density": compared.blended(OfflineRules(sampling=1.0))}
    found |= {name: compared.baseline(key) for name, key in OTHERS.items()}
    return BatchPlan(
        requests=requests,
        machine=machine,
        tree=tree,
        whole=whole,
        units=units,
        wasted=waste(tree, units),
        made=made,
        timelines=[timeline_of(name, outcome, tree.tokens) for name, outcome in found.items()],
    )


def timeline_of(name: str, outcome: OfflineOutcome, tokens: int) -> OrderTimeline:
    """Return the course of a simulation. ``tokens``: tokens of all its prompts."""
    from ...simulator.offline_orders import columns
    from .simulate_report import WIDTH

    counts, compute, memory = (outcome.timeline[first::3] for first in range(3))
    loads = [(c + m) / n for n, c, m in zip(counts, compute, memory, strict=True)]
    mean = (sum(compute) + sum(memory)) / sum(counts)
    parts = columns(outcome.timeline, WIDTH)
    squares = sum(n * (load - mean) ** 2 for n, load in zip(counts, loads, strict=True)) / sum(counts)
    return OrderTimeline(
        name=name,
        steps=outcome.steps,
        found=outcome.found / tokens if tokens else 0.0,
        seconds=outcome.seconds,
        spread=squares**0.5 / mean if mean else 0.0,
        compute=[part[0] for part in parts],
        memory=[part[1] for part in parts],
    )


def show(title: str, planned: BatchPlan) -> None:
    """Print the plan on standard output."""
    from .simulate_report import plot

    for line in lines(title, planned):
        print(line)
    rows = [
        (
            timeline.name,
            f"{timeline.found:.1%}",
            f"{timeline.steps:,}",
            f"{timeline.spread:.2f}",
            *(f"{seconds:,.1f} s" for seconds in timeline.seconds.values()),
        )
        for timeline in planned.timelines
    ]
    names = ("order", "found in cache", "steps", "variation", *planned.timelines[0].seconds)
    print_tables(FittedTable(names, rows, numbers=5), width=120)
    print()
    points = sorted(value for timeline in planned.timelines for value in timeline.compute + timeline.memory)
    top = points[int(CLIPPED * len(points))]
    print(f"seconds of a step over all steps; full height is {1000 * top:,.3g} ms or more")
    for timeline in planned.timelines:
        print(f"  {timeline.name:14} computes {plot([min(value, top) for value in timeline.compute], top)}")
        print(f"  {'':14} reads    {plot([min(value, top) for value in timeline.memory], top)}")


def lines(title: str, planned: BatchPlan) -> Iterator[str]:
    """Yield the lines above the table."""
    from statistics import fmean

    requests = planned.requests
    tree = planned.tree
    whole = planned.whole
    machine = planned.machine
    yield f"{title}: {tree.count:,} request{'s' * (tree.count != 1)}"
    if requests.refused:
        yield f"{len(requests.refused):,} line{'s' * (len(requests.refused) != 1)} would be refused"
        yield from (f"  line {number}: {why}" for number, why in requests.refused[:REFUSED])
    yield f"{tree.tokens:,} prompt tokens, {tree.distinct:,} of them distinct: {tree.sharing:.1%} is shared at best"
    yield f"{sum(requests.limits):,} tokens of answers at most, which is what counts here"
    by = f"measured by {machine.measured}" if machine.measured else "a guess; --profile gives what was measured"
    yield f"computing takes {whole.comp:,.1f} s, reading KV {whole.mem:,.1f} s ({by}): density {whole.rho:.3g}"
    yield f"a worker holds {machine.positions:,} tokens of KV"
    rhos = [unit.rho for unit in planned.units]
    share = planned.wasted / tree.tokens if tree.tokens else 0.0
    yield (
        f"{len(rhos):,} units of density {max(rhos):.3g} to {min(rhos):.3g} ({fmean(rhos):.3g} in the mean); "
        f"splitting computes {share:.2%} of the prompt tokens twice"
    )
    yield f"tree and order took {planned.made:.2f} s"
    yield ""
