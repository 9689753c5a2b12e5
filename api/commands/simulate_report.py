"""Reports of a simulation: JSON, a table with plots in characters for a terminal, and a picture."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...policies.prediction.instance import Instance
from ...policies.prediction.pipeline_instance import PipelineInstance
from ...simulator.simulation import ClusterSimulation
from ..drawing.chart import Curve, Plot, over_time
from ..load.figures import percentile, spread
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
        "course": [*_course(simulation)],
        "latency_percentiles": [round(percentile(latencies, share), 6) for share in range(101)] if latencies else [],
        "ttft_percentiles": [round(percentile(first, share), 6) for share in range(101)] if first else [],
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
    told = f"{found['requests']:,} requests answered, {found['failed']:,} not"
    description = (
        f"{told}. At most {max(running):,} ran and {max(waiting):,} waited at a time; at most {max(memory):.0%} of the KV "
        f"memory was used."
    )
    return over_time("A simulated run while requests arrive", description, [one["at"] for one in course], plots, told)


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
        most = f"{max(values):.0%}" if name == "memory" else f"{max(values):,}"
        yield f"  {name:8} {plot(values)} at most {most}"
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
        mean, most, over = (scaled[name] for name in ("mean", "most", "over_limit"))
        yield f"{scaled['mode']} provisioning: {mean:,.2f} instances on average, {most} at most; {over:,} over the limit"
    if (overload := found["overload"]) is not None:
        changes = Counter(change["what"] for change in overload["changes"])
        moved = f"{overload['moved_bytes'] / 1e9:,.1f} GB of KV moved, {overload['stale']:,} sequences paused"
        times = ", ".join(f"{count:,} {what}" for what, count in sorted(changes.items())) or "nothing happened"
        yield f"overload: {times}; {overload['dropped_s']:,.1f} s with dropped parameters"
        yield f"  {moved} for {overload['stall_mean']:,.2f} s on average, {overload['stall_max']:,.2f} s at most"
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
