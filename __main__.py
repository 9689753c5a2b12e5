"""``blockwright`` and ``python -m blockwright``: the command line.

Ctrl-C ends it in silence, also while it is imported. SIGTERM ends it in order, with one sentence. A server answers both
itself.
"""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
TERMINATED = 143  # after SIGTERM


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
        return TERMINATED


def _end(*_: object) -> None:
    raise SystemExit(TERMINATED)


if __name__ == "__main__":
    raise SystemExit(main())
