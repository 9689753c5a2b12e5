"""The machine that a batch is planned for: one worker here, by a profile of it or by a guess. Not a command."""

from __future__ import annotations

from dataclasses import dataclass

from ...actors.config import Settings
from ...gpu.weights.checkpoint import Checkpoint
from ...policies.offline.density import Costs
from . import CommandError

COMPUTE, BANDWIDTH = 50e9, 10e9  # FLOP/s and byte/s of a core without a profile: a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMachine:
    """The machine of a plan.

    ``positions``: KV positions that a worker holds. ``weights``: seconds of a step that computes nothing. ``measured``: the
    profile's file, or an empty text.
    """

    costs: Costs
    positions: int
    weights: float
    measured: str


def machine_of(settings: Settings, name: str, checkpoint: Checkpoint) -> PlannedMachine:
    """Return a worker on this machine with the settings; raise CommandError, SettingsError."""
    from ...actors.cost_file import check_costs, read_costs
    from ...actors.resources import cores, free_memory
    from ...actors.sizing import serving_dtype, widening, worker_configs

    models = {name: checkpoint.config}
    config, dtype = checkpoint.config, serving_dtype(settings, models)
    check_costs(settings)
    memory = next(iter(worker_configs(settings, models, free_memory=free_memory(), cores=cores()).values())).memory
    position = 2 * config.kv_heads * config.head_dim * config.layers * (4 if dtype == "float32" else 2)
    parameters = checkpoint.nbytes * widening(dtype, models)
    if (positions := (memory - parameters) // position) < 1:
        raise CommandError(f"memory is {memory} bytes, of which {name} takes {parameters}; give more (--set memory=...)", 2)
    if (measured := read_costs(settings.profile)) is not None:
        costs, weights = Costs.of_coefficients(measured), measured.base + measured.step + measured.read
    else:
        width = 4 if dtype == "float32" else 2
        weights = parameters / BANDWIDTH
        costs = Costs.of_model(
            parameters=parameters / width,
            hidden=config.hidden,
            layers=config.layers,
            kv_width=config.kv_heads * config.head_dim,
            compute=COMPUTE,
            bandwidth=BANDWIDTH,
            value_bytes=width,
        )
    return PlannedMachine(costs=costs, positions=positions, weights=weights, measured=settings.profile)
