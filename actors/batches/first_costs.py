"""What offline requests cost on this machine before its workers have measured it: a profile's word, or two plain numbers."""

from __future__ import annotations

from blockwright.actors.cost_file import read_costs
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.offline.density import Costs

# A core's products and its reading from memory. They order what runs until the workers have told what their sweeps take;
# only their ratio counts.
COMPUTE, BANDWIDTH = 50e9, 10e9  # FLOP/s, byte/s
VALUE = 2  # bytes of a number; 4 for float32


def first_costs(checkpoint: Checkpoint, profile: str = "") -> Costs:
    """``profile``: a file of ``blockwright profile``. Raises OSError, and ValueError for what is no such file, or one whose
    sweeps had neither tokens nor positions."""
    measured = read_costs(profile)
    if measured is not None:
        return Costs.of_coefficients(measured)
    config = checkpoint.config
    width = 2 * VALUE if config.dtype == "float32" else VALUE
    return Costs.of_model(
        parameters=checkpoint.nbytes / width,
        hidden=config.hidden,
        layers=config.layers,
        kv_width=config.kv_heads * config.head_dim,
        compute=COMPUTE,
        bandwidth=BANDWIDTH,
        value_bytes=width,
    )
