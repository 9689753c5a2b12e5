"""``blockwright`` and ``python -m blockwright``: the command line.

Ctrl-C ends it in silence, also while it is imported. SIGTERM ends it in order, with one sentence. A server answers both
itself; a member of one that is asked to end has done its work, also while it starts.
"""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
TERMINATED = 143  # after SIGTERM
MEMBERS = {"worker", "gateway", "predictor"}  # commands that join a server


def main() -> int:
    """Run the command line; return its exit code."""
    signal.signal(signal.SIGTERM, _end)
    try:
        from .api.commands.cli import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as ended:
        if ended.code != TERMINATED:
            raise
        print("blockwright: stopped by SIGTERM", file=sys.stderr)
        return 0 if MEMBERS.intersection(sys.argv[1:2]) else TERMINATED


def _end(*_: object) -> None:
    raise SystemExit(TERMINATED)


if __name__ == "__main__":
    raise SystemExit(main())
