"""The settings of offline batches: their store, and what they may cost other requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .part import AT_LEAST_ONE, BYTES, SECONDS, Bounds, SettingsPart


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineSettings(SettingsPart):
    """Offline batches."""

    batch_dir: Annotated[
        str, "folder that keeps files and batches through any crash, used by one server only; empty: no batches"
    ] = ""
    batch_requests: Annotated[int, "most requests in a batch", AT_LEAST_ONE] = 50_000
    batch_bytes: Annotated[int, "maximum size of a batch's input file in bytes (or 200MiB)", BYTES, AT_LEAST_ONE] = 200 << 20
    offline_delay: Annotated[
        float,
        "most by which batch requests may slow other answers: 0 (they join only if that costs nothing) to 1 (twice as slow)",
        Bounds("a share of a step, 0 to 1", 0, 1),
    ] = 0.03
    offline_sweep: Annotated[float, "most seconds for a step of batch requests alone; new requests wait for it", SECONDS] = (
        0.02
    )
