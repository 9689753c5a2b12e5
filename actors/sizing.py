"""Sizing of workers: their configuration from the settings, the checkpoints' configurations and the machine.

Pure: the machine's free memory and cores are arguments. Refuses impossible combinations with ``SettingsError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..gpu.cuda.footprint import Footprint, WorkerShape, footprint
from ..gpu.model.config import ModelConfig
from ..policies.binary_size import binary_size
from ..policies.memory.residence import VIRTUAL
from .cost_file import read_costs
from .settings.errors import SettingsError
from .settings.requests import LONGEST_CONTEXT, RequestSettings
from .settings.settings import Settings
from .settings.workers import MOST_THREADS, WorkerSettings
from .worker.messages import WorkerConfig

SHARE = 0.6  # fraction of free memory that all workers together may take
PROGRAM = 920 << 20  # bytes of address space of a worker with torch's libraries
STACKS = 24 << 20  # bytes of address space per kernel thread: its own stack, and one in each of torch's two pools
HEAP = 64 << 20  # bytes that malloc reserves for each thread but the first; without them it still works


def worker_names(settings: Settings) -> list[str]:
    """Return all possible worker names. The first ``workers`` start at once, the others when they are needed."""
    return [f"w{i}" for i in range(max(settings.worker.workers, settings.autoscaling.autoscale_max_workers))]


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
    """The limits that the workers were started with. An application that is added later has to fit them."""

    dtype: str  # type that they compute in
    # (KV heads, head size) of the layouts that have addresses; None: any can get them
    layouts: frozenset[tuple[int, int]] | None


def worker_limits(worker: WorkerSettings, models: Mapping[str, ModelConfig], address_space: int | None) -> WorkerLimits:
    """Return the limits of the workers that ``worker_configs`` describes."""
    layouts = frozenset((model.kv_heads, model.head_dim) for model in models.values())
    return WorkerLimits(serving_dtype(worker, models), None if address_space is None else layouts)


def check_model(settings: Settings, limits: WorkerLimits, name: str, model: ModelConfig) -> int:
    """Check a further model against the workers as they were started. Raises SettingsError.

    Returns the tokens of its longest sequence.
    """
    length = max_lengths(settings.requests, {name: model})[name]
    if settings.worker.dtype == "auto" and limits.dtype == "bfloat16" and model.dtype != "bfloat16":
        raise SettingsError(
            f"{name} is stored in {model.dtype}, but the workers compute in bfloat16, the type of what they were started "
            f"with; convert it, or restart with --dtype float32 or bfloat16"
        )
    if limits.layouts is not None and (model.kv_heads, model.head_dim) not in limits.layouts:
        raise SettingsError(
            f"{name} has KV of {model.kv_heads} heads of {model.head_dim}, for which a process here has no addresses left "
            f"(ulimit -v or -d); raise the limit and restart"
        )
    return length


def worker_configs(
    settings: Settings,
    models: Mapping[str, ModelConfig],
    *,
    free_memory: int,
    cores: int,
    address_space: int | None = None,
    where: str = "here",
) -> dict[str, WorkerConfig]:
    """Return one configuration per worker. Raises SettingsError.

    ``free_memory`` is in bytes, and lies ``where``.
    ``address_space`` is the number of bytes that a process may map; None means no limit.
    """
    workers, asked = len(worker_names(settings)), settings.worker_memory.memory
    if (beside := card_footprint(settings, models)) is not None:
        free_memory = _left_on_card(free_memory, beside, settings, where)
    if asked * workers > free_memory:
        all_of_them = f" for each worker, {binary_size(asked * workers)} for all {workers}" if workers > 1 else ""
        raise SettingsError(
            f"memory is {binary_size(asked)}{all_of_them}, but only {binary_size(free_memory)} are free {where}; "
            "give less (--set memory=...)"
        )
    pace, profile = read_costs(settings.worker.pace), read_costs(settings.worker.profile)
    memory = asked or int(free_memory * SHARE) // workers
    threads = settings.worker.threads or min(max(cores // workers, 1), MOST_THREADS)
    if address_space is not None:
        _check_address_space(address_space, memory, threads, models)
    worker = replace(settings.worker, dtype=serving_dtype(settings.worker, models), threads=threads)
    return {
        name: WorkerConfig(
            name=name,
            worker=worker,
            worker_memory=replace(settings.worker_memory, memory=memory),
            batching=settings.batching,
            tenants=settings.tenants,
            tiering=settings.tiering,
            offline=settings.offline,
            logs=settings.logs,
            max_length=max(max_lengths(settings.requests, models).values()),
            kv_layers=max(model.layers for model in models.values()),
            on_demand=settings.models.on_demand,
            pace=pace,
            profile=profile,
            check=settings.faults.check,
            overload=settings.parameter_drops.is_on,
        )
        for name in worker_names(settings)
    }


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


def card_memory(settings: Settings, models: Mapping[str, ModelConfig], configs: Mapping[str, WorkerConfig]) -> str:
    """Return a sentence on the memory that each worker has on its card."""
    beside, memory = card_footprint(settings, models), next(iter(configs.values())).worker_memory.memory
    assert beside is not None, "workers compute on a card"
    context = binary_size(beside.context)
    return f"each worker has {binary_size(memory)} for parameters and KV; beside it {context} context, {beside.sizes}"


def _left_on_card(free_memory: int, beside: Footprint, settings: Settings, where: str) -> int:
    """Return the bytes that are left for parameters and KV; contexts were put aside before. Raises SettingsError."""
    workers = len(worker_names(settings))
    left = free_memory - workers * (beside.total - beside.context)
    if left <= 0:
        raise SettingsError(
            f"workers is {workers}, but only {binary_size(free_memory)} are free {where}, and before any parameter each "
            f"takes {beside.sizes}; start fewer, give less sweep_tokens ({settings.batching.sweep_tokens}) or max_rows "
            f"({settings.batching.max_rows}), or choose a larger card"
        )
    return left


def program_space(threads: int) -> int:
    """Return the bytes of address space of a worker with ``threads`` kernel threads, before any for models (measured).

    Two heaps are created early, so parameters and KV do not get their space.
    """
    return PROGRAM + threads * STACKS + min(threads - 1, 2) * HEAP


def _check_address_space(limit: int, memory: int, threads: int, models: Mapping[str, ModelConfig]) -> None:
    """Check that the address space suffices. Raises SettingsError.

    A worker reserves ranges for parameters and for each layout's KV. They cost nothing but addresses.
    """
    ranges = VIRTUAL + len({(model.kv_heads, model.head_dim) for model in models.values()})
    program = program_space(threads)
    if (need := program + ranges * memory) > limit:
        fits = (limit - program) // ranges
        less = f" or give less memory (--set memory={fits >> 20}MiB)" if fits >= 1 << 20 else ""
        raise SettingsError(
            f"a process here may map {binary_size(limit)} (ulimit -v or -d), but a worker with memory {binary_size(memory)} "
            f"needs about {binary_size(need)}; raise the limit (ulimit -v unlimited){less}"
        )
