"""Platforms of the CUDA back end: what stands for a card in tests. Opening one imports what it needs, and nothing before."""

from __future__ import annotations

import torch

from ..row_backend import DTYPES
from .backend import CudaBackend, Platform
from .deferred import DeferredStream, DeferredStreams
from .mirror import MirrorMemory
from .ops import Ops
from .ops_torch import TorchOps

MIRROR, INTERPRETED = "cuda-mirror", "cuda-interpreted"


def open_mirror(dtype: str, threads: int = 1, seed: int = 0) -> CudaBackend:
    """Open the mirror: operations by torch, memory by a memory file, and streams that defer work in a seeded order."""
    torch.set_num_threads(max(1, threads))
    streams = DeferredStreams(seed)
    compute = streams.stream()
    return _on_host(MIRROR, dtype, streams, compute, TorchOps(DTYPES.get(dtype, torch.float32), compute.launch))


def open_interpreted(dtype: str, threads: int = 1) -> CudaBackend:
    """Open the mirror with the kernels as operations, which Triton's interpreter runs at once.

    TRITON_INTERPRET is set, and the interpreter made fit (``tests/gpu/cuda/interpreter.py``), before this is called.
    """
    from .ops_triton import TritonOps
    from .tiles import SMALL

    torch.set_num_threads(max(1, threads))
    streams = DeferredStreams(eager=True)
    return _on_host(INTERPRETED, dtype, streams, streams.stream(), TritonOps(DTYPES.get(dtype, torch.float32), SMALL))


def _on_host(name: str, dtype: str, streams: DeferredStreams, compute: DeferredStream, ops: Ops) -> CudaBackend:
    def open_memory(chunk: int, chunks: int) -> MirrorMemory:
        return MirrorMemory(chunk, chunks, streams.queued)

    return CudaBackend(Platform(name, torch.device("cpu"), streams, compute, ops, open_memory), dtype)
