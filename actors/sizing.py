"""Configurations of workers from the settings and the checkpoints' configurations.

Pure. What depends on a worker's machine is settled when the worker joins (``policies/cluster/worker_size.py``). Refuses
impossible combinations with ``SettingsError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..gpu.cuda.footprint import Footprint, WorkerShape, footprint
from ..gpu.model.config import ModelConfig
from ..policies.cluster.worker_size import ROWS, SizeRules, WorkerReport
from .cost_file import read_costs
from .settings.errors import SettingsError
from .settings.requests import LONGEST_CONTEXT, RequestSettings
from .settings.settings import Settings
from .settings.workers import MOST_THREADS, WorkerSettings
from .worker.messages import WorkerConfig


def worker_names(settings: Settings) -> list[str]:
    """Return the possible names of workers that are started from here.

    The first ``workers`` start at once, the others when they are needed.
    """
    workers, launching = settings.worker.workers, settings.launching
    if launching.places:
        workers = max(workers + launching.launched_workers, settings.autoscaling.autoscale_max_workers)
    return [f"w{number}" for number in range(workers)]


def launched_names(settings: Settings) -> list[str]:
    """Return the possible names of workers that a launcher starts elsewhere."""
    return [] if settings.launching.is_local else worker_names(settings)[settings.worker.workers :]


def workers_here(settings: Settings) -> int:
    """Return the most workers that share the head's machine."""
    return len(worker_names(settings)) - len(launched_names(settings))


def serving_dtype(worker: WorkerSettings, models: Mapping[str, ModelConfig]) -> str:
    """Return the type that all workers compute in.

    "auto" means as stored; float16, and models of several types, give float32.
    """
    if worker.dtype != "auto":
        return worker.dtype
    stored = {model.dtype for model in models.values()}
    return "bfloat16" if stored == {"bfloat16"} else "float32"


def widening(dtype: str, models: Mapping[str, ModelConfig]) -> int:
    """Return the largest factor by which parameters grow from their files to memory."""
    return 2 if dtype == "float32" and any(model.dtype != "float32" for model in models.values()) else 1


def max_lengths(requests: RequestSettings, models: Mapping[str, ModelConfig]) -> dict[str, int]:
    """Return the tokens of each application's longest sequence, prompt and answer together."""
    lengths = {}
    for name, model in models.items():
        if requests.max_model_len > model.max_position:
            raise SettingsError(
                f"max_model_len is {requests.max_model_len}, but {name} handles {model.max_position} positions; "
                f"give at most {model.max_position}"
            )
        lengths[name] = requests.max_model_len or min(model.max_position, LONGEST_CONTEXT)
    return lengths


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The limits that the workers were started with. An application that is added later has to fit them.

    dtype: the type that they compute in. layouts: (KV heads, head size) of the layouts of KV that they have for certain.
    """

    dtype: str
    layouts: frozenset[tuple[int, int]]


def worker_limits(worker: WorkerSettings, models: Mapping[str, ModelConfig]) -> WorkerLimits:
    """Return the limits of the workers that ``worker_configs`` describes."""
    return WorkerLimits(serving_dtype(worker, models), _layouts(models))


def check_model(settings: Settings, limits: WorkerLimits, name: str, model: ModelConfig, crowded: str = "") -> int:
    """Check a further model against the workers as they were started. Raises SettingsError.

    ``crowded``: a host on which a process may not map as much as it likes, or none. Returns the tokens of the model's
    longest sequence.
    """
    length = max_lengths(settings.requests, {name: model})[name]
    if settings.worker.dtype == "auto" and limits.dtype == "bfloat16" and model.dtype != "bfloat16":
        raise SettingsError(
            f"{name} is stored in {model.dtype}, but the workers compute in bfloat16, the type of what they were started "
            f"with; convert it, or restart with --dtype float32 or bfloat16"
        )
    if crowded and (model.kv_heads, model.head_dim) not in limits.layouts:
        raise SettingsError(
            f"{name} has KV of {model.kv_heads} heads of {model.head_dim}, for which a process on {crowded} has no "
            f"addresses left (ulimit -v or -d); raise the limit and restart"
        )
    return length


def size_rules(settings: Settings, models: Mapping[str, ModelConfig]) -> SizeRules:
    """Return what the settings say about the size of each worker."""
    taken, batching = card_footprint(settings, models), settings.batching
    less = f"give less sweep_tokens ({batching.sweep_tokens}) or max_rows ({batching.max_rows})"
    return SizeRules(
        memory=settings.worker_memory.memory,
        threads=settings.worker.threads,
        workers=workers_here(settings),
        layouts=len(_layouts(models)),
        most_threads=MOST_THREADS,
        widening=widening(serving_dtype(settings.worker, models), models),
        beside=taken.total - taken.context if taken is not None else 0,
        beside_sizes=taken.sizes if taken is not None else "",
        less_beside=less,
        context=taken.context if taken is not None else 0,
    )


def worker_configs(settings: Settings, models: Mapping[str, ModelConfig], head: str = "") -> dict[str, WorkerConfig]:
    """Return one configuration per worker. Memory, threads and device are as the settings have them: each worker
    learns its own when it joins. ``head``: the head's machine.
    """
    pace, profile = read_costs(settings.worker.pace), read_costs(settings.worker.profile)
    worker = replace(settings.worker, dtype=serving_dtype(settings.worker, models))
    names = worker_names(settings)
    return {
        name: WorkerConfig(
            name=name,
            worker=worker,
            sources=settings.sources,
            worker_memory=settings.worker_memory,
            batching=settings.batching,
            tenants=settings.tenants,
            tiering=settings.tiering,
            offline=settings.offline,
            logs=settings.logs,
            max_length=max(max_lengths(settings.requests, models).values()),
            kv_layers=max(model.layers for model in models.values()),
            on_demand=settings.models.on_demand,
            exact=settings.drafting.exact,
            pace=pace,
            profile=profile,
            check=settings.faults.check,
            resume_window=settings.faults.resume_window,
            heartbeat=settings.faults.heartbeat,
            silence=settings.faults.silence,
            overload=settings.parameter_drops.is_on,
            sharing=workers_here(settings),
            head=head,
        )
        for name in names
    }


def sized(config: WorkerConfig, report: WorkerReport) -> WorkerConfig:
    """Return a worker's configuration with its size, as it was settled when the worker joined."""
    worker = replace(config.worker, threads=report.threads, device=report.device)
    memory = replace(config.worker_memory, memory=report.memory)
    return replace(config, worker=worker, worker_memory=memory, speed=ROWS * report.speed)


def card_footprint(settings: Settings, models: Mapping[str, ModelConfig]) -> Footprint | None:
    """Return what each worker takes of a card beside its memory; None where workers compute on none."""
    worker = settings.worker
    if not worker.may_be_card:
        return None
    shape = WorkerShape(
        rows=settings.batching.max_rows,
        tokens=settings.batching.sweep_tokens,
        length=max(max_lengths(settings.requests, models).values()),
        page=settings.worker_memory.page_size,
        dtype=serving_dtype(worker, models),
    )
    return footprint(models.values(), shape)


def _layouts(models: Mapping[str, ModelConfig]) -> frozenset[tuple[int, int]]:
    return frozenset((model.kv_heads, model.head_dim) for model in models.values())
