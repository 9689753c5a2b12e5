"""A check of the models before the port is taken: everything that their files tell without being read whole."""

from __future__ import annotations

from pathlib import Path

from ...actors.checkpoints import open_checkpoints
from ...actors.config import Settings
from ...actors.further_applications import check_places
from ...actors.sizing import max_lengths
from ...gpu.weights.checkpoint import check_here
from ...gpu.weights.hub import HUB_ID


def preflight(settings: Settings) -> None:
    """Check the models, and the places that settings name; raise SettingsError, CheckpointError.

    Checkpoints on the hub are unknown at this point.
    """
    check_places(settings)
    for source in settings.applications.values():
        check_here(source)
    if not any(map(of_the_hub, settings.applications.values())):
        max_lengths(settings, {name: one.config for name, one in open_checkpoints(settings).checkpoints.items()})


def of_the_hub(source: str) -> bool:
    return HUB_ID.fullmatch(source) is not None and not Path(source).exists()
