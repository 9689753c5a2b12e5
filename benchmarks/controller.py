"""Cost of placement and routes for the head: the controller at rest, and for a death, a return and one more application.

    python benchmarks/controller.py [--quick] [--json PATH] [--beside CHECKOUT]

1,000 simulated workers serve 100 applications that share most components, with a route for each pair of both. Time is
virtual: every worker beats at the default interval; processor time is real. ``core_share`` is a share of one core.
``rest/state`` is the state machine alone. ``rest/node`` is the head's node with the controller on it, from a heartbeat's
bytes to the end of its effects, and its own heartbeats to all. ``encode_ms`` and ``megabytes`` are for the published routes
of one recipient, whole, and ``message_megabytes`` for its largest piece. With ``--beside`` 100
workers of 10 applications alternate between both checkouts: a state that scans everything with each event needs an hour for
one beat of the larger cluster. Every round is a process of its own.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import harness
from harness import OURS, Bar, Options, Report
from kernels import head

SIZES = {"1000x100": (1000, 100), "100x10": (100, 10)}
SECONDS = 10.0  # of virtual time
BARS = [Bar(f"1000x100/rest/{what}", "core_share", at_most=0.05) for what in ("state", "node")]
BARS.append(Bar("1000x100/publication", "message_megabytes", at_most=8.0))


def measured(python: Path, workers: int, applications: int) -> list[tuple[str, dict[str, float]]]:
    """(case, metrics), from a process of this interpreter."""
    command = [str(python), str(Path(__file__).with_name("controller_step.py")), *map(str, (workers, applications, SECONDS))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [(case, metrics) for case, metrics in json.loads(done.stdout)]


@harness.claim("A controller of 1,000 workers and 100 models uses less than 5 % of a core at rest", of="faults")
def main(options: Options) -> None:
    pythons = harness.interpreters(options)
    beside = head(options.beside) if options.beside else ""
    report = Report("controller", {"seconds": SECONDS, "heartbeat": 0.5, "beside": beside}, packages=("msgpack",))
    for turn in range(1 if options.quick else 3):
        for size, (workers, applications) in SIZES.items():
            subjects = list(pythons) if size == "100x10" else [OURS]
            for name in subjects[:: -1 if turn % 2 else 1]:
                for case, metrics in measured(pythons[name], workers, applications):
                    report.add(f"{size}/{case}", name, metrics)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__, beside=True))
