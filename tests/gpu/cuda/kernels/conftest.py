"""Tests of the kernels, which Triton interprets: collected only in a process started for it (``test_interpreted.py``)."""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    import torch

    from blockwright.tests.gpu.cuda.interpreter import install

    install()
    torch.set_num_threads(1)
else:
    collect_ignore_glob = ["test_*.py"]
