"""The demo's tour: two worker processes serve the demo checkpoint, and a dozen clients stream from it at once.

One model id is served as two replicas, a second one as a pipeline over both workers, from the same folder. Fine-tunes of it
(``family``: folders by member, or none) are tenants. A worker is killed under streams. Meanwhile a second server meets a
burst, and on a third one a fine-tune answers through its sibling's blocks; their output comes last. The demo uses only the
servers' command line and HTTP API.

``trained``: True if the checkpoint can do its tasks, so that its answers are judged. One of random weights shows everything
but right answers.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..named_models import is_named
from ..program.client import Client
from ..program.results import RequestError
from ..saving import saving
from . import adaptive, burst
from .client import ExampleOutcome, ask, client_of, view_of
from .display import DeferredOutput, LiveDisplay, TourCheck, accuracy_table, request_table
from .recovery import show_recovery
from .tasks import HELD_OUT, Example, examination
from .tenants import HOT, show_tenants
from .tiers import show_tiers

PIPELINE = "demo-pipeline"  # the model id that runs over both workers; the other id is the folder's name
SEED = 7  # seed of the prompts; the checkpoint's own report uses another
EXAMINED_PER_TASK = 3  # prompts of each task and split, for the accuracy table
AT_ONCE = 16
READY_SECONDS, STOP_SECONDS = 120.0, 40.0
HEARTBEAT = 0.1  # seconds; short, so that the shown memory is current
PAGE = 4  # tokens; few, since prompts are short and only full pages are shared
GOOD_ENOUGH = 0.85  # share of right answers to held-out prompts of trained length


class DemoError(Exception):
    """An error that ends the demo; its text is for people."""


def command(checkpoint: Path, port: int, family: Mapping[str, Path]) -> list[str]:
    """Return the command that starts the server; it also works in a shell. The member ``HOT`` is added later."""
    tenants = [word for name, folder in family.items() if name != HOT for word in ("--app", f"{name}={folder}")]
    roots = [folder.parent.parent for name, folder in family.items() if name == HOT]  # around the family of tiers, too
    later = [word for root in roots for word in ("--set", f"app_roots={root}")]
    return [
        *(sys.executable, "-m", "blockwright", "serve", str(checkpoint)),
        *("--workers", "2", "--port", str(port), "--set", f"heartbeat={HEARTBEAT}", "--set", f"page_size={PAGE}"),
        *("--app", f"{PIPELINE}={checkpoint}", "--set", f"pipelines.{PIPELINE}=2"),
        *tenants,
        *later,
    ]


def free_port(wanted: int) -> int:
    """Return ``wanted`` if nothing listens there, else a port that the system picks."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def other_port(*taken: int) -> int:
    """Return a free port that is none of these, on which nothing may listen yet."""
    while (port := free_port(0)) in taken:
        pass
    return port


def curl_line(port: int, model: str, example: Example) -> str:
    """Return a request to paste, quoted for a POSIX shell (prompts have no quotes)."""
    body = f'{{"model": "{model}", "prompt": "{example.prompt}", "max_tokens": 64, "temperature": 0}}'
    return f"curl http://127.0.0.1:{port}/v1/completions -H 'Content-Type: application/json' -d '{body}'"


INTERRUPTED = TourCheck("interrupted", False)
Part = Callable[[Client], Coroutine[None, None, list[TourCheck]]]
ServersPart = Callable[..., Coroutine[None, None, list[TourCheck]]]  # arguments: all servers, and a client of the first


def judge(
    shown: Sequence[ExampleOutcome], piped: ExampleOutcome, examined: Sequence[ExampleOutcome], trained: bool
) -> list[TourCheck]:
    """Return the checks: the demo showed what it promises."""
    everything = [*shown, piped, *examined]
    failed = [item for item in everything if item.error]
    used = {item.route[0] for item in shown if len(item.route) == 1}
    checks = [
        TourCheck(f"{len(everything) - len(failed)} of {len(everything)} requests completed", not failed),
        TourCheck(f"replicas on {len(used)} workers answered", len(used) == 2),
        TourCheck(f"the pipeline ran over {len(piped.route)} workers", len(set(piped.route)) == 2),
    ]
    if trained:
        right = [item.right for item in examined if item.example.split == HELD_OUT]
        share = sum(right) / len(right)
        checks.append(TourCheck(f"{share:.0%} right on held-out prompts (at least {GOOD_ENOUGH:.0%})", share >= GOOD_ENOUGH))
    return checks


class DemoServer:
    """The server's process, in a session of its own, so that Ctrl-C reaches only the demo."""

    def __init__(self, words: Sequence[str], port: int) -> None:
        self.port = port
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by stop)
        try:
            self._process = subprocess.Popen(words, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError:
            self._log.close()
            raise
        self._stopping = False  # the process was asked to end

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ended(self) -> DemoError | None:
        """Return the error to report if the process has ended by itself."""
        status = self._process.poll()
        return None if status is None else DemoError(f"the server ended with status {status}:\n{self.said()}")

    def said(self) -> str:
        """Return the last lines that the server printed."""
        self._log.seek(0)
        return "".join(self._log.readlines()[-20:])

    async def ready(self, client: Client) -> None:
        """Return when ``/health/ready`` answers 200 and lists all models as ready."""
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            if gone := self.ended():
                raise gone
            with suppress(RequestError, TimeoutError):
                states = (await client.get("/health/ready")).get("applications", {})
                if states and all(state == "ready" for state in states.values()):
                    return
            await asyncio.sleep(0.05)
        raise DemoError(f"the server was not ready after {READY_SECONDS:.0f} s:\n{self.said()}")

    def end(self) -> None:
        """Send SIGTERM, once: a second one would end the server without order."""
        if not self._stopping and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._stopping = True

    def stop(self) -> int:
        """End the server and return its exit status. One that does not end is killed and counts as failed."""
        self.end()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return -1
        finally:
            self._log.close()


def stopped(code: int, *, interrupted: bool) -> TourCheck:
    """Return the check of a stop. ``code``: the exit status after SIGTERM.

    A server that has just begun has no handler yet and dies of the signal.
    """
    return TourCheck("the server stopped on request", code == 0 or (interrupted and code == -signal.SIGTERM))


async def replicated(client: Client) -> str:
    """Return the model id that is served as replicas, which is the one besides the pipeline's."""
    return next(name for name in await client.models() if name != PIPELINE)


async def examine(client: Client, model: str) -> list[ExampleOutcome]:
    """Send every examination prompt, ``AT_ONCE`` at a time."""
    gate = asyncio.Semaphore(AT_ONCE)
    outcomes = [ExampleOutcome(example, model) for example in examination(SEED + 1, EXAMINED_PER_TASK)]

    async def one(outcome: ExampleOutcome) -> None:
        async with gate:
            await ask(client, outcome, lambda _: None)

    await asyncio.gather(*(one(outcome) for outcome in outcomes))
    return outcomes


async def tour(client: Client, trained: bool) -> list[TourCheck]:
    """Stream twelve requests at once, one of them a chat, then one over the pipeline, then run the examination."""
    model = await replicated(client)
    shown = [ExampleOutcome(example, model, judged=trained) for example in examination(SEED, 1, (HELD_OUT,))]
    print(f"\n{len(shown)} requests at once to {model}, on two replicas (the last is a chat):")
    live = LiveDisplay(shown, sys.stdout)
    await asyncio.gather(
        *(ask(client, item, live.changed, chat=place == len(shown) - 1) for place, item in enumerate(shown))
    )
    piped = ExampleOutcome(examination(SEED + 2, 1, (HELD_OUT,))[1], PIPELINE, judged=trained)
    print(f"\none more to {PIPELINE}, a pipeline across both workers:")
    await ask(client, piped, LiveDisplay([piped], sys.stdout).changed)
    examined = await examine(client, model) if trained else []
    table = f"\n\n{accuracy_table(examined)}" if trained else "\n\n(random weights: the text is noise)"
    print(f"\n{request_table([*shown, piped])}{table}\n")
    return judge(shown, piped, examined, trained)


async def run(server: DemoServer, stay: bool, part: Part) -> list[TourCheck]:
    """Run one part of the demo or, with ``stay``, wait until a signal comes."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with client_of(server.url) as client:
        job = asyncio.create_task(part(client))
        waiter = asyncio.create_task(stopped.wait())
        await asyncio.wait((job, waiter), return_when=asyncio.FIRST_COMPLETED)
        if stopped.is_set() and not job.done():
            job.cancel()
            with suppress(asyncio.CancelledError):
                await job
            return [] if stay else [INTERRUPTED]
        waiter.cancel()
        return await job


async def guided(
    servers: Sequence[DemoServer],
    client: Client,
    trained: bool,
    family: Mapping[str, Path],
    tiers: Path | None,
) -> list[TourCheck]:
    """Run all parts. The burst and the overloaded fine-tune run beside the others, since their servers mostly wait."""
    started, output = time.monotonic(), DeferredOutput(sys.stdout)
    server, *others = servers
    print(f"starting 2 workers, listening on {server.url} ...", flush=True)
    beside = asyncio.create_task(beside_the_tour(others, output))
    try:
        await server.ready(client)
        print(f"ready after {time.monotonic() - started:.1f} s")
        checks, model = await tour(client, trained), await replicated(client)
        checks += await show_tenants(client, model, family) if family else []
        print(f"\n{await saved(client)}", flush=True)
        checks += await show_tiers(client, tiers) if tiers is not None else []
        met = await beside  # so that nothing lengthens the pauses that are shown next
        checks += await show_recovery(client, model)
        output.turn()
        return checks + met
    finally:
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)


async def beside_the_tour(servers: Sequence[DemoServer], output: DeferredOutput) -> list[TourCheck]:
    """Show a burst on a server with little memory and, if there is another one, an overloaded fine-tune on that."""
    checks: list[TourCheck] = []
    for server, part in zip(servers, (burst.show_burst, adaptive.show_adaptive), strict=False):
        async with client_of(server.url) as client:
            await server.ready(client)
            checks += await part(client, output.say)
    return checks


async def saved(client: Client) -> str:
    """Return a sentence on the memory that sharing saves, from the server's figures."""
    view = await view_of(client, "/admin/cluster")
    models = sum(map(is_named, view["applications"].values()))
    return saving(models, view["parameter_bytes"], view["saved_bytes"])


async def serve_on(server: DemoServer, client: Client) -> list[TourCheck]:
    await server.ready(client)
    model = await replicated(client)
    print(f"serving {model} and {PIPELINE} on {server.url}; Ctrl-C stops. Try:\n")
    print(f"  {curl_line(server.port, model, examination(SEED, 1, (HELD_OUT,))[1])}\n", flush=True)
    while True:
        if gone := server.ended():
            raise gone
        await asyncio.sleep(0.5)


def show(
    checkpoint: Path,
    *,
    port: int,
    stay: bool,
    trained: bool,
    family: Mapping[str, Path],
    tiers: Path | None = None,
    siblings: Mapping[str, Path] | None = None,
) -> int:
    """Run the demo and return the exit status. ``tiers``: folder of a family of tiers, which is added meanwhile.

    ``siblings``: folders of near fine-tunes, by name; None: no fine-tune is overloaded.
    ``port``: 0: any; one in use is replaced by a free one. ``stay``: serve until a signal comes.
    """
    port = free_port(port)
    wanted = [(command(checkpoint, port, family), port)]
    try:
        if stay:
            checks = attended(wanted, serve_on, stay=True)
        else:
            with tempfile.TemporaryDirectory(prefix="blockwright-demo-") as folder:
                second = other_port(port)
                wanted.append((burst.command(checkpoint, second, Path(folder) / "burst.json"), second))
                if siblings:
                    root, third = adaptive.prepare(Path(folder), siblings), other_port(port, second)
                    wanted.append((adaptive.command(root, third), third))
                checks = attended(wanted, lambda *servers: guided(servers[:-1], servers[-1], trained, family, tiers))
    except (DemoError, RequestError) as problem:
        print(problem, file=sys.stderr)
        return 1
    for check in checks:
        print(f"  {'ok    ' if check.passed else 'FAILED'} {check.text}")
    return 0 if all(check.passed for check in checks) else 1


def attended(wanted: Sequence[tuple[Sequence[str], int]], part: ServersPart, *, stay: bool = False) -> list[TourCheck]:
    """Run the demo on its servers (command and port of each), which are stopped at the end in any case."""
    servers: list[DemoServer] = []
    try:
        for words, port in wanted:
            servers.append(DemoServer(words, port))
        checks = asyncio.run(run(servers[0], stay, lambda client: part(*servers, client)))
    except BaseException:
        stop_all(servers)
        raise
    return [*checks, *(stopped(code, interrupted=INTERRUPTED in checks) for code in stop_all(servers))]


def stop_all(servers: Sequence[DemoServer]) -> list[int]:
    """Stop all servers at the same time; return their exit statuses."""
    for server in servers:
        server.end()
    return [server.stop() for server in servers]
