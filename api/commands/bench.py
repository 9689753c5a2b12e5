"""The command ``bench``."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...policies.nearest import suggestion
from . import CommandError, command_errors
from .connection import add_url, read_key, refusals
from .output import FiguresFile, FittedTable, console_of, print_json

if TYPE_CHECKING:
    from ...simulator.traces import TraceRequest
    from ..load.figures import Outcome
    from ..load.workload import Request, Vocabulary
    from ..program.client import Client

_COUNTS = (("succeeded", "requests"), ("failed", "failed"))
_AMOUNTS = (
    ("duration, s", "seconds"),
    ("requests/s", "requests_per_s"),
    ("prompt tokens/s", "prompt_tokens_per_s"),
    ("output tokens/s", "output_tokens_per_s"),
)
_SHARES = ("mean", "p50", "p99")
_WIDEST = 11  # characters of a level's column, including the gap


def bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "blockwright bench serve [OPTION ...]"  # puts the required word first
    parser.add_argument("what", metavar="serve", choices=["serve"], help="measure a running server")
    add_url(parser)
    parser.add_argument("--model", metavar="ID", help="model id (the server's default)")
    parser.add_argument("--endpoint", choices=["completions", "chat"], default="completions", help="(completions)")
    parser.add_argument("--num-prompts", type=count, default=100, metavar="N", help="number of requests per level (100)")
    text = "most requests at a time; several levels separated by commas (no limit)"
    parser.add_argument("--max-concurrency", type=levels_of, default=[None], metavar="N,N", help=text)
    parser.add_argument("--request-rate", type=request_rate, metavar="X", help="requests per second (inf: all at once)")
    parser.add_argument(
        "--arrival", choices=["poisson", "constant"], default="poisson", help="how requests arrive (poisson)"
    )
    parser.add_argument("--input-len", type=count, default=128, metavar="N", help="tokens in a random prompt (128)")
    parser.add_argument("--output-len", type=count, metavar="N", help="tokens in an answer (128; with --prompts: no limit)")
    parser.add_argument(
        "--range-ratio", type=ratio, default=0.0, metavar="X", help="lengths vary between 1-X and 1+X times these (0)"
    )
    parser.add_argument(
        "--prefix-len", type=int, default=0, metavar="N", help="length in tokens of a prefix that all prompts share (0)"
    )
    parser.add_argument("--prompts", metavar="FILE", help="prompts from a file: one per line, or JSON lines with 'prompt'")
    parser.add_argument(
        "--trace", metavar="FILE", help="lengths, and arrival times if there are any, from a published trace"
    )
    parser.add_argument(
        "--trace-lengths", metavar="FILE", help="quantiles of lengths, for a trace that has only rates of clients"
    )
    parser.add_argument(
        "--trace-model", default="", metavar="NAME", help="the model whose clients to take from such a trace (the first)"
    )
    parser.add_argument("--trace-start", type=float, default=0.0, metavar="SECONDS", help="where to begin in the trace (0)")
    parser.add_argument("--trace-speed", type=rate, default=1.0, metavar="X", help="speed-up of the trace (1)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="(0)")
    parser.add_argument("--respect-eos", action="store_true", help="end an answer where the model does, not at --output-len")
    parser.add_argument("--warmup", type=int, default=1, metavar="N", help="requests before the measurement (1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed for lengths, times and prompts (0)")
    parser.add_argument("--json", metavar="FILE", help="store the figures; '-': print them instead of the table")


def bench(arguments: argparse.Namespace) -> int:
    """Measure a server over HTTP: time to first token, time between tokens, time per
    token, end-to-end latency, tokens per second.

    The loads are the same as in other tools: levels of concurrency, a request rate
    (Poisson or constant), random lengths, prompts from a file, published traces.

    For example, three levels of load with 100 requests each:
    blockwright bench serve --max-concurrency 1,4,16 --input-len 64 --output-len 32
    """
    stored = FiguresFile("--json", arguments.json) if arguments.json not in (None, "-") else None
    with refusals():
        found = asyncio.run(_measure(arguments))
    if arguments.json == "-":
        print_json(found)
    else:
        _show(found)
    if stored is not None:
        stored.store(found)
    return 0 if all(level["failed"] == 0 for level in found["levels"]) else 1


async def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from ..load.figures import document, level
    from ..load.sender import RequestTemplate, send, vocabulary
    from ..program.client import Client

    async with Client(arguments.url, read_key(arguments.api_key_file)) as client:
        model, context = await _model(client, arguments.model)
        exact = not arguments.respect_eos and (arguments.prompts is None or arguments.output_len is not None)
        asking = RequestTemplate(model, arguments.endpoint == "chat", exact, arguments.temperature)
        words = await vocabulary(client, model)
        levels, clipped = [], 0
        for number, concurrency in enumerate(arguments.max_concurrency):
            warm = _load(arguments, words, context, -1 - number).requests[: arguments.warmup]
            await send(client, asking, [dataclasses.replace(one, at=0.0) for one in warm], None)
            load = _load(arguments, words, context, number)
            clipped = load.clipped
            outcomes = await send(client, asking, load.requests, concurrency, _counter(len(load.requests)))
            levels.append(level(outcomes, concurrency, load.arrival, arguments.request_rate))
        server = await _server(client)
    settings = {name: value for name, value in vars(arguments).items() if name not in ("api_key_file", "json", "url")}
    settings |= {"model": model, "clipped": clipped, "ignore_eos": exact}
    return document({"url": arguments.url, **server}, settings, levels)


def _counter(total: int) -> Callable[[Outcome], None]:
    """Return a callback that shows the number of ended requests on standard error, if that is a terminal."""
    ended = 0

    def one_more(outcome: Outcome) -> None:
        nonlocal ended
        ended += 1
        if sys.stderr.isatty():
            print(f"\r{ended}/{total} requests", end="\r" if ended < total else "\n", file=sys.stderr, flush=True)

    return one_more


async def _model(client: Client, wanted: str | None) -> tuple[str, int]:
    """Return a model's id, and its context in tokens (0: unknown)."""
    listed = (await client.get("/v1/models", holds="data"))["data"]
    if not listed:
        raise CommandError(f"{client.url} serves no model yet; wait until it is ready")
    model = wanted or next((one["id"] for one in listed if one.get("default")), listed[0]["id"])
    one: dict[str, Any] = next((one for one in listed if one["id"] == model), {})
    if not one:
        await _check_alias(client, model, [str(one["id"]) for one in listed])
    return model, int(one.get("max_model_len") or 0)


async def _check_alias(client: Client, model: str, listed: list[str]) -> None:
    """Raise CommandError for an unknown model, before any load is sent. Some servers answer to more names than they list."""
    from ..program.results import RequestError

    try:
        await client.get(f"/v1/models/{quote(model)}")
    except RequestError as error:
        if error.status not in (404, 405):
            raise
        message = f"{client.url} serves no model {model!r}; {suggestion(model, listed, repr)}"
        raise CommandError(message, 2) from None


async def _server(client: Client) -> dict[str, Any]:
    """Return the server's description of itself."""
    from ..program.results import RequestError

    try:
        said = await client.get("/version")
    except RequestError:  # not every server has this endpoint
        said = {}
    return {"version": said.get("version"), "numerics": said.get("numerics")}


@dataclasses.dataclass(frozen=True, slots=True)
class BenchLoad:
    """The requests of one run. ``clipped``: number of requests that were shortened to the model's context."""

    requests: list[Request]
    arrival: str
    clipped: int = 0


def _load(arguments: argparse.Namespace, words: Vocabulary, context: int, number: int) -> BenchLoad:
    """Return the requests of run ``number``; each run has its own prompts."""
    from ..load.workload import Request, arrivals, clip, requests

    source = random.Random(f"{arguments.seed} {number}")
    times = arrivals(arguments.num_prompts, arguments.request_rate, arguments.arrival, source)
    arrival = "at once" if arguments.request_rate is None else arguments.arrival
    if arguments.prompts:
        texts = _texts(Path(arguments.prompts))
        return BenchLoad([Request(at, texts[i % len(texts)], arguments.output_len) for i, at in enumerate(times)], arrival)
    shapes = _shapes(arguments, source)
    if shapes[0].at is not None and arguments.request_rate is None:
        times, arrival = [one.at or 0.0 for one in shapes], "trace"
    shapes, clipped = clip(shapes, context)
    text = arguments.endpoint == "chat"
    made = requests(shapes, times[: len(shapes)], words, text=text, prefix=arguments.prefix_len, source=source)
    return BenchLoad(list(made), arrival, clipped)


def _shapes(arguments: argparse.Namespace, source: random.Random) -> list[TraceRequest]:
    from ...simulator.traces import Clients, TraceError, cut, read_trace
    from ..load.workload import random_lengths

    wanted = arguments.num_prompts
    if not arguments.trace:
        return random_lengths(wanted, arguments.input_len, arguments.output_len or 128, arguments.range_ratio, source)
    lengths = Path(arguments.trace_lengths) if arguments.trace_lengths else None
    clients = Clients(lengths, arguments.trace_model, arguments.trace_start, wanted, arguments.seed)
    with command_errors(TraceError):
        shapes = read_trace(Path(arguments.trace), clients)
    found = cut(shapes, arguments.trace_start, wanted, arguments.trace_speed)
    if not found:
        raise CommandError(f"--trace-start {arguments.trace_start:g} is after the last request of the trace; give less", 2)
    return found


def _texts(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        texts = [str(json.loads(line)["prompt"]) if line.startswith("{") else line for line in lines]
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}); check --prompts", 2) from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} is no text; give lines of prompts", 2) from None
    except (ValueError, KeyError) as error:
        raise CommandError(f"{path} has a line that is not a JSON object with 'prompt' ({error})", 2) from None
    if not texts:
        raise CommandError(f"{path} holds no prompt; write one on each line", 2)
    return texts


def _show(found: dict[str, Any]) -> None:
    machine = found["machine"]
    server = found["server"]
    settings = found["settings"]
    identity = f"{server['version'] or 'unknown version'}, {', '.join(server['numerics'] or ['unknown numerics'])}"
    print(f"{settings['model']} at {server['url']} ({identity})")
    print(f"from {machine['cpu']}, {machine['cores']} cores, blockwright {found['versions']['blockwright']}; times in ms")
    if settings["clipped"]:
        print(f"{settings['clipped']} requests were shortened to the model's context")
    console = console_of(80)
    for one in figures_tables(found["levels"], console.width):
        console.print(one)
    for one in found["levels"]:
        for message, count in one["errors"].items():
            print(f"{count} failed: {message}", file=sys.stderr)


def figures_tables(levels: Sequence[Mapping[str, Any]], width: int) -> Iterator[FittedTable]:
    """Yield tables with the levels side by side, as many as fit into ``width`` characters; the others follow below."""
    names = [name for name, _ in _figures(levels[0])]
    fit = max(1, (width - max(map(len, names))) // _WIDEST)
    for first in range(0, len(levels), fit):
        shown = [dict(_figures(level)) for level in levels[first : first + fit]]
        rows = [(name, *(level[name] for level in shown)) for name in names]
        yield FittedTable(rows[0], rows[1:], numbers=len(shown))


def _figures(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of a level, with times in milliseconds."""
    from ..load.figures import METRICS

    yield "concurrency", "-" if one["concurrency"] is None else str(one["concurrency"])
    yield "arrival", one["arrival"]
    yield "requests/s asked", "-" if one["request_rate"] is None else f"{one['request_rate']:g}"
    yield from ((text, str(one[name])) for text, name in _COUNTS)
    yield from ((text, f"{one[name]:,.1f}") for text, name in _AMOUNTS)
    for name in METRICS:
        for part in _SHARES:
            yield f"{name.upper()} {part}, ms", "-" if one[name] is None else f"{one[name][part] * 1000:,.1f}"


def count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; give at least 1")
    return value


def levels_of(text: str) -> list[int]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"is {text!r}; give numbers separated by commas, like 1,4,16")
    return [count(part) for part in text.split(",")]


def request_rate(text: str) -> float | None:
    """Return a rate, or None for "inf", which other tools use for all at once."""
    return None if float(text) == float("inf") else rate(text)


def rate(text: str) -> float:
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"is {text}; give a number above 0")
    return value


def ratio(text: str) -> float:
    if not 0 <= (value := float(text)) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; give a number from 0 to below 1")
    return value
