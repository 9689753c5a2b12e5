"""``python -m blockwright``."""

from blockwright.api.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
