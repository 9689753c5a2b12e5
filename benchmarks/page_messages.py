"""The sections of docs/performance.md on actors, streamed tokens, links and nodes, for ``page.py``."""

from __future__ import annotations

from harness import BESIDE, OURS
from stored import NONE, Result, number, table


def of_actors(result: Result) -> str:
    lines = (
        ("call in one process, 100 B, p50 us", "call/inproc/100B", "p50_us"),
        ("call to another process (ipc), 100 B, p50 us", "call/ipc/100B", "p50_us"),
        ("the same over TCP, ours encrypted", "call/tcp/100B", "p50_us"),
        ("calls per second, 8 callers", "calls/8callers/ipc", "per_s"),
        ("calls per second, 256 callers", "calls/256callers/ipc", "per_s"),
        ("call with 64 MiB (ipc), GiB/s", "call/ipc/64MiB", "gib_per_s"),
        ("casts per second, 100 B", "cast/ipc/100B", "per_s"),
        ("items of a stream per second, 100 B", "stream/ipc/100B", "per_s"),
    )
    rows = [(name, *(result.text(case, metric, who) for who in (OURS, "pyzmq", "xoscar"))) for name, case, metric in lines]
    return f"""Measured in turn with blocking pyzmq and xoscar. For comparison, a round trip through two `asyncio.Queue`s in
one process takes {result.text("call/inproc/100B", "p50_us", "asyncio.Queue")} us, and a memory copy of 64 MiB runs at
{result.text("call/ipc/64MiB", "gib_per_s", "memcpy")} GiB/s.

{table(("", "ours", "pyzmq", "xoscar"), rows)}"""


def of_tokens(result: Result) -> str:
    rows = [(case.rpartition("/c")[2], result.spread(case, "out_tok_per_s")) for case in result.cases("out_tok_per_s")]
    return f"""Streamed tokens per second with a model so small that nearly all of the cost is in the messages:

{table(("clients", "tokens per second"), rows)}"""


def of_one_machine(result: Result) -> str:
    whole = (
        ("seconds from start to ready", "ready_s"),
        *((f"tokens per second, {count} at once", f"c{count}_tok_per_s") for count in (1, 8, 32)),
        ("peak memory with two workers, MB", "peak_rss_mb"),
        ("longest pause for a killed worker, ms", "gap_ms"),
    )
    rows = [(name, *(result.spread("whole", metric, who) for who in (OURS, BESIDE))) for name, metric in whole]
    for case in result.cases("us_per_token"):
        _, gateways, streams = case.split("/")
        name = f"us of {gateways[1:]} gateway(s) for a token, {streams[1:]} streams"
        rows.append((name, *(result.spread(case, "us_per_token", who) for who in (OURS, BESIDE))))
    events = [result.text("gateways/g1/c32", "events_per_token", who) for who in (OURS, BESIDE)]
    return f"""In turns with the commit before servers spread over machines: two workers with model S, then the processor
time of gateways with a model so small that they are the busiest. Tokens that wait for each other share an event, so a busy
machine makes a token cheap: with one gateway {events[0]} and {events[1]} events carried a token.

{table(("", "now", "before"), rows)}"""


def of_links(result: Result) -> str:
    sizes = ("64KiB", "1MiB", "64MiB")
    rows = [
        (kind, *(result.text(f"links/{kind}/{size}", "gib_per_s") for size in sizes)) for kind in ("shared-memory", "frames")
    ]
    none, calls = result.value("link/priorities", "share_of_none"), ("buffers/64MiB", "gib_per_s")
    return f"""While 256 MiB of KV move over a link limited to 200 MB/s, the P99 latency of 64 KiB activations is
{result.spread("link/priorities", "p99_chunks")} times the time of a chunk (bar 2.5), {
        NONE if not none else number(1 / none)
    } times lower than without priority classes (bar 10). Throughput of consecutive messages, GiB/s:

{table(("", "64 KiB", "1 MiB", "64 MiB"), rows)}

A call with 64 MiB runs at {result.text(*calls)} GiB/s, pyzmq with copy=True at {result.text(*calls, "pyzmq")}, a memory
copy at {result.text(*calls, "memcpy")}."""


def of_nodes(result: Result) -> str:
    lines = (
        ("start of a cluster of 3 nodes", "start_ms"),
        ("restart of a node", "restart_ms"),
        ("SIGKILL to Down at the head (bar 50)", "crash_ms"),
        ('SIGSTOP to "unreachable"', "unreachable_ms"),
        ('a loop that hangs to "hung"', "hung_ms"),
    )
    rows = [(name, *(result.text(way, metric) for way in ("ipc", "tcp-with-keys"))) for name, metric in lines]
    idle = [(f"{count} nodes", *(result.text("idle", f"{of}_{count}") for of in ("files", "share"))) for count in (12, 36)]
    return f"""Milliseconds; `import blockwright.runtime` takes {result.spread("import", "import_ms")} (bar 150).

{table(("", "ipc", "TCP with keys"), rows)}

Nodes meet when they have something to say. So a node that is idle takes as much among few as among many:

{table(("an idle node of", "open files", "% of a core"), idle)}"""
