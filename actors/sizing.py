"""What each worker is started with, from the settings, the checkpoints' configurations and the machine.

Pure: the machine's free memory and cores come in as numbers. Refuses with ``SettingsError`` what cannot be combined.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockwright.actors.config import Settings, SettingsError
from blockwright.actors.worker.messages import WorkerConfig
from blockwright.gpu.model.config import ModelConfig

LONGEST = 8192  # tokens of a sequence unless ``max_model_len`` says more
SHARE = 0.6  # of free memory that the workers may take together


def worker_names(settings: Settings) -> list[str]:
    return [f"w{i}" for i in range(settings.workers)]


def serving_dtype(settings: Settings, models: Mapping[str, ModelConfig]) -> str:
    """The type that all workers compute in. "auto": as stored; float16, and models of several types, give float32."""
    if settings.dtype != "auto":
        return settings.dtype
    stored = {model.dtype for model in models.values()}
    return "bfloat16" if stored == {"bfloat16"} else "float32"


def max_lengths(settings: Settings, models: Mapping[str, ModelConfig]) -> dict[str, int]:
    """Tokens of the longest sequence of each application, prompt and answer together."""
    lengths = {}
    for name, model in models.items():
        if settings.max_model_len > model.max_position:
            raise SettingsError(
                f"max_model_len is {settings.max_model_len}, but {name} handles {model.max_position} positions; "
                f"give at most {model.max_position}"
            )
        lengths[name] = settings.max_model_len or min(model.max_position, LONGEST)
    return lengths


def spans(settings: Settings) -> dict[str, int]:
    """Workers that each application's chain is spread over."""
    return {name: settings.pipelines.get(name, settings.pipeline) for name in settings.applications}


def worker_configs(
    settings: Settings, models: Mapping[str, ModelConfig], *, free_memory: int, cores: int
) -> dict[str, WorkerConfig]:
    """One per worker. ``free_memory`` in bytes. Raises SettingsError."""
    if settings.memory > free_memory:
        raise SettingsError(
            f"memory is {settings.memory} bytes for each worker, but only {free_memory} are free here; "
            "give less (--set memory=...)"
        )
    return {
        name: WorkerConfig(
            name=name,
            device=settings.device,
            dtype=serving_dtype(settings, models),
            backend=settings.backend,
            instruction_set=settings.instruction_set,
            threads=settings.threads or max(cores // settings.workers, 1),
            memory=settings.memory or int(free_memory * SHARE) // settings.workers,
            page_size=settings.page_size,
            chunk_size=settings.chunk_size,
            sweep_tokens=settings.sweep_tokens,
            max_rows=settings.max_rows,
            max_length=max(max_lengths(settings, models).values()),
            kv_layers=max(model.layers for model in models.values()),
            prefix_cache=settings.prefix_cache,
            pace=settings.pace,
            check=settings.check,
            log_format=settings.log_format,
            log_level=settings.log_level,
        )
        for name in worker_names(settings)
    }
