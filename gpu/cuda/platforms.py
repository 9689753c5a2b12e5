"""Platforms of the CUDA back end: a card, or what stands for one in tests. Opening one imports what it needs, and nothing
before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch

from ..errors import BackendError
from ..row_backend import DTYPES
from .backend import CudaBackend, Platform
from .deferred import DeferredStream, DeferredStreams
from .driver import CudaMemory, enter_card
from .mirror import MirrorMemory
from .nvml import number_as_nvml
from .ops import Ops
from .ops_fast import FAST, fast_on_card, fast_on_host
from .ops_torch import TorchOps
from .streams import TorchStream, TorchStreams

CHUNK = 2 << 20  # bytes of a card's chunk: the driver's granule
CARD = "cuda"
MIRROR, INTERPRETED = "cuda-mirror", "cuda-interpreted"


def open_card(number: int, dtype: str, threads: int = 1, bits: str = "invariant") -> CudaBackend:
    """Open a card for the calling thread: kernels by Triton, torch's streams, memory by the driver.

    ``bits`` "fast": products by cuBLAS.

    Raises BackendError, with the remedy, if it does not work. Not yet proved on a card.
    """
    number_as_nvml()
    try:
        from .ops_triton import TritonOps
    except ImportError as error:
        raise BackendError(f"the kernels need triton ({error}); run: pip install 'blockwright[gpu]'") from None
    if dtype not in DTYPES:
        raise BackendError(f"dtype {dtype!r} is not supported on CUDA; choose {' or '.join(DTYPES)}")
    torch.set_num_threads(max(1, threads))
    enter_card(number)
    streams = TorchStreams(number)

    def open_memory(chunk: int, chunks: int) -> CudaMemory:
        return CudaMemory(chunk, chunks, number, streams.queued)

    compute, ops = streams.stream(), cast(Ops, TritonOps(DTYPES[dtype]))
    if bits == FAST:
        ops = fast_on_card(number, ops)
    return CudaBackend(card_platform(number, streams, compute, ops, open_memory), dtype)


def card_platform(
    number: int,
    streams: TorchStreams,
    compute: TorchStream,
    ops: Ops,
    open_memory: Callable[[int, int], CudaMemory],
) -> Platform:
    """Return the platform of a card whose context the calling thread has, by its number."""
    major, minor = torch.cuda.get_device_capability(number)
    name = f"{CARD}-sm{major}{minor}"
    return Platform(name, streams.device, streams, compute, ops, open_memory, partial(enter_card, number), CHUNK)


def open_mirror(dtype: str, threads: int = 1, seed: int = 0, bits: str = "invariant") -> CudaBackend:
    """Open the mirror: operations by torch, memory by a memory file, and streams that defer work in a seeded order.

    ``bits`` "fast": products by torch's own for whole matrices.
    """
    torch.set_num_threads(max(1, threads))
    streams = DeferredStreams(seed)
    compute = streams.stream()
    ops = cast(Ops, TorchOps(DTYPES.get(dtype, torch.float32), compute.launch))
    return _on_host(MIRROR, dtype, streams, compute, fast_on_host(ops, compute.launch) if bits == FAST else ops)


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
