"""The sections of docs/performance.md on deaths of processes (``failover.py``, ``head_death.py``), for ``page.py``."""

from __future__ import annotations

from head_death import COLD, QUIET, WORKER
from stored import Result, table


def of_failover(result: Result) -> str:
    return f"""S bfloat16, 32 streams, `kill -9` of a worker. The longest pause of any stream until its next token, in
milliseconds: {result.spread("kill/replicas", "gap_ms")} with two replicas, {result.spread("kill/pipeline", "gap_ms")} with a
pipeline of two stages, of which one has to be restarted and loaded first."""


def of_head_death(result: Result) -> str:
    rows = [
        (
            f"SIG{how.upper()}",
            *(result.spread(f"head/{how}", "gap_ms", *subject) for subject in ((), (WORKER,), (QUIET,))),
            *(result.spread(f"head/{how}", "admin_ms", *subject) for subject in ((), (COLD,))),
        )
        for how in ("kill", "stop")
    ]
    head = ("", "pause, ms", "at a worker's death", "with no death", "until /admin answers, ms", "from a cold start")
    return f"""S bfloat16, two workers and two gateways that are processes, 32 streams and 8 requests that are not streamed,
of which all complete. The head gets `kill -9`, or SIGSTOP, which is noticed after `silence` (2 s). Beside the longest
pause of any stream from then on are the longest one of streams whose worker is killed, and of streams that nothing
disturbs. The bars: at most the pause at a worker's death, and after `kill -9` half the time of a cold start.

{table(head, rows)}"""
