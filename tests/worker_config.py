"""The configuration of a worker for tests, from flat settings."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from blockwright.actors.settings.settings import PARTS, Settings
from blockwright.actors.worker.messages import WorkerConfig

OWN = {field.name for field in fields(WorkerConfig)} - PARTS.keys() - {"check", "overload", "on_demand"}


def worker_config(name: str = "w0", *, on_demand: bool = False, **values: Any) -> WorkerConfig:
    """Return a configuration. ``values``: settings by name, or fields of ``WorkerConfig``; a step holds every sequence."""
    own = {key: values.pop(key) for key in [*values] if key in OWN}
    flat = {"dtype": "float32", "threads": 1, "memory": 1 << 30, "kv_reserve": 0.0, "workers": 2, **values}
    settings = Settings(**{"max_rows": min(256, flat.get("sweep_tokens", 512)), **flat})
    parts = {part: getattr(settings, part) for part in PARTS if part in {field.name for field in fields(WorkerConfig)}}
    faults = settings.faults
    made = WorkerConfig(
        name=name, check=faults.check, resume_window=faults.resume_window, overload=settings.parameter_drops.is_on, **parts
    )
    return replace(made, on_demand=on_demand, **own)
