"""``python -m blockwright``."""

from blockwright.api.commands.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
