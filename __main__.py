"""``blockwright`` and ``python -m blockwright``: the command line. Ctrl-C ends it in silence, also while it is imported."""

from __future__ import annotations

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it


def main() -> int:
    """Run the command line; return its exit code."""
    try:
        from .api.commands.cli import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main())
