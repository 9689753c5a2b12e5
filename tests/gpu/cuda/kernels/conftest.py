"""Tests of the kernels, which Triton interprets: collected only in a process started for it (``test_interpreted.py``)."""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
