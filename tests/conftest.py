"""Fixtures that several folders of tests use. Imports nothing heavy until a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is; and the same sources get the same verdict everywhere.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

pytest_plugins = ["blockwright.runtime.testing.pytest_plugin"]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``checkpoint(architecture="llama", seed=0, **config)``: the folder of a tiny checkpoint, made once per session."""
    from blockwright.tests.checkpoints import make_checkpoint

    made: dict[str, Path] = {}

    def get(architecture: str = "llama", seed: int = 0, **config: Any) -> Path:
        key = repr((architecture, seed, sorted(config.items())))
        if key not in made:
            made[key] = make_checkpoint(tmp_path_factory.mktemp(architecture), architecture, seed, **config)
        return made[key]

    return get
