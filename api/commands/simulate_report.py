"""Reports of simulations: JSON, a table with plots in characters for a terminal, a picture, and several side by side.

Several simulations are a row each; targets tell the best combination of values.
"""

from __future__ import annotations

import operator
import re
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...policies.binary_size import parse_size
from ...policies.nearest import suggestion
from ...policies.prediction.instance import Instance
from ...policies.prediction.pipeline_instance import PipelineInstance
from ...policies.requests.urgency import CLASSES, NAMED_CLASSES, service_class
from ...simulator.simulation import ClusterSimulation, SimulatedRequest
from ..drawing.chart import Curve, Plot, over_time
from ..load.figures import percentile, spread
from . import CommandError
from .output import FittedTable, print_tables

BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"  # the second is used if the output cannot show the first
WIDTH = 60  # characters of a plot
SHOWN = ("mean", "p50", "p90", "p99", "max")
RECORDED = ("ttft", "latency")
METRICS = {
    "ttft": ("TTFT", "s"),
    "latency": ("latency", "s"),
    "queueing": ("until it starts", "s"),
    "tpot": ("per token after", "ms"),
    "memory": ("KV memory used", "%"),
    "preemptions": ("preemptions", ""),
}
PLAIN = ("requests", "failed", "requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
LOADS = ("workload", "models")  # tables of what a cluster has to bear
DELAYS = ("latency", "staleness", "cold_start", "forecast_error")  # fields of other tables, likewise
_TARGET = re.compile(r"\s*(\w+)(?:\s+(\w+))?\s*(<=|>=|<|>)\s*([0-9.]+(?:e-?[0-9]+)?)\s*(ms|s|%)?\s*", re.IGNORECASE)
_UNITS = {"ms": 1e-3, "s": 1.0, "%": 1e-2, None: 1.0}


def document(
    simulation: ClusterSimulation, settings: Mapping[str, Any], recorded: tuple[list[float], list[float]] | None = None
) -> dict[str, Any]:
    """Return the report as plain data (``docs/schemas/simulate.json``). Times are seconds.

    ``recorded``: recorded times until first and last tokens, as the workers saw them, without the latency to gateways.
    """
    good = [one for one in simulation.requests if not one.failed]
    failed = [one for one in simulation.requests if one.failed]
    seconds = max((one.ended for one in simulation.requests), default=0.0)
    answered = sum(one.demand.output for one in good)
    later = [(one.ended - one.first) / (one.demand.output - 1) for one in good if one.demand.output > 1]
    memory = [share for sample in simulation.samples for share in sample.memory]
    served, instances = Counter(one.instance for one in good), dict[str, list[Instance | PipelineInstance]]()
    for instance in simulation.served:
        instances.setdefault(instance.name, []).append(instance)
    drafts, control = simulation.drafts(), simulation.control()
    variants = simulation.variants()
    latencies, first = sorted(one.ended - one.demand.at for one in good), sorted(one.first - one.demand.at for one in good)
    return {
        **settings,
        "digest": simulation.digest(),
        "seconds": round(seconds, 6),
        "requests": len(good),
        "failed": len(failed),
        "errors": sorted({one.failed for one in failed})[:8],
        "requests_per_s": round(len(good) / seconds, 6) if seconds else 0.0,
        "prompt_tokens_per_s": round(sum(one.demand.prompt for one in good) / seconds, 3) if seconds else 0.0,
        "output_tokens_per_s": round(answered / seconds, 3) if seconds else 0.0,
        "sweeps": sum(instance.sweeps for instance in simulation.served),
        "figures": {
            "ttft": spread(first),
            "latency": spread(latencies),
            "queueing": spread(one.started - one.demand.at for one in good),
            "tpot": spread(later),
            "memory": spread(memory),
            "preemptions": spread(float(one.preemptions) for one in good),
        },
        "recorded": recorded and {name: spread(times) for name, times in zip(RECORDED, recorded, strict=True)},
        "instances": [
            {
                "name": name,
                "requests": served[name],
                "sweeps": sum(instance.sweeps for instance in same),
                "busy": round(sum(instance.busy for instance in same) / seconds, 6) if seconds else 0.0,
                "preemptions": sum(instance.preemptions for instance in same),
            }
            for name, same in instances.items()
        ],
        "provisioning": simulation.provisioner.figures(seconds, latencies),
        "overload": simulation.overload(),
        **({} if control is None else {"control": control}),
        **({} if simulation.copies is None else {"redundant_pages": simulation.copies.marked}),
        **({} if drafts is None else {"drafts": drafts}),
        **({} if variants is None else {"variants": variants}),
        **_classes(simulation, good),
        "course": [*_course(simulation)],
        "latency_percentiles": [round(percentile(latencies, share), 6) for share in range(101)] if latencies else [],
        "ttft_percentiles": [round(percentile(first, share), 6) for share in range(101)] if first else [],
    }


def _classes(simulation: ClusterSimulation, good: Sequence[SimulatedRequest]) -> dict[str, Any]:
    """Return the times of each service class, if the workload has several."""
    if not (simulation.scenario.workload.urgent or simulation.scenario.workload.batch):
        return {}
    found = dict[str, list[SimulatedRequest]]()
    for one in good:
        found.setdefault(CLASSES[service_class(one.demand.priority)], []).append(one)
    return {
        "classes": {
            name: {
                "requests": len(found[name]),
                "ttft": spread(one.first - one.demand.at for one in found[name]),
                "latency": spread(one.ended - one.demand.at for one in found[name]),
            }
            for name in NAMED_CLASSES
            if name in found
        }
    }


def _course(simulation: ClusterSimulation) -> Iterator[dict[str, Any]]:
    """Yield the cluster at each sample, with the mean time to first token of arrivals since the previous sample."""
    times = [one.at for one in simulation.samples]
    first: list[list[float]] = [[] for _ in times]
    for one in simulation.requests:
        if not one.failed and (place := bisect_left(times, one.demand.at)) < len(times):
            first[place].append(one.first - one.demand.at)
    for sample, waited in zip(simulation.samples, first, strict=True):
        yield {
            "at": round(sample.at, 6),
            "running": sample.running,
            "waiting": sample.waiting,
            "memory": round(sum(sample.memory) / len(sample.memory), 6),
            "ttft": round(sum(waited) / len(waited), 6) if waited else None,
        }


def picture(found: Mapping[str, Any]) -> str:
    """Return an SVG of the course of the run: requests, KV memory, and the time to first token by arrival."""
    course = found["course"]
    waiting, running, memory, ttft = ([one[name] for one in course] for name in ("waiting", "running", "memory", "ttft"))
    plots = [
        Plot("requests", [Curve("running", running, "blue"), Curve("waiting", waiting, "orange")], "{:g}".format, 1),
        Plot("KV memory used", [Curve("memory", memory, "violet")], "{:.0%}".format, 1),
        Plot("time to first token, mean by arrival", [Curve("ttft", ttft, "green")], "{:g} s".format, 0.001),
    ]
    outcome = f"{found['requests']:,} requests answered, {found['failed']:,} not"
    description = (
        f"{outcome}. At most {max(running):,} ran and {max(waiting):,} waited at a time; at most {max(memory):.0%} of the "
        f"KV memory was used."
    )
    return over_time("A simulated run while requests arrive", description, [one["at"] for one in course], plots, outcome)


def show(found: Mapping[str, Any]) -> None:
    """Print the report."""
    rows = [
        (f"{name}{f' ({unit})' if unit else ''}", *(_number(found["figures"][metric], share, unit) for share in SHOWN))
        for metric, (name, unit) in METRICS.items()
    ]
    for metric, values in (found["recorded"] or {}).items():
        name, unit = METRICS[metric]
        rows.append((f"{name}, as it was ({unit})", *(_number(values, share, unit) for share in SHOWN)))
    columns = ("", *(share.upper() if share[0] == "p" else share for share in SHOWN))
    print_tables(FittedTable(columns, rows, numbers=len(SHOWN)), width=120)
    for line in lines(found):
        print(line)


def _number(values: Mapping[str, float] | None, share: str, unit: str) -> str:
    if values is None:
        return "-"
    return f"{values[share] * {'ms': 1e3, '%': 1e2}.get(unit, 1.0):,.2f}"


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines below the table."""
    course = found["course"]
    yield ""
    end = f"{course[-1]['at']:,.0f} s"
    yield f"over time, 0 to {end}, while requests arrive"
    for name in ("running", "waiting", "memory"):
        values = [one[name] for one in course]
        highest = f"{max(values):.0%}" if name == "memory" else f"{max(values):,}"
        yield f"  {name:8} {plot(values)} at most {highest}"
    if found["latency_percentiles"]:
        yield "share of requests that are done, by time"
        for name in ("ttft", "latency"):
            times = found[f"{name}_percentiles"]
            yield f"  {name:8} {plot(cumulative(times), 1.0)} 0 to {times[99]:,.2f} s"
    yield ""
    yield f"{found['requests']:,} requests answered, {found['failed']:,} not, in {found['seconds']:,.1f} s"
    rates = [
        f"{found[f'{name}_per_s']:,.1f} {name.replace('_', ' ')}" for name in ("requests", "prompt_tokens", "output_tokens")
    ]
    if (scaled := found["provisioning"])["mode"] != "off":
        mean, highest, over = (scaled[name] for name in ("mean", "most", "over_limit"))
        yield f"{scaled['mode']} provisioning: {mean:,.2f} instances on average, {highest} at most; {over:,} over the limit"
    if (overload := found["overload"]) is not None:
        changes = Counter(change["what"] for change in overload["changes"])
        moved = f"{overload['moved_bytes'] / 1e9:,.1f} GB of KV moved, {overload['stale']:,} sequences paused"
        times = ", ".join(f"{count:,} {what}" for what, count in sorted(changes.items())) or "nothing happened"
        yield f"overload: {times}; {overload['dropped_s']:,.1f} s with dropped parameters"
        yield f"  {moved} for {overload['stall_mean']:,.2f} s on average, {overload['stall_max']:,.2f} s at most"
    if (control := found.get("control")) is not None:
        loads = f"{control['loads']:,} loads of {control['loaded_bytes'] / 1e9:,.1f} GB, {control['refused']:,} without room"
        again = f"deaths: {control['deaths']:,}; requests that went on elsewhere: {control['restarts']:,}"
        yield f"controller: {loads}; {control['unloads']:,} unloads; {again}"
    if (drafts := found.get("drafts")) is not None:
        shown = f"{drafts['accepted']:,} of {drafts['drafted']:,} stood"
        yield f"drafts: {shown}; {drafts['tokens_per_round']:,.2f} tokens a round in {drafts['rounds']:,} rounds"
    if (variants := found.get("variants")) is not None:
        yield f"variants: {variants['requests']:,} requests on another model's chain; {variants['switches']:,} switches"
    for name, one in found.get("classes", {}).items():
        shown = f"TTFT {one['ttft']['p50']:,.2f} s at P50, {one['ttft']['p99']:,.2f} s at P99"
        yield f"class {name}: {one['requests']:,} requests; {shown}; latency {one['latency']['p99']:,.2f} s at P99"
    for name, says in found["costs"].items() if found["from"] else ():
        yield f"what a sweep of {name} takes: {says}"
    yield f"per second: {', '.join(rates)}; {found['sweeps']:,} sweeps; digest {found['digest']}"
    yield from (f"not answered: {error}" for error in found["errors"])


def plot(values: Sequence[float], top: float | None = None) -> str:
    """Return one line of characters; the height of each is the mean of its values."""
    top = max(values) if top is None else top
    cells = [
        values[len(values) * n // WIDTH : max(len(values) * (n + 1) // WIDTH, len(values) * n // WIDTH + 1)]
        for n in range(WIDTH)
    ]
    bars = BARS if _shows(BARS) else PLAIN_BARS
    return "".join(bars[round((len(bars) - 1) * sum(cell) / len(cell) / top)] if top else bars[0] for cell in cells)


def _shows(text: str) -> bool:
    """Return True if the output can encode these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def cumulative(percentiles: Sequence[float]) -> list[float]:
    """Return the share of values below each of ``WIDTH`` times, up to the 99th percentile."""
    times = [percentiles[99] * (n + 1) / WIDTH for n in range(WIDTH)]
    return [sum(value <= time for value in percentiles) / len(percentiles) for time in times]


@dataclass(frozen=True, slots=True)
class Target:
    """A target. ``share``: the figure of a metric that has several; empty for a metric of one number."""

    text: str
    metric: str
    share: str
    sign: str
    value: float

    def met(self, found: Mapping[str, Any]) -> bool:
        """Return True if a simulation meets the target. One without any answer meets no target on times."""
        figures = found["figures"].get(self.metric) if self.share else None
        value = (figures or {}).get(self.share) if self.share else found[self.metric]
        if value is None:
            return False
        compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[self.sign]
        return bool(compare(value, self.value))


def parse_target(text: str) -> Target:
    """Return the target that a text like ``ttft p99 < 1`` names; raise CommandError."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise CommandError(
            f"--target {text!r} is not a target; write it like 'ttft p99 < 1' or 'output_tokens_per_s > 500'", 2
        )
    metric, share, sign, number, unit = match.groups()
    metric, share = metric.lower(), (share or "").lower()
    if metric not in METRICS and metric not in PLAIN:
        raise CommandError(f"--target {text!r}: there is no metric {metric!r}; {_listed(metric)}", 2)
    if metric in PLAIN and share:
        raise CommandError(f"--target {text!r}: {metric} is one number; leave {share!r} out", 2)
    if metric in METRICS and share not in SHOWN:
        example = f"{metric} p99 {sign} {number}{unit or ''}"
        raise CommandError(f"--target {text!r}: {metric} has {', '.join(SHOWN)}; name one, like {example!r}", 2)
    try:
        value = float(number) * _UNITS[unit and unit.lower()]
    except ValueError:
        raise CommandError(f"--target {text!r}: {number!r} is no number; write it like 'ttft p99 < 1'", 2) from None
    return Target(text.strip(), metric, share, sign, value)


def _listed(metric: str) -> str:
    known = [*METRICS, *PLAIN]
    near = suggestion(metric, known)
    return near if near.startswith("there are") else f"{near} (there are: {', '.join(known)})"


def varied(combined: Sequence[Sequence[str]]) -> list[int]:
    """Return the places of the changes that have several values."""
    return [n for n in range(len(combined[0])) if len({one[n] for one in combined}) > 1]


def rows(
    combined: Sequence[Sequence[str]], found: Sequence[Mapping[str, Any]], targets: Sequence[Target]
) -> Iterator[list[str]]:
    """Yield the table, its head first: the varied fields, the main figures, the targets' figures, and if all are met."""
    places = varied(combined)
    shown = [("ttft", "p99"), ("latency", "p99"), ("memory", "p99")]
    shown += [(one.metric, one.share) for one in targets if one.share and (one.metric, one.share) not in shown]
    head = [combined[0][n].partition("=")[0] for n in places]
    units = [METRICS[metric][1] for metric, _ in shown]
    head += [f"{METRICS[m][0]} {s} ({unit})".removesuffix(" ()") for (m, s), unit in zip(shown, units, strict=True)]
    yield [*head, "output tokens/s", "failed", *(["met"] if targets else [])]
    for changes, one in zip(combined, found, strict=True):
        cells = [changes[n].partition("=")[2] for n in places]
        for (metric, share), unit in zip(shown, units, strict=True):
            values = one["figures"][metric]
            factor = {"ms": 1e3, "%": 1e2}.get(unit, 1.0)
            cells.append("-" if values is None else f"{values[share] * factor:,.2f}")
        cells += [f"{one['output_tokens_per_s']:,.1f}", f"{one['failed']:,}"]
        yield [*cells, *(["yes" if all(t.met(one) for t in targets) else "no"] if targets else [])]


def verdict(combined: Sequence[Sequence[str]], found: Sequence[Mapping[str, Any]], targets: Sequence[Target]) -> str:
    """Return a sentence with the best combination that meets all targets, or with the targets that none meets.

    The best one has the largest loads, and of those the smallest resources. The sentence is empty without targets.
    """
    if not targets:
        return ""
    places = varied(combined)
    loads = [_is_load(combined[0][n]) for n in places]
    best = "best" if any(loads) and not all(loads) else "largest" if any(loads) else "smallest"
    wanted = " and ".join(one.text for one in targets)
    for changes, one in sorted(zip(combined, found, strict=True), key=lambda pair: _order(pair[0], places)):
        if all(target.met(one) for target in targets):
            named = " ".join(changes[n] for n in places)
            how = "; the largest load, then the smallest of the rest" if best == "best" else ""
            return f"{best} that meets {wanted}: {named}{how}" if named else f"meets {wanted}"
    never = [target.text for target in targets if not any(target.met(one) for one in found)]
    return f"nothing meets {wanted}" + (f"; no row meets {', '.join(never)}" if never and len(targets) > 1 else "")


def _is_load(change: str) -> bool:
    """Return True for a field whose largest value is wanted: what the cluster bears, not what it has."""
    place, _, name = change.partition("=")[0].rpartition(".")
    return (place.partition(".")[0] in LOADS and not place.endswith(".drafts")) or name in DELAYS


def _order(changes: Sequence[str], places: Sequence[int]) -> list[tuple[float, str]]:
    """Return the sort key of a combination: large loads first, then small resources; values without a size come last."""
    made = []
    for n in sorted(places, key=lambda n: not _is_load(changes[n])):
        text = changes[n].partition("=")[2]
        try:
            size: float | None = float(text)
        except ValueError:
            size = parse_size(text)
        made.append((float("inf"), text) if size is None else (-size if _is_load(changes[n]) else size, ""))
    return made
