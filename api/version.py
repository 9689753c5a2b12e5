"""This package's version, and the ``system_fingerprint`` of its answers: equal fingerprints, equal seeded answers."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("blockwright")
FINGERPRINT = f"blockwright-{VERSION}"
