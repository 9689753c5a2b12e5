"""Platforms of the CUDA back end: what stands for a card in tests. Opening one imports what it needs, and nothing before."""

from __future__ import annotations

import torch

from ..row_backend import DTYPES
from .backend import CudaBackend, Platform
from .deferred import DeferredStreams
from .mirror import MirrorMemory
from .ops_torch import TorchOps

MIRROR = "cuda-mirror"


def open_mirror(dtype: str, threads: int = 1, seed: int = 0) -> CudaBackend:
    """Open the mirror: operations by torch, memory by a memory file, and streams that defer work in a seeded order."""
    torch.set_num_threads(max(1, threads))
    streams = DeferredStreams(seed)
    compute = streams.stream()
    platform = Platform(
        MIRROR,
        torch.device("cpu"),
        streams,
        compute,
        TorchOps(DTYPES.get(dtype, torch.float32), compute.launch),
        lambda chunk, chunks: MirrorMemory(chunk, chunks, streams.queued),
    )
    return CudaBackend(platform, dtype)
