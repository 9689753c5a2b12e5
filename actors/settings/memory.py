"""The settings of a worker's memory: its size, its pages of KV, and what they are reused for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .part import AT_LEAST_ONE, BYTES, COUNT, AllowedTexts, Bounds, SettingsPart


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings(SettingsPart):
    """The memory of each worker, and the prefix cache in it."""

    memory: Annotated[
        int,
        "bytes (or 2GiB) for parameters and KV, per worker; 0: 60 % of free memory, divided by the workers",
        BYTES,
        COUNT,
    ] = 0
    kv_reserve: Annotated[
        float,
        "with on_demand: share of the memory beside the largest application that stays free for KV, 0 to 0.9",
        Bounds("0 to 0.9", 0, 0.9),
    ] = 0.1
    page_size: Annotated[int, "tokens per page of KV", AT_LEAST_ONE] = 16
    block_idle: Annotated[
        float,
        "seconds without use until an extra copy of a busy block is unloaded; 0: no extra copies",
        Bounds("seconds, or 0 for no extra copies of blocks", 0),
    ] = 60.0
    prefix_cache: Annotated[bool, "reuse the KV of equal prompt prefixes"] = True
    redundant_pages: Annotated[
        float,
        "seconds between looks for cached pages that several workers have: all copies but the last used go first; 0: never",
        Bounds("seconds, or 0 for never", 0),
    ] = 60.0
    hidden_pages: Annotated[
        str,
        "keep what lower tiers leave for higher ones: on, off, or auto: if there are some",
        AllowedTexts("auto", "on", "off"),
    ] = "auto"
    shared_cache: Annotated[bool, "let tenants reuse each other's prefixes; timing then reveals equal prompts"] = False

    @property
    def marks_copies(self) -> bool:
        """True if workers are compared for cached pages that several of them have."""
        return self.prefix_cache and self.redundant_pages > 0
